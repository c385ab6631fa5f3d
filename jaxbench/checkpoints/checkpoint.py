"""One checkpoint on disk: complete or absent, and read back only if it is intact.

Orbax writes the arrays. The rest is ours: a folder for each checkpoint, a manifest with the digest
of every file, and the folder's name, which it gets last. Orbax notices neither a flipped bit (its
Zarr chunks have no digest) nor an array of another shape.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from absl.logging import get_absl_logger

from jaxbench.clock import now
from jaxbench.errors import BadInput

_MANIFEST, _ARRAYS = "manifest.json", "arrays"
_FORMAT = 1
_NAME = re.compile(r"^step-(\d{9,})\.epoch-(\d{5,})$")
# Suffixes of a folder that is being written, is being removed, or was found corrupt.
_PARTIAL, _REMOVED, _CORRUPT = ".part", ".dead", ".corrupt"


class CorruptCheckpointError(Exception):
    """A checkpoint differs from what was written; the message says where."""


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    Attributes:
      name: the name of its folder.
      state: the saved state, with arrays of NumPy.
      point: what was saved beside the state, see `Checkpoints.save`.
      corrupt: {name: reason} of newer checkpoints that could not be read.
    """

    name: str
    state: Any
    point: dict[str, Any]
    corrupt: dict[str, str]


def checkpoint_name(point: dict[str, Any]) -> str:
    return f"step-{point['step']:09d}.epoch-{point['epochs_done']:05d}"


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
      folder: all checkpoints of the run; the checkpoint becomes a folder in it.
      name: from `checkpoint_name`.
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
        _save_arrays(orbax, partial / _ARRAYS, state)
        body = {
            "format": _FORMAT,
            "written_at": now().isoformat(),
            "score": score if score is not None and math.isfinite(score) else None,
            "point": point,
            "arrays": _describe_arrays(state),
            "files": {file: _digest(partial / file) for file in _files(partial)},
        }
        (partial / _MANIFEST).write_text(json.dumps({"body": body, "seal": _seal(body)}))
        for path, _, files in os.walk(partial):
            for file in files:
                _sync(os.path.join(path, file))
            _sync(path)
        _commit(partial, folder / name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return body["score"]


def read_checkpoint(folder: pathlib.Path, name: str, target: Any) -> Checkpoint:
    """Read one checkpoint.

    Args:
      folder: all checkpoints of the run.
      name: the checkpoint's folder in it.
      target: the state's structure, with shapes and types as leaves.

    Raises:
      CorruptCheckpointError: it differs from what was written.
      BadInput: it holds another model's state.
    """
    path = folder / name
    body = _read_manifest(path)
    saved, expected = body["arrays"], _describe_arrays(target)
    keys = sorted({**saved, **expected})
    differing = [key for key in keys if saved.get(key) != expected.get(key)]
    if differing:
        key = differing[0]
        raise BadInput(
            f"{path}: holds another model's state: {len(differing)} of {len(saved)} arrays differ; "
            f"{key} is {_shown(saved.get(key))} there, {_shown(expected.get(key))} here"
        )
    try:
        for file, digest in body["files"].items():
            if _digest(path / file) != digest:
                raise CorruptCheckpointError(f"{file} is not as it was written")
        state = _read_arrays(path / _ARRAYS, target)
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
      folder: all checkpoints of the run.
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
            say(f"warning: checkpoint {name} is corrupt ({error}); taking the one before")
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


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path, name: str) -> None:
    """Copy a checkpoint to another run's folder, completely or not at all."""
    partial = target / f"{name}{_PARTIAL}"
    shutil.copytree(source / name, partial)
    _commit(partial, target / name)


def remove_checkpoint(folder: pathlib.Path, name: str) -> None:
    """Remove a checkpoint; its name goes first, so that no process reads half of it."""
    removed = folder / f"{name}{_REMOVED}"
    os.rename(folder / name, removed)
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove what a killed process was writing or removing."""
    for path in folder.iterdir():
        if path.suffix in (_PARTIAL, _REMOVED):
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
    """Keep Orbax and tensorstore from printing a hundred lines about an error that they raise."""
    get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    before = sys.excepthook

    def hook(kind: type, error: BaseException, trace: Any) -> None:
        # tensorstore still reports to a loop that Orbax closed at the first error.
        if kind is not RuntimeError or str(error) != "Event loop is closed":
            before(kind, error, trace)

    sys.excepthook = hook


def _save_arrays(orbax: Any, path: pathlib.Path, state: Any) -> None:
    import orbax.checkpoint as ocp

    orbax.save(path.absolute(), args=ocp.args.StandardSave(state))


def _read_arrays(path: pathlib.Path, target: Any) -> Any:
    import orbax.checkpoint as ocp

    # Leaves of NumPy come back as arrays of NumPy, whatever devices wrote them.
    leaves = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), target)
    return create_orbax().restore(path.absolute(), args=ocp.args.StandardRestore(leaves))


def _describe_arrays(state: Any) -> dict[str, list[Any]]:
    """Return {path in the tree: [type, shape]}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [str(leaf.dtype), list(leaf.shape)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _shown(array: list[Any] | None) -> str:
    return "absent" if array is None else f"{array[0]} of shape {tuple(array[1])}"


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads((path / _MANIFEST).read_text())
        if _seal(found["body"]) != found["seal"]:
            raise CorruptCheckpointError(f"{_MANIFEST} is not as it was written")
        return found["body"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{_MANIFEST}: {explain(error)}") from error


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _files(folder: pathlib.Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix()


def _digest(path: pathlib.Path) -> list[Any]:
    with open(path, "rb") as file:
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
