"""The run directory: the only thing that passes between measuring and reporting."""

import contextlib
import errno
import itertools
import json
import math
import os
import pathlib
import re
import threading
from collections.abc import Mapping
from typing import Any, get_args

from jaxbench.clock import now
from jaxbench.errors import BadInput
from jaxbench.files import PARTIAL, open_own, read_text, replace_file
from jaxbench.paths import check_can_be_made, user_path
from jaxbench.records.run_lock import LOCK, is_running, lock_run
from jaxbench.schema import RunDocument, Status

# The files that a run appends to, beside those in the folder of TensorBoard's events.
RECORDS = ("metrics.jsonl", "epochs.csv", "telemetry.csv")
EVENTS = "tensorboard"
STATUSES = get_args(Status)
_DOCUMENT = "run.json"
# What a process leaves that is killed in its first moment.
_LEFTOVERS = {LOCK, _DOCUMENT + PARTIAL}
# Disks give room in blocks of this size. Blank lines at the end of run.json keep one to spare.
_BLOCK_BYTES = 4096
_FIELDS = {*RunDocument.__struct_fields__}


class RunDir:
    """A folder for one run, with `run.json`, the document, in it from the first moment on.

    `lock` is the descriptor that holds the folder's lock; None if something else holds it.
    """

    def __init__(self, path: pathlib.Path, document: Mapping[str, Any], lock: int | None = None):
        self.path = path
        self.document = dict(document)
        self._lock = lock
        # A thread records the end if the main thread hangs.
        self._writing = threading.Lock()

    def update(self, **fields: Any) -> None:
        """Set fields of run.json. The file is replaced whole: a reader never sees half of it."""
        if unknown := fields.keys() - _FIELDS:
            raise TypeError(f"run.json has no field {', '.join(sorted(unknown))}")
        if fields.get("status", "running") not in STATUSES:
            raise ValueError(f"status {fields['status']!r}: must be one of {STATUSES}")
        with self._writing:
            self.document |= fields
            self._write()

    def _write(self) -> None:
        path, text = self.path / _DOCUMENT, _to_json(self.document)
        blocks = len(text) // _BLOCK_BYTES + 2
        try:
            replace_file(path, text.ljust(blocks * _BLOCK_BYTES, "\n"))
        except OSError:  # the disk is full
            if not path.exists():
                raise
            _write_in_place(path, self.document)

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def end(self, status: str, reason: str | None, **fields: Any) -> None:
        """Record how the run ended, and that it did now."""
        self.update(status=status, reason=reason, finished_at=now().isoformat(), **fields)


def close_abandoned(path: pathlib.Path, status: str, reason: str) -> None:
    """Record how a run ended that was killed before it could itself."""
    try:
        document = json.loads(read_text(path / _DOCUMENT))
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(document, dict) and document.get("status") == "running" and not is_running(path):
        RunDir(path, document).end(status, reason)


def _to_json(document: dict[str, Any]) -> str:
    return json.dumps(finite(document), indent=2) + "\n"


def _write_in_place(path: pathlib.Path, document: dict[str, Any]) -> None:
    """Write run.json into the blocks that it has; leave out the summary, then the reason's end.

    Raise OSError if it has too few, and is as it was.
    """
    document, room = dict(document), path.stat().st_size
    while len(text := _to_json(document)) > room:
        if document.get("summary"):
            document["summary"] = None
        elif document.get("reason"):
            document["reason"] = document["reason"][: len(document["reason"]) // 2]
        else:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    with open_own(path, "r+") as file:
        file.write(text.ljust(room, "\n"))


def check_workdir(workdir: str | None, run_name: str, *, is_locked: bool = False) -> None:
    """Raise BadInput if a run directory could not be made; make nothing.

    Called before long work, so that a bad --workdir is answered at once. `is_locked` says that this
    process has locked the folder.
    """
    if workdir == "":
        raise BadInput("--workdir=: must name a folder")
    path = user_path(workdir or pathlib.Path("runs", folder_name(run_name)))
    try:
        if workdir and (path.is_file() or (path.is_dir() and _is_used(path))):
            state = "is a file" if path.is_file() else "is not empty"
            if not is_locked and is_running(path):
                raise BadInput(f"{path}: is still running in another process")
            raise BadInput(
                f"--workdir={workdir}: {state}; nothing is overwritten, name a new or empty folder"
            )
        check_can_be_made(path, "workdir")
    except OSError as error:
        raise BadInput(f"--workdir={workdir}: {error.strerror}") from error


def create_run_dir(workdir: str | None, run_name: str, document: RunDocument) -> RunDir:
    """Make the folder (`runs/NAME/YYYYmmdd-HHMMSS` unless given) and its first run.json.

    Raise BadInput if it cannot be made, is not empty, or another process has it.
    """
    check_workdir(workdir, run_name)
    try:
        if workdir:
            path = user_path(workdir)
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = create_timed_folder(pathlib.Path("runs", folder_name(run_name)))
        with contextlib.ExitStack() as stack:
            run_dir = RunDir(path, document.to_json(), lock_run(path))
            stack.callback(run_dir.close)
            # Only who holds the lock can tell: another process may have written since.
            check_workdir(workdir, run_name, is_locked=True)
            run_dir.update(status="running")
            stack.pop_all()
    except OSError as error:
        raise BadInput(f"--workdir={workdir or 'runs'}: {error.strerror}") from error
    return run_dir


def _is_used(path: pathlib.Path) -> bool:
    """Return whether a folder holds more than a process leaves that never began."""
    return any(child.name not in _LEFTOVERS for child in path.iterdir())


def folder_name(run_name: str) -> str:
    """Return a run's name as that of a folder: one level down, never up or elsewhere."""
    # Some systems allow no colon in file names, nor does TensorBoard's run filter.
    return re.sub(r"[^\w.=,+@-]+", "-", run_name).strip(".-") or "unnamed"


def create_timed_folder(parent: pathlib.Path) -> pathlib.Path:  # type: ignore[return]
    """Make a folder named by the time; runs started in the same second get -2, -3 ..."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = now().strftime("%Y%m%d-%H%M%S")
    for attempt in itertools.count(1):
        path = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def finite(value: Any) -> Any:
    """Replace nan and infinities by None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def measure_records(folder: pathlib.Path) -> dict[str, int]:
    """Return {path below the folder: bytes} of the files that a run appends to, links left out."""
    paths = [folder / name for name in RECORDS]
    if not (folder / EVENTS).is_symlink():
        paths += sorted((folder / EVENTS).glob("**/*"))
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in paths
        if path.is_file() and not path.is_symlink()
    }
