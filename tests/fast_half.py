"""What tells the two halves of the suite apart.

Tests in tests/integration are of the integration half. A fast test that starts a process fails.
`timeout` of setup.cfg is the longest that a fast test may take; others may take longer.
"""

import multiprocessing.util
import os
import pathlib
import sys

import pytest

# What jaxbench and its libraries start by themselves: for the commit, and to find a library.
_MAY_START = ("git", "uname", "ldconfig", "gcc", "cc", "ld", "objdump")
_HERE = pathlib.Path(__file__).resolve().parent
_started: list[str] = []


def pytest_collection_modifyitems(items):
    for item in items:
        in_folder = "integration" in item.path.relative_to(_HERE).parts
        if in_folder and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.integration)
        if not is_fast(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600 if item.get_closest_marker("slow") else 900))


def is_fast(item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("integration", "slow"))


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


def pytest_sessionfinish():
    if "coverage" in sys.modules and (coverage := sys.modules["coverage"].Coverage.current()):
        # A worker that takes over 10 s to exit is killed, and what it knows of coverage with it.
        coverage.save()


def pytest_terminal_summary(terminalreporter, config):
    if not terminalreporter.stats and not config.option.collectonly:
        terminalreporter.line(
            "the fast half alone runs; others: -m integration (tests/integration), -m slow"
        )
