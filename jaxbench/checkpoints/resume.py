"""Resume a run: find it, check that it may be resumed, open its run directory again."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

from jaxbench.checkpoints.checkpoint import Checkpoint, copy_checkpoint
from jaxbench.checkpoints.kept_records import copy_records, restore_records
from jaxbench.clock import now
from jaxbench.errors import BadInput
from jaxbench.files import open_regular, read_text
from jaxbench.own.code import config_record
from jaxbench.paths import user_path
from jaxbench.records.goodput import end_stretch, is_phases, read_stretches
from jaxbench.records.reader import RunRecords, flat, read_records
from jaxbench.records.run_dir import (
    EVENTS,
    PARTIAL,
    RECORDS,
    STATUSES,
    RunDir,
    check_workdir,
    create_run_dir,
)
from jaxbench.records.run_lock import LOCK, is_running, lock_run
from jaxbench.records.schema.document import RunDocument
from jaxbench.records.stretches import describe_stretch, last_stretch

CHECKPOINTS = "checkpoints"
# What a run writes; all else in its folder may be anything.
_FOLDERS = {CHECKPOINTS, EVENTS}
_OWN = {*_FOLDERS, *RECORDS, PARTIAL, LOCK}
# Fields of a config that a resumed run may have otherwise: where and how fast it runs, and what it
# prints. `num_devices` changes the losses with local batch norm; then a warning says so.
_FREE = {
    "log_every_steps",
    "step_log",
    "num_devices",
    "parallelism",
    "data.path",
    "data.download",
    "data.num_threads",
    "data.num_workers",
    "data.prefetch_batches",
    "data.cache",
    "data.cache_dir",
}


@dataclasses.dataclass(frozen=True)
class Resume:
    """A run to resume."""

    run: RunRecords  # its run directory, as it was left
    # The name of the checkpoint to read; None for the newest that is intact.
    checkpoint: str | None = None
    # Whether a run without an intact checkpoint starts anew in its run directory.
    again: bool = False
    # Holds the lock of the run directory; None where the run is resumed in a new one.
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
        path = user_path(workdir)
        if not (path / "run.json").exists():
            check_workdir(workdir, run_name)
            return None
        found = _open(path, None, own=True, again=True)
    else:
        path = user_path(resume)
        if path.parent.name == CHECKPOINTS and path.is_dir():
            path, checkpoint = path.parent.parent, path.name
        if workdir:
            check_workdir(workdir, run_name)
        elif checkpoint:
            raise BadInput(
                f"--resume={resume}: what came after that checkpoint would be lost; give a new "
                "--workdir"
            )
        found = _open(path, checkpoint, own=not workdir)
    if found.run.document["status"] == "diverged" and checkpoint is None:
        found.close()
        raise BadInput(
            f"{path}: has diverged and would diverge again; one of its {CHECKPOINTS} may be "
            "resumed in a new --workdir"
        )
    return found


def _open(path: pathlib.Path, checkpoint: str | None, *, own: bool, again: bool = False) -> Resume:
    """Read a run directory that nobody writes to, and lock it where it is to be resumed itself."""
    if not (path / "run.json").is_file():
        raise BadInput(f"{path}: no run directory, it has no run.json")
    _check_files(path, own)
    if not own:
        if is_running(path):
            raise BadInput(f"{path}: is still running in another process")
        return Resume(_load(path), checkpoint)
    try:
        lock = lock_run(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    try:
        return Resume(_load(path), checkpoint, again, lock)
    except BaseException:
        os.close(lock)
        raise


def _check_files(path: pathlib.Path, own: bool) -> None:
    """Raise BadInput for pipes, which block, and for checkpoints that would go through a link."""
    for found in path.iterdir():
        if found.exists() and not found.is_file() and not found.is_dir():
            raise BadInput(f"{found}: is no regular file")
        is_wrong = found.is_dir() != (found.name in _FOLDERS)
        if own and found.name in _OWN and found.exists() and is_wrong:
            raise BadInput(f"{found}: is {'a' if found.is_dir() else 'no'} folder")
    if own and (path / CHECKPOINTS).is_symlink():
        raise BadInput(
            f"{path / CHECKPOINTS}: is a link, through which nothing is written; give a new "
            "--workdir"
        )


def _load(path: pathlib.Path) -> RunRecords:
    """Read a run directory up to the first corrupt record: later ones are cut off anyway."""
    try:
        document = json.loads(read_text(path / "run.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: its run.json cannot be read: {error}") from error
    known = isinstance(document, dict) and document.get("status") in STATUSES
    if not known or not isinstance(document.get("config"), dict):
        raise BadInput(f"{path}: its run.json is not that of a training run")
    records, last_step = [], None
    with contextlib.suppress(OSError, ValueError, BadInput):
        for record in read_records(path):
            if record.get("kind") == "step":
                last_step = record
            else:
                records.append(record)
    return RunRecords(path, document, records, last_step)


def check_same(resume: Resume, config: Any) -> None:
    """Raise BadInput where a run was made with another experiment than this config.

    Fields that did not exist when the run was made had their defaults.
    """
    before = _defaults(config) | dict(flat(resume.run.document["config"]))
    now = dict(flat(_recorded(config_record(config))))
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
        # The text of the user's own code ends with its file's digest.
        is_code = all(", sha256 " in text for text in differing)
        what = "the file of its code has changed" if is_code else "was made with another experiment"
        raise BadInput(
            f"{resume.run.path}: {what}: {'; '.join(differing[:4])}"
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
            found[name] = _recorded(field.default)
    return found


def _recorded(value: Any) -> Any:
    """Return a value as run.json has it."""
    return json.loads(json.dumps(value, default=str))


def resume_run_dir(
    resume: Resume,
    checkpoint: Checkpoint | None,
    workdir: str | None,
    run_name: str,
    document: RunDocument,
    say: Callable[[str], None],
) -> RunDir:
    """Open the run directory of a resumed run, with the records that it had at the checkpoint.

    Args:
      resume: the run.
      checkpoint: None where the run starts anew.
      workdir, run_name: as given to `find_resume`.
      document: run.json as this process would begin it.
      say: prints a warning.

    Raises:
      BadInput: the folder cannot be created, or the data or the target differ.
    """
    path, old = resume.run.path, resume.run.document
    data = old.get("data")
    data = data if isinstance(data, dict) else {}
    marks = checkpoint.point["records"] if checkpoint else {}
    entry = _resume_entry(resume.run, checkpoint, document)
    stretches = _stretches(resume, document)
    for name in ("train_examples", "eval_examples"):
        before, here = data.get(name), document.data.get(name)
        if before != here:
            raise BadInput(f"{path}: was made with {before} {name}, there are {here} here")
    for name in ("train", "eval"):
        if data.get(f"{name}_checksum") != document.data.get(f"{name}_checksum"):
            raise BadInput(
                f"{path}: was made with another data set of this size: its {name} examples differ"
            )
    before, here = last_stretch(old)["batch_norm_examples"], document.batch_norm_examples
    if before != here:
        say(
            f"warning: batch norm takes its statistics from {here} images now, it took them from "
            f"{before}: losses are not those of an undisturbed run (batch_norm=sync keeps them)"
        )
    if workdir and user_path(workdir).resolve() != path.resolve():
        entry["from"] = str(path)
        resumed = dataclasses.replace(document, resumes=[entry], stretches=stretches)
        run_dir = create_run_dir(workdir, run_name, resumed)
        entry["short"] = _warn_of(copy_records(path, run_dir.path, marks), say)
        if checkpoint:  # the new run may end before it has written one
            copy_checkpoint(path / CHECKPOINTS, run_dir.path / CHECKPOINTS, checkpoint.name)
        run_dir.update(resumes=[entry])
        return run_dir
    # In its own folder it stays the same run.
    before, here = old.get("target_accuracy"), document.target_accuracy
    if before != here:
        raise BadInput(
            f"{path}: was made with --target_accuracy={before}, this is {here}; one of its "
            f"{CHECKPOINTS} can be resumed in a new --workdir"
        )
    entry["short"] = _warn_of(restore_records(path, marks), say)
    run_dir = RunDir(path, old)
    run_dir.update(
        status="running",
        reason=None,
        finished_at=None,
        summary=None,
        resumes=[*(old.get("resumes") or ()), entry],
        stretches=stretches,
    )
    return run_dir


def _warn_of(short: list[str], say: Callable[[str], None]) -> list[str]:
    if short:
        say(f"warning: what is left is kept, but not as it was written: {', '.join(short)}")
    return short


def _resume_entry(
    run: RunRecords, checkpoint: Checkpoint | None, document: RunDocument
) -> dict[str, Any]:
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
        "before": {
            **{name: run.document.get(name) for name in ("status", "reason", "finished_at")},
            **last_stretch(run.document),
        },
        **{name: getattr(document, name) for name in ("command_line", "pid")},
        "hostname": document.environment.get("hostname"),
        **describe_stretch(document.environment, document.price, document.batch_norm_examples),
    }


def _stretches(resume: Resume, document: RunDocument) -> list[dict[str, Any]] | None:
    """Return the entries of all processes so far, this one's included; None where they are unknown.

    A process that was not killed has its phases in its summary. What a run did after a checkpoint
    from which another one branches off is not lost.
    """
    run, earlier = resume.run, read_stretches(resume.run.document)
    if earlier is None or resume.checkpoint is not None:
        return None
    [own], (*before, last) = document.stretches, earlier
    summary = run.document.get("summary")
    told = summary.get("phases_s") if isinstance(summary, dict) else None
    if is_phases(told):
        return [*before, {**last, "phases_s": told}, own]
    return [*before, end_stretch(last, own["resumed_phases_s"], _last_elapsed_s(run)), own]


def _last_elapsed_s(run: RunRecords) -> float:
    """Return the run's time at its last record or sample of telemetry."""
    last = [*run.records[-20:], run.last_step or {}]
    times_s = [record.get(name) for record in last for name in ("elapsed_s", "wall_s")]
    try:
        with open_regular(run.path / "telemetry.csv", "rb", most_bytes=math.inf) as file:
            columns = file.readline(4096).decode().strip().split(",")
            file.seek(max(file.tell() - 1, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode(errors="replace").split("\n")
        times_s += [float(line.split(",")[columns.index("elapsed_s")]) for line in lines[1:-1]]
    except (OSError, ValueError, IndexError):
        pass
    known_s = (t for t in times_s if isinstance(t, (int, float)) and math.isfinite(t))
    return max(known_s, default=0.0)
