"""Train an experiment, evaluate it after every epoch and record what the devices did."""

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.rate import steady_rate
from jaxbench.analysis.statistics import dependent, held_up, slowed_down
from jaxbench.checkpoints.checkpoint import NO_CHECKPOINTS, Checkpoint, Checkpoints, Policy
from jaxbench.checkpoints.resume import (
    CHECKPOINTS,
    Resume,
    restore,
    resume_run_dir,
    run_to_resume,
)
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.config.custom import config_record
from jaxbench.config.fields import without_unused
from jaxbench.errors import BadInput, Terminated
from jaxbench.hardware.telemetry.sampler import INTERVAL_S, no_telemetry
from jaxbench.hardware.telemetry.summary import Window
from jaxbench.modes.runner import PreparedRun, prepare_run, record_run
from jaxbench.parallel import processes
from jaxbench.parallel.processes import barrier_before_first_step
from jaxbench.parallel.signals import defer_signals
from jaxbench.records.attempts import describe_changes
from jaxbench.records.goodput import begin_attempt, mark_phases, measure_goodput
from jaxbench.records.next_steps import say_next_steps
from jaxbench.records.recorder import Recorder, classify
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.tensorboard import TensorBoardWriter
from jaxbench.records.writers.wandb import WandbWriter
from jaxbench.schema import (
    CompileRecord,
    EpochRecord,
    Record,
    TrainSummary,
    metric_fields,
)
from jaxbench.train import TrainState, checkpoint_hook, profile_hook, train_and_evaluate
from jaxbench.training.compilation import compile_together
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.profiler import Profiler, check_end, parse_steps
from jaxbench.training.run import RunProgress, TrainPlan, TrainRun, comparable, epochs_table

# What is unknown of devices that changed meanwhile.
_PER_DEVICE = ("flops_per_s_per_device", "mfu", "peak", "images_per_s_per_device")
# Steps are counted in int32 on the devices.
_MAX_STEPS = 2**31 - 1


def run_training(
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
) -> Recorder:
    """Run an experiment from its data to its last evaluation; see `OPTIONS`.

    Args:
      config, workdir, console: see `prepare_run`.
      telemetry_s, price: see `record_run`.
      profile: see `parse_steps`.
      target_accuracy: a fraction of top-1 or Dice; an evaluation at or above it ends the run.
      wandb: the Weights & Biases project that gets the records too.
      checkpoints: when they are written; Ctrl-C and SIGTERM have one written if any are.
      resume: see `find_resume`. A run that is done is not run again.
      import_s: seconds from the process's start to this call; None if they do not matter.

    Raises:
      BadInput: before anything is written.
      Diverged: no model has a finite loss any more.
    """
    watch = Stopwatch()
    profiled_steps = parse_steps(profile)
    config.validate()
    with contextlib.ExitStack() as stack:
        resumed = stack.enter_context(run_to_resume(workdir, resume, without_unused(config)[0]))
        if processes.broadcast_value(resumed is not None and resumed.is_done(config)):
            return _done_already(resumed, console or create_console())
        if import_s is not None:
            import_s += watch.elapsed_s()
        setup = stack.enter_context(prepare_run(config, workdir, console, checked=True))
        plan = _plan(setup, target_accuracy)
        check_end(profiled_steps, plan.total_steps)
        saved = restore(setup.program, setup.clock, setup.console, resumed)
        run = TrainRun(
            program=setup.program,
            feed=setup.feed,
            plan=plan,
            clock=setup.clock,
            console=setup.console,
            progress=RunProgress.from_json(saved.metadata)
            if saved
            else RunProgress(import_s=import_s),
            hooks=[checkpoint_hook, profile_hook],
        )
        if saved:
            run.check_progress(saved.name)
        training = Training(setup, run, saved, profiled_steps, checkpoints, wandb, import_s)
        resume_into = None
        if resumed:
            checkpoint = saved and saved._replace(state=None)
            resume_into = functools.partial(
                resume_run_dir, resumed, checkpoint, say=setup.console.say
            )
        del saved  # only `training` holds the host's copy of the state, until it is placed
        with record_run(
            setup,
            "train",
            workdir,
            summarize=training.summarize,
            document=training.document(),
            telemetry_s=telemetry_s,
            price=price,
            resume_into=resume_into,
        ) as recorder:
            training.measure(recorder)
        return recorder


