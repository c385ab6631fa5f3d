"""Taking a run directory up again: which one, from where, its records set back to there."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import psutil

from jaxbench.checkpoints.checkpointer import Checkpoint, copy_checkpoint
from jaxbench.clock import now, timestamp_s
from jaxbench.errors import BadInput
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

CHECKPOINTS = "checkpoints"
# Fields of a config that change neither losses nor records: where and how fast, not what.
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
    """A run to go on with.

    Attributes:
      run: its directory, as it was left.
      checkpoint: the one to take, None for the newest that can be read.
      again: where there is none, the run begins again in its directory rather than not at all.
      lock: an open folder that no other process can take up meanwhile; None where it is only read.
    """

    run: Run
    checkpoint: str | None = None
    again: bool = False
    lock: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do; from one of its checkpoints there always is."""
        return self.run.document["status"] in ("done", "invalid") and self.checkpoint is None

    def close(self) -> None:
        """Lets others take the run up."""
        if self.lock is not None:
            os.close(self.lock)


def find_resume(workdir: str | None, resume: str, run_name: str) -> Resume | None:
    """Returns the run that `--resume` asks for; None where a new one begins.

    Args:
      workdir: as given to `check_workdir`.
      resume: `none`; `auto`: the run in `workdir`, a new one where there is none; or a run
        directory or one of its checkpoints, to go on with in a new `workdir` or, without one, in
        its own folder.
      run_name: the experiment's.

    Raises:
      BadInput: there is no such run or checkpoint, it is still running, or `workdir` is not new.
    """
    if resume == "none":
        check_workdir(workdir, run_name)
        return None
    checkpoint = None
    if resume == "auto":
        if not workdir:
            raise BadInput("--resume=auto: give --workdir, the folder in which to go on or begin")
        path = pathlib.Path(workdir).expanduser()
        if not (path / "run.json").exists():
            # All that a process leaves that is killed in its first moment.
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
                "--workdir to go on in"
            )
        found = Resume(_load(path), checkpoint, lock=None if workdir else _lock(path))
    try:
        _check_ended(found)
    except BadInput:
        found.close()
        raise
    return found


def _check_ended(resume: Resume) -> None:
    """Raises BadInput where a run is still under way, or ended so that it would end so again."""
    path, document = resume.run.path, resume.run.document
    if process := _process(document):
        raise BadInput(f"{path}: is still running (process {process})")
    if document["status"] == "diverged" and resume.checkpoint is None:
        raise BadInput(
            f"{path}: has diverged, and would again; one of its {CHECKPOINTS} may be gone on with "
            "in a new --workdir"
        )


def _lock(path: pathlib.Path) -> int | None:
    """Opens a run directory for this process alone, as long as it stays open."""
    if not path.is_dir():
        return None
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise BadInput(f"{path}: another process has taken it up") from None
    except OSError:  # a file system without locks
        pass
    return folder


def _load(path: pathlib.Path) -> Run:
    """Reads a run directory as far as it is whole: what comes after a checkpoint is cut off."""
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
    return Run(path, document, [record for record in records if isinstance(record, dict)])


def _process(document: Mapping[str, Any]) -> int | None:
    """The number of the process that is at it, None where none is, or none is known of here."""
    last = (document.get("resumes") or [document])[-1]
    try:
        host, pid = document["environment"]["hostname"], int(last["pid"])
        if document["status"] != "running" or last.get("hostname", host) != platform.node():
            return None
        began_s = psutil.Process(pid).create_time()
        # A later process may have the same number; clocks agree to a second.
        return pid if began_s <= timestamp_s(last["started_at"]) + 1 else None
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None


def check_same(resume: Resume, config: Any) -> None:
    """Raises BadInput where an experiment is another one than the run was made with.

    Fields that there were none of when the run was made had their defaults.
    """
    before = _defaults(config) | dict(flat(resume.run.document["config"]))
    # By way of JSON, as the record has it.
    now = dict(flat(json.loads(json.dumps(dataclasses.asdict(config), default=str))))
    free = _FREE if now.get("replicas") != "independent" else _FREE - {"num_devices"}
    # Smaller copies are other pixels, which those in memory are not.
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
    """Returns {field: default} of all fields that have one, as a record would have them."""
    found = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= _defaults(value, name + ".")
        elif field.default is not dataclasses.MISSING:
            found[name] = json.loads(json.dumps(field.default, default=str))
    return found


