"""Checkpoints on disk: complete or absent, written beside the training, read only if intact.

Orbax writes the arrays. The rest is ours: a folder for each checkpoint, a manifest with the digest
of every file, and the folder's name, which it gets last. Orbax notices neither a flipped bit (its
Zarr chunks have no digest) nor an array of another shape.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypedDict

import jax
import msgspec
import numpy as np
from absl.logging import get_absl_logger

from jaxbench.aliases import PyTree
from jaxbench.clock import Stopwatch, now, pause
from jaxbench.data.dataset import check_fits_in_memory
from jaxbench.errors import BadInput
from jaxbench.files import DOCUMENT_BYTES, read_text
from jaxbench.parallel.signals import grace_period_s
from jaxbench.schema import Amount, Count, check_numbers
from jaxbench.terminal import printable

_MANIFEST, _ARRAYS = "manifest.json", "arrays"
_NAME = re.compile(r"step-(\d{9,})\.epoch-(\d{5,})")
# Suffixes of a folder that is being written, is being removed, or is damaged.
_PARTIAL, _REMOVED, _DAMAGED = ".part", ".dead", ".damaged"
# A disk that stays full would fill the record with warnings.
_MAX_WARNINGS = 10


# [bytes, SHA-256] of a file, or of its beginning.
_Mark = tuple[Count, str]
# More folders in one another than Orbax makes.
_DEEPEST = 20
# Names in a message: one may have any length.
_SHOWN = 100


class _EpochSums(TypedDict):
    """`EpochSums` of training/run.py, whose sums may be nan."""

    epoch: Count
    total: dict[str, list[float]]
    interval: dict[str, list[float]]
    steps: Count
    interval_steps: Count
    interval_time_s: Amount
    images: Count
    time_s: Amount
    data_wait_s: Amount
    profiled_steps: Count


class _Metadata(TypedDict, total=False):
    """What a training run keeps beside the state: `RunProgress`, and what its records were."""

    step: Count
    epochs_done: Count
    sums: _EpochSums
    learning_rate: float | None
    compile_s: Amount
    compile_cache: list[str]
    first_step_s: Amount | None
    invalid: list[str]
    traced: list[Count]
    records: dict[str, _Mark]
    totals_s: dict[str, Amount]
    windows: list[tuple[Amount, Amount, Count]]


class _Body(TypedDict):
    """What a manifest lists."""

    score: float | None
    metadata: _Metadata
    files: dict[str, _Mark]


class _Manifest(TypedDict):
    body: _Body
    seal: str


class DamagedCheckpointError(BadInput):
    """A checkpoint differs from what was written; the message names the file."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    name: str  # of its folder
    state: PyTree  # with arrays of NumPy
    metadata: dict[str, Any]  # what was saved beside the state, see `Checkpoints.save`
    damaged: dict[str, str]  # {name: reason} of newer checkpoints that could not be read


class Policy(NamedTuple):
    """When checkpoints are written besides the one at the end, and which are kept."""

    minutes: float = 0.0  # between two checkpoints, within an epoch too; 0 for never
    epochs: int = 0  # between two checkpoints; 0 for never
    keep: int = 2  # how many of the newest are kept, in addition to the one with the best score

    @property
    def is_on(self) -> bool:
        return bool(self.minutes or self.epochs)


NO_CHECKPOINTS = Policy()


