"""The account of a run's whole time, over processes that are killed and resumed."""

import datetime

import pytest

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
    """A run whose processes spend what a test says; a day's seconds pass beside the run's clock."""

    def __init__(self, monkeypatch):
        self.day_s, self.attempts, self.saved_s = 0.0, [], {}
        now = lambda ago_s: START + datetime.timedelta(seconds=self.day_s - ago_s)  # noqa: E731
        monkeypatch.setattr(goodput, "now", now)

    def launch(self, import_s=2.0, devices_s=1.0):
        self.day_s += import_s
        self.clock = FakeClock(self.saved_s)
        self.spend(devices=devices_s)
        self.attempts.append(begin_attempt(self.clock, import_s, self.saved_s))

    def spend(self, **phases_s):
        for phase, spent_s in phases_s.items():
            self.clock.spent_s[phase] = self.clock.spent_s.get(phase, 0.0) + spent_s
            self.day_s += spent_s

    def mark(self, doing):
        self.attempts[-1] |= mark_phases(self.clock, doing)

    def begin_training(self, compile_s=5.0):
        self.launch()
        self.mark("compile")
        self.spend(compile=compile_s)
        self.mark("train")

    def save(self):
        self.saved_s = self.clock.totals_s()

    def kill(self, unseen_s=0.0, down_s=10.0, saved_s=None):
        """End the process, whose last record is some seconds old; the next one finds it so."""
        self.saved_s = self.saved_s if saved_s is None else saved_s
        seen_s = self.clock.wall_s() - unseen_s
        self.attempts[-1] = end_attempt(self.attempts[-1], self.saved_s, seen_s)
        self.day_s += down_s

    def measure(self):
        """The goodput, whose parts must be the whole time that has passed."""
        found = measure_goodput(self.attempts, self.clock.totals_s())
        assert found.total_wall_s == pytest.approx(self.day_s)
        parts_s = found.goodput * found.total_wall_s + sum(found.badput_s.values())
        assert parts_s == pytest.approx(self.day_s)
        assert [*found.badput_s] == [*CAUSES] and min(found.badput_s.values()) >= 0
        steps_s = found.goodput * found.total_wall_s
        return {"steps": steps_s} | {cause: s for cause, s in found.badput_s.items() if s}


@pytest.fixture
def played(monkeypatch):
    return Played(monkeypatch)


def test_a_run_that_nobody_killed(played):
    played.begin_training()
    played.spend(train=50, data_wait=4, eval=6, checkpoint=3, records=1, other=2, profile=1)
    found = played.measure()
    expected = {"steps": 50, "startup": 3, "compile": 5, "data_wait": 4, "eval": 6}
    assert found == pytest.approx(expected | {"checkpoint": 3, "other": 4})


def test_work_after_the_last_checkpoint_is_lost_once(played):
    played.begin_training()
    played.spend(train=30, eval=2)
    played.save()
    played.spend(train=7, data_wait=1)
    played.kill(unseen_s=0.5, down_s=10)
    played.begin_training(compile_s=1)
    # The same work, done again, and some more.
    played.spend(train=7, data_wait=1)
    played.spend(train=13)
    found = played.measure()
    expected = {"steps": 50, "startup": 6, "compile": 6, "data_wait": 1, "eval": 2}
    # What nobody saw of the killed process's end counts as down.
    assert found == pytest.approx(expected | {"lost_work": 7.5, "down": 10.5})


def test_a_run_killed_before_its_first_checkpoint(played):
    played.begin_training()
    played.spend(train=20, eval=3, data_wait=2)
    played.kill()
    played.begin_training()
    played.spend(train=40)
    found = played.measure()
    expected = {"steps": 40, "startup": 6, "compile": 10, "lost_work": 25, "down": 10}
    assert found == pytest.approx(expected)


def test_a_run_killed_during_evaluation(played):
    """Of an epoch that has to be evaluated again after it was trained again."""
    played.begin_training()
    played.spend(train=20)
    played.save()
    played.spend(train=10, eval=4)
    played.kill()
    played.begin_training()
    played.spend(train=10, eval=6)
    found = played.measure()
    assert (found["steps"], found["eval"]) == pytest.approx((30, 6))
    assert found["lost_work"] == pytest.approx(14)


def test_a_run_killed_twice_in_the_same_epoch(played):
    """Both processes resume from the same checkpoint: what each of them lost counts."""
    played.begin_training()
    played.spend(train=20)
    played.save()
    for lost_s in (5, 6):
        played.spend(train=lost_s)
        played.kill(down_s=1)
        played.begin_training()
    played.spend(train=10)
    found = played.measure()
    expected = {"steps": 30, "startup": 9, "compile": 15, "lost_work": 11, "down": 2}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("doing", ["startup", "compile"])
def test_a_process_killed_before_its_first_step(played, doing):
    played.begin_training()
    played.spend(train=20)
    played.save()
    played.kill()
    played.launch()
    played.mark(doing)
    played.spend(**{{"startup": "read_data"}.get(doing, doing): 8})
    played.kill()
    played.begin_training()
    found = played.measure()
    expected = {"startup": 9, "compile": 10}
    expected[doing] += 8
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["steps"] == pytest.approx(20) and "lost_work" not in found


def test_a_checkpoint_that_is_older_than_the_last_process(played):
    """The newest are corrupt: steps of two processes are lost, no start-up is counted twice."""
    played.begin_training()
    played.spend(train=20)
    played.save()
    older_s = dict(played.saved_s)
    played.spend(train=10)
    played.save()
    played.kill(down_s=0)
    played.begin_training()
    played.spend(train=30)
    played.save()
    played.kill(down_s=0, saved_s=older_s)
    played.begin_training()
    played.spend(train=60)
    found = played.measure()
    expected = {"steps": 80, "startup": 9, "compile": 15, "lost_work": 40}
    assert found == pytest.approx(expected)


def test_a_process_that_ended_itself_has_its_phases(played):
    """SIGTERM: it saved its last step, and then waited for the file."""
    played.begin_training()
    played.spend(train=20)
    played.save()
    played.spend(checkpoint=4, records=1)
    played.attempts[-1]["phases_s"] = played.clock.totals_s()
    played.day_s += 10
    played.begin_training()
    found = played.measure()
    assert (found["checkpoint"], found["other"], found["down"]) == pytest.approx((4, 1, 10))
    assert found["steps"] == pytest.approx(20) and "lost_work" not in found


def test_processes_that_overlap_are_no_measure(played):
    """On another host, whose date is behind."""
    played.begin_training()
    played.spend(train=20)
    played.save()
    played.kill(down_s=-5)
    played.begin_training()
    assert measure_goodput(played.attempts, played.clock.totals_s()) is None
