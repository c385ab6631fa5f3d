"""Train an experiment, evaluate it after every epoch and record what the devices did."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.pricing import Price
from jaxbench.checkpoints.checkpoint import Checkpoint
from jaxbench.checkpoints.checkpointer import NO_CHECKPOINTS, Checkpoints, Policy, check_policy
from jaxbench.checkpoints.resume import CHECKPOINTS, Resume
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.distributed import coordination
from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs.restore import restore, resume_into, run_to_resume
from jaxbench.jobs.runner import Measurement, run_job
from jaxbench.jobs.setup import Job, setup_job
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import RunDir
from jaxbench.records.schema import EpochRecord, Record, TrainSummary
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.files import CsvWriter
from jaxbench.records.writers.tensorboard import TensorBoardWriter
from jaxbench.records.writers.wandb import WandbWriter, check_wandb
from jaxbench.training.checkpointing import CheckpointSaver
from jaxbench.training.loop import train
from jaxbench.training.plan import TrainPlan
from jaxbench.training.prepare import prepare
from jaxbench.training.profiler import Profiler, check_end, parse_steps
from jaxbench.training.run import TrainRun
from jaxbench.training.run_progress import RunProgress
from jaxbench.training.summary import RunFacts, summarize
from jaxbench.training.target import AccuracyTarget
from jaxbench.training.train_records import optional_epoch_fields
from jaxbench.training.train_step import TrainState

# Steps are counted in int32 on the devices.
_MAX_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of `train_and_evaluate`.

    Attributes:
      summary: the summary record.
      run_dir: its folder; None in all processes but the first.
      state: the final state; None where the run was done already.
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
    """Run an experiment from its data to its last evaluation.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      telemetry_s: seconds between readings of the hardware, 0 for none.
      profile: "START:STOP", the steps that JAX's profiler traces, see `parse_steps`.
      target_accuracy: a share of top-1 or Dice; the first evaluation at or above it ends the run.
      price: of the hardware, recorded with the run; None where it is unknown.
      wandb: the Weights & Biases project that gets the records too.
      checkpoints: when they are written; SIGTERM has one written if any are.
      resume: `none`, `auto` or a path, see `find_resume`. A run that is done is not run again.
      import_s: seconds from the process's start to this call; None where they do not matter.

    Raises:
      BadInput: before anything is written.
      Diverged: no model has a finite loss any more.
    """
    watch = Stopwatch()
    options = _Options(parse_steps(profile), target_accuracy, checkpoints, wandb)
    _check(config, options)
    with contextlib.ExitStack() as stack:
        resumed = stack.enter_context(run_to_resume(workdir, resume, config))
        if coordination.broadcast_value(resumed is not None and resumed.is_done):
            return _done_already(resumed, console or create_console())
        if import_s is not None:
            import_s += watch.elapsed_s()
        job = stack.enter_context(setup_job(config, workdir, console, checked=True))
        _check_steps(job, options)
        saved = restore(job, resumed, workdir)
        training = Training(job, options, saved, import_s)
        into = resume_into(resumed, saved, workdir, config)
        del saved  # only `training` holds the host's copy of the state, until it is placed
        done = run_job(
            job, training, workdir, telemetry_s=telemetry_s, price=price, resume_into=into
        )
        return Result(done.summary, done.run_dir, training.state)


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of a run, see `train_and_evaluate`."""

    profiled_steps: range
    target_accuracy: float | None
    checkpoints: Policy
    wandb: str | None


