"""The run directory: the only thing that passes between measuring and reporting."""

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from jaxbench.clock import now
from jaxbench.errors import BadInput
from jaxbench.records.schema.document import RunDocument

# The files that a run appends to, beside those in the folder of TensorBoard's events.
RECORDS = ("metrics.jsonl", "epochs.csv", "telemetry.csv")
EVENTS = "tensorboard"
STATUSES = ("running", "done", "failed", "oom", "preempted", "diverged", "invalid")
_FIELDS = {field.name for field in dataclasses.fields(RunDocument)}


class RunDir:
    """A folder for one run, with `run.json` in it from the first moment on.

    Args:
      path: the folder.
      document: the content of run.json.
    """

    def __init__(self, path: pathlib.Path, document: Mapping[str, Any]):
        self.path = path
        self._document = dict(document)

    def update(self, **fields: Any) -> None:
        """Set fields of run.json. The file is replaced whole: a reader never sees half of it."""
        if unknown := fields.keys() - _FIELDS:
            raise TypeError(f"run.json has no field {', '.join(sorted(unknown))}")
        if fields.get("status", "running") not in STATUSES:
            raise ValueError(f"status {fields['status']!r}: must be one of {STATUSES}")
        self._document |= fields
        partial = self.path / "run.json.partial"
        try:
            partial.write_text(_to_json(self._document))
            os.replace(partial, self.path / "run.json")
        except OSError:
            partial.unlink(missing_ok=True)
            self._update_in_place()

    def _update_in_place(self) -> None:
        """Write status and reason into the old file's own space: the disk is full."""
        document = {key: value for key, value in self._document.items() if key != "summary"}
        with open(self.path / "run.json", "r+") as file:
            file.write(_to_json(document))
            file.truncate()


def close_abandoned(path: pathlib.Path, status: str, reason: str) -> None:
    """Record how a run ended that was killed before it could itself."""
    try:
        document = json.loads((path / "run.json").read_text())
    except (OSError, json.JSONDecodeError):
        return
    if document.get("status") == "running":
        RunDir(path, document).update(status=status, reason=reason, finished_at=now().isoformat())


def _to_json(document: dict[str, Any]) -> str:
    return json.dumps(finite(document), indent=2) + "\n"


def check_workdir(workdir: str | None, run_name: str) -> None:
    """Raise BadInput where a run directory could not be made; make nothing.

    Called before long work, so that a bad --workdir is answered at once.
    """
    if workdir == "":
        raise BadInput("--workdir=: must name a folder")
    path = pathlib.Path(workdir or pathlib.Path("runs", folder_name(run_name))).expanduser()
    try:
        if workdir and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
            what = "is a file" if path.is_file() else "is not empty"
            raise BadInput(
                f"--workdir={workdir}: {what}; nothing is overwritten, name a new or empty folder"
            )
        parent = path.absolute()
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise BadInput(f"--workdir={workdir}: {error.strerror}") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise BadInput(f"--workdir={path}: cannot write in {parent}")


def create_run_dir(workdir: str | None, run_name: str, document: RunDocument) -> RunDir:
    """Make the folder (`runs/NAME/YYYYmmdd-HHMMSS` unless given) and its first run.json.

    Raises:
      BadInput: it cannot be made, or it is not empty.
    """
    check_workdir(workdir, run_name)
    try:
        if workdir:
            path = pathlib.Path(workdir).expanduser()
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = _new_folder(pathlib.Path("runs", folder_name(run_name)))
        run_dir = RunDir(path, document.to_json())
        run_dir.update(status="running")
    except OSError as error:
        raise BadInput(f"--workdir={workdir or 'runs'}: {error.strerror}") from error
    return run_dir


def folder_name(run_name: str) -> str:
    """Return a run's name as that of a folder: one level down, never up or elsewhere."""
    # Some systems allow no colon in file names, nor does TensorBoard's run filter.
    return re.sub(r"[^\w.=,+@-]+", "-", run_name).strip(".-") or "unnamed"


def _new_folder(parent: pathlib.Path) -> pathlib.Path:
    """Make a folder named by the time; runs started in the same second get -2, -3 ..."""
    parent.mkdir(parents=True, exist_ok=True)
    stamp = now().strftime("%Y%m%d-%H%M%S")
    attempt = 1
    while True:
        path = parent / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            attempt += 1


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
