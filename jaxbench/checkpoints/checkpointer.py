"""Checkpoints: written beside the training, whole or not at all, and read back only if unharmed.

Arrays are Orbax's. What makes a checkpoint one is ours: a folder of its own, a manifest with the
digest of every file, and its name, which it gets last. Orbax alone notices neither a flipped bit
(its Zarr chunks have no digest) nor an array of another shape, and forgets a save that is under way
when the process ends.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import queue
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from absl.logging import get_absl_logger

from jaxbench.clock import Stopwatch, now
from jaxbench.errors import BadInput

MANIFEST, _ARRAYS = "manifest.json", "arrays"
_FORMAT = 1
_NAME = re.compile(r"^step-(\d{9,})\.epoch-(\d{5,})$")
# Of a disk that stays full.
_MOST_WARNINGS = 10
# A folder that is being written, is about to be removed, or was found corrupt.
_PART, _DEAD, _DAMAGED = ".part", ".dead", ".corrupt"


class Policy(NamedTuple):
    """When checkpoints are written, and which are kept.

    Attributes:
      minutes: so many after the one before, in the middle of an epoch too; 0 for never.
      epochs: after every so many, and after the last; 0 for never.
      keep: the newest so many, and beside them the one with the best score.
    """

    minutes: float = 0.0
    epochs: int = 0
    keep: int = 2

    @property
    def is_on(self) -> bool:
        return bool(self.minutes or self.epochs)


NO_CHECKPOINTS = Policy()


class CorruptCheckpointError(Exception):
    """A checkpoint that is not what was written."""


class Checkpoint(NamedTuple):
    """What was read back.

    Attributes:
      name: its folder's.
      state: as it was saved, arrays of NumPy.
      point: what was saved beside it.
      corrupt: {name: reason} of newer ones that could not be read.
    """

    name: str
    state: Any
    point: dict[str, Any]
    corrupt: dict[str, str]


class Checkpoints:
    """Writes the checkpoints of a run into a folder, in a thread of its own.

    For the main thread; one process at a time writes to a folder.

    Args:
      folder: made with the first of them.
      policy: when, and which are kept.
      say: is told what a reader must know.
    """

    def __init__(self, folder: pathlib.Path, policy: Policy, say: Callable[[str], None]):
        self._folder = folder
        self._policy = policy
        self._say = say
        self._watch = Stopwatch()
        self._last: str | None = None
        self._scores: dict[str, float] = {}
        self._orbax: Any = None
        self._thread: threading.Thread | None = None
        # Of C: a signal's exception cannot leave it locked, as it can a Condition.
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._failed: str | None = None
        self.warnings: list[str] = []

    def due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Whether it is time for one: after an epoch, or, without a number, between two steps."""
        if self._policy.minutes and self._watch.elapsed_s() >= 60 * self._policy.minutes:
            return True
        if epochs_done is None or not self._policy.epochs:
            return False
        return last or epochs_done % self._policy.epochs == 0

    def save(self, state: Any, point: dict[str, Any], score: float | None) -> None:
        """Copies a state to the host and has it written; waits only for the write before it.

        A write that fails is warned of, and what was written before stays.

        Args:
          state: arrays on the devices, none of them still to be computed.
          point: what is kept beside it, as JSON; its `step` and `epochs_done` name it.
          score: of the model as it is now; None where it has not been evaluated.
        """
        name = f"step-{point['step']:09d}.epoch-{point['epochs_done']:05d}"
        self.wait()
        self._watch = Stopwatch()
        if name == self._last:
            return
        if self._orbax is None and not self._begin():
            return
        # A copy in any case: on a CPU `device_get` shows the device's own memory, which the next
        # step uses again.
        state = jax.tree.map(lambda leaf: np.array(leaf), jax.device_get(state))
        self._last = name
        self._requests.put(lambda: self._write(name, state, point, score))

    def wait(self) -> None:
        """Returns when nothing is being written any more; says what could not be."""
        if self._thread is not None:
            # No Thread.join(): broken off by a signal, it takes the thread for ended.
            done = threading.Event()
            self._requests.put(done.set)
            done.wait()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            self._last = None
            warning = f"a checkpoint could not be written: {failed}"
            self._say(f"warning: {warning}")
            if len(self.warnings) < _MOST_WARNINGS:
                self.warnings.append(warning)

    def _begin(self) -> bool:
        """Makes the folder ready and starts the thread, with the first save."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                if path.suffix in (_PART, _DEAD):
                    shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            self._failed = f"{error.filename or self._folder}: {error.strerror}"
            self.wait()
            return False
        for name in list_checkpoints(self._folder):
            with contextlib.suppress(CorruptCheckpointError):
                self._note_score(name, _read_manifest(self._folder / name)["score"])
        # In the main thread: an import in another fails while the process ends.
        self._orbax = _checkpointer()
        _silence()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()
        return True

    def _work(self) -> None:
        while True:
            self._requests.get()()

    def _write(self, name: str, state: Any, point: dict[str, Any], score: float | None) -> None:
        """Writes one, in the thread: all of it under another name first."""
        part = self._folder / f"{name}{_PART}"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            _save_arrays(self._orbax, part / _ARRAYS, state)
            body = {
                "format": _FORMAT,
                "written_at": now().isoformat(),
                "score": score if score is not None and math.isfinite(score) else None,
                "point": point,
                "arrays": _describe_arrays(state),
                "files": {file: _digest(part / file) for file in _files(part)},
            }
            (part / MANIFEST).write_text(json.dumps({"body": body, "seal": _seal(body)}))
            for folder, _, files in os.walk(part):
                for file in files:
                    _to_disk(os.path.join(folder, file))
                _to_disk(folder)
            _commit(part, self._folder / name)
        except BaseException as error:  # whatever it was, the run goes on without this one
            self._failed = f"{name}: {_in_a_line(error)}"
            shutil.rmtree(part, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            self._note_score(name, body["score"])
            self._remove_old()

    def _note_score(self, name: str, score: float | None) -> None:
        if score is not None:
            self._scores[name] = score

    def _remove_old(self) -> None:
        names = list_checkpoints(self._folder)
        kept = set(names[-self._policy.keep :])
        scored = [(self._scores[name], name) for name in names if name in self._scores]
        if scored:
            kept.add(max(scored)[1])
        for name in names:
            if name not in kept:
                dead = self._folder / f"{name}{_DEAD}"
                os.rename(self._folder / name, dead)
                shutil.rmtree(dead, ignore_errors=True)


def check_policy(policy: Policy) -> None:
    """Raises BadInput where a policy is none."""
    if not 0 <= policy.minutes < math.inf:  # written so that nan fails it too
        raise BadInput(f"--checkpoint_minutes={policy.minutes:g}: must be 0 (never) or more")
    if policy.epochs < 0:
        raise BadInput(f"--checkpoint_epochs={policy.epochs}: must be 0 (never) or more")
    if policy.keep < 1:
        raise BadInput(f"--keep_checkpoints={policy.keep}: must be 1 or more")


def list_checkpoints(folder: pathlib.Path) -> list[str]:
    """Returns the names of the checkpoints in a folder, the newest last."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if _NAME.match(path.name)]
    return sorted(names, key=lambda name: tuple(map(int, _NAME.match(name).groups())))


