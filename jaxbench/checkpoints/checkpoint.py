"""One checkpoint on disk: complete or absent, and read back only if it is intact.

Orbax writes the arrays. The rest is ours: a folder for each checkpoint, a manifest with the digest
of every file, and the folder's name, which it gets last. Orbax notices neither a flipped bit (its
Zarr chunks have no digest) nor an array of another shape.
"""

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl.logging import get_absl_logger

from jaxbench.clock import Stopwatch, now, pause
from jaxbench.errors import BadInput
from jaxbench.files import open_own, open_regular, read_text
from jaxbench.terminal import printable

_MANIFEST, _ARRAYS = "manifest.json", "arrays"
_FORMAT = 1
_NAME = re.compile(r"^step-(\d{9,})\.epoch-(\d{5,})$")
# Suffixes of a folder that is being written, is being removed, or was found corrupt.
_PARTIAL, _REMOVED, _CORRUPT = ".part", ".dead", ".corrupt"

# What a checkpoint takes beside its arrays: in all (with what the run writes meanwhile), for each.
_OVERHEAD_BYTES, _LEAF_BYTES = 96 * 1024, 4096
# How long a removed folder is looked after.
_PATIENCE_S = 2.0


class CorruptCheckpointError(Exception):
    """A checkpoint differs from what was written; the message says where."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    name: str  # of its folder
    state: Any  # with arrays of NumPy
    point: dict[str, Any]  # what was saved beside the state, see `Checkpoints.save`
    corrupt: dict[str, str]  # {name: reason} of newer checkpoints that could not be read


def list_checkpoints(folder: pathlib.Path) -> list[str]:
    """Return the names of the checkpoints in a folder, the newest last."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if _NAME.match(path.name)]
    return sorted(names, key=lambda name: tuple(map(int, _NAME.match(name).groups())))


def write_checkpoint(
    orbax: Any,
    folder: pathlib.Path,
    name: str,
    state: Any,
    point: dict[str, Any],
    score: float | None,
) -> float | None:
    """Write a checkpoint under another name, flush it to the disk, then give it its name.

    Args:
      orbax: from `create_orbax`.
      folder: of all checkpoints of the run; the checkpoint becomes a folder in it, `name`.
      state: arrays of NumPy.
      point: JSON values to keep beside the state.
      score: the model's score; None where it is unknown.

    Returns:
      The score as recorded: None for a score that is not finite.
    """
    partial = folder / f"{name}{_PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _check_room(partial, state)
        _save_arrays(orbax, partial / _ARRAYS, state)
        body = {
            "format": _FORMAT,
            "written_at": now().isoformat(),
            "score": score if score is not None and math.isfinite(score) else None,
            "point": point,
            "arrays": _describe_arrays(state),
            "files": {
                path.relative_to(partial).as_posix(): _digest(path)
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            },
        }
        (partial / _MANIFEST).write_text(json.dumps({"body": body, "seal": _seal(body)}))
        for path in (partial, *partial.rglob("*")):
            _sync(path)
        _commit(partial, folder / name)
    except BaseException:
        _remove_for_good(partial)
        raise
    return body["score"]


