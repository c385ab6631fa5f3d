"""The clock: exclusive phases that add up, and nobody else who reads time."""

import ast
import threading
import time

import psutil
import pytest

from jaxbench.clock import Clock, ask, process_age_s
from tests.conftest import ROOT


def test_phases_are_exclusive_and_add_up_to_the_whole():
    clock = Clock()
    with clock.phase("outer"):
        time.sleep(0.05)
        with clock.phase("inner"):
            time.sleep(0.1)
        time.sleep(0.05)
    with clock.phase("inner"):
        time.sleep(0.05)
    import_s, spent_s, after_s = clock.wall_s(), clock.totals_s(), clock.wall_s()
    assert set(spent_s) == {"other", "outer", "inner"}
    assert spent_s["outer"] >= 0.1 and spent_s["inner"] >= 0.15
    assert import_s <= sum(spent_s.values()) <= after_s


def test_an_error_inside_a_phase_closes_it():
    clock = Clock()
    with pytest.raises(ValueError), clock.phase("broken"):
        raise ValueError
    import_s = clock.totals_s()["broken"]
    time.sleep(0.02)
    assert clock.totals_s()["broken"] == import_s


def test_only_the_clock_reads_time():
    for path in [*ROOT.glob("jaxbench/**/*.py"), *ROOT.glob("experiments/*.py")]:
        if path.name == "clock.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            assert not {"time", "datetime", "timeit"} & set(names), path


def test_a_process_knows_its_age():
    age_s = process_age_s()
    if age_s is None:
        pytest.skip("this system does not tell")
    time.sleep(0.05)
    assert age_s + 0.04 <= process_age_s()
    # psutil's moment is rounded to a second.
    assert abs(time.time() - psutil.Process().create_time() - process_age_s()) < 1.5


def test_all_clocks_of_the_system_agree():
    clock = Clock()
    clock.add({"train": 1000.0})  # of an earlier process, and of no other clock
    time.sleep(0.05)
    elapsed_s = clock.elapsed_s()
    assert set(elapsed_s) - {"uptime"} == {"run", "date"}
    assert all(0.02 < seconds < 60 for seconds in elapsed_s.values())


def test_a_source_that_is_busy_with_another_call_is_waited_for():
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        assert go_on.wait(60)
        calls.append("first")

    first = threading.Thread(target=ask, args=("busy", slow))
    second = threading.Thread(target=ask, args=("busy", lambda: calls.append("second")))
    first.start()
    assert begun.wait(60)
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(60)
    # The order of the calls: in which order the two threads go on afterwards is the system's.
    assert calls == ["first", "second"]
