"""Trains an experiment, evaluates it after every epoch and records what the devices did."""

import contextlib
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.checkpoints.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    read_checkpoint,
    read_newest,
)
from jaxbench.checkpoints.checkpointer import NO_CHECKPOINTS, Checkpoints, Policy, check_policy
from jaxbench.checkpoints.resume import (
    CHECKPOINTS,
    Resume,
    check_same,
    find_resume,
    resume_run_dir,
)
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.distributed import coordination
from jaxbench.distributed.mesh import broadcast_arrays
from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs.setup import Job, setup_job
from jaxbench.records.recorder import Recorder, recording
from jaxbench.records.run_dir import RunDir
from jaxbench.records.schema import EpochRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.files import CsvWriter
from jaxbench.records.writers.tensorboard import TensorBoardWriter
from jaxbench.records.writers.wandb import WandbWriter, check_wandb
from jaxbench.training.loop import Trainer
from jaxbench.training.profiler import Profiler, check_end, parse_steps
from jaxbench.training.program import Program
from jaxbench.training.train_step import TrainState

# Steps are counted in int32 on the devices.
_MOST_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Result:
    """What `train_and_evaluate` hands back: the summary record, its folder, the final state.

    Only the first process of a run has a folder. There is no state where the run was done already.
    """

    summary: dict[str, Any]
    run_dir: RunDir | None
    state: TrainState | None


def train_and_evaluate(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
    profile: str | None = None,
    target_accuracy: float | None = None,
    price: Price | None = None,
    wandb: str | None = None,
    checkpoints: Policy = NO_CHECKPOINTS,
    resume: str = "none",
    import_s: float | None = None,
) -> Result:
    """Runs an experiment from its data to its last evaluation.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      profile: "START:STOP", steps of which JAX's profiler leaves a trace, see `parse_steps`.
      target_accuracy: ends the run with the first evaluation at or above it (a share); what it took
        is in the summary's `target`.
      price: what the hardware costs, recorded with the run; None if nobody said.
      wandb: the Weights & Biases project that gets the records too.
      checkpoints: when they are written; SIGTERM has one written if any are.
      resume: `none`, `auto` or a path, see `find_resume`. A run that is done already is not done
        again.
      import_s: what the process took before this call, which is in no phase: `import_s` and, up to
        the end of the first step, `startup_s` of the summary. None where it does not matter.

    Raises:
      BadInput: before anything is written.
      Diverged: the loss is no longer finite. This, and whatever else ends the run early, is in
        the run directory's `status` and `reason` before it is raised.
    """
    watch = Stopwatch()
    config.validate()
    check_target(config, target_accuracy)
    check_policy(checkpoints)
    traced_steps = parse_steps(profile)
    if wandb is not None:
        check_wandb(wandb)
    resumed = None
    if coordination.is_primary():
        resumed = find_resume(workdir, resume, config.name)
    with contextlib.ExitStack() as stack:
        if resumed:
            stack.callback(resumed.close)
            check_same(resumed, config)
        if coordination.broadcast_value(resumed is not None and resumed.is_done):
            return _done_already(resumed, console or create_console())
        if import_s is not None:
            import_s += watch.elapsed_s()
        job = stack.enter_context(setup_job(config, workdir, console, checked=True))
        if config.epochs * job.feed.steps_per_epoch > _MOST_STEPS:
            raise BadInput(
                f"epochs={config.epochs}: {job.feed.steps_per_epoch} steps each are more than "
                f"{_MOST_STEPS:,} steps; max_steps ends a run earlier"
            )
        check_end(traced_steps, config.num_steps(job.feed.steps_per_epoch), "this run")
        with job.clock.phase("restore"):
            saved = _share(_read_saved(job, resumed, workdir) if resumed else None, job.program)
        if saved:
            job.clock.add(saved.point["totals_s"])
        with recording(
            workdir,
            config,
            job.mesh,
            job.document() | {"mode": "train", "target_accuracy": target_accuracy},
            job.console,
            job.clock,
            telemetry_s,
            price,
            functools.partial(resume_run_dir, resumed, saved, workdir, config.name)
            if resumed
            else None,
        ) as recorder:
            folder = recorder.folder
            saver = None
            if folder and checkpoints.is_on:
                saver = Checkpoints(folder / CHECKPOINTS, checkpoints, job.console.say)
            trainer = Trainer(
                job.program,
                job.feed,
                job.clock,
                recorder.writers,
                job.console,
                measured=recorder.telemetry.measured,
                target=target_accuracy,
                profiler=Profiler(traced_steps, folder) if traced_steps else None,
                saver=saver,
                mark=recorder.mark,
                import_s=import_s,
            )
            recorder.summarize = trainer.summarize
            with_images = _add_writers(recorder, trainer, job, wandb) if folder else []
            if saved:
                trainer.restore(saved.state, saved.point)
                job.console.say(f"going on after step {saved.point['step']} ({saved.name})")
            trainer.prepare()
            if not saved:
                with job.clock.phase("records"), defer_signals():
                    for writer in with_images:
                        writer.add_images("train/images", trainer.sample_images(), step=0)
            saved = None  # the host's copy of the state
            try:
                trainer.train()
            finally:
                if saver:
                    # A second signal must not take what the first one had saved.
                    with job.clock.phase("checkpoint"), defer_signals():
                        saver.wait()
        return Result(recorder.summary, recorder.run_dir, trainer.state)