def read_checkpoint(folder: pathlib.Path, name: str, target: Any) -> Checkpoint:
    """Read one checkpoint.

    Args:
      folder: of all checkpoints of the run.
      name: of the checkpoint.
      target: the state's structure, with shapes and types as leaves; None for nested dictionaries
        and lists of whatever was saved.

    Raises:
      CorruptCheckpointError: it differs from what was written.
      BadInput: it holds another model's state.
    """
    path = folder / name
    body = _read_manifest(path)
    saved = body["arrays"]
    expected = saved if target is None else _describe_arrays(target)
    differing = [key for key in {**saved, **expected} if saved.get(key) != expected.get(key)]
    if differing:
        key = min(differing)
        there, here = (
            f"{arrays[key][0]} of shape {tuple(arrays[key][1])}" if key in arrays else "absent"
            for arrays in (saved, expected)
        )
        raise BadInput(
            f"{path}: holds another model's state: {len(differing)} of {len(saved)} arrays differ; "
            + printable(f"{key} is {there} there, {here} here")
        )
    # Leaves of NumPy come back as arrays of NumPy, whatever devices wrote them.
    leaves = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), target)
    try:
        _check_files(path, body)
        orbax, arrays = create_orbax(), (path / _ARRAYS).absolute()
        _check_stored_arrays(orbax.metadata(arrays).item_metadata.tree, saved)
        state = orbax.restore(arrays, leaves)
    except CorruptCheckpointError:
        raise
    except Exception as error:
        raise CorruptCheckpointError(explain(error)) from error
    return Checkpoint(name, state, body["point"], {})


def read_newest(
    folder: pathlib.Path, target: Any, say: Callable[[str], None], *, set_aside: bool = True
) -> Checkpoint | None:
    """Read the newest intact checkpoint; return None where there is none.

    Args:
      folder: of all checkpoints of the run.
      target: the state's structure, with shapes and types as leaves.
      say: prints a line about each corrupt checkpoint.
      set_aside: whether corrupt checkpoints are renamed.

    Raises:
      BadInput: it holds another model's state.
    """
    corrupt: dict[str, str] = {}
    for name in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(folder, name, target)._replace(corrupt=corrupt)
        except CorruptCheckpointError as error:
            corrupt[name] = str(error)
            say(f"warning: checkpoint {name} is corrupt ({error}); trying the one before")
            if set_aside:
                with contextlib.suppress(OSError):
                    os.rename(folder / name, folder / f"{name}{_CORRUPT}")
    return None


def read_score(folder: pathlib.Path, name: str) -> float | None:
    """Return the score of a checkpoint, None where it is unknown or the checkpoint corrupt."""
    try:
        return _read_manifest(folder / name)["score"]
    except CorruptCheckpointError:
        return None


def best_checkpoint(scores: Mapping[str, float | None]) -> str | None:
    """Return the name with the best of some {name: score}; None if no score is known."""
    scored = [(score, name) for name, score in scores.items() if score is not None]
    return max(scored)[1] if scored else None


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, name: str) -> None:
    """Copy the files of a checkpoint's manifest to another folder, completely or not at all."""
    partial, body = target / f"{name}{_PARTIAL}", _read_manifest(source / name)
    _check_files(source / name, body)
    for file in (*body["files"], _MANIFEST):
        (partial / file).parent.mkdir(parents=True, exist_ok=True)
        with open_own(source / name / file, "rb") as read, open(partial / file, "xb") as written:
            shutil.copyfileobj(read, written)
    _commit(partial, target / name)


def remove_checkpoint(folder: pathlib.Path, name: str) -> None:
    """Remove a checkpoint; its name goes first, so that no process reads half of it."""
    removed = folder / f"{name}{_REMOVED}"
    os.rename(folder / name, removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove what a killed process was writing or removing."""
    for path in folder.iterdir():
        if path.suffix in (_PARTIAL, _REMOVED) and _NAME.match(path.stem):
            shutil.rmtree(path, ignore_errors=True)


def create_orbax() -> Any:
    """Create an Orbax checkpointer for this process alone: it waits for no other process."""
    import orbax.checkpoint as ocp

    _silence_orbax()
    rank = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=rank, active_processes={rank}, barrier_sync_key_prefix=f"process{rank}"
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def explain(error: BaseException) -> str:
    """Return one line about an error of a checkpoint's files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if "RESOURCE_EXHAUSTED" in str(error) or "No space left" in str(error):
        return "No space left on device"  # tensorstore takes many lines to say it
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@functools.cache
def _silence_orbax() -> None:
    """Keep Orbax from logging the errors that it raises at length."""
    get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)