class Checkpoints:
    """Write a run's checkpoints into a folder, in a thread, and remove old ones.

    For the main thread of one process at a time. `say` prints a warning.
    """

    def __init__(self, folder: pathlib.Path, policy: Policy, say: Callable[[str], None]):
        self.folder = folder
        self.warnings: list[str] = []
        self._policy, self._say = policy, say
        self._watch = Stopwatch()  # since the last checkpoint
        self._orbax: Any = None
        self._thread: threading.Thread | None = None
        self._warning: str | None = None  # of the last write
        self._failure: str | None = None  # why the last write failed
        self._is_slow = False  # whether a write has taken longer than a signal leaves it

    def due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Return whether it is time for a checkpoint: at the end of the run (`last`) it always is.

        `epochs_done` counts the epochs after one of them, and is None between two steps.
        """
        if last or (self._policy.minutes and self._watch.elapsed_s() >= 60 * self._policy.minutes):
            return True
        every = self._policy.epochs
        return epochs_done is not None and every > 0 and epochs_done % every == 0

    def save(self, state: PyTree, metadata: dict[str, Any], score: float | None) -> None:
        """Copy a state to the host and have it written; wait only for the write before it.

        A write that fails is a warning, once for a reason, and earlier checkpoints stay. One of the
        same step and epoch stays too: before a resumed run's first step it has the same state, and
        a score.

        Args:
          state: arrays on the devices, all of them computed.
          metadata: JSON values to keep beside it; `step` and `epochs_done` name the checkpoint.
          score: the model's score; None in the middle of an epoch, and after an epoch that no
            evaluation followed. Such a checkpoint is never the best.
        """
        name = f"step-{metadata['step']:09d}.epoch-{metadata['epochs_done']:05d}"
        self.wait()
        self._watch = Stopwatch()
        if (self.folder / name).exists():
            return
        if self._orbax is None:
            # In the main thread: an import in another thread fails while the process ends.
            self._orbax = create_orbax()
        # Always a copy: on a CPU `device_get` returns the device's own memory, which the next step
        # reuses.
        state = jax.tree.map(lambda leaf: np.array(leaf), jax.device_get(state))
        arguments = (name, state, metadata, score)
        self._thread = threading.Thread(target=self._write, args=arguments, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written; warn of a write that failed or was slow.

        Call it under `defer_signals`: a join that is interrupted takes the thread for ended.
        """
        if self._thread:
            self._thread.join()
        if self._warning is not None:
            self._say(f"warning: {self._warning}")
            self.warnings = [*self.warnings, self._warning][:_MAX_WARNINGS]
            self._warning = None

    def _write(
        self, name: str, state: PyTree, metadata: dict[str, Any], score: float | None
    ) -> None:
        """Write one checkpoint and remove old ones, in the thread."""
        watch = Stopwatch()
        try:
            write_checkpoint(self._orbax, self.folder, name, state, metadata, score)
        except BaseException as error:  # whatever it is, the run continues without this one
            if (reason := _explain(error)) != self._failure:  # said once
                self._failure = reason
                reason = f"{self.folder / name}: {reason}"
                self._warning = f"a checkpoint could not be written: {reason}"
            return
        self._failure = None
        if watch.elapsed_s() > grace_period_s() and not self._is_slow:
            self._is_slow = True
            self._warning = (
                f"a checkpoint took {watch.elapsed_s():.1f} s to write: one that a signal asks for "
                f"is lost after {grace_period_s():g} s (--grace_period_s)"
            )
        # Not Orbax's CheckpointManager 0.12.8: it takes any folder with a number for a name for a
        # checkpoint, deletes the best one if a score is nan, and loses a save at the process's end.
        names = list_checkpoints(self.folder)
        kept = {*names[-self._policy.keep :], best_checkpoint(self.folder)}
        with contextlib.suppress(OSError):
            for name in names:
                if name not in kept:  # its name goes first: no process reads half of it
                    removed = self.folder / f"{name}{_REMOVED}"
                    os.rename(self.folder / name, removed)
                    shutil.rmtree(removed, ignore_errors=True)


def list_checkpoints(folder: pathlib.Path) -> list[str]:
    """Return the names of the checkpoints in a folder, the newest last."""
    matches = filter(None, (_NAME.fullmatch(path.name) for path in folder.glob("*")))
    return [match[0] for match in sorted(matches, key=lambda match: [*map(int, match.groups())])]


def best_checkpoint(folder: pathlib.Path) -> str | None:
    """Return the name of the checkpoint with the best score; None if no score is known."""
    scored = []
    for name in list_checkpoints(folder):
        with contextlib.suppress(DamagedCheckpointError):
            if (score := _read_manifest(folder / name)["score"]) is not None:
                scored.append((score, name))
    return max(scored)[1] if scored else None


