"""Resume a run: find it, check that it may be resumed, open its run directory again."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Mapping
from typing import Any

import psutil

from jaxbench.checkpoints.checkpoint import Checkpoint, copy_checkpoint
from jaxbench.clock import now, timestamp_s
from jaxbench.errors import BadInput
from jaxbench.records.migration import migrate_run
from jaxbench.records.reader import Run, flat
from jaxbench.records.run_dir import (
    EVENTS,
    RECORDS,
    STATUSES,
    RunDir,
    check_workdir,
    create_run_dir,
    measure_records,
)
from jaxbench.records.schema.document import RunDocument

CHECKPOINTS = "checkpoints"
# Fields of a config that change neither losses nor records, only where and how fast it runs.
_FREE = {
    "num_devices",
    "parallelism",
    "data.path",
    "data.num_threads",
    "data.num_workers",
    "data.prefetch_batches",
    "data.cache",
    "data.cache_dir",
}


@dataclasses.dataclass(frozen=True)
class Resume:
    """A run to resume.

    Attributes:
      run: its run directory, as it was left.
      checkpoint: the name of the checkpoint to read; None for the newest that is intact.
      again: whether a run without an intact checkpoint starts anew in its run directory.
      lock: descriptor of the run directory, which no other process can resume meanwhile; None where
        the run is resumed in a new one.
    """

    run: Run
    checkpoint: str | None = None
    again: bool = False
    lock: int | None = None

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do; from a given checkpoint there always is."""
        return self.run.document["status"] in ("done", "invalid") and self.checkpoint is None

    def close(self) -> None:
        """Let other processes resume the run."""
        if self.lock is not None:
            os.close(self.lock)


def find_resume(workdir: str | None, resume: str, run_name: str) -> Resume | None:
    """Return the run that `--resume` names; None where a new one begins.

    Args:
      workdir: as given to `check_workdir`.
      resume: `none`; `auto` for the run in `workdir`, or a new run where that is empty; or the path
        of a run directory or of one of its checkpoints, to be resumed in a new `workdir` or,
        without one, in its own folder.
      run_name: the experiment's.

    Raises:
      BadInput: there is no such run, it is still running or has diverged, or `workdir` is not
        empty.
    """
    if resume == "none":
        check_workdir(workdir, run_name)
        return None
    checkpoint = None
    if resume == "auto":
        if not workdir:
            raise BadInput("--resume=auto: give --workdir, the folder of the run")
        path = pathlib.Path(workdir).expanduser()
        if not (path / "run.json").exists():
            # A process that is killed in its first moment leaves this file alone.
            with contextlib.suppress(OSError):
                (path / "run.json.partial").unlink()
            check_workdir(workdir, run_name)
            return None
        lock = _lock(path)
        found = Resume(_load(path), again=True, lock=lock)
    else:
        path = pathlib.Path(resume).expanduser()
        if path.parent.name == CHECKPOINTS and path.is_dir():
            path, checkpoint = path.parent.parent, path.name
        if workdir:
            check_workdir(workdir, run_name)
        elif checkpoint:
            raise BadInput(
                f"--resume={resume}: what came after that checkpoint would be lost; give a new "
                "--workdir"
            )
        found = Resume(_load(path), checkpoint, lock=None if workdir else _lock(path))
    try:
        _check_ended(found)
    except BadInput:
        found.close()
        raise
    return found


def _check_ended(resume: Resume) -> None:
    """Raise BadInput for a run that is still running, or that would diverge again."""
    path, document = resume.run.path, resume.run.document
    if process := _running_process(document):
        raise BadInput(f"{path}: is still running (process {process})")
    if document["status"] == "diverged" and resume.checkpoint is None:
        raise BadInput(
            f"{path}: has diverged, and would again; one of its {CHECKPOINTS} may be resumed in a "
            "new --workdir"
        )