def _check_room(folder: pathlib.Path, state: Any) -> None:
    """Raise OSError where the disk has no room for a state.

    Orbax must not find out: at the first error it closes the loop to which tensorstore's other
    writers report, who print a traceback each and write on in a folder that has been removed.
    """
    leaves = jax.tree.leaves(state)
    # Measured (orbax-checkpoint 0.12.8): up to 29 KB, 2 KB for each array, and 1 % of large ones.
    needed = _OVERHEAD_BYTES + sum(leaf.nbytes * 51 // 50 + _LEAF_BYTES for leaf in leaves)
    disk = os.statvfs(folder)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remove_for_good(folder: pathlib.Path) -> None:
    """Remove a folder in which threads of tensorstore's may still write for a moment."""
    watch = Stopwatch()
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        pause(0.05)
        if not folder.exists() or watch.elapsed_s() > _PATIENCE_S:
            return


def _save_arrays(orbax: Any, path: pathlib.Path, state: Any) -> None:
    orbax.save(path.absolute(), state)


def _describe_arrays(state: Any) -> dict[str, list[Any]]:
    """Return {path in the tree: [type, shape]}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _check_files(path: pathlib.Path, body: Mapping[str, Any]) -> None:
    """Raise CorruptCheckpointError unless the files of a manifest are as they were written.

    They are regular files below the checkpoint's folder. Nothing else but folders and other regular
    files may be there: Orbax would follow a link, and wait for a pipe.
    """
    modes = {file.relative_to(path).as_posix(): file.lstat().st_mode for file in path.rglob("*")}
    for name, mode in modes.items():
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise CorruptCheckpointError(f"{name} is no regular file")
    for name, digest in body["files"].items():
        if name not in modes or _digest(path / name) != digest:
            raise CorruptCheckpointError(f"{name} is not as it was written")


def _check_stored_arrays(stored: Any, saved: dict[str, list[Any]]) -> None:
    """Raise CorruptCheckpointError if the arrays' own shapes are not those of the manifest.

    tensorstore allocates memory for whatever shape a file states, and aborts if it gets none.

    Args:
      stored: the tree of Orbax's metadata of each array.
      saved: the manifest's {path: [type, shape]}.
    """
    if _describe_arrays(stored) != saved:
        raise CorruptCheckpointError(f"the arrays are not those of {_MANIFEST}")
    for array in jax.tree.leaves(stored):
        chunk = array.storage.chunk_shape
        if math.prod(chunk) > max(1, math.prod(array.shape)):
            raise CorruptCheckpointError(f"{array.name} has chunks of shape {chunk}")
    state_bytes = sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(stored))
    np.empty(state_bytes, np.uint8)  # raises MemoryError for more than the machine has


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path / _MANIFEST))
        if _seal(found["body"]) != found["seal"]:
            raise CorruptCheckpointError(f"{_MANIFEST} is not as it was written")
        body = found["body"]
        # The seal is no signature: anybody can write a manifest that fits its own.
        named = all(isinstance(body[name], dict) for name in ("arrays", "files", "point"))
        described = all(
            isinstance(kind, str) and isinstance(shape, list)
            for kind, shape in body["arrays"].values()
        )
        if not (named and described and isinstance(body["score"], float | int | None)):
            raise ValueError("a field is of another type")
        return body
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{_MANIFEST}: {explain(error)}") from error


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _digest(path: pathlib.Path) -> list[Any]:
    with open_regular(path, "rb", most_bytes=math.inf) as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _commit(partial: pathlib.Path, path: pathlib.Path) -> None:
    """Give a checkpoint its name, in place of an older checkpoint of that name."""
    removed = path.with_name(f"{path.name}{_REMOVED}")
    if path.exists():
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(path, removed)
    os.rename(partial, path)
    _sync(path.parent)
    shutil.rmtree(removed, ignore_errors=True)


def _sync(path: Any) -> None:
    """Flush a file or folder to the disk, so that it survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
