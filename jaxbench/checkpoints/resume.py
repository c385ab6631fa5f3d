"""Resume a run: find it, check that it may be resumed, set its records back to the checkpoint.

metrics.jsonl is the source of truth, so that a run is resumed only if it is as it was written.
epochs.csv is made anew from it. telemetry.csv and TensorBoard's events hold what nothing else does:
what is left of them is kept.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxbench.checkpoints.checkpoint import Checkpoint, copy_checkpoint, digest, first_blocks
from jaxbench.clock import now
from jaxbench.custom import config_record
from jaxbench.errors import BadInput
from jaxbench.files import end_of_lines, open_own, open_regular, read_text
from jaxbench.paths import user_path
from jaxbench.records.attempts import describe_attempt, last_attempt
from jaxbench.records.goodput import end_attempt, is_phases, read_attempts
from jaxbench.records.reader import flat
from jaxbench.records.run_dir import (
    EVENTS,
    RECORDS,
    RunDir,
    check_workdir,
    create_run_dir,
    measure_records,
)
from jaxbench.records.run_lock import is_running, lock_run
from jaxbench.records.schema.document import RunDocument

CHECKPOINTS = "checkpoints"
_METRICS, _EPOCHS, _TELEMETRY = RECORDS
# Fields of a config that a resumed run may have otherwise: where and how fast it runs, and what it
# prints. `num_devices` changes the losses with local batch norm; then a warning says so.
_FREE = {"log_every_steps", "step_log", "num_devices", "parallelism"} | {
    *("data.path", "data.download", "data.num_threads", "data.num_workers"),
    *("data.prefetch_batches", "data.cache", "data.cache_dir"),
}
# The run's clock at a line of metrics.jsonl, or of telemetry.csv, whose second column it is.
_ELAPSED_S = re.compile(rb'"(?:elapsed_s|wall_s)": (\d+\.?\d*)|\n[^,\n]*,(\d+\.?\d*),')


@dataclasses.dataclass(frozen=True)
class Resume:
    """A run to resume."""

    path: pathlib.Path  # its run directory
    document: dict[str, Any]  # its run.json, as it was left
    # The name of the checkpoint to read; None for the newest that is intact.
    checkpoint: str | None = None
    # Whether a run without an intact checkpoint starts anew in its run directory.
    restart_allowed: bool = False
    # Holds the lock of the run directory; None if the run is resumed in a new one.
    lock: int | None = None

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do; from a given checkpoint there always is."""
        return self.document["status"] in ("done", "invalid") and self.checkpoint is None

    def close(self) -> None:
        """Let other processes resume the run."""
        if self.lock is not None:
            os.close(self.lock)