def write_checkpoint(
    orbax: Any,
    folder: pathlib.Path,
    name: str,
    state: PyTree,
    metadata: dict[str, Any],
    score: float | None,
) -> None:
    """Write a checkpoint under another name, flush it to the disk, then give it its name.

    What a killed process was writing or removing goes first. `orbax` is from `create_orbax`, the
    state has arrays of NumPy, and a score that is not finite is recorded as unknown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix in (_PARTIAL, _REMOVED) and _NAME.fullmatch(path.stem):
            shutil.rmtree(path, ignore_errors=True)
    partial = folder / f"{name}{_PARTIAL}"
    try:
        partial.mkdir()
        # On a full disk each of tensorstore's writers would print a traceback. Some of the room is
        # for Orbax's metadata and for what the run writes meanwhile.
        sizes = [leaf.nbytes + 4096 for leaf in jax.tree.leaves(state)]
        disk = shutil.disk_usage(partial)
        if disk.total and disk.free < sum(sizes, start=96 * 1024):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        orbax.save((partial / _ARRAYS).absolute(), state)
        body = {
            "written_at": now().isoformat(),
            "score": score if score is not None and math.isfinite(score) else None,
            "metadata": metadata,
            "files": {
                path.relative_to(partial).as_posix(): digest(path)
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            },
        }
        manifest = {"body": body, "seal": _seal(body)}
        (partial / _MANIFEST).write_text(json.dumps(manifest, default=np.ndarray.tolist))
        for path in (partial, *partial.rglob("*")):
            _sync(path)
        _commit(partial, folder / name)
    except BaseException:
        watch = Stopwatch()
        while partial.exists() and watch.elapsed_s() < 2:  # tensorstore's threads write on
            shutil.rmtree(partial, ignore_errors=True)
            pause(0.05)
        raise


def read_checkpoint(folder: pathlib.Path, name: str, abstract_state: PyTree) -> Checkpoint:
    """Read one checkpoint of a run's folder of checkpoints.

    `abstract_state` has the state's structure, with shapes and types as leaves; None reads what
    was saved as nested dictionaries and lists.

    Raises:
      DamagedCheckpointError: it differs from what was written.
      BadInput: it holds another model's state, or Orbax cannot read it.
    """
    path = folder / name
    body = _read_intact(path)
    try:
        return Checkpoint(name, _read_arrays(path, abstract_state), body["metadata"], {})
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        # Not as damaged, which is set aside: the cause may be another version of Orbax or a limit
        # of the system, and the run would begin again.
        raise BadInput(
            f"{path}: its files are as they were written, but its arrays cannot be read: "
            f"{_explain(error)}"
        ) from error


def _read_arrays(path: pathlib.Path, abstract_state: PyTree) -> PyTree:
    orbax, arrays = create_orbax(), (path / _ARRAYS).absolute()
    metadata = orbax.metadata(arrays).item_metadata
    if metadata is None:
        raise ValueError("Orbax cannot tell their types and shapes")
    saved, leaves = _describe_arrays(metadata.tree), jax.tree.leaves(metadata.tree)
    for leaf in leaves:
        # tensorstore allocates what a file states, and aborts the process if it cannot.
        if math.prod(chunk := leaf.storage.chunk_shape) > max(1, math.prod(leaf.shape)):
            raise ValueError(f"chunks of shape {chunk}")
    if abstract_state is None:
        num_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        check_fits_in_memory(str(path), num_bytes)
    else:
        expected = _describe_arrays(abstract_state)
        if differing := {key for key in saved | expected if saved.get(key) != expected.get(key)}:
            key = min(differing)
            raise BadInput(
                printable(
                    f"{path}: holds another model's state: {key} is {saved.get(key, 'absent')} "
                    f"in the checkpoint, {expected.get(key, 'absent')} here"
                )
            )
    # Leaves of NumPy come back as arrays of NumPy, whatever devices wrote them.
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract_state)
    return orbax.restore(arrays, zeros)


def read_newest(
    folder: pathlib.Path,
    abstract_state: PyTree,
    say: Callable[[str], None],
    *,
    set_aside: bool = True,
) -> Checkpoint | None:
    """Read the newest intact checkpoint as `read_checkpoint` does; return None if there is none.

    `say` prints a line about each damaged checkpoint, which is renamed with `set_aside`.
    """
    damaged: dict[str, str] = {}
    for name in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(folder, name, abstract_state)._replace(damaged=damaged)
        except DamagedCheckpointError as error:
            damaged[name] = str(error)
            say(f"warning: {error}; trying the checkpoint before")
            if set_aside:
                with contextlib.suppress(OSError):
                    os.rename(folder / name, folder / f"{name}{_DAMAGED}")
    return None


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, name: str) -> None:
    """Copy the files of a checkpoint's manifest to another folder, completely or not at all."""
    partial = target / f"{name}{_PARTIAL}"
    for file in (*_read_intact(source / name)["files"], _MANIFEST):
        (partial / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name / file, partial / file)
    _commit(partial, target / name)


