"""Make the records of training steps, and the summary of a run, from its metrics."""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.analysis.statistics import dependent, held_up, slowed_down
from jaxbench.analysis.steady_rate import steady_rate
from jaxbench.records.schema import EpochRecord, StepRecord, TrainSummary, has_field, metric_fields
from jaxbench.records.writers.files import CsvWriter
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.run import RunProgress, TrainRun, comparable

# The spread of the primary metric over several models: sample deviation, extremes.
_SPREAD = ("std", "min", "max")


def write_step_record(run: TrainRun, *, profiled: bool = False) -> None:
    """Write the record of the steps since the last one, whose metrics have just arrived."""
    epoch, times = run.progress.epoch_metrics, {}
    # Without step_log metrics arrive together, and the time between two of them means nothing.
    if run.program.config.step_log and not profiled:
        step_time_s = epoch.interval_time_s / epoch.interval_steps
        images_per_s = run.program.layout.images_per_step / step_time_s
        times = {"step_time_s": step_time_s, "images_per_s": images_per_s}
    record = StepRecord(
        step=run.progress.step,
        epoch=epoch.epoch + 1,
        **describe_models(run, "", epoch.interval, run.program.task.train_metrics),
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        elapsed_s=run.clock.wall_s(),
        profiled=profiled or None,
        **times,
    )
    if times:
        run.console.say(
            f"step {record.step}, loss = {record.loss:.2f} "
            f"({record.images_per_s:.1f} examples/sec; {record.step_time_s:.3f} sec/batch)"
        )
    run.write(record)
    epoch.begin_interval()


def epochs_table(run: TrainRun, folder: pathlib.Path) -> CsvWriter:
    """Open epochs.csv, with the epochs that earlier processes have done."""
    task, columns = run.program.task, []  # of a custom task's metrics
    spread = [f"{task.primary_metric}_{s}" for s in _SPREAD] if len(run.seeds_R) > 1 else []
    for prefix, names in (("train_", task.train_metrics), ("eval_", task.eval_metrics)):
        columns += [
            f"{prefix}{name}"
            for name in (*names, *spread)
            if not has_field(EpochRecord, prefix, name)
        ]
    table = CsvWriter(folder / "epochs.csv", EpochRecord, columns)
    for epoch in run.progress.epochs:
        table.write(epoch)
    return table


def describe_models(
    run: TrainRun, prefix: str, sums: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """Return the metrics of some sums as the fields of a record: means over the models.

    With several models, the spread of the primary metric and each model's metrics are added.
    """
    metrics, primary_metric = run.program.task.compute(sums), run.program.task.primary_metric
    means = {name: float(np.mean(metrics[name])) for name in names}
    models = {}
    if len(run.seeds_R) > 1:
        values_R = metrics[primary_metric]
        spread = (np.std(values_R, ddof=1), np.min(values_R), np.max(values_R))
        for statistic, value in zip(_SPREAD, spread, strict=True):
            means[f"{primary_metric}_{statistic}"] = float(value)
        models[f"{prefix}models"] = [
            {"seed": seed} | {name: float(metrics[name][r]) for name in names}
            for r, seed in enumerate(run.seeds_R)
        ]
    return metric_fields(EpochRecord if prefix else StepRecord, prefix, means) | models


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
    images_per_s = rate["images_per_s"]
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
        **rate,
        images_per_s_per_device=images_per_s and images_per_s / num_devices,
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
    names = TrainSummary.__dataclass_fields__.keys() & last.__dataclass_fields__.keys()
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