def find_resume(workdir: str | None, resume: str, run_name: str) -> Resume | None:
    """Return the run that `--resume` names; None if a new one begins.

    Args:
      workdir: as given to `check_workdir`.
      resume: `none`; `auto` for the run in `workdir`, or a new run if that is empty; or the path
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
        return _open(path, None, in_place=True, restart_allowed=True)
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
    return _open(path, checkpoint, in_place=not workdir)


def _open(
    path: pathlib.Path, checkpoint: str | None, *, in_place: bool, restart_allowed: bool = False
) -> Resume:
    """Read a run directory that nobody writes to, and lock it if it is resumed in place."""
    if not (path / "run.json").is_file():
        raise BadInput(f"{path}: no run directory, it has no run.json")
    if in_place and (path / CHECKPOINTS).is_symlink():
        raise BadInput(
            f"{path / CHECKPOINTS}: is a link, through which nothing is written; give a new "
            "--workdir"
        )
    if not in_place and is_running(path):
        raise BadInput(f"{path}: is still running in another process")
    with contextlib.ExitStack() as stack:
        lock = None
        if in_place:
            try:
                lock = lock_run(path)
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}") from error
            stack.callback(os.close, lock)
        document = _read_document(path)
        if document["status"] == "diverged" and checkpoint is None:
            raise BadInput(
                f"{path}: has diverged and would diverge again; one of its {CHECKPOINTS} may be "
                "resumed in a new --workdir"
            )
        stack.pop_all()
        return Resume(path, document, checkpoint, restart_allowed, lock)


def _read_document(path: pathlib.Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path / "run.json"))
        kinds = {"status": str, "config": dict, "data": dict}
        is_known = all(isinstance(document[name], kind) for name, kind in kinds.items())
        if not is_known or document["mode"] != "train":
            raise ValueError("it is not that of a training run")
        return document
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path}: its run.json cannot be read: {error}") from error


def check_same(resume: Resume, config: Any) -> None:
    """Raise BadInput if a run was made with another experiment than this config."""
    before = dict(flat(resume.document["config"]))
    # As run.json has it.
    now = dict(flat(json.loads(json.dumps(config_record(config), default=str))))
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
        # The text of the user's code ends with its file's digest.
        is_code = all(", sha256 " in text for text in differing)
        what = "the file of its code has changed" if is_code else "was made with another experiment"
        raise BadInput(
            f"{resume.path}: {what}: {'; '.join(differing[:4])}"
            + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
        )


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
      checkpoint: None if the run starts anew.
      workdir, run_name: as given to `find_resume`.
      document: run.json as this process would begin it.
      say: prints a warning.

    Raises:
      BadInput: the folder cannot be created, or the data or the target accuracy differ.
    """
    path, old = resume.path, resume.document
    marks = checkpoint.metadata["records"] if checkpoint else {}
    entry = _resume_entry(resume, checkpoint, document)
    attempts = _attempts(resume, document)
    for name in ("train", "eval"):
        before, here = (data.get(f"{name}_examples") for data in (old["data"], document.data))
        if before != here:
            raise BadInput(f"{path}: was made with {before} {name}_examples, there are {here} here")
        if old["data"].get(f"{name}_checksum") != document.data.get(f"{name}_checksum"):
            raise BadInput(
                f"{path}: was made with another data set of this size: its {name} examples differ"
            )
    before, here = last_attempt(old)["batch_norm_examples"], document.batch_norm_examples
    if before != here:
        say(
            f"warning: batch norm takes its statistics from {here} images now, it took them from "
            f"{before}: losses are not those of an undisturbed run (batch_norm=sync keeps them)"
        )
    if workdir and user_path(workdir).resolve() != path.resolve():
        entry["from"] = str(path)
        resumed = dataclasses.replace(document, resumes=[entry], attempts=attempts)
        run_dir = create_run_dir(workdir, run_name, resumed)
        copy_records(path, run_dir.path, marks)
        entry["short"] = restore_records(run_dir.path, marks, say)
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
    entry["short"] = restore_records(path, marks, say)
    run_dir = RunDir(path, old)
    run_dir.update(
        status="running",
        reason=None,
        finished_at=None,
        summary=None,
        resumes=[*(old.get("resumes") or ()), entry],
        attempts=attempts,
    )
    return run_dir


def _resume_entry(
    resume: Resume, checkpoint: Checkpoint | None, document: RunDocument
) -> dict[str, Any]:
    """Return the entry of run.json's `resumes` about this process."""
    elapsed_s = sum(checkpoint.metadata["totals_s"].values()) if checkpoint else 0.0
    return {
        "started_at": now().isoformat(),
        "checkpoint": checkpoint and checkpoint.name,
        "step": checkpoint.metadata["step"] if checkpoint else 0,
        "elapsed_s": elapsed_s,
        # The time of the work after the checkpoint, which is lost, as far as records tell.
        "lost_s": max(0.0, _last_elapsed_s(resume.path) - elapsed_s),
        "corrupt_checkpoints": checkpoint.corrupt if checkpoint else {},
        "before": {
            **{name: resume.document.get(name) for name in ("status", "reason", "finished_at")},
            **last_attempt(resume.document),
        },
        **{name: getattr(document, name) for name in ("command_line", "pid")},
        "hostname": document.environment.get("hostname"),
        **describe_attempt(document.environment, document.price, document.batch_norm_examples),
    }


