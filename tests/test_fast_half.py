"""The suite's own rules, and commands in the tests' process."""

import multiprocessing
import subprocess
import types

import pytest
from absl import flags

from tests.ci_skips import refuse
from tests.conftest import MICRO, run_json


def test_a_command_runs_with_flags_of_its_own(run_cli, tmp_path):
    before = dict(flags.FLAGS.flag_values_dict())
    trained = run_cli(f"--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run")
    assert trained.returncode == 0, trained.stderr
    assert run_json(tmp_path / "run")["config"]["epochs"] == 1
    # Nothing of one call is left for the next, nor of one command for another.
    described = run_cli(f"--experiment={MICRO}", "--mode=describe")
    assert described.returncode == 0 and "epochs" in described.stdout
    helped = run_cli("--help", module="jaxbench.compare")
    assert helped.returncode == 0 and "--tolerance" in helped.stdout
    assert flags.FLAGS.flag_values_dict() == before


def _spawn():
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the rule that this shows")
@pytest.mark.parametrize("start", [lambda: subprocess.run(["true"], check=True), _spawn])
def test_no_fast_test_starts_a_process(start):
    start()


@pytest.mark.parametrize(
    ("variables", "reason", "outcome"),
    [
        ({"CI": "true"}, "Skipped: needs Ray", "failed"),
        ({"CI": "true"}, "Skipped: no real data at /nowhere", "skipped"),
        ({}, "Skipped: needs Ray", "skipped"),
    ],
)
def test_what_is_skipped_in_ci(monkeypatch, variables, reason, outcome):
    monkeypatch.delenv("CI", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = types.SimpleNamespace(outcome="skipped", skipped=True, longrepr=("a.py", 1, reason))
    refuse(report)
    assert report.outcome == outcome and reason in str(report.longrepr)
