"""The soak, its drift and telemetry, and the search for silent corruption."""

import pytest

from jaxbench.cards.card import measured
from jaxbench.qualification import soak
from jaxbench.qualification.corruption import CorruptionCheck


def values(session, name):
    return {(one.device, one.metric[1]): one.value for one in session.figures if one.name == name}


@pytest.mark.device
def test_equal_steps_have_no_mismatch(session):
    check = CorruptionCheck(session)
    check.report()
    assert not session.figures  # nothing is told of nothing
    check.burst()
    check.burst()
    check.report()
    assert values(session, "rounds") == {(None, ()): 6}
    assert values(session, "mismatches") == {(device.id, ()): 0 for device in session.mesh.devices}
    assert session.clock.totals_s()["corruption"] > 0


@pytest.mark.device
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
    [mismatches] = {*found.values()}
    assert len(found) == len(session.mesh.devices) and mismatches > 0
    named = [one for one in session.figures if one.name == "mismatched_values"]
    assert {one.labels["round"] for one in named} == {3, 4, 5}


@pytest.mark.parametrize(
    ("left_s", "burst_s", "between"), [(-1.0, 0.0, 0), (2.0, 0.4, 1), (2.0, 0.0, 9)]
)
@pytest.mark.device
def test_bursts_take_a_share_of_the_soak(session, monkeypatch, left_s, burst_s, between):
    """After a burst of 0.4 s there is none for 4 s; none at all where the set-up took the time."""
    now_s, bursts, genuine, measure = [0.0], [], soak._train, soak.TrainStage.measure

    class Watch:
        """Time passes in windows, 0.1 s each, and in bursts."""

        def __init__(self):
            self.started_s = now_s[0]

        def elapsed_s(self):
            return now_s[0] - self.started_s

    def window(stage):
        now_s[0] += 0.1
        measure(stage)

    def burst(_):
        now_s[0] += burst_s
        bursts.append(now_s[0])

    def train(session, _, between):
        watch = Watch()
        return genuine(session, lambda: left_s - watch.elapsed_s(), between)

    monkeypatch.setattr(soak, "Stopwatch", Watch)
    monkeypatch.setattr(soak, "_train", train)
    monkeypatch.setattr(soak.TrainStage, "measure", window)
    monkeypatch.setattr(CorruptionCheck, "burst", burst)
    soak.measure(session, 1.0)
    assert len(bursts) == 2 + between  # one at each end


def test_a_board_at_its_power_limit_is_a_fact(session, monkeypatch):
    """Under full load most boards are."""
    share = lambda reason: measured("throttled_share", 0.75, device=1, reason=reason)  # noqa: E731
    figures = [share("sw_power_cap"), share("hw_slowdown")]
    monkeypatch.setattr(soak, "soak_figures", lambda *_: iter(figures))
    session.part = "soak"
    soak.measure(session, 0.2)
    [note] = session.notes["soak"]
    assert note.status == "ok"
    assert note.detail == "device 1 was at its power limit in 75% of the readings"
    assert [one for one in session.figures if one.name == "throttled_share"] == figures


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
