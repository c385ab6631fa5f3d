"""Resume a run: find it, check that it may be resumed, restore it as it was at the checkpoint.

metrics.jsonl is the source of truth, so a run is resumed only if it is as it was written.
epochs.csv is made anew from it. telemetry.csv and TensorBoard's events hold what nothing else does:
they are kept, even if they are damaged.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import msgspec
import numpy as np

from jaxbench.checkpoints.checkpoint import (
    Checkpoint,
    copy_checkpoint,
    digest,
    first_blocks,
    read_checkpoint,
    read_newest,
)
from jaxbench.clock import Clock
from jaxbench.config import Config
from jaxbench.config.custom import config_record
from jaxbench.config.fields import names_that_may_differ
from jaxbench.errors import BadInput
from jaxbench.files import end_of_lines, open_own, read_lines, read_text
from jaxbench.hardware.backend_flags import is_deterministic
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import broadcast_arrays
from jaxbench.paths import user_path
from jaxbench.records.attempts import attempts_of, describe_attempt
from jaxbench.records.goodput import end_attempt
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
from jaxbench.records.writers.console import Console
from jaxbench.schema import RunDocument, decode_document, decode_record

CHECKPOINTS = "checkpoints"
_METRICS, _EPOCHS, _TELEMETRY = RECORDS
# What a checkpoint keeps beside the state, at least.
_METADATA = {"step", "epochs_done", "sums", "records", "totals_s", "windows"}
# The run's clock at a line of metrics.jsonl, or of telemetry.csv, whose second column it is.
_ELAPSED_S = re.compile(rb'"(?:elapsed_s|wall_s)": (\d{1,12}\.?\d*)|\n[^,\n]*,(\d{1,12}\.?\d*),')

# ------------------------------------------------------------------------------------- which run


@dataclasses.dataclass(frozen=True)
class Resume:
    """A run to resume."""

    path: pathlib.Path  # its run directory
    document: dict[str, Any]  # its run.json, as it was left
    # Releases the lock of the run directory, so that other processes can resume the run.
    close: Callable[[], None]
    # The name of the checkpoint to read; None for the newest that is intact.
    checkpoint: str | None = None
    workdir: str | None = None  # the new folder in which it goes on; None for its own
    # Whether a run without an intact checkpoint starts anew in its run directory.
    restart_allowed: bool = False
    # Whether nothing is left to do: it has ended, with these max_steps, and no checkpoint is given.
    is_done: bool = False


@contextlib.contextmanager
def run_to_resume(workdir: str | None, resume: str, config: Config) -> Iterator[Resume | None]:
    """Hold the run to resume, in the first process only; None if a new run begins."""
    resumed = find_resume(workdir, resume, config.name) if processes.is_primary() else None
    if not resumed:
        yield None
        return
    with contextlib.closing(resumed):
        check_same_experiment(resumed, config)
        ended = resumed.document["status"] in ("done", "invalid")
        same_steps = resumed.document["config"].get("max_steps") == config.max_steps
        is_done = ended and same_steps and resumed.checkpoint is None
        yield dataclasses.replace(resumed, is_done=is_done)


def find_resume(workdir: str | None, resume: str, run_name: str) -> Resume | None:
    """Return the run that `--resume` names; None if a new one begins.

    --resume    --workdir     what happens
    none        new or none   a new run
    auto        new           a new run
    auto        a run's       it goes on there; without a checkpoint it begins again
    a run       none          it goes on in its own folder
    a run       new           it goes on in the new folder
    checkpoint  none          refused: what came after it would be lost
    checkpoint  new           its run goes on from it in the new folder

    Raises:
      BadInput: there is no such run, it is still running or has diverged, or `workdir` is not
        empty.
    """
    if not resume:
        raise BadInput("--resume=: must be auto, none or a folder")
    restart_allowed = False
    if resume == "auto":
        if not workdir:
            raise BadInput("--resume=auto: give --workdir, the folder of the run")
        if restart_allowed := (user_path(workdir) / "run.json").exists():
            resume, workdir = workdir, None
    if not restart_allowed and (workdir or resume == "none"):
        check_workdir(workdir, run_name)
    if resume in ("none", "auto") and not restart_allowed:
        return None
    path, checkpoint = user_path(resume), None
    if path.parent.name == CHECKPOINTS and path.is_dir() and not restart_allowed:
        path, checkpoint = path.parent.parent, path.name
        if not workdir:
            raise BadInput(
                f"--resume={resume}: what came after that checkpoint would be lost; give a new "
                "--workdir"
            )
    if not (path / "run.json").is_file():
        raise BadInput(f"{path}: no run directory, it has no run.json")
    for name in (*RECORDS, EVENTS):
        if (path / name).is_symlink():  # of another run, say: nothing is read or written through it
            raise BadInput(f"{path / name}: is a link; replace it by what it leads to")
    if workdir and is_running(path):
        raise BadInput(f"{path}: is still running in another process")
    with contextlib.ExitStack() as stack:
        try:
            if not workdir:
                stack.callback(os.close, lock_run(path))
            document = json.loads(read_text(path / "run.json"))
            decode_document(document)
            if document["mode"] != "train":
                raise ValueError("it is not that of a training run")
            if document.get("data") is None or not document.get("attempts"):
                raise ValueError("it lacks data or attempts")
            if document["status"] == "diverged" and checkpoint is None:
                raise BadInput(
                    f"{path}: has diverged and would diverge again; one of its {CHECKPOINTS} may "
                    "be resumed in a new --workdir"
                )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadInput(f"{path}: its run.json cannot be read: {error}") from error
        close = stack.pop_all().close
        return Resume(path, document, close, checkpoint, workdir, restart_allowed)


def check_same_experiment(resume: Resume, config: Config) -> None:
    """Raise BadInput if a run was made with another experiment than this config."""
    recorded = dict(flat(resume.document["config"]))
    # As run.json has it.
    here = dict(flat(json.loads(json.dumps(config_record(config), default=str))))
    # `num_devices` changes the losses with local batch norm; then a warning says so.
    free = names_that_may_differ(config, "resumes", "processes")
    free -= {"num_devices"} if config.replicas == "independent" else set()
    differing = [
        f"{name}={recorded.get(name)} there, {here.get(name)} here"
        for name in {**recorded, **here}
        if name not in free and recorded.get(name) != here.get(name)
    ]
    if differing:
        # The text of the user's code ends with its file's digest.
        is_code = all(", sha256 " in text for text in differing)
        changed = "the file of its code has changed"
        reason = changed if is_code else "was made with another experiment"
        raise BadInput(f"{resume.path}: {reason}: {'; '.join(differing)}")


# ------------------------------------------------------------------------------------- its state


def restore(
    program: Any, clock: Clock, console: Console, resumed: Resume | None
) -> Checkpoint | None:
    """Return the checkpoint to resume from, in every process; None if the run begins.

    Only the first process knows `resumed` and reads its disk.
    """
    with clock.phase("restore"):
        checkpoint = _read(resumed, program, console) if resumed else None
        if processes.count() > 1:
            shared = processes.broadcast_value(checkpoint and checkpoint._replace(state=None))
            if shared is not None:
                shapes = program.abstract_placed_state()
                zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
                arrays = broadcast_arrays(checkpoint.state if checkpoint else zeros)
                checkpoint = Checkpoint(*shared)._replace(state=arrays)
    if checkpoint:
        clock.add(checkpoint.metadata["totals_s"])
    return checkpoint


def _read(resumed: Resume, program: Any, console: Console) -> Checkpoint | None:
    """Read the checkpoint to resume from, and the epochs' records up to it."""
    path, say, state = resumed.path, console.say, program.abstract_placed_state()
    folder, set_aside = path / CHECKPOINTS, not resumed.workdir
    with console.phase("reading the checkpoint"):
        if resumed.checkpoint:
            checkpoint = read_checkpoint(folder, resumed.checkpoint, state)
        else:
            checkpoint = read_newest(folder, state, say, set_aside=set_aside)
    if checkpoint is None:
        if not resumed.restart_allowed:
            raise BadInput(
                f"{path}: has no checkpoint that can be read; "
                f"--workdir={path} --resume=auto begins again"
            )
        say(f"{path} has no checkpoint that can be read: beginning again")
        return None
    if missing := _METADATA - checkpoint.metadata.keys():
        raise BadInput(
            f"{folder / checkpoint.name}: its metadata lack {', '.join(sorted(missing))}: another "
            "version of jaxbench wrote it; begin anew in a new --workdir"
        )
    metadata = checkpoint.metadata | {"epochs": read_epochs(path, checkpoint.metadata)}
    return checkpoint._replace(metadata=metadata)


