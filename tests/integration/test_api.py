"""The Python API in processes of its own: what it imports, and in a notebook."""

import os
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import MICRO, ROOT
from tests.integration.conftest import run_program
from tests.reports.test_golden import write_golden_runs


@pytest.fixture(autouse=True)
def checkout_is_imported(monkeypatch):
    """Kernels are processes, which may have another jaxbench installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_only_what_measures_loads_jax(tmp_path):
    os.close(write_golden_runs(tmp_path))
    # Repeats have intervals that SciPy computes.
    code = """
import sys
import jaxbench
assert "jaxbench.api" not in sys.modules
jaxbench.experiments(), jaxbench.Run("tp128"), jaxbench.load_runs("train")
jaxbench.report(["tp128", "train/seed0", "scaling", "compiled"])
heavy = {"jax", "flax", "tensorflow", "matplotlib", "scipy"} & set(sys.modules)
assert not heavy, heavy
jaxbench.compare("train/seed0", "train/seed1")
assert "jax" not in sys.modules
"""
    done = run_program([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


INTERRUPTED = f"""
import os, pathlib, signal, threading, time
import jaxbench

def interrupt():
    epochs = pathlib.Path("run/epochs.csv")
    while not epochs.exists() or len(epochs.read_text().splitlines()) < 3:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    jaxbench.train({MICRO!r}, workdir="run", epochs=100_000)
except KeyboardInterrupt:
    print("stopped with", len(os.listdir("run/checkpoints")), "checkpoint")
"""
AFTERWARDS = f"""
run = jaxbench.train({MICRO!r}, epochs=2, quiet=True)
print(jaxbench.Run("run").status, run.status)
"""


def test_a_notebook_survives_an_interrupt(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in (INTERRUPTED, AFTERWARDS)]
    )
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    first, second = ("".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells)
    assert first.rstrip().endswith("stopped with 1 checkpoint") and second == "interrupted done\n"
