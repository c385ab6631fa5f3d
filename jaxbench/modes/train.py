"""Train an experiment, evaluate it after every epoch and record what the devices did."""

import contextlib
import functools
import math
import statistics
from collections.abc import Sequence
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
from jaxbench.hardware.peaks import flops_limit
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
from jaxbench.records.validity import impossible_arithmetic
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.files import CsvWriter
from jaxbench.records.writers.tensorboard import TensorBoardWriter
from jaxbench.records.writers.wandb import WandbWriter
from jaxbench.schema import (
    CompileRecord,
    EpochRecord,
    Record,
    TrainSummary,
    has_field,
    metric_fields,
)
from jaxbench.train import SPREAD, Loop, TrainState, train_and_evaluate
from jaxbench.training.compilation import compile_together
from jaxbench.training.loss_scale import LossScales, first_loss_scale
from jaxbench.training.profiler import Profiler, check_end, describe_trace, parse_steps
from jaxbench.training.run import EpochSums, RunProgress, TrainPlan, comparable, score_of

# What is unknown of devices that changed meanwhile.
_PER_DEVICE = ("flops_per_s_per_device", "mfu", "peak", "images_per_s_per_device")
# Steps are counted in int32 on the devices.
_MAX_STEPS = 2**31 - 1
# Images that are shown in TensorBoard and in Weights & Biases.
_SAMPLE_IMAGES = 16


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
        # Which run: the one to resume, or a new one.
        resumed = stack.enter_context(run_to_resume(workdir, resume, without_unused(config)[0]))
        if processes.broadcast_value(resumed is not None and resumed.is_done):
            return _done_already(resumed, console or create_console())
        if import_s is not None:
            import_s += watch.elapsed_s()
        before = resumed.document if resumed else None
        setup = stack.enter_context(
            prepare_run(config, workdir, console, checked=True, resumed=before)
        )
        clock, console, network = setup.clock, setup.console, setup.network
        plan = _plan(setup, target_accuracy)
        check_end(profiled_steps, plan.total_steps)

        # Which checkpoint: the given one, or the run's newest; without any the state is drawn.
        saved = restore(setup.program, clock, console, resumed)
        progress = _progress(setup, plan, saved, import_s)
        first_scale = first_loss_scale() if network.precision.scales_loss else None
        scale, seeds_R = saved.state.loss_scale if saved else first_scale, setup.seeds_R
        loss_scales = LossScales(scale, seeds_R, console.say)
        recorder: Recorder | None = None
        writes: Checkpoints | None = None

        def summarize_run(status: str, records: Sequence[Record]) -> TrainSummary:
            warnings = writes.warnings if writes else []
            return _summarize_run(setup, plan, progress, loss_scales, recorder, status, warnings)

        attempt = begin_attempt(clock, import_s, saved.metadata["totals_s"] if saved else {})
        resume_into = None
        if resumed:
            checkpoint = saved and saved._replace(state=None)
            resume_into = functools.partial(resume_run_dir, resumed, checkpoint, say=console.say)
        recording = record_run(
            setup,
            "train",
            workdir,
            summarize=summarize_run,
            document={"target_accuracy": target_accuracy, "attempts": [attempt]},
            telemetry_s=telemetry_s,
            price=price,
            resume_into=resume_into,
        )
        recorder = stack.enter_context(recording)
        image_writers = _add_writers(recorder, setup, progress, wandb)
        if recorder.folder and checkpoints.is_on:
            writes = Checkpoints(recorder.folder / CHECKPOINTS, checkpoints, console.say)
        if not checkpoints.is_on:
            console.say(
                "no checkpoints: a run that is stopped begins again (--checkpoint_minutes=10 or "
                "--checkpoint_epochs=1 writes them)"
            )
        if saved:
            recorder.telemetry.windows = [Window(*window) for window in saved.metadata["windows"]]
            console.say(f"resuming after step {progress.step} ({saved.name})")
        first_batch, state = _first_batch(setup, plan, progress), saved and saved.state
        _mark_phases(recorder, setup, "compile")
        [batch] = first_batch.values()
        state, compiled = compile_and_place(setup, progress, batch, state)
        if not saved:  # else the run has its records of it
            with clock.phase("records"), defer_signals():
                for record in compiled:
                    recorder.write(record)
                for writer in image_writers:
                    writer.add_images("train/images", _images(setup, batch), step=0)
        del saved, batch  # from now on only the devices hold the state
        barrier_before_first_step(clock)
        _mark_phases(recorder, setup, "train")
        loop = Loop(
            program=setup.program,
            feed=setup.feed,
            plan=plan,
            clock=clock,
            console=console,
            progress=progress,
            loss_scales=loss_scales,
            writer=recorder.writers,
            telemetry=recorder.telemetry,
            checkpoints=writes,
            profiler=Profiler(profiled_steps, recorder.folder, progress.traced),
            first_batch=first_batch,
        )
        try:
            recorder.state = train_and_evaluate(loop, state)
        except (KeyboardInterrupt, Terminated) as error:
            if recorder.run_dir:  # a second Ctrl-C ends the process while the checkpoint is written
                with defer_signals():
                    recorder.run_dir.end(*classify(error))
            raise
        finally:
            if writes:
                with clock.phase("checkpoint"), defer_signals():
                    writes.wait()
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
    metric = setup.network.task.primary_metric
    if metric == "loss" and target_accuracy is not None:
        name = setup.network.task.name
        raise BadInput(f"--target_accuracy={target_accuracy}: task={name!r} has a loss alone")
    return TrainPlan(
        config.num_steps(steps_per_epoch),
        steps_per_epoch,
        config.eval_every_epochs,
        target_accuracy,
        metric,
    )