def read_newest(
    folder: pathlib.Path, target: Any, say: Callable[[str], None], *, set_aside: bool = True
) -> Checkpoint | None:
    """Reads the newest checkpoint that is unharmed; None where there is none.

    Args:
      folder: the checkpoints.
      target: the state's structure, with shapes and types for leaves.
      say: is told of each that is corrupt.
      set_aside: whether corrupt ones get another name.

    Raises:
      BadInput: it is another model's.
    """
    corrupt: dict[str, str] = {}
    for name in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(folder, name, target)._replace(corrupt=corrupt)
        except CorruptCheckpointError as error:
            corrupt[name] = str(error)
            say(f"warning: checkpoint {name} is corrupt ({error}); taking the one before")
            if set_aside:
                with contextlib.suppress(OSError):
                    os.rename(folder / name, folder / f"{name}{_DAMAGED}")
    return None


def read_checkpoint(folder: pathlib.Path, name: str, target: Any) -> Checkpoint:
    """Reads one checkpoint.

    Raises:
      CorruptCheckpointError: it is not what was written.
      BadInput: it is another model's.
    """
    path = folder / name
    body = _read_manifest(path)
    there, here = body["arrays"], _describe_arrays(target)
    differing = [key for key in sorted({**there, **here}) if there.get(key) != here.get(key)]
    if differing:
        key = differing[0]
        raise BadInput(
            f"{path}: holds another model's state: {len(differing)} of {len(there)} arrays differ; "
            f"{key} is {_shown(there.get(key))} there, {_shown(here.get(key))} here"
        )
    try:
        for file, digest in body["files"].items():
            if _digest(path / file) != digest:
                raise CorruptCheckpointError(f"{file} is not as it was written")
        state = _read_arrays(path / _ARRAYS, target)
    except CorruptCheckpointError:
        raise
    except Exception as error:
        raise CorruptCheckpointError(_in_a_line(error)) from error
    return Checkpoint(name, state, body["point"], {})


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads((path / MANIFEST).read_text())
        if _seal(found["body"]) != found["seal"]:
            raise CorruptCheckpointError(f"{MANIFEST} is not as it was written")
        return found["body"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{MANIFEST}: {_in_a_line(error)}") from error


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, name: str) -> None:
    """Copies a checkpoint to another run's folder, whole or not at all."""
    part = target / f"{name}{_PART}"
    shutil.copytree(source / name, part)
    _commit(part, target / name)


