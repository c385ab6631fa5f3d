"""The documentation as text: links between files, and what its pages are made from."""

import dataclasses
import importlib.util
import itertools
import re

import pytest

from jaxbench.cards.card import Card
from jaxbench.schema import METRICS
from tests.conftest import ROOT

# Also read on GitHub, where the pages that a build makes are missing.
_GENERATED = ("commands", "experiments", "fields", "flags", "records")
_PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "results/*.md", ".github/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.parent.name != "reference" or path.stem not in _GENERATED
]
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)|(?:srcset|src|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors_of(text: str) -> set[str]:
    """The anchors of a Markdown file's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path) -> list[str]:
    """The links of a Markdown file to files and headings that are not in a checkout."""
    broken = []
    # What HTML of the site links to is made by the build.
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in filter(None, itertools.chain(*_LINK.findall(text))):
        file, _, anchor = link.partition("#")
        if re.match("[a-z]+:", link):
            continue
        target = (path.parent / file).resolve() if file else path
        made = target.parent.name == "reference" and target.stem in _GENERATED
        if made or not target.exists() or anchor and anchor not in anchors_of(target.read_text()):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", _PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere_in_a_checkout_too(path):
    assert not broken_links(path)


def test_every_field_of_a_record_says_what_it_means(generate):
    for cls in generate.DESCRIBED:
        assert all(generate.meanings_of(cls).values())
    for cls in (Card, *generate.CARD_PARTS):
        assert {*cls.__struct_fields__} == generate.meanings_of(cls).keys() - {""}, cls.__name__
    assert "train/loss" in generate.records_page()


def test_every_field_of_an_experiment_says_what_it_means(generate):
    configs = {name: generate.registry.load(name) for name in generate.registry.available()}
    parts = {generate.DataConfig, generate.OptimizerConfig, *generate._models(configs)}
    for cls in (*map(type, configs.values()), *parts):
        names = {field.name for field in dataclasses.fields(cls)} - {"model", "data", "optimizer"}
        assert names == generate.meanings_of(cls).keys() - {"", "has_blocks"}, cls.__name__
    assert "confval} data.cache_side" in generate.fields_page(configs)


def test_every_metric_of_the_catalogue_is_used(generate):
    used = {name for cls in generate.DESCRIBED for name in cls.__struct_fields__}
    sources = "".join(path.read_text() for path in (ROOT / "jaxbench").glob("**/*.py"))
    # The others are estimated from what is recorded; the report has columns for them.
    # Once is where they are described.
    assert not [name for name in METRICS.keys() - used if sources.count(f'{name}"') < 2]
