"""Write the checkpoints of a run in a thread beside the training, and remove old ones."""

import contextlib
import errno
import math
import pathlib
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbench.checkpoints.checkpoint import (
    best_checkpoint,
    create_orbax,
    explain,
    list_checkpoints,
    read_score,
    remove_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from jaxbench.clock import Stopwatch
from jaxbench.distributed.signals import grace_period_s
from jaxbench.errors import BadInput

# A disk that stays full would fill the record with warnings.
_MAX_WARNINGS = 10


class Policy(NamedTuple):
    """When checkpoints are written besides the one at the end, and which are kept."""

    minutes: float = 0.0  # between two checkpoints, within an epoch too; 0 for never
    epochs: int = 0  # between two checkpoints; 0 for never
    keep: int = 2  # how many of the newest are kept, in addition to the one with the best score

    @property
    def is_on(self) -> bool:
        return bool(self.minutes or self.epochs)


NO_CHECKPOINTS = Policy()


def check_policy(policy: Policy) -> None:
    """Raise BadInput for a number that is out of range."""
    if not 0 <= policy.minutes < math.inf:  # written so that nan fails it too
        raise BadInput(f"--checkpoint_minutes={policy.minutes:g}: must be 0 (never) or more")
    if policy.epochs < 0:
        raise BadInput(f"--checkpoint_epochs={policy.epochs}: must be 0 (never) or more")
    if policy.keep < 1:
        raise BadInput(f"--keep_checkpoints={policy.keep}: must be 1 or more")


class Checkpoints:
    """Write a run's checkpoints into a folder. For the main thread of one process at a time.

    Args:
      folder: created with the first checkpoint.
      policy: when to write, and which to keep.
      say: prints a warning.
    """

    def __init__(self, folder: pathlib.Path, policy: Policy, say: Callable[[str], None]):
        self.folder = folder
        self._policy = policy
        self._say = say
        self._watch = Stopwatch()
        self._scores: dict[str, float | None] = {}
        self._orbax: Any = None
        # Written in C: a signal's exception cannot leave it locked, as it can a Condition.
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._warning: str | None = None  # of the last write
        self._is_slow = False  # whether a write has taken longer than a signal leaves it
        self.warnings: list[str] = []

    def due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Return whether it is time for a checkpoint.

        Args:
          epochs_done: after an epoch, how many are done; None between two steps.
          last: whether the run is done; its final state is always kept.
        """
        if last or (self._policy.minutes and self._watch.elapsed_s() >= 60 * self._policy.minutes):
            return True
        every = self._policy.epochs
        return epochs_done is not None and every > 0 and epochs_done % every == 0

    def save(self, state: Any, point: dict[str, Any], score: float | None) -> None:
        """Copy a state to the host and have it written; wait only for the write before it.

        A write that fails is a warning, and earlier checkpoints stay. A checkpoint of the same step
        and epoch stays too: before a resumed run's first step it has the same state, and a score.

        Args:
          state: arrays on the devices, all of them computed.
          point: JSON values to keep beside it; `step` and `epochs_done` name the checkpoint.
          score: the model's score; None in the middle of an epoch, and after an epoch that no
            evaluation followed. Such a checkpoint is never the best.
        """
        name = f"step-{point['step']:09d}.epoch-{point['epochs_done']:05d}"
        self.wait()
        self._watch = Stopwatch()
        if (self.folder / name).exists() or (self._orbax is None and not self._start()):
            return
        # Always a copy: on a CPU `device_get` returns the device's own memory, which the next step
        # reuses.
        state = jax.tree.map(lambda leaf: np.array(leaf), jax.device_get(state))
        self._requests.put(lambda: self._write(name, state, point, score))

    def wait(self) -> None:
        """Return when nothing is being written; warn of a write that failed or was slow."""
        if self._orbax is not None:
            # Not Thread.join(): interrupted by a signal, it takes the thread for ended.
            done = threading.Event()
            self._requests.put(done.set)
            done.wait()
        if self._warning is not None:
            warning, self._warning = self._warning, None
            self._say(f"warning: {warning}")
            if len(self.warnings) < _MAX_WARNINGS:
                self.warnings.append(warning)

    def _start(self) -> bool:
        """Prepare the folder and start the thread, with the first save."""
        try:
            if self.folder.is_symlink():  # what it leads to is not ours to write and remove
                raise OSError(errno.ELOOP, "is a link", str(self.folder))
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
        except OSError as error:
            self._warning = _failed(f"{error.filename or self.folder}: {error.strerror}")
            self.wait()
            return False
        for name in list_checkpoints(self.folder):
            self._scores[name] = read_score(self.folder, name)
        # In the main thread: an import in another thread fails while the process ends.
        self._orbax = create_orbax()
        threading.Thread(target=self._work, name="checkpoints", daemon=True).start()
        return True

    def _work(self) -> None:
        while True:
            self._requests.get()()

    def _write(self, name: str, state: Any, point: dict[str, Any], score: float | None) -> None:
        """Write one checkpoint and remove old ones, in the thread."""
        watch = Stopwatch()
        try:
            self._scores[name] = write_checkpoint(
                self._orbax, self.folder, name, state, point, score
            )
        except BaseException as error:  # whatever it is, the run continues without this one
            self._warning = _failed(f"{name}: {explain(error)}")
            return
        if watch.elapsed_s() > grace_period_s() and not self._is_slow:
            self._is_slow = True
            self._warning = (
                f"a checkpoint took {watch.elapsed_s():.1f} s to write: one that a signal asks for "
                f"is lost after {grace_period_s():g} s (--grace_period_s)"
            )
        # Not Orbax's CheckpointManager: it takes any folder with a number for a name for a
        # checkpoint, deletes the best one where a score is nan, and loses the save under way when
        # the process ends (orbax-checkpoint 0.12.8).
        names = list_checkpoints(self.folder)
        kept: set[str | None] = {*names[-self._policy.keep :]}
        kept.add(best_checkpoint({name: self._scores.get(name) for name in names}))
        with contextlib.suppress(OSError):
            for name in names:
                if name not in kept:
                    remove_checkpoint(self.folder, name)


def _failed(reason: str) -> str:
    return f"a checkpoint could not be written: {reason}"
