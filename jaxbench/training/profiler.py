"""Trace some training steps with JAX's profiler: --profile=START:STOP.

Tracing slows the steps down, and a trace takes seconds to write. A run keeps traced steps out of
every metric of time.
"""

import contextlib
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxbench.clock import Clock
from jaxbench.errors import BadInput
from jaxbench.parallel.signals import defer_signals
from jaxbench.records.writers.console import Console

_FOLDER = "profile"
# Each step adds thousands of events for every device (14,000 for quickstart on 8). Viewers show a
# million at most, and one that is stopped by Ctrl-C must be written within seconds.
_MOST_STEPS = 30


def parse_steps(text: str | None) -> range:
    """Return the steps of START:STOP; the first step is 1, and as in a slice STOP is not traced.

    Raises:
      BadInput: these steps cannot be traced. None is no steps.
    """
    if text is None:
        return range(0)
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    steps = range(int(match[1]), int(match[2])) if match else range(0)
    if steps.start < 1 or not 1 <= len(steps) <= _MOST_STEPS:
        raise BadInput(
            f"--profile={text}: must be START:STOP, at most {_MOST_STEPS} steps from step 1 on; "
            "10:13 traces steps 10 to 12"
        )
    return steps


def check_end(steps: range, last_step: int) -> None:
    """Raise BadInput if some of the steps come after the last one of the run."""
    if steps and steps[-1] > last_step:
        raise BadInput(
            f"--profile={steps.start}:{steps.stop}: the last step of this run is {last_step:,}, so "
            f"STOP is at most {last_step + 1}"
        )


class Profiler(contextlib.ExitStack):
    """Trace steps into a run directory; `close`, or the end of a `with`, ends a trace.

    Args:
      steps: the numbers of the steps to trace.
      run_folder: the run directory; None, in processes that write nothing, traces nothing.
      traced: the numbers of the steps traced so far; new ones are added to it.
    """

    def __init__(
        self, steps: range, run_folder: pathlib.Path | None, traced: list[int] | None = None
    ):
        super().__init__()
        self.steps = steps
        self.is_tracing = False
        self._folder = run_folder and run_folder / _FOLDER
        self._traced = [] if traced is None else traced

    def start(self, steps: range, clock: Clock, console: Console) -> None:
        """Trace these steps until `close`; nothing may be queued on the devices at either end."""
        self.enter_context(clock.phase("profile"))
        self.enter_context(console.phase(f"profiling steps {steps[0]} to {steps[-1]}"))
        if self._folder:
            self.enter_context(self._tracing(self._folder, steps))
        self.is_tracing = True
        self.callback(setattr, self, "is_tracing", False)

    @contextlib.contextmanager
    def _tracing(self, folder: pathlib.Path, steps: range) -> Iterator[None]:
        """Trace the inside of the `with` into a folder where TensorBoard looks."""
        options = jax.profiler.ProfileOptions()
        options.session_id = f"steps-{steps[0]}-to-{steps[-1]}"
        # It exists if a process ended before a checkpoint of these steps.
        shutil.rmtree(folder / "plugins" / "profile" / options.session_id, ignore_errors=True)
        # Python's own calls would slow the host down, and hide the steps among them.
        options.python_tracer_level = 0
        # JAX's profiler holds a lock while it starts and stops.
        try:
            with defer_signals():
                jax.profiler.start_trace(
                    folder, create_perfetto_trace=True, profiler_options=options
                )
            yield
        except BaseException:
            # The user must see the error of the steps, and not that of a trace without events.
            with defer_signals(), contextlib.suppress(Exception):
                jax.profiler.stop_trace()
            raise
        with defer_signals():
            jax.profiler.stop_trace()
        self._traced += steps


def describe_trace(run_folder: pathlib.Path | None, traced: Sequence[int]) -> dict[str, Any] | None:
    """Return the summary's `profile`; None if no steps have been traced."""
    if run_folder is None or not traced:
        return None
    files = [path for path in (run_folder / _FOLDER).rglob("*") if path.is_file()]
    if not files:  # they are in the folder of the run that this one branched off from
        return None
    return {
        "first_step": traced[0],
        "last_step": traced[-1],
        "folder": _FOLDER,
        "bytes": sum(path.stat().st_size for path in files),
    }
