"""What tells the two halves of the suite apart, and what holds the fast one to its limits.

Tests in tests/integration are of the integration half. A fast test that starts a process fails. A
fast test that takes long fails the whole run, with a line at its end.
"""

import multiprocessing.util
import os
import pathlib
import sys

import pytest

# What a fast test may take by the clock, set-up included; and the margin for slow and busy machines
# with which it is held to it, see `limit_s`.
LONGEST_S, MARGIN = 5.0, 1.5
# What jaxbench and its libraries start by themselves: for the commit, and to find a library.
_MAY_START = ("git", "uname", "ldconfig", "gcc", "cc", "ld", "objdump")
_HERE = pathlib.Path(__file__).resolve().parent
_started: list[str] = []
_taken_s: dict[str, float] = {}
_too_long: list[str] = []


def pytest_collection_modifyitems(items):
    for item in items:
        in_folder = "integration" in item.path.relative_to(_HERE).parts
        if in_folder and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.integration)


def is_fast(item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("integration", "slow"))


def limit_s(load: float, cores: int) -> float:
    """Returns how long a fast test took that fails the run.

    `load` is the system's load average, this suite's own threads included. Where it is above the
    number of cores, the limit grows in proportion, at most to three times as much.
    """
    return LONGEST_S * MARGIN * min(3.0, max(1.0, load / cores))


def _note_process(event: str, args: tuple) -> None:
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        _started.append(event)
    if event == "subprocess.Popen" and pathlib.Path(os.fsdecode(args[0])).name not in _MAY_START:
        _started.append(str(args[1]))


sys.addaudithook(_note_process)
_spawn = multiprocessing.util.spawnv_passfds


def _note_spawn(path, args, passed):
    """Notes a process of multiprocessing, which raises no audit event."""
    _started.append(str(args))
    return _spawn(path, args, passed)


multiprocessing.util.spawnv_passfds = _note_spawn


def pytest_runtest_logstart():
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    _check_started(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    result = yield
    _check_started(item)
    return result


def _check_started(item) -> None:
    started = list(_started)
    _started.clear()
    assert not (is_fast(item) and started), f"belongs in tests/integration: starts {started}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    report.is_fast = is_fast(item)  # the process that gathers all reports has no items
    return report


def pytest_runtest_logreport(report):
    """Adds up the phases of a test, in the process that gathers the reports of all workers."""
    taken_s = _taken_s[report.nodeid] = _taken_s.get(report.nodeid, 0.0) + report.duration
    allowed_s = limit_s(os.getloadavg()[0], os.cpu_count())
    if report.when == "teardown" and report.is_fast and taken_s > allowed_s:
        _too_long.append(f"{report.nodeid}: {taken_s:.1f} s, allowed are {allowed_s:.1f} s")


def _coverage():
    """Returns what measures coverage in this process, or None."""
    return sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None


def pytest_sessionfinish(session):
    if coverage := _coverage():
        # A worker that takes over 10 s to exit is killed, and what it knows of coverage with it.
        coverage.save()
        _too_long.clear()  # measuring takes time
    if _too_long and not hasattr(session.config, "workerinput") and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if not terminalreporter.stats and not config.option.collectonly:
        terminalreporter.line(
            "the fast half alone runs; others: -m integration (tests/integration), -m slow"
        )
    if _too_long:
        terminalreporter.section("fast tests that take too long", red=True)
        for line in _too_long:
            terminalreporter.line(line)