def _progress(
    setup: PreparedRun, plan: TrainPlan, saved: Checkpoint | None, import_s: float | None
) -> RunProgress:
    """Return the progress of a checkpoint, or of a run that begins."""
    beginning = EpochSums.beginning(0, setup.network.epoch_sums, len(setup.seeds_R))
    if saved is None:
        return RunProgress(sums=beginning, import_s=import_s)
    progress = RunProgress.from_json(saved.metadata)
    progress.check(plan, beginning, setup.config.max_steps, saved.name)
    return progress


def _add_writers(
    recorder: Recorder, setup: PreparedRun, progress: RunProgress, wandb: str | None
) -> list[TensorBoardWriter | WandbWriter]:
    """Add epochs.csv, TensorBoard and wandb to the writers; return those that show images."""
    folder, config, console = recorder.folder, setup.config, setup.console
    if folder is None:
        return []
    recorder.writers.add(_epochs_table(setup, progress, folder / "epochs.csv"))
    image_writers: list[TensorBoardWriter | WandbWriter] = [TensorBoardWriter(folder)]
    if wandb is not None:
        with setup.clock.phase("records"), console.phase("starting the wandb run"):
            record = config_record(config)
            image_writers.append(WandbWriter(folder, wandb, record, console.say))
    for writer in image_writers:
        recorder.writers.add(writer)
    shape = config.data.example_shape
    # Nothing shows tokens, nor images of other channels.
    return image_writers if len(shape) == 3 and shape[-1] in (1, 3) else []


def _epochs_table(setup: PreparedRun, progress: RunProgress, path: Any) -> CsvWriter:
    """Open epochs.csv, with the epochs that earlier processes have done."""
    task, columns = setup.network.task, []  # of a custom task's metrics
    spread = [f"{task.primary_metric}_{s}" for s in SPREAD] if len(setup.seeds_R) > 1 else []
    for prefix, names in (("train_", task.train_metrics), ("eval_", task.eval_metrics)):
        columns += [
            f"{prefix}{name}"
            for name in (*names, *spread)
            if not has_field(EpochRecord, prefix, name)
        ]
    table = CsvWriter(path, EpochRecord, columns)
    for epoch in progress.epochs:
        table.write(epoch)
    return table


def _first_batch(
    setup: PreparedRun, plan: TrainPlan, progress: RunProgress
) -> dict[tuple[int, int], Any]:
    """Return {(epoch, step): batch} of the next step, for which the step is compiled.

    If only the last evaluation is left, the shapes of the last step's batch are enough.
    """
    with setup.clock.phase("place_data"):
        step = min(progress.step, plan.total_steps - 1)
        epoch, step = divmod(step, plan.steps_per_epoch)
        return {(epoch, step): next(setup.feed.train_batches(epoch, 1, step))}


def _images(setup: PreparedRun, batch: Any) -> np.ndarray:
    """Return a few images_NxHxWxC of a batch as the feed has them, uint8.

    The images of a resident feed are cropped and flipped later, in the step.
    """
    held = batch if "images" in batch else setup.feed.train_data
    images = held["images"].addressable_shards[0].data
    if images.ndim == 5:  # with an axis of devices
        images = images[0]
    return np.asarray(images[:_SAMPLE_IMAGES])