# ------------------------------------------------------------------------------------- its records


def resume_run_dir(
    resume: Resume,
    checkpoint: Checkpoint | None,
    document: RunDocument,
    say: Callable[[str], None],
) -> RunDir:
    """Open the run directory of a resumed run, with the records that it had at the checkpoint.

    `document` is run.json as this process would begin it, and `say` prints a warning. Without a
    checkpoint the run starts anew.

    Raises:
      BadInput: the folder cannot be created, or the data, the target accuracy or --deterministic
        differ.
    """
    path, old = resume.path, resume.document
    marks = checkpoint.metadata["records"] if checkpoint else {}
    *_, last, entry = attempts = _attempts(resume, checkpoint, document)
    for name in ("train_examples", "eval_examples", "train_checksum", "eval_checksum"):
        before, here = (data.get(name) for data in (old["data"], document.data or {}))
        if before != here:
            raise BadInput(
                f"{path}: was made with another data set: {name}={before} there, {here} here"
            )
    there, here = (is_deterministic(one.get("XLA_FLAGS")) for one in (last, entry))
    on_gpus = document.environment["backend"] == "gpu"
    if there != here and on_gpus and last.get("device_kind") == entry["device_kind"]:
        word = {True: "with", False: "without"}
        raise BadInput(f"{path}: was made {word[there]} --deterministic, this is {word[here]} it")
    there, here = last.get("batch_norm_examples"), document.batch_norm_examples
    if there != here:
        say(
            f"warning: batch norm takes its statistics from {here} images now, it took them from "
            f"{there}: losses are not those of an undisturbed run (batch_norm=sync keeps them)"
        )
    there, here = old.get("attention"), document.attention
    if there != here:
        say(f"warning: attention is {here} now, it was {there}: losses differ by rounding")
    if resume.workdir:
        entry["from"] = str(path)
        begun = msgspec.structs.replace(document, attempts=attempts)
        run_dir = create_run_dir(resume.workdir, "", begun)
        for name in measure_records(path).keys() & marks.keys():  # up to the checkpoint
            (run_dir.path / name).parent.mkdir(parents=True, exist_ok=True)
            with open(run_dir.path / name, "wb") as file:
                file.writelines(first_blocks(path / name, marks[name][0]))
        if checkpoint:  # the new run may end before it has written one
            copy_checkpoint(path / CHECKPOINTS, run_dir.path / CHECKPOINTS, checkpoint.name)
        changes: dict[str, Any] = {}
    else:  # in its own folder it stays the same run
        before, here = old.get("target_accuracy"), document.target_accuracy
        if before != here:
            raise BadInput(
                f"{path}: was made with --target_accuracy={before}, this is {here}; one of its "
                f"{CHECKPOINTS} can be resumed in a new --workdir"
            )
        run_dir = RunDir(path, old)
        changes = dict.fromkeys(("reason", "finished_at", "summary")) | {"status": "running"}
        # They say where the run ends, and so whether it is done.
        changes["config"] = old["config"] | {"max_steps": document.config["max_steps"]}
        changes |= {name: getattr(document, name) for name in ("attention", "attention_reason")}
    entry["short"] = restore_records(run_dir.path, marks, say)
    run_dir.update(**changes, attempts=attempts)
    return run_dir