def _done_already(resumed: Resume | None, console: Console) -> Recorder:
    """Return the result of a run that is done, in all processes; only the first knows the run."""
    run_dir = RunDir(resumed.path, resumed.document) if resumed else None
    recorder = Recorder(run_dir, no_telemetry())
    if run_dir:
        console.say(f"{run_dir.path}: this run is done already")
        console.close()
        say_next_steps(console, run_dir)
        recorder.summary = run_dir.document.get("summary") or {}
    return recorder


def _plan(setup: PreparedRun, target_accuracy: float | None) -> TrainPlan:
    config, steps_per_epoch = setup.config, setup.feed.steps_per_epoch
    if config.schedule_steps(steps_per_epoch) > _MAX_STEPS:
        raise BadInput(
            f"epochs={config.epochs}: {steps_per_epoch} steps each are more than "
            f"{_MAX_STEPS:,} steps; max_steps ends a run earlier"
        )
    return TrainPlan(
        config.num_steps(steps_per_epoch),
        steps_per_epoch,
        config.eval_every_epochs,
        target_accuracy,
        setup.program.task.primary_metric,
    )


@dataclasses.dataclass
class Training:
    """Trains to the end of the plan, from its start or from a checkpoint.

    Attributes:
      setup: what `prepare_run` made.
      saved: the checkpoint, until its state is placed.
      run_dir: None in all processes but the first.
      changes: what changed since the run's first process.
    """

    setup: PreparedRun
    run: TrainRun
    saved: Checkpoint | None
    profiled_steps: range
    checkpoints: Policy
    wandb: str | None
    import_s: float | None
    run_dir: RunDir | None = None
    changes: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        resumed_phases_s = self.saved.metadata["totals_s"] if self.saved else {}
        attempt = begin_attempt(self.run.clock, self.import_s, resumed_phases_s)
        return {"target_accuracy": self.run.plan.target_accuracy, "attempts": [attempt]}

    def measure(self, recorder: Recorder) -> None:
        run, folder, saved, self.saved = self.run, recorder.folder, self.saved, None
        self.run_dir, self.changes = recorder.run_dir, recorder.changes
        run.writer, run.telemetry = recorder.writers, recorder.telemetry
        if self.profiled_steps:
            run.profiler = Profiler(self.profiled_steps, folder, run.progress.traced)
        image_writers: list[TensorBoardWriter | WandbWriter] = []
        if folder:
            if self.checkpoints.is_on:
                run.checkpoints = Checkpoints(
                    folder / CHECKPOINTS, self.checkpoints, run.console.say
                )
            recorder.writers.add(epochs_table(run, folder))
            image_writers.append(TensorBoardWriter(folder))
            if self.wandb is not None:
                with run.clock.phase("records"), run.console.phase("starting the wandb run"):
                    config = config_record(run.program.config)
                    image_writers.append(WandbWriter(folder, self.wandb, config, run.console.say))
            for writer in image_writers:
                recorder.writers.add(writer)
        if not self.checkpoints.is_on:
            run.console.say(
                "no checkpoints: a run that is stopped begins again (--checkpoint_minutes=10 or "
                "--checkpoint_epochs=1 writes them)"
            )
        if saved:
            recorder.telemetry.windows = [Window(*window) for window in saved.metadata["windows"]]
            run.console.say(f"resuming after step {run.progress.step} ({saved.name})")
        state, compiled = prepare(self.setup, run, saved and saved.state, self._mark_phases)
        if not saved:  # else the run has its records of it
            with run.clock.phase("records"), defer_signals():
                for record in compiled:
                    recorder.write(record)
                example_shape = run.program.config.data.example_shape
                # Nothing shows tokens, nor images of other channels.
                is_shown = len(example_shape) == 3 and example_shape[-1] in (1, 3)
                for writer in image_writers if is_shown else ():
                    writer.add_images("train/images", run.sample_images(), step=0)
        del saved
        barrier_before_first_step(run.clock)
        self._mark_phases("train")
        try:
            recorder.state = train_and_evaluate(run, state)
        except (KeyboardInterrupt, Terminated) as error:
            if self.run_dir:  # a second Ctrl-C ends the process while the checkpoint is written
                with defer_signals():
                    self.run_dir.end(*classify(error))
            raise
        finally:
            run.wait_for_checkpoints()

    def _mark_phases(self, doing: str) -> None:
        """Note in run.json what this process does from now on, in case it is killed."""
        if self.run_dir and (attempts := self.run_dir.document.get("attempts")):
            with self.run.clock.phase("records"), defer_signals():
                attempts[-1] |= mark_phases(self.run.clock, doing)
                self.run_dir.update(attempts=attempts)

    def summarize(self, status: str, records: Sequence[Record]) -> TrainSummary:
        run, program, dataset = self.run, self.run.program, self.setup.dataset
        epochs = run.progress.epochs
        attempts = self.run_dir.document.get("attempts") if self.run_dir else None
        goodput = attempts and measure_goodput(attempts, run.clock.totals_s())
        if goodput:
            goodput = {"num_resumes": len(attempts) - 1, **goodput._asdict()}
        is_evaluated = any(epoch.eval_count is not None for epoch in epochs)
        warnings = dataset.eval_split_warnings() if dataset and is_evaluated else []
        if change := self._describe_changes("batch_norm_examples"):
            warnings.append(f"{change}: losses are not those of an undisturbed run")
        summary = summarize(
            run.progress,
            status=status,
            primary_metric=program.task.primary_metric,
            num_devices=program.mesh.num_devices,
            loss_scales=run.loss_scales,
            target_accuracy=run.plan.describe_target(epochs, program.layout.images_per_step),
            profile=run.profiler.summary(),
            warnings=warnings + (run.checkpoints.warnings if run.checkpoints else []),
            **(goodput or {}),
        )
        change = self._describe_changes("device_kind", "num_devices")
        if not change:
            summary.invalid.extend(run.impossible_rates())
        if summary.images_per_s is None:
            tokens = program.config.data.sequence_length or None
            return msgspec.structs.replace(summary, tokens_per_image=tokens)
        fields = program.utilization(summary.images_per_s)
        if change:
            fields |= dict.fromkeys(_PER_DEVICE)
            unknown = f"{change}: figures per device are unknown"
            fields["warnings"] = [*summary.warnings, unknown]
        return msgspec.structs.replace(summary, **fields)

    def _describe_changes(self, *names: str) -> str:
        """Return what changed of these since the run's first process; empty if nothing did."""
        return describe_changes({n: v for n, v in self.changes.items() if n in names})


