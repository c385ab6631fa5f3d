"""The documentation is built as its readers get it, and nothing is missing in it."""

import html
import re
import shutil
import subprocess
import sys

import pytest

from jaxbench.cli import registry
from jaxbench.config.fields import overridable
from jaxbench.modes.options import OPTIONS
from tests.conftest import ROOT

# A page that is longer is not read, and slow on a phone; without its style sheets.
_LARGEST_PAGE_BYTES = 300_000


def test_the_site_is_built_without_a_warning_and_names_everything(tmp_path):
    """The notebook is run for it; the site stays in build/docs."""
    pytest.importorskip("sphinx", reason="needs pip install -e '.[docs]'")
    site, warnings = ROOT / "build" / "docs", tmp_path / "warnings.txt"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-w", str(warnings)]
    built = subprocess.run([*command, "docs", str(site)], cwd=ROOT, timeout=600)
    # A page that no table of contents names is a warning too, and so is a link to nowhere.
    assert (warnings.read_text(), built.returncode) == ("", 0)

    pages = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    for name, path in pages.items():
        assert path.stat().st_size < _LARGEST_PAGE_BYTES, name
        # Sphinx checks only links that it makes itself.
        for link in re.findall(r'href="([^"#:?]+)[#"?]', path.read_text()):
            assert (path.parent / html.unescape(link)).exists(), (name, link)
    assert "sample-report.html" in pages["index.html"].read_text()
    text = {name: _text(path) for name, path in pages.items()}
    for name in registry.available():
        assert name in text["reference/experiments.html"]
        assert name == "conv2d" or name in text["what-fits.html"]
        for field in overridable(registry.load(name)):
            assert re.search(rf"\b{re.escape(field)}\b", text["reference/fields.html"]), field
    for flag in {*OPTIONS, "grid", "baseline", "list_offers", "format"}:
        assert re.search(rf"--{flag}\b", text["reference/flags.html"]), flag
    assert "images_per_s_whole_run" in text["reference/records.html"]
    for word in ("eval_top1", "images/s", "report.html", "optimizer.learning_rate"):
        assert word in text["notebooks/tour.html"]


def _text(path) -> str:
    return html.unescape(re.sub("<[^>]*>", "", path.read_text()))
