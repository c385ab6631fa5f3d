"""The report as a process: what it imports, how long it takes, what Chromium says of it."""

import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import run_program
from tests.recorded import write_telemetry
from tests.reports.many_runs import write_many
from tests.reports.pages import Page
from tests.reports.test_report import everything  # noqa: F401


def test_jax_is_not_imported(everything):  # noqa: F811
    # Repeats have intervals that SciPy computes.
    folders = [str(everything / name) for name in ("tp128", "train/seed0", "scaling", "compiled")]
    code = (
        "import sys\n"
        "from jaxbench.cli import entry_point\n"
        "from jaxbench.reports.write import render\n"
        "from jaxbench.reports.collect import collect\n"
        f"render(collect({folders!r}), 'html', 't')\n"
        "heavy = {'jax', 'flax', 'tensorflow', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """500 runs of 150 epochs, 3 of them with a day of telemetry of three devices."""
    folder = write_many(tmp_path_factory.mktemp("many"), 500, num_epochs=150)
    first, *others = sorted(folder.glob("cnn10/*"))[:3]
    write_telemetry(first, 86_400)
    for other in others:
        shutil.copy(first / "telemetry.csv", other)
    return folder


def test_500_runs_and_a_day_of_telemetry(many, tmp_path):
    # Seconds on an idle machine; the bound is for a busy one.
    done = run_program(
        [sys.executable, "-m", "jaxbench.report", str(many)], cwd=tmp_path, timeout_s=60
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text()
    assert len(text.encode()) < 3e6
    Page(text)
    for number in (0, 250, 499):
        assert f"/<wbr>run{number:03d}<" in text or f"/run{number:03d}<" in text
    assert "500 runs" in text and "n = 86,400 samples" in text