def prepare(
    setup: PreparedRun,
    run: TrainRun,
    saved_state: TrainState | None = None,
    begin: Callable[[str], None] = lambda phase: None,
) -> tuple[TrainState, list[CompileRecord]]:
    """Return the state on the devices, and the records of both steps, which are compiled for it.

    Without the saved state of a checkpoint, on the host, the parameters are initialised. `begin` is
    called with "compile" before the steps are compiled.
    """
    program, feed, progress = setup.program, setup.feed, run.progress
    is_resumed = saved_state is not None
    with setup.clock.phase("place_data"):
        # If only the last evaluation is left, the shapes of the last step's batch are enough.
        step = min(progress.step, run.plan.total_steps - 1)
        batch = run.peek_batch(*divmod(step, run.plan.steps_per_epoch))
        eval_batch = next(feed.eval_batches())
    begin("compile")
    if not is_resumed:
        # XLA compiles what has been lowered while Python lowers the next.
        with setup.clock.phase("init"):
            program.begin_init()
    state = program.abstract_placed_state()
    if across_processes := program.mesh.process[1] > 1:  # there pmap takes no shapes
        state = setup.place_train_state(saved_state)
    steps = {
        "train_step": (program.train_step, state, feed.train_data, batch),
        "eval_step": (program.eval_step, state, feed.eval_data, eval_batch),
    }
    with setup.console.phase(
        f"compiling {' and '.join(steps)} for {setup.mesh.num_devices} device(s)"
    ):
        records, compile_s = compile_together(steps, setup.clock)
    if not across_processes:
        state = setup.place_train_state(saved_state)
    del saved_state
    run.loss_scales = LossScales(getattr(state, "loss_scale", None), run.seeds_R, run.console.say)
    if not is_resumed:
        progress.compile_s = compile_s
        progress.compile_cache = [record.compile_cache for record in records]
    return state, records