def create_orbax() -> Any:
    """Create an Orbax checkpointer for this process only: it waits for no other process."""
    import orbax.checkpoint as ocp

    get_absl_logger().addFilter(_is_not_orbax)  # it logs at length the errors that it raises
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _print_unraisable
    rank = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=rank, active_processes={rank}, barrier_sync_key_prefix=f"process{rank}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def first_blocks(path: pathlib.Path, size: float = math.inf) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file, in blocks."""
    with open(path, "rb") as file:
        while size > 0 and (block := file.read(min(size, 2**20))):  # type: ignore[arg-type]
            yield block
            size -= len(block)


def digest(path: pathlib.Path, size: float = math.inf) -> list[Any]:
    """Return [number, SHA-256] of the first `size` bytes of a file."""
    sha256, num_bytes = hashlib.sha256(), 0
    for block in first_blocks(path, size):
        sha256.update(block)
        num_bytes += len(block)
    return [num_bytes, sha256.hexdigest()]


def _explain(error: BaseException) -> str:
    """Return one line about an error of a checkpoint's files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if match := re.search(r"os_error_code='(\d+)'", str(error)):  # tensorstore's
        return os.strerror(int(match[1]))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _is_not_orbax(record: Any) -> bool:
    return "orbax" not in record.pathname


def _print_unraisable(unraisable: Any) -> None:
    # If one array cannot be read, Orbax closes the event loop that the others still report to.
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _describe_arrays(state: PyTree) -> dict[str, str]:
    """Return {path in the tree: type and shape}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{[*leaf.shape]}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _read_intact(path: pathlib.Path) -> dict[str, Any]:
    """Return a checkpoint's manifest; raise DamagedCheckpointError if a file differs from it.

    Its names are those of regular files inside the folder, and nothing else is there but folders
    and regular files: a name may lead elsewhere, Orbax would follow a link and wait for a pipe.
    """
    body, sizes = _read_manifest(path), {}
    for folder, folders, files in os.walk(path):
        for entry in (pathlib.Path(folder, name) for name in (*folders, *files)):
            name, status = entry.relative_to(path).as_posix(), entry.lstat()
            if stat.S_ISDIR(status.st_mode):
                # Python 3.11 walks by recursion.
                if name.count("/") > _DEEPEST:
                    raise _damaged(path, name, "lies too deep")
                continue
            # Orbax reads whole what is not data.
            is_whole = entry.parent.name != "d"
            if not stat.S_ISREG(status.st_mode) or (is_whole and status.st_size > DOCUMENT_BYTES):
                raise _damaged(path, name, "is no regular file, or too large")
            sizes[name] = status.st_size
    for name, (num_bytes, sha256) in body["files"].items():
        if sizes.get(name) != num_bytes or digest(path / name) != [num_bytes, sha256]:
            raise _damaged(path, name, "is not as it was written")
    return body


def _damaged(path: pathlib.Path, name: str, reason: str) -> DamagedCheckpointError:
    # A name may have any letters, and any number of them.
    return DamagedCheckpointError(f"{path}: is damaged: {printable(name[:_SHOWN])} {reason}")


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_text(path / _MANIFEST))
        msgspec.convert(manifest, _Manifest)
        body = manifest["body"]
        # Sums of losses may be nan, all else is finite.
        sums = body["metadata"].get("sums", {}) | {"total": {}, "interval": {}}
        check_numbers(body | {"metadata": body["metadata"] | {"sums": sums}}, "$.body")
        if _seal(body) == manifest["seal"]:
            return body
        reason = "is not as it was written"
    except (OSError, ValueError, RecursionError) as error:
        reason = _explain(error)
    raise _damaged(path, _MANIFEST, reason)


def _seal(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, default=np.ndarray.tolist)
    return hashlib.sha256(text.encode()).hexdigest()


def _commit(partial: pathlib.Path, path: pathlib.Path) -> None:
    """Give a checkpoint its name, in place of one of that name, which training never has."""
    shutil.rmtree(path, ignore_errors=True)
    os.rename(partial, path)
    _sync(path.parent)


def _sync(path: pathlib.Path) -> None:
    """Flush a file or folder to the disk, so that it survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