def _attempts(
    resume: Resume, checkpoint: Checkpoint | None, document: RunDocument
) -> list[dict[str, Any]]:
    """Return the entries of all processes so far, with this one's.

    A process that was not killed has its phases in its summary. A run that branches off from
    another one's checkpoint keeps only on what the other's last process ran.
    """
    (*before, last), this = attempts_of(resume.document), (document.attempts or [])[0]
    resumed_s, elapsed_s = this["resumed_phases_s"], _last_elapsed_s(resume.path)
    summary = resume.document.get("summary")
    if summary and summary.get("phases_s"):
        last = {**last, "phases_s": summary["phases_s"]}
    else:
        last = end_attempt(last, resumed_s, elapsed_s)
    last |= {name: resume.document.get(name) for name in ("status", "reason", "finished_at")}
    branched = resume.checkpoint is not None
    if branched:
        before, last = [], last | {"step": 0, "lost_s": 0.0}
    entry = {
        **this,
        "branched": branched,
        "checkpoint": checkpoint and checkpoint.name,
        "step": checkpoint.metadata["step"] if checkpoint else 0,
        # The time of the work after the checkpoint, which is lost, by the records that are left.
        "lost_s": max(0.0, elapsed_s - sum(resumed_s.values())),
        "damaged_checkpoints": checkpoint.damaged if checkpoint else {},
        **{name: getattr(document, name) for name in ("command_line", "pid")},
        "hostname": document.environment.get("hostname"),
        **describe_attempt(document.environment, document.price, document.batch_norm_examples),
    }
    return [*before, last, entry]


