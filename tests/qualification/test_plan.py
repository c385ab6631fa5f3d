"""How the minutes are split."""

import math

import pytest

from jaxbench.cards.figures import PARTS
from jaxbench.qualification.plan import make_plan as make_any_plan
from jaxbench.qualification.plan import minutes_for
from tests.conftest import refusal

TIMED = [kind.name for kind in PARTS.values() if not kind.measured_in]


def make_plan(minutes, on_cpu=True, *, num_devices=1, **asked):
    return make_any_plan(minutes, on_cpu=on_cpu, num_devices=num_devices, **asked)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("minutes", [1, 1.5, 3, 10, 60])
@pytest.mark.parametrize("num_devices", [1, 8])
@pytest.mark.parametrize("asked", [{}, {"soak_minutes": 0.5}])
def test_the_parts_take_no_longer_than_the_minutes(minutes, on_cpu, num_devices, asked):
    plan = make_plan(minutes, on_cpu, num_devices=num_devices, **asked)
    assert plan.total_s <= 60 * minutes + 1e-6
    assert {*plan.times_s, *plan.skipped} == {*TIMED}
    assert not {*plan.times_s} & {*plan.skipped}
    assert [*plan.times_s] == [name for name in TIMED if name in plan.times_s]
    if "soak_minutes" not in asked:  # the soak takes the rest
        assert math.isclose(plan.total_s, 60 * minutes) or "soak" in plan.skipped


@pytest.mark.parametrize("asked", [{}, {"soak_minutes": 3}])
def test_nothing_but_the_doctor_runs(asked):
    plan = make_plan(10, False, num_devices=4, only_doctor="why", **asked)
    assert plan.times_s == {"doctor": 5}
    assert plan.skipped == dict.fromkeys(TIMED[1:], "why")


def test_ten_minutes_have_every_part_and_a_long_soak():
    plan = make_plan(10, False, num_devices=8)
    assert plan.times_s["ceilings"] > 100 and plan.times_s["soak"] > 120
    assert not plan.skipped
    [line] = plan.lines()
    assert line.startswith("plan: doctor 5 s, ceilings 1")


def test_too_few_minutes_leave_parts_out_and_say_so():
    plan = make_plan(1, False, num_devices=8)
    assert plan.skipped["ceilings"] == "it takes 30 s, 15 s are left"
    assert make_plan(1, num_devices=1).skipped["collectives"] == "there is one device"


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_soak_that_was_asked_for_comes_first(on_cpu):
    plan = make_plan(1, on_cpu, num_devices=8, soak_minutes=0.9)
    assert plan.times_s == {"doctor": 5, "soak": 54}
    assert [*plan.lines()][1].startswith("  not networks: it takes ")


def test_the_soaks_minutes_are_kept():
    assert make_plan(5, num_devices=1, soak_minutes=4).times_s["soak"] == 240
    assert "soak" in make_plan(5, num_devices=1, soak_minutes=0).skipped
    assert make_plan(5, num_devices=1, soak_minutes=4).part_s("soak", 1000.0) == 240
    # Where the soak was not asked for, the others' spare time is its own.
    assert make_plan(60, num_devices=1).times_s["soak"] > 1500


@pytest.mark.parametrize(
    ("minutes", "soak_minutes"),
    [(0.5, None), (math.nan, None), (math.inf, None), (3, 4), (3, -1), (3, math.nan)],
)
def test_minutes_that_cannot_be_are_refused(minutes, soak_minutes):
    refusal(make_plan, minutes, num_devices=1, soak_minutes=soak_minutes, told="minutes=")


def test_the_soak_takes_what_the_others_leave():
    plan = make_plan(5, num_devices=1)
    before_s = sum(plan.times_s[name] for name in ("doctor", "ceilings", "networks"))
    assert math.isclose(plan.part_s("soak", before_s), plan.times_s["soak"])
    assert math.isclose(plan.part_s("soak", before_s - 7), plan.times_s["soak"] + 7)
    assert plan.part_s("soak", 1000.0) == 10  # however late it is
    # The networks, too, but they have their time in any case.
    before_s -= plan.times_s["networks"]
    assert math.isclose(plan.part_s("networks", before_s - 7), plan.times_s["networks"] + 7)
    assert plan.part_s("networks", 1000.0) == plan.times_s["networks"]


@pytest.mark.parametrize("soak_minutes", [None, 0, 2.5])
def test_the_minutes_that_the_networks_need(soak_minutes):
    def networks_s(minutes):
        return make_plan(minutes, num_devices=2, soak_minutes=soak_minutes).times_s["networks"]

    plan = make_plan(5, num_devices=2, soak_minutes=soak_minutes)
    minutes = minutes_for(plan, 400.0, 2, on_cpu=True)
    assert networks_s(minutes - 1) < 400 <= networks_s(minutes)
    assert minutes_for(plan, 1.0, 2, on_cpu=True) == 5
    assert networks_s(minutes_for(plan, 1820.0, 2, on_cpu=True)) >= 1820
    assert minutes_for(plan, 1821.0, 2, on_cpu=True) is None