def truncate_records(folder: pathlib.Path, sizes: Mapping[str, int]) -> list[str]:
    """Cuts off what was recorded after `measure_records` returned these sizes.

    Returns:
      What is not as long as it was; the records themselves, metrics.jsonl, must be.

    Raises:
      BadInput: they are not.
    """
    there = measure_records(folder)
    short = _check_sizes(folder, there, sizes)
    for name in (*RECORDS, EVENTS):
        if (folder / name).is_symlink():  # what it leads to is not this run's to go on with
            (folder / name).unlink()
    for name, size in there.items():
        if name not in sizes:
            (folder / name).unlink()
        elif size > sizes[name]:
            os.truncate(folder / name, sizes[name])
    return short


def copy_records(source: pathlib.Path, target: pathlib.Path, sizes: Mapping[str, int]) -> list[str]:
    """Copies what had been recorded when `measure_records` returned these sizes; else as above."""
    there = measure_records(source)
    short = _check_sizes(source, there, sizes)
    # Names come from a file that anybody may have written: those of records lead nowhere else.
    for name in sizes.keys() & there.keys():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(source / name, "rb") as old, open(target / name, "wb") as new:
            left = sizes[name]
            while left and (piece := old.read(min(left, 1 << 20))):
                new.write(piece)
                left -= len(piece)
    return short


def _check_sizes(
    folder: pathlib.Path, there: Mapping[str, int], sizes: Mapping[str, int]
) -> list[str]:
    whole = all(isinstance(size, int) and size >= 0 for size in sizes.values())
    short = [name for name, size in sizes.items() if there.get(name, -1) < size] if whole else []
    if not whole or RECORDS[0] in short:
        raise BadInput(f"{folder}: {RECORDS[0]} is shorter than it was at the checkpoint")
    return short


def resume_run_dir(
    resume: Resume,
    checkpoint: Checkpoint | None,
    workdir: str | None,
    run_name: str,
    document: dict[str, Any],
) -> RunDir:
    """Opens the folder in which a run goes on, with the records that it had at the checkpoint.

    Args:
      resume: the run.
      checkpoint: None where it begins again.
      workdir: as `find_resume` was given it.
      run_name: the experiment's.
      document: what run.json says of this process.

    Raises:
      BadInput: the folder cannot be made, or records are gone.
    """
    environment = document["environment"]
    point = checkpoint.point if checkpoint else {"step": 0, "totals_s": {}, "records": {}}
    spent_s = sum(point["totals_s"].values())
    old = resume.run.document
    entry = {
        "started_at": now().isoformat(),
        "checkpoint": checkpoint and checkpoint.name,
        "step": point["step"],
        "elapsed_s": spent_s,
        # What had been done since and is done again; unknown where nobody took notes.
        "lost_s": max(0.0, _last_sign_s(resume.run) - spent_s),
        "damaged_checkpoints": checkpoint.corrupt if checkpoint else {},
        "before": {name: old.get(name) for name in ("status", "reason", "finished_at")},
        **{name: document[name] for name in ("command_line", "pid")},
        **{name: environment.get(name) for name in ("hostname", "device_kind", "num_devices")},
    }
    path = resume.run.path
    for name in ("train_examples", "eval_examples"):
        before, here = (found.get("data", {}).get(name) for found in (old, document))
        if before != here:
            raise BadInput(f"{path}: was made with {before} {name}, there are {here} here")
    if workdir and pathlib.Path(workdir).expanduser().resolve() != path.resolve():
        entry["from"] = str(path)
        run_dir = create_run_dir(workdir, run_name, document | {"resumes": [entry]})
        copy_records(path, run_dir.path, point["records"])
        if checkpoint:  # its own to go on from, if it ends before it has another
            copy_checkpoint(path / CHECKPOINTS, run_dir.path / CHECKPOINTS, checkpoint.name)
        return run_dir
    # In its own folder it stays the run that it was.
    before, here = old.get("target_accuracy"), document.get("target_accuracy")
    if before != here:
        raise BadInput(
            f"{path}: was made with --target_accuracy={before}, this is {here}; one of its "
            f"{CHECKPOINTS} can be gone on with in a new --workdir"
        )
    entry["short"] = truncate_records(path, point["records"])
    run_dir = RunDir(path, old)
    run_dir.update(
        status="running",
        reason=None,
        finished_at=None,
        summary=None,
        resumes=[*(old.get("resumes") or ()), entry],
    )
    return run_dir


def _last_sign_s(run: Run) -> float:
    """The run's time when it was last heard of."""
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