class Training(Measurement):
    """Train to the end of the plan, or resume there.

    Attributes:
      state: the final state; None before the end.
    """

    mode = "train"

    def __init__(
        self, job: Job, options: _Options, saved: Checkpoint | None, import_s: float | None
    ):
        self._options = options
        self._saved = saved
        self.state: TrainState | None = None
        task, steps_per_epoch, target = job.program.task, job.feed.steps_per_epoch, None
        if options.target_accuracy is not None:
            target = AccuracyTarget(task.headline, options.target_accuracy)
        total_steps = job.config.num_steps(steps_per_epoch)
        self._run = TrainRun(
            program=job.program,
            feed=job.feed,
            plan=TrainPlan(total_steps, steps_per_epoch, job.config.eval_every_epochs, target),
            clock=job.clock,
            console=job.console,
            progress=RunProgress.from_json(saved.point, task.metrics)
            if saved
            else RunProgress(import_s=import_s),
        )

    def document(self) -> dict[str, Any]:
        return {"target_accuracy": self._options.target_accuracy}

    def measure(self, recorder: Recorder) -> None:
        run, saved, self._saved = self._run, self._saved, None
        image_writers = self._connect(recorder)
        if saved:
            run.console.say(f"resuming after step {run.progress.step} ({saved.name})")
        state = prepare(run, saved and saved.state)
        if not saved:
            with run.clock.phase("records"), defer_signals():
                for writer in image_writers:
                    writer.add_images("train/images", run.batches.sample_images(), step=0)
        del saved
        try:
            self.state = train(run, state)
        finally:
            run.checkpoints.wait()

    def _connect(self, recorder: Recorder) -> list[TensorBoardWriter | WandbWriter]:
        """Connect the run with its folder; return the writers that show images."""
        run, options, folder = self._run, self._options, recorder.folder
        run.writer, run.measured = recorder.writers, recorder.telemetry.measured
        if options.profiled_steps:
            run.profiler = Profiler(options.profiled_steps, folder, run.progress.traced)
        if not folder:
            return []
        if options.checkpoints.is_on:
            writer = Checkpoints(folder / CHECKPOINTS, options.checkpoints, run.console.say)
            run.checkpoints = CheckpointSaver(run.clock, writer, recorder.mark)
        columns = optional_epoch_fields(run.program)
        recorder.writers.add(CsvWriter(folder / "epochs.csv", EpochRecord, columns))
        figures, config = run.program.task.eval_figures, dataclasses.asdict(run.program.config)
        image_writers = [TensorBoardWriter(folder, figures, config)]
        if options.wandb is not None:
            with run.clock.phase("records"), run.console.phase("starting the wandb run"):
                image_writers.append(WandbWriter(folder, options.wandb, config, run.console.say))
        for writer in image_writers:
            recorder.writers.add(writer)
        return image_writers

    def summarize(self, status: str, records: Sequence[Record]) -> TrainSummary:
        run, target = self._run, self._run.plan.target
        images_per_step = run.program.geometry.images_per_step
        facts = RunFacts(
            status=status,
            headline=run.program.task.headline,
            num_devices=run.program.mesh.num_devices,
            loss_scales=run.loss_scales,
            wall_s=run.clock.wall_s(),
            target=target and target.describe(run.progress.epochs, images_per_step),
            profile=run.profiler and run.profiler.summary(),
            corrupt=run.corrupt or None,
            warnings=run.checkpoints.warnings,
        )
        summary = summarize(run.progress, facts)
        if summary.images_per_s is None:
            return summary
        return dataclasses.replace(summary, **run.utilization(summary.images_per_s))


def _done_already(resumed: Resume | None, console: Console) -> Result:
    """Return the result of a run that is done, in all processes; only the first knows the run."""
    if resumed is None:
        return Result({}, None, None)
    path = resumed.run.path
    console.say(f"{path}: this run is done already")
    console.close()
    document = resumed.run.document
    return Result(document.get("summary") or {}, RunDir(path, document), None)


def _check(config: Config, options: _Options) -> None:
    """Raise BadInput for what can be checked without devices or data."""
    config.validate()
    check_target(config, options.target_accuracy)
    check_policy(options.checkpoints)
    if options.wandb is not None:
        check_wandb(options.wandb)


def _check_steps(job: Job, options: _Options) -> None:
    """Raise BadInput for numbers of steps that do not go with the data."""
    config, steps_per_epoch = job.config, job.feed.steps_per_epoch
    if config.epochs * steps_per_epoch > _MAX_STEPS:
        raise BadInput(
            f"epochs={config.epochs}: {steps_per_epoch} steps each are more than "
            f"{_MAX_STEPS:,} steps; max_steps ends a run earlier"
        )
    check_end(options.profiled_steps, config.num_steps(steps_per_epoch), "this run")


def check_target(config: Config, target_accuracy: float | None) -> None:
    """Raise BadInput where a run cannot end at an accuracy."""
    if target_accuracy is None:
        return
    given = f"--target_accuracy={target_accuracy:g}"
    if not 0 < target_accuracy <= 1:  # written so that nan fails it too
        raise BadInput(f"{given}: must be a share, such as 0.94")
    if config.replicas == "independent":
        raise BadInput(
            f"{given} with replicas='independent': its models reach it at different times; give "
            "each seed a run (python -m jaxbench.sweep --grid=seed=0,1,2,3,4)"
        )