# A run compiles several programs: it has a hit only if all of them were fetched.
_OUTCOMES = ("miss", "off", "hit")


def summarize(
    progress: RunProgress,
    *,
    primary_metric: str,
    num_devices: int,
    loss_scales: LossScales,
    warnings: Sequence[str] = (),
    **fields: Any,
) -> TrainSummary:
    """Return the summary record, of however much has been done.

    Evaluations are judged by `primary_metric`. The warnings are those of the checkpoints.
    `fields` are others of the summary, its status among them.
    """
    epochs, compile_s = progress.epochs, progress.compile_s
    complete = [epoch for epoch in epochs if epoch.complete]
    later = [epoch for epoch in complete if epoch.epoch > 1]
    evaluated_s = [epoch.epoch_time_s for epoch in later if epoch.eval_count is not None]
    first_epoch_s = next((epoch.epoch_time_s for epoch in complete if epoch.epoch == 1), None)
    train_time_s = sum(epoch.train_time_s for epoch in epochs)
    images = sum(epoch.images for epoch in epochs)
    rate = steady_rate(epochs)
    return TrainSummary(
        **fields,
        steps=progress.step,
        epochs_done=len(epochs),
        compile_s=compile_s or None,  # None: it ended before
        compile_cache=min(progress.compile_cache, key=_OUTCOMES.index, default=None),
        first_step_s=progress.first_step_s,
        import_s=progress.import_s,
        startup_s=progress.startup_s,
        first_epoch_s=first_epoch_s,
        first_epoch_with_compile_s=first_epoch_s and first_epoch_s + compile_s,
        # An epoch without an evaluation is less work.
        median_epoch_s=statistics.median(evaluated_s) if evaluated_s else None,
        train_time_s=train_time_s,
        eval_time_s=sum(epoch.eval_time_s for epoch in epochs),
        **rate.fields("images_per_s"),
        images_per_s_range=rate.range and list(rate.range),
        steady_epochs=rate.n or 0,
        images_per_s_per_device=rate.value and rate.value / num_devices,
        images_per_s_whole_run=images / train_time_s if images else None,
        **loss_scales.describe(),
        **_last_and_best(epochs, primary_metric, loss_scales.lost_R),
        # Without evaluations, which not every epoch has; the first epoch is warm-up.
        warnings=[
            *dependent("epochs", [epoch.train_time_s for epoch in later]),
            *slowed_down("epochs", [epoch.train_time_s for epoch in later]),
            *held_up("epoch", {epoch.epoch: epoch.train_time_s for epoch in later}),
            *held_up(
                "the evaluation of epoch",
                {epoch.epoch: epoch.eval_time_s for epoch in later if epoch.eval_count is not None},
            ),
            *warnings,
        ],
        invalid=progress.invalid,
    )


def _last_and_best(
    epochs: Sequence[EpochRecord], primary_metric: str, lost_R: np.ndarray | None
) -> dict[str, Any]:
    """Return the last evaluation's metrics, the best score, and which models have diverged."""
    evaluated = [epoch for epoch in epochs if epoch.eval_count is not None]
    if not evaluated:
        return {}
    last = evaluated[-1]
    best = max(evaluated, key=lambda epoch: comparable(epoch.evaluated(primary_metric)))
    names = {*TrainSummary.__struct_fields__} & {*EpochRecord.__struct_fields__}
    evaluations = [name for name in names if name.startswith("eval_") and name != "eval_time_s"]
    fields = {name: getattr(last, name) for name in evaluations}
    fields |= metric_fields(
        TrainSummary, "best_eval_", {primary_metric: best.evaluated(primary_metric)}
    )
    fields["best_epoch"] = best.epoch
    if last.eval_models:
        # Under fp16 a model that skips all steps keeps its parameters, and their finite loss.
        fields["diverged_seeds"] = [
            model["seed"]
            for r, model in enumerate(last.eval_models)
            if (lost_R is not None and lost_R[r]) or not math.isfinite(comparable(model["loss"]))
        ]
    return fields
