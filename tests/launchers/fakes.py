"""Launchers for tests: their trials end as a function says, without a process."""

import pathlib
from collections.abc import Callable, Sequence

from jaxbench.launchers.launcher import Ended, TrialJob
from jaxbench.parallel.child import ProcessResult
from jaxbench.sweeps import grid


def make(*axes, spec="quickstart:tiny", overrides=(), **more):
    """The trials of a grid."""
    return grid.make_trials(spec, overrides, grid.parse_grid(axes), **more)


class FakeLauncher:
    """Runs each trial by a call of `launch`, which returns how it ended.

    Attributes:
      jobs: all attempts that were started, in their order.
      attachable: keys of trials that an earlier sweep has started.
      closed: those that `close` ended.
    """

    def __init__(
        self,
        launch: Callable[[TrialJob], ProcessResult],
        slots: int = 1,
        hardware: Sequence[str] = (),
        host: str | None = "lab",
    ):
        self._host = host
        self._launch, self.slots, self.hardware = launch, slots, tuple(hardware)
        self.jobs, self.closed, self._running = [], [], {}
        self.attachable = set()
        self.line, self._waited = "", 0

    def start(self, job):
        job.note_path.write_text("{}")
        self._begin(job)

    def _begin(self, job):
        self.jobs.append(job)
        self._running[job.key] = job
        assert len(self._running) <= self.slots

    def attach(self, job):
        if job.key in self.attachable:
            self._begin(job)
        return job.key in self.attachable

    def wait(self):
        """The attempt that began last ends first, by the second call after it began."""
        if self._waited < len(self.jobs):
            self._waited = len(self.jobs)
            return []
        key, job = self._running.popitem()
        return [Ended(key, self._launch(job), self._host)]

    def last_line(self, key):
        return self.line

    def close(self):
        self.closed += self._running.values()
        self._running.clear()


def fake_child(run: Callable[..., ProcessResult]) -> type:
    """Returns what stands for `Child`: its program is a call of `run(command, log, **limits)`."""

    class FakeChild:
        def __init__(self, command: Sequence[str], log: pathlib.Path, **limits):
            self._call = lambda: run(command, log, **limits)

        def wait(self) -> ProcessResult:
            return self._call()

        def end(self) -> None:
            pass

    return FakeChild