def _lock(path: pathlib.Path) -> int | None:
    """Open a run directory and lock it for this process, until the descriptor is closed."""
    if not path.is_dir():
        return None
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise BadInput(f"{path}: another process has resumed it") from None
    except OSError:  # a file system without locks
        pass
    return folder


def _load(path: pathlib.Path) -> Run:
    """Read a run directory up to the first corrupt record: later ones are cut off anyway."""
    if not (path / "run.json").is_file():
        raise BadInput(f"{path}: no run directory, it has no run.json")
    try:
        document = json.loads((path / "run.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: its run.json cannot be read: {error}") from error
    known = isinstance(document, dict) and document.get("status") in STATUSES
    if not known or not isinstance(document.get("config"), dict):
        raise BadInput(f"{path}: its run.json is not that of a training run")
    records = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        for line in (path / "metrics.jsonl").read_bytes().split(b"\n")[:-1]:
            records.append(json.loads(line))
    return Run(path, *migrate_run(document, [r for r in records if isinstance(r, dict)]))


def _running_process(document: Mapping[str, Any]) -> int | None:
    """Return the id of the process that runs it, None where there is none on this host."""
    last = (document.get("resumes") or [document])[-1]
    try:
        host, pid = document["environment"]["hostname"], int(last["pid"])
        if document["status"] != "running" or last.get("hostname", host) != platform.node():
            return None
        began_s = psutil.Process(pid).create_time()
        # A later process may have the same id; the clocks agree to a second.
        return pid if began_s <= timestamp_s(last["started_at"]) + 1 else None
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None


def check_same(resume: Resume, config: Any) -> None:
    """Raise BadInput where a run was made with another experiment than this config.

    Fields that did not exist when the run was made had their defaults.
    """
    before = _defaults(config) | dict(flat(resume.run.document["config"]))
    # Through JSON, as the record has it.
    now = dict(flat(json.loads(json.dumps(dataclasses.asdict(config), default=str))))
    free = _FREE if now.get("replicas") != "independent" else _FREE - {"num_devices"}
    # Resized copies have other pixels than the originals; copies in memory have not.
    if "resized" in (before.get("data.cache"), now.get("data.cache")):
        free = free - {"data.cache"}
    differing = [
        f"{name}={before.get(name)} there, {now.get(name)} here"
        for name in {**before, **now}
        if name not in free and before.get(name) != now.get(name)
    ]
    if differing:
        raise BadInput(
            f"{resume.run.path}: was made with another experiment: {'; '.join(differing[:4])}"
            + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
        )


def _defaults(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return {field: default} of all fields with a default, as a record would have them."""
    found = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= _defaults(value, name + ".")
        elif field.default is not dataclasses.MISSING:
            found[name] = json.loads(json.dumps(field.default, default=str))
    return found


def truncate_records(folder: pathlib.Path, sizes: Mapping[str, int]) -> list[str]:
    """Cut a run's records to the lengths that they had at a checkpoint, and remove later files.

    All files alike, for none can be made anew from metrics.jsonl without loss: telemetry.csv holds
    other figures, and TensorBoard's events hold the times at which they were written.

    Args:
      folder: the run directory.
      sizes: {file: bytes}, as `measure_records` returned it then.

    Returns:
      The files that are shorter than that already.

    Raises:
      BadInput: metrics.jsonl is one of them.
    """
    found = measure_records(folder)
    valid = all(isinstance(size, int) and size >= 0 for size in sizes.values())
    short = [name for name, size in sizes.items() if found.get(name, -1) < size] if valid else []
    if not valid or RECORDS[0] in short:
        raise BadInput(f"{folder}: {RECORDS[0]} is shorter than it was at the checkpoint")
    for name in (*RECORDS, EVENTS):
        if (folder / name).is_symlink():  # its target is no part of this run
            (folder / name).unlink()
    # Anybody may have written the names in `sizes`: only files of records are touched.
    for name, size in found.items():
        if name not in sizes:
            (folder / name).unlink()
        elif size > sizes[name]:
            os.truncate(folder / name, sizes[name])
    return short


def copy_records(source: pathlib.Path, target: pathlib.Path, sizes: Mapping[str, int]) -> None:
    """Copy a run's records to another folder, as they were at a checkpoint, see above."""
    for name in measure_records(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    truncate_records(target, sizes)


def resume_run_dir(
    resume: Resume,
    checkpoint: Checkpoint | None,
    workdir: str | None,
    run_name: str,
    document: RunDocument,
) -> RunDir:
    """Open the run directory of a resumed run, with the records that it had at the checkpoint.

    Args:
      resume: the run.
      checkpoint: None where the run starts anew.
      workdir: as given to `find_resume`.
      run_name: the experiment's.
      document: run.json as this process would begin it.

    Raises:
      BadInput: the folder cannot be created, or records are missing.
    """
    path, old = resume.run.path, resume.run.document
    sizes = checkpoint.point["records"] if checkpoint else {}
    entry = _resume_entry(resume.run, checkpoint, document)
    for name in ("train_examples", "eval_examples"):
        before, here = (data.get(name) for data in (old.get("data", {}), document.data))
        if before != here:
            raise BadInput(f"{path}: was made with {before} {name}, there are {here} here")
    if workdir and pathlib.Path(workdir).expanduser().resolve() != path.resolve():
        entry["from"] = str(path)
        resumed = dataclasses.replace(document, resumes=[entry])
        run_dir = create_run_dir(workdir, run_name, resumed)
        copy_records(path, run_dir.path, sizes)
        if checkpoint:  # the new run may end before it has written one
            copy_checkpoint(path / CHECKPOINTS, run_dir.path / CHECKPOINTS, checkpoint.name)
        return run_dir
    # In its own folder it stays the same run.
    before, here = old.get("target_accuracy"), document.target_accuracy
    if before != here:
        raise BadInput(
            f"{path}: was made with --target_accuracy={before}, this is {here}; one of its "
            f"{CHECKPOINTS} can be resumed in a new --workdir"
        )
    entry["short"] = truncate_records(path, sizes)
    run_dir = RunDir(path, old)
    run_dir.update(
        status="running",
        reason=None,
        finished_at=None,
        summary=None,
        resumes=[*(old.get("resumes") or ()), entry],
    )
    return run_dir


def _resume_entry(run: Run, checkpoint: Checkpoint | None, document: RunDocument) -> dict[str, Any]:
    """Return the entry of run.json's `resumes` about this process."""
    elapsed_s = sum(checkpoint.point["totals_s"].values()) if checkpoint else 0.0
    return {
        "started_at": now().isoformat(),
        "checkpoint": checkpoint and checkpoint.name,
        "step": checkpoint.point["step"] if checkpoint else 0,
        "elapsed_s": elapsed_s,
        # The time of the work after the checkpoint, which is lost, as far as records tell.
        "lost_s": max(0.0, _last_elapsed_s(run) - elapsed_s),
        "damaged_checkpoints": checkpoint.corrupt if checkpoint else {},
        "before": {name: run.document.get(name) for name in ("status", "reason", "finished_at")},
        **{name: getattr(document, name) for name in ("command_line", "pid")},
        **{n: document.environment.get(n) for n in ("hostname", "device_kind", "num_devices")},
    }


def _last_elapsed_s(run: Run) -> float:
    """Return the run's time at its last record or sample of telemetry."""
    times_s = [record.get("elapsed_s") for record in run.records[-20:]]
    try:
        with open(run.path / "telemetry.csv", "rb") as file:
            columns = file.readline().decode().strip().split(",")
            file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").splitlines()
        times_s += [float(line.split(",")[columns.index("elapsed_s")]) for line in lines[1:-1]]
    except (OSError, ValueError, IndexError):
        pass
    return max((t for t in times_s if isinstance(t, (int, float))), default=0.0)