def _attempts(resume: Resume, document: RunDocument) -> list[dict[str, Any]] | None:
    """Return the entries of all processes so far, with this one's; None if they are unknown.

    A process that was not killed has its phases in its summary. What a run did after a checkpoint
    from which another one branches off is not lost.
    """
    earlier = read_attempts(resume.document)
    if earlier is None or resume.checkpoint is not None:
        return None
    [this], (*before, last) = document.attempts, earlier
    summary = resume.document.get("summary")
    if isinstance(summary, dict) and is_phases(summary.get("phases_s")):
        last = {**last, "phases_s": summary["phases_s"]}
    else:
        last = end_attempt(last, this["resumed_phases_s"], _last_elapsed_s(resume.path))
    return [*before, last, this]


def _last_elapsed_s(path: pathlib.Path) -> float:
    """Return the run's time at its last record or sample of telemetry, 0 without any."""
    times_s = [0.0]
    for name in (_METRICS, _TELEMETRY):
        with (
            contextlib.suppress(OSError),
            open_regular(path / name, "rb", most_bytes=math.inf) as file,
        ):
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
            times_s += [float(one or other) for one, other in _ELAPSED_S.findall(file.read())]
    return max(times_s)


def mark_records(folder: pathlib.Path) -> dict[str, list[Any]]:
    """Return {file: [bytes, SHA-256 of them]} of a run's records, for `restore_records`."""
    sizes = measure_records(folder)
    return {name: digest(folder / name, sizes[name]) for name in sizes if name != _EPOCHS}


def read_epochs(path: pathlib.Path, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the epochs' records of a run directory up to a checkpoint; change nothing.

    Raises:
      BadInput: metrics.jsonl is not as it was at this checkpoint.
    """
    file, mark = path / _METRICS, metadata["records"][_METRICS]
    if _METRICS not in measure_records(path) or digest(file, mark[0]) != mark:
        raise BadInput(
            f"{file}: its first {mark[0]:,} bytes are not as they were at the checkpoint; put the "
            "file back, or begin anew in a new --workdir"
        )
    epochs = []
    with open(file, "rb") as lines:
        while lines.tell() < mark[0]:
            record = json.loads(lines.readline())
            if record["kind"] == "epoch":
                epochs.append(record)
    return epochs


def restore_records(
    folder: pathlib.Path, marks: Mapping[str, list[Any]], say: Callable[[str], None]
) -> list[str]:
    """Cut a run's records to the lengths that they had at a checkpoint, and remove later files.

    `marks` is what `mark_records` returned then; `read_epochs` has checked metrics.jsonl. Warn of
    the other files that are shorter than that or differ, and return them. They are kept:
    telemetry.csv holds other values than metrics.jsonl, TensorBoard's events the times at which
    they were written.
    """
    for name in (*RECORDS, EVENTS):
        if (folder / name).is_symlink():  # its target is no part of this run
            (folder / name).unlink()
    sizes = measure_records(folder)
    differing = [name for name in marks if name not in sizes]
    for name, size in sizes.items():
        if name not in marks:
            (folder / name).unlink()
            continue
        if size > marks[name][0]:
            os.truncate(folder / name, marks[name][0])
        if digest(folder / name) != marks[name]:
            differing.append(name)
            if name.endswith(".csv"):  # the next row begins a line
                with open_own(folder / name, "r+b") as file:
                    file.truncate(end_of_lines(file))
    if differing:
        say(f"warning: what is left is kept, but not as it was written: {', '.join(differing)}")
    return differing


def copy_records(source: pathlib.Path, target: pathlib.Path, marks: Mapping[str, Any]) -> None:
    """Copy a run's records to another folder, each up to its length at a checkpoint."""
    # Only files of records, whatever the names in `marks`.
    for name in measure_records(source).keys() & marks.keys():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(target / name, "wb") as file:
            file.writelines(first_blocks(source / name, marks[name][0]))
