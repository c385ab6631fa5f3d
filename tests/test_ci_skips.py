"""In CI a test that lacks what it needs fails, and says what that is."""

import types

import pytest

from tests.ci_skips import refuse


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
