"""What tells the two halves of the suite apart, and what holds the fast one to its limits.

Tests in tests/integration are of the integration half. A fast test that starts a process fails. A
fast test that takes long fails the whole run, with a line at its end.
"""

import multiprocessing.util
import os
import pathlib
import sys

import pytest

# What a fast test should take at most by the clock, set-up included. A busy machine takes several
# times as long over all tests, so a test is held to a share of the whole suite's time as well.
LONGEST_S, LARGEST_SHARE = 5.0, 0.03
# What jaxbench and its libraries start by themselves: for the commit, and to find a library.
_MAY_START = ("git", "uname", "ldconfig", "gcc", "cc", "ld", "objdump")
_HERE = pathlib.Path(__file__).resolve().parent
_started: list[str] = []
_taken_s: dict[str, float] = {}


def pytest_collection_modifyitems(items):
    for item in items:
        in_folder = "integration" in item.path.relative_to(_HERE).parts
        if in_folder and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.integration)


def is_fast(item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("integration", "slow"))


def limit_s(whole_s: float) -> float:
    """Returns how long a fast test takes that fails a run whose tests took `whole_s` in all."""
    return max(LONGEST_S, LARGEST_SHARE * whole_s)


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
    if report.is_fast:
        _taken_s[report.nodeid] = _taken_s.get(report.nodeid, 0.0) + report.duration


def _too_long(config) -> list[str]:
    """Returns a line for each fast test that took too long, where the whole fast half ran."""
    if config.args_source is not config.ArgsSource.TESTPATHS or config.option.keyword:
        return []
    limit = limit_s(sum(_taken_s.values()))
    return [
        f"{name}: {taken_s:.1f} s, allowed are {limit:.1f} s"
        for name, taken_s in _taken_s.items()
        if taken_s > limit
    ]


def _coverage():
    """Returns what measures coverage in this process, or None."""
    return sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None


def pytest_sessionfinish(session):
    if coverage := _coverage():
        # A worker that takes over 10 s to exit is killed, and what it knows of coverage with it.
        coverage.save()
        _taken_s.clear()  # measuring takes time
    if _too_long(session.config) and not hasattr(session.config, "workerinput"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if not terminalreporter.stats and not config.option.collectonly:
        terminalreporter.line(
            "the fast half alone runs; others: -m integration (tests/integration), -m slow"
        )
    if lines := _too_long(config):
        terminalreporter.section("fast tests that take too long", red=True)
        for line in lines:
            terminalreporter.line(line)