def _mark_phases(recorder: Recorder, setup: PreparedRun, doing: str) -> None:
    """Note in run.json what this process does from now on, in case it is killed."""
    if recorder.run_dir and (attempts := recorder.run_dir.document.get("attempts")):
        with setup.clock.phase("records"), defer_signals():
            attempts[-1] |= mark_phases(setup.clock, doing)
            recorder.run_dir.update(attempts=attempts)


def compile_and_place(
    setup: PreparedRun, progress: RunProgress, batch: Any, saved: TrainState | None = None
) -> tuple[TrainState, list[CompileRecord]]:
    """Compile both steps, and place the state; return the state and the records.

    Without the saved state of a checkpoint, on the host, the parameters are initialised.
    """
    program, feed, is_resumed = setup.program, setup.feed, saved is not None
    with setup.clock.phase("place_data"):
        eval_batch = next(feed.eval_batches())
    if not is_resumed:
        # XLA compiles what has been lowered while Python lowers the next.
        with setup.clock.phase("init"):
            program.begin_init()
    state = program.abstract_placed_state()
    if across_processes := setup.mesh.process[1] > 1:  # there pmap takes no shapes
        state = setup.place_train_state(saved)
    steps = {
        "train_step": (program.train_step, state, feed.train_data, batch),
        "eval_step": (program.eval_step, state, feed.eval_data, eval_batch),
    }
    with setup.console.phase(
        f"compiling {' and '.join(steps)} for {setup.mesh.num_devices} device(s)"
    ):
        records, compile_s = compile_together(steps, setup.clock)
    if not across_processes:
        state = setup.place_train_state(saved)
    if not is_resumed:
        progress.compile_s = compile_s
        progress.compile_cache = [record.compile_cache for record in records]
    return state, records


# ----------------------------------------------------------------------------------- the summary


def _summarize_run(
    setup: PreparedRun,
    plan: TrainPlan,
    progress: RunProgress,
    loss_scales: LossScales,
    recorder: Recorder | None,
    status: str,
    warnings: Sequence[str],
) -> TrainSummary:
    """Return the summary of a run; `warnings` are those of its checkpoints."""
    network, dataset, epochs = setup.network, setup.dataset, progress.epochs
    analysis, layout = network.analysis, setup.program.layout
    run_dir = recorder.run_dir if recorder else None
    attempts, fields = run_dir.document.get("attempts") if run_dir else None, {}
    if attempts and (goodput := measure_goodput(attempts, setup.clock.totals_s())):
        fields = {"num_resumes": len(attempts) - 1, **goodput._asdict()}
    if dataset and any(epoch.eval_count is not None for epoch in epochs):
        warnings = [*dataset.eval_split_warnings(), *warnings]

    def change_of(*names: str) -> str:
        """Return what changed of these since the run's first process; empty if nothing did."""
        changes = recorder.changes if recorder else {}
        return describe_changes({n: v for n, v in changes.items() if n in names})

    if change := change_of("batch_norm_examples"):
        unlike = f"{change}: losses are not those of an undisturbed run"
        warnings = [*warnings, unlike]
    summary = summarize(
        progress,
        status=status,
        primary_metric=network.task.primary_metric,
        num_devices=setup.mesh.num_devices,
        loss_scales=loss_scales,
        target_accuracy=plan.describe_target(epochs, layout.images_per_step),
        profile=describe_trace(run_dir.path if run_dir else None, progress.traced),
        warnings=warnings,
        **fields,
    )
    change = change_of("device_kind", "num_devices")
    if not change:
        summary.invalid.extend(_impossible_rates(setup, epochs))
    if summary.images_per_s is None:
        tokens = setup.config.data.sequence_length or None
        return msgspec.structs.replace(summary, tokens_per_image=tokens)
    fields = analysis.utilization(summary.images_per_s)
    if change:
        fields |= dict.fromkeys(_PER_DEVICE)
        fields["warnings"] = [*summary.warnings, f"{change}: metrics per device are unknown"]
    return msgspec.structs.replace(summary, **fields)


def _impossible_rates(setup: PreparedRun, epochs: Sequence[EpochRecord]) -> list[str]:
    """Return why the fastest epoch's rate cannot be true, on devices like this process's."""
    rates = [(rate, epoch.epoch) for epoch in epochs if (rate := epoch.images_per_s_per_device)]
    if not rates:
        return []
    rate, number = max(rates)
    flops_per_s = rate * setup.network.analysis.training_flops
    reasons = impossible_arithmetic(flops_per_s, flops_limit(setup.mesh.devices))
    return [f"epoch {number}: {why}" for why in reasons]


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
    best = max(evaluated, key=lambda epoch: comparable(score_of(epoch, primary_metric)))
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