def _commit(part: pathlib.Path, path: pathlib.Path) -> None:
    """Gives a checkpoint its name, in place of one that has it."""
    dead = path.with_name(f"{path.name}{_DEAD}")
    if path.exists():
        shutil.rmtree(dead, ignore_errors=True)
        os.rename(path, dead)
    os.rename(part, path)
    _to_disk(path.parent)
    shutil.rmtree(dead, ignore_errors=True)


def _checkpointer() -> Any:
    """Orbax, for this process alone: others are not waited for."""
    import orbax.checkpoint as ocp

    rank = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=rank, active_processes={rank}, barrier_sync_key_prefix=f"process{rank}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


@functools.cache
def _silence() -> None:
    """Keeps Orbax and tensorstore from printing what a failed write raises too, a hundred lines."""
    get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    before = sys.excepthook

    def hook(kind: type, error: BaseException, trace: Any) -> None:
        # What tensorstore had still to tell a loop that Orbax closed with the first error.
        if kind is not RuntimeError or str(error) != "Event loop is closed":
            before(kind, error, trace)

    sys.excepthook = hook


def _save_arrays(orbax: Any, path: pathlib.Path, state: Any) -> None:
    import orbax.checkpoint as ocp

    orbax.save(path.absolute(), args=ocp.args.StandardSave(state))


def _read_arrays(path: pathlib.Path, target: Any) -> Any:
    import orbax.checkpoint as ocp

    # Leaves of NumPy: they come back as such, whatever devices wrote them.
    leaves = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), target)
    return _checkpointer().restore(path.absolute(), args=ocp.args.StandardRestore(leaves))


def _describe_arrays(state: Any) -> dict[str, list[Any]]:
    """Returns {path in the tree: [type, shape]}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _shown(array: list[Any] | None) -> str:
    return "absent" if array is None else f"{array[0]} of shape {tuple(array[1])}"


def _files(folder: pathlib.Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _digest(path: pathlib.Path) -> list[Any]:
    with open(path, "rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _to_disk(path: Any) -> None:
    """Has the system write what it holds back, so that a loss of power does not take it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_a_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if "RESOURCE_EXHAUSTED" in str(error) or "No space left" in str(error):
        return "No space left on device"  # in tensorstore's many words
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