def _add_writers(
    recorder: Recorder, trainer: Trainer, job: Job, wandb: str | None
) -> list[TensorBoardWriter | WandbWriter]:
    """Adds what writes into the folder beside metrics.jsonl; returns those that show images."""
    folder, task = recorder.folder, job.program.task
    recorder.writers.add(CsvWriter(folder / "epochs.csv", EpochRecord, trainer.epoch_columns()))
    config = dataclasses.asdict(job.config)
    with_images: list[TensorBoardWriter | WandbWriter] = [
        TensorBoardWriter(folder, task.eval_figures, config)
    ]
    recorder.writers.add(with_images[0])
    if wandb is not None:
        with job.clock.phase("records"), job.console.phase("beginning the wandb run"):
            with_images.append(WandbWriter(folder, wandb, config, job.console.say))
        recorder.writers.add(with_images[1])
    return with_images


def _done_already(resumed: Resume | None, console: Console) -> Result:
    """In all processes; only the first knows which run it is."""
    if resumed is None:
        return Result({}, None, None)
    path = resumed.run.path
    console.say(f"{path}: this run is done already")
    console.close()
    document = resumed.run.document
    return Result(document.get("summary") or {}, RunDir(path, document), None)


def _read_saved(job: Job, resumed: Resume, workdir: str | None) -> Checkpoint | None:
    """Reads the checkpoint to go on from; None where the run begins again.

    Raises:
      BadInput: there is none, or it is another model's.
    """
    path, say = resumed.run.path, job.console.say
    folder, target = path / CHECKPOINTS, job.program.abstract_placed_state()
    with job.console.phase("reading the checkpoint"):
        if resumed.checkpoint:
            try:
                found = read_checkpoint(folder, resumed.checkpoint, target)
            except CorruptCheckpointError as error:
                raise BadInput(f"{folder / resumed.checkpoint}: is corrupt: {error}") from error
        else:
            found = read_newest(folder, target, say, set_aside=workdir is None or resumed.again)
    if found is None:
        if not resumed.again:
            raise BadInput(f"{path}: has no checkpoint that can be read")
        say(f"{path} has no checkpoint that can be read: beginning again")
        return None
    # As they were recorded: those of later epochs are done again.
    epochs = resumed.run.of_kind("epoch")[: found.point["epochs_done"]]
    return found._replace(point=found.point | {"epochs": epochs})


def _share(saved: Checkpoint | None, program: Program) -> Checkpoint | None:
    """Gives every process what the first has read; the others need not see its disk."""
    if coordination.count() == 1:
        return saved
    found = coordination.broadcast_value(saved and [saved.name, saved.point])
    if found is None:
        return None
    name, point = found
    target = program.abstract_placed_state()
    state = saved.state if saved else jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), target)
    return Checkpoint(name, broadcast_arrays(state), point, saved.corrupt if saved else {})


def check_target(config: Config, target_accuracy: float | None) -> None:
    """Raises BadInput where a run cannot end at a top-1."""
    if target_accuracy is None:
        return
    given = f"--target_accuracy={target_accuracy:g}"
    if not 0 < target_accuracy <= 1:  # written so that nan fails it too
        raise BadInput(f"{given}: must be a share, such as 0.94")
    if config.task != "classification":
        raise BadInput(f"{given}: task={config.task!r} has no top-1; classification has")
    if config.replicas == "independent":
        raise BadInput(
            f"{given} with replicas='independent': its models get there at different times; give "
            "each seed a run (python -m jaxbench.sweep --grid=seed=0,1,2,3,4)"
        )