def _last_elapsed_s(path: pathlib.Path) -> float:
    """Return the run's time at its last record or sample of telemetry, 0 without any."""
    times_s = [0.0]
    for name in measure_records(path).keys() & {_METRICS, _TELEMETRY}:
        with open(path / name, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
            times_s += [float(one or other) for one, other in _ELAPSED_S.findall(file.read())]
    return max(times_s)


def mark_records(folder: pathlib.Path) -> dict[str, list[Any]]:
    """Return {file: [bytes, SHA-256 of them]} of a run's records, for `restore_records`."""
    sizes = measure_records(folder)
    return {name: digest(folder / name, sizes[name]) for name in sizes if name != _EPOCHS}


def read_epochs(path: pathlib.Path, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the epochs' records of a run directory up to a checkpoint; change nothing.

    Raise BadInput if metrics.jsonl is not as it was at this checkpoint.
    """
    file, mark = path / _METRICS, metadata["records"].get(_METRICS, [0, ""])
    if not file.is_file() or digest(file, mark[0]) != mark:
        raise BadInput(
            f"{file}: its first {mark[0]:,} bytes are not as they were at the checkpoint; put the "
            "file back, or begin anew in a new --workdir"
        )
    epochs = []
    try:
        with open(file, "rb") as opened:
            lines = read_lines(opened)
            while opened.tell() < mark[0]:
                record = json.loads(next(lines))
                if record.get("kind") == "epoch":
                    decode_record(record)
                    epochs.append(record)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file}: cannot be read: {error}") from error
    return epochs


def restore_records(
    folder: pathlib.Path, marks: Mapping[str, list[Any]], say: Callable[[str], None]
) -> list[str]:
    """Cut a run's records to the lengths that they had at a checkpoint, and remove later files.

    `marks` is what `mark_records` returned then; `read_epochs` has checked metrics.jsonl. Warn of
    the other files that are shorter or differ, and return their names. They are kept: telemetry.csv
    holds other values than metrics.jsonl, TensorBoard's events the times at which they were
    written.
    """
    sizes = measure_records(folder)
    differing = [name for name in marks if name not in sizes]
    for name, size in sizes.items():
        path = folder / name
        if name not in marks:
            path.unlink()
            continue
        if size > marks[name][0]:
            os.truncate(path, marks[name][0])
        if digest(path) != marks[name]:
            differing.append(name)
            if name.endswith(".csv"):  # the next row begins a line
                with open_own(path, "r+b") as file:
                    file.truncate(end_of_lines(file))
    if differing:
        say(f"warning: kept, but not as they were written: {', '.join(differing)}")
    return differing
