"""The account of a run's whole time, over processes that are killed and resumed."""

import datetime
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxbench.records import goodput
from jaxbench.records.goodput import (
    CAUSES,
    begin_attempt,
    end_attempt,
    mark_phases,
    measure_goodput,
)

START = datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC)


class FakeClock:
    def __init__(self, spent_s):
        self.spent_s = dict(spent_s)

    def totals_s(self):
        return dict(self.spent_s)

    def wall_s(self):
        return sum(self.spent_s.values())


class Played:
    """A run whose processes spend what a script says; a day's seconds pass beside the run's clock.

    A step of a script is a method with its seconds, or a phase and how long it takes.
    """

    def __init__(self, patch, script):
        self.day_s, self.attempts, self.saved_s, self.older_s = 0.0, [], {}, {}
        now = lambda ago_s: START + datetime.timedelta(seconds=self.day_s - ago_s)  # noqa: E731
        patch.setattr(goodput, "now", now)
        for step in script.split("; "):
            verb, *seconds = step.split()
            own = getattr(self, verb, functools.partial(self.spend, verb))
            own(*map(float, seconds))

    def spend(self, phase, spent_s):
        self.clock.spent_s[phase] = self.clock.spent_s.get(phase, 0.0) + spent_s
        self.day_s += spent_s

    def mark(self, doing):
        self.attempts[-1] |= mark_phases(self.clock, doing)

    def launch(self):
        self.day_s += 2.0  # imports
        self.clock = FakeClock(self.saved_s)
        self.spend("devices", 1.0)
        self.attempts.append(begin_attempt(self.clock, 2.0, self.saved_s))

    def compiling(self):
        self.mark("compile")

    def begin(self, compile_s=5.0):
        self.launch()
        self.compiling()
        self.spend("compile", compile_s)
        self.mark("train")

    def save(self):
        self.older_s, self.saved_s = self.saved_s, self.clock.totals_s()

    def damage(self):
        """The newest checkpoint is corrupt."""
        self.saved_s = self.older_s

    def kill(self, unseen_s=0.0, down_s=10.0):
        """End the process, whose last record is some seconds old; the next one finds it so."""
        seen_s = self.clock.wall_s() - unseen_s
        self.attempts[-1] = end_attempt(self.attempts[-1], self.saved_s, seen_s)
        self.day_s += down_s

    def end(self, down_s):
        """The process ends itself."""
        self.attempts[-1]["phases_s"] = self.clock.totals_s()
        self.day_s += down_s

    def measure(self):
        """The goodput, whose parts must be the whole time that has passed."""
        found = measure_goodput(self.attempts, self.clock.totals_s())
        assert found.total_wall_s == pytest.approx(self.day_s)
        steps_s = found.goodput * found.total_wall_s
        assert steps_s + sum(found.badput_s.values()) == pytest.approx(self.day_s)
        assert [*found.badput_s] == [*CAUSES] and min(found.badput_s.values()) >= 0
        return {"steps": steps_s} | {cause: s for cause, s in found.badput_s.items() if s}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (  # nobody killed it
            "begin; train 50; data_wait 4; eval 6; checkpoint 3; records 1; other 2; profile 1",
            {"steps": 50, "startup": 3, "compile": 5}
            | {"data_wait": 4, "eval": 6, "checkpoint": 3, "other": 4},
        ),
        (  # work after the last checkpoint is lost once; what nobody saw of the end is down
            "begin; train 30; eval 2; save; train 7; data_wait 1; kill 0.5 10;"
            " begin 1; train 7; data_wait 1; train 13",
            {"steps": 50, "startup": 6, "compile": 6, "data_wait": 1, "eval": 2}
            | {"lost_work": 7.5, "down": 10.5},
        ),
        (  # killed before its first checkpoint
            "begin; train 20; eval 3; data_wait 2; kill; begin; train 40",
            {"steps": 40, "startup": 6, "compile": 10, "lost_work": 25, "down": 10},
        ),
        (  # during the evaluation of an epoch that is trained and evaluated again
            "begin; train 20; save; train 10; eval 4; kill; begin; train 10; eval 6",
            {"steps": 30, "startup": 6, "compile": 10, "eval": 6, "lost_work": 14, "down": 10},
        ),
        (  # twice in one epoch: both processes resume from the same checkpoint
            "begin; train 20; save; train 5; kill 0 1; begin; train 6; kill 0 1; begin; train 10",
            {"steps": 30, "startup": 9, "compile": 15, "lost_work": 11, "down": 2},
        ),
        (  # killed before its first step, reading data or compiling
            "begin; train 20; save; kill; launch; read_data 8; kill; begin",
            {"steps": 20, "startup": 17, "compile": 10, "down": 20},
        ),
        (
            "begin; train 20; save; kill; launch; compiling; compile 8; kill; begin",
            {"steps": 20, "startup": 9, "compile": 18, "down": 20},
        ),
        (  # the newest checkpoints are corrupt: steps of two processes are lost, no start-up twice
            "begin; train 20; save; train 10; save; kill 0 0; begin; train 30; damage; kill 0 0;"
            " begin; train 60",
            {"steps": 80, "startup": 9, "compile": 15, "lost_work": 40},
        ),
        (  # SIGTERM: it saved its last step, and then waited for the file
            "begin; train 20; save; checkpoint 4; records 1; end 10; begin",
            {"steps": 20, "startup": 6, "compile": 10, "checkpoint": 4, "other": 1, "down": 10},
        ),
    ],
)
def test_goodput_of_a_run(monkeypatch, script, expected):
    assert Played(monkeypatch, script).measure() == pytest.approx(expected)


_STEPS = ("train 3", "eval 2", "data_wait 1", "checkpoint 1", "save", "damage", "kill 0 4; begin")


@given(st.lists(st.sampled_from(_STEPS), max_size=20))
def test_the_parts_of_goodput_are_the_whole_time(steps):
    with pytest.MonkeyPatch.context() as patch:
        Played(patch, "; ".join(["begin", *steps])).measure()


def test_processes_that_overlap_have_no_goodput(monkeypatch):
    """On another host, whose date is behind."""
    played = Played(monkeypatch, "begin; train 20; save; kill 0 -5; begin")
    assert measure_goodput(played.attempts, played.clock.totals_s()) is None
