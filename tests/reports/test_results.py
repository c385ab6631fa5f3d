"""The cards in results/: each is whole, and the table is that of the command."""

import pathlib

import pytest

from jaxbench.cards.card_file import CARD
from jaxbench.paths import hide_paths
from jaxbench.reports.collect import collect
from jaxbench.reports.write import render_markdown
from tests.cards import made
from tests.conftest import ROOT
from tests.reports.pages import sections_of


def problems(folder: pathlib.Path) -> list[str]:
    """Returns why results cannot be published."""
    cards = {*folder.glob(f"*/{CARD}")}
    table = {folder / "cards.md"} if cards else set()
    files = {path for path in folder.rglob("*") if path.is_file()}
    why = [f"{path.name} does not belong here" for path in files - cards - table]
    why.remove("README.md does not belong here")
    if not cards:
        return why
    found = collect([str(folder)])
    why += found.notes + found.card_notes
    why += [f"{own.name}: {problem}" for own in found.cards for problem in own.problems]
    texts = {path.parent.name: path.read_text() for path in cards}
    why += [f"{name}: has paths" for name, text in texts.items() if hide_paths(text) != text]
    table = render_markdown([sections_of(folder)["cards"]], "jaxbench: cards")
    if (folder / "cards.md").read_text() != table:
        why.append("cards.md is not what the command writes")
    return why


def test_what_lies_in_results_is_whole():
    assert problems(ROOT / "results") == []


@pytest.fixture
def results(run_cli, tmp_path):
    """Results of two machines, as the README says to add them."""
    for name in ("lab-4xh100", "other"):
        path = made.write(tmp_path / "runs" / name, made.judged(host=name))
        (tmp_path / "results" / name).mkdir(parents=True)
        path.rename(tmp_path / "results" / name / CARD)
    (tmp_path / "results" / "README.md").touch()
    write_table(run_cli)
    return tmp_path / "results"


def write_table(run_cli):
    command = ("table", "results", "--out=results/cards.md")
    assert run_cli(*command, module="jaxbench.qualify").returncode == 0


def test_cards_that_were_checked_can_be_published(results):
    assert problems(results) == []
    assert "| C1 | lab-4xh100 |" in (results / "cards.md").read_text()


def test_what_cannot_be_published_is_named(results, run_cli):
    made.alter(results / "other" / CARD, lambda c: c["environment"].update(a="/home/jo/x"))
    assert problems(results) == ["other: has paths"]
    made.alter(results / "other" / CARD, lambda c: c["environment"].update(a="", hostname="new"))
    assert problems(results) == ["cards.md is not what the command writes"]
    made.alter(results / "other" / CARD, lambda c: c.update(created_at="2999-01-01T00:00:00Z"))
    write_table(run_cli)
    [line] = problems(results)
    assert line.startswith("other: created_at is 2999")
    (results / "other" / CARD).write_text("{}")
    (results / "other" / "run.log").touch()
    log, note, *_ = problems(results)
    assert log == "run.log does not belong here" and "other is left out" in note
