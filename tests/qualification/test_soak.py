"""The soak, its drift and telemetry, and the search for silent corruption."""

import pytest

from jaxbench.clock import Stopwatch, pause
from jaxbench.qualification import soak
from jaxbench.qualification.corruption import CorruptionCheck


def values(session, name):
    return {(one.device, one.metric[1]): one.value for one in session.figures if one.name == name}


def test_equal_steps_have_no_mismatch(session):
    check = CorruptionCheck(session)
    check.report()
    assert not session.figures  # nothing is told of nothing
    check.burst()
    check.burst()
    check.report()
    assert values(session, "rounds") == {(None, ()): 6}
    assert values(session, "mismatches") == {(0, ()): 0, (1, ()): 0}
    assert session.clock.totals_s()["corruption"] > 0


def test_a_result_that_changes_between_bursts_is_named(session):
    """Within the second burst all rounds and devices agree."""
    check = CorruptionCheck(session)
    check.burst()
    weights, inputs = check._check._arguments
    changed = weights["layer2"].at[3, 3].multiply(1.5)
    check._check._arguments = ({**weights, "layer2": changed}, inputs)
    check.burst()
    check.report()
    found = values(session, "mismatches")
    assert found[0, ()] == found[1, ()] > 0
    named = [one for one in session.figures if one.name == "mismatched_values"]
    assert {one.labels["round"] for one in named} == {3, 4, 5}


@pytest.mark.parametrize(
    ("left_s", "burst_s", "least", "most"), [(-1.0, 0.0, 0, 0), (2.0, 0.4, 1, 1), (2.0, 0.0, 2, 10)]
)
def test_bursts_take_a_share_of_the_soak(session, monkeypatch, left_s, burst_s, least, most):
    """After a burst of 0.4 s there is none for 4 s; none at all where the set-up took the time."""
    watches, bursts, make = [], [], soak.Soak

    def left() -> float:
        watches.append(watches[0] if watches else Stopwatch())
        return left_s - watches[0].elapsed_s()

    monkeypatch.setattr(soak, "Soak", lambda job, _, between: make(job, left, between))
    monkeypatch.setattr(CorruptionCheck, "burst", lambda _: bursts.append(pause(burst_s)))
    soak.measure(session, 1.0)
    assert 2 + least <= len(bursts) <= 2 + most  # one at each end


def test_error_counters_before_and_after(session, monkeypatch):
    counters = iter(({"gpu1": {"ecc_corrected": 2}}, {"gpu1": {"ecc_corrected": 5}}))
    monkeypatch.setattr(soak, "read_error_counters", lambda _: next(counters))
    session.part = "soak"
    soak.measure(session, 0.2)
    of = (1, (("counter", "ecc_corrected"),))
    assert values(session, "errors_before")[of] == 2 and values(session, "errors_after")[of] == 5
    # Those that cannot be read are noted.
    monkeypatch.setattr(soak, "read_error_counters", lambda _: 1 / 0)
    session.notes.clear()
    assert soak._counters(session, {}) == {}
    [note] = session.notes["soak"]
    assert note.status == "warning" and "division by zero" in note.detail
