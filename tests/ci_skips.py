"""In CI (`CI` in the environment) a skipped test fails, unless `ALLOWED` says why it may be."""

import os
import re

import pytest

# What is skipped, as a pattern of the reason, and why CI does without it.
ALLOWED = {
    "JAXBENCH_TEST_GPU names no Python": "jax[cuda12] takes gigabytes; `.ci/run weekly` has it",
    "no real data at|beside the real data": "the data sets are not in the repository",
    "this file system is not counted": "a container's disk may be memory, which is never cold",
}


def refuse(report) -> None:
    """Fails a report of a skipped test, fixture or module, unless its reason is allowed."""
    if not (os.environ.get("CI") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2]
    if not any(re.search(pattern, reason) for pattern in ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"{reason} (CI skips only what tests/ci_skips.py allows)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    refuse(report)
    return report
