"""The suite's own rules, and commands in the tests' process."""

import multiprocessing
import subprocess
import types

import pytest

from tests.ci_skips import refuse


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
