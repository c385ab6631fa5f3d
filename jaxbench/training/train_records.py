"""Make the records of training from its metrics."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.distributed.mesh import peak_memory_bytes
from jaxbench.distributed.signals import defer_signals
from jaxbench.hardware.environment import process_memory_bytes
from jaxbench.records.schema import EpochRecord, StepRecord
from jaxbench.records.schema.training import figure_fields, has_field
from jaxbench.records.validity import impossible_epoch
from jaxbench.records.writers.files import CsvWriter
from jaxbench.training.evaluation import EvalMetrics
from jaxbench.training.run import TrainRun

# The spread of the headline figure over several models: sample deviation, extremes.
_SPREAD = ("std", "min", "max")


def write_step_record(run: TrainRun, *, profiled: bool = False) -> None:
    """Write the record of the steps since the last one, whose metrics have just arrived."""
    epoch, times = run.progress.epoch_metrics, {}
    # Without step_log metrics arrive together, and the time between two of them means nothing.
    if run.program.config.step_log and not profiled:
        step_time_s = epoch.interval_time_s / epoch.interval_steps
        images_per_s = run.program.geometry.images_per_step / step_time_s
        times = {"step_time_s": step_time_s, "images_per_s": images_per_s}
    record = StepRecord(
        step=run.progress.step,
        epoch=epoch.epoch + 1,
        **_describe_models(run, "", epoch.interval, run.program.task.train_figures),
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        elapsed_s=run.clock.wall_s(),
        profiled=profiled,
        **times,
    )
    if times:
        run.console.say(
            f"step {record.step}, loss = {record.loss:.2f} "
            f"({record.images_per_s:.1f} examples/sec; {record.step_time_s:.3f} sec/batch)"
        )
    run.write(record)
    epoch.begin_interval()


def write_epoch_record(run: TrainRun, evaluation: EvalMetrics | None) -> None:
    """Write the record of the epoch that is done, with its evaluation if one followed."""
    trained, task = run.progress.epoch_metrics, run.program.task
    geometry, devices = run.program.geometry, run.program.mesh.devices
    timed_steps = trained.steps - trained.profiled_steps
    images_per_s = trained.images / trained.time_s if trained.images else None
    used = run.program.utilization(images_per_s) if images_per_s else {}
    eval_time_s, evaluated = 0.0, {}
    if evaluation:
        eval_time_s = evaluation.time_s
        evaluated = _describe_models(run, "eval_", evaluation.total, task.eval_figures)
        evaluated["eval_count"] = run.feed.eval_count
    record = EpochRecord(
        epoch=trained.epoch + 1,
        epochs=run.plan.num_epochs,
        step=run.progress.step,
        complete=timed_steps == run.plan.steps_per_epoch,
        epoch_time_s=trained.time_s + eval_time_s,
        train_time_s=trained.time_s,
        data_wait_s=trained.data_wait_s,
        eval_time_s=eval_time_s,
        images=trained.images,
        images_per_s=images_per_s,
        images_per_s_per_device=images_per_s and images_per_s / len(devices),
        tokens_per_s=used.get("tokens_per_s"),
        mfu=used.get("mfu"),
        profiled_steps=trained.profiled_steps,
        **_describe_models(run, "train_", trained.total, task.train_figures),
        **evaluated,
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        peak_memory_bytes=peak_memory_bytes(devices),
        process_memory_bytes=process_memory_bytes(),
        elapsed_s=run.clock.wall_s(),
    )
    images, corrupt = timed_steps * geometry.images_per_step, len(run.corrupt) * geometry.num_models
    # In one piece: an epoch is either under way or has its record.
    with defer_signals():
        run.progress.epochs.append(record)
        run.progress.invalid += impossible_epoch(record, images, corrupt)
        run.write(record)
        run.progress.epoch_metrics = None


def epochs_table(run: TrainRun, folder: pathlib.Path) -> CsvWriter:
    """Open epochs.csv, with the epochs that earlier processes have done."""
    table = CsvWriter(folder / "epochs.csv", EpochRecord, _own_columns(run))
    for epoch in run.progress.epochs:
        table.write(epoch)
    return table


def _own_columns(run: TrainRun) -> list[str]:
    """Return the columns for the figures of a task of the user's own."""
    task, columns = run.program.task, []
    for prefix, names in (("train_", task.train_figures), ("eval_", task.eval_figures)):
        spread = [f"{task.headline}_{s}" for s in _SPREAD] if len(run.seeds_R) > 1 else []
        columns += [
            f"{prefix}{name}"
            for name in (*names, *spread)
            if not has_field(EpochRecord, prefix, name)
        ]
    return columns


def _describe_models(
    run: TrainRun, prefix: str, sums: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of summed metrics as the fields of a record: means over the models.

    With several models, the spread of the headline figure and each model's figures are added.
    """
    figures, headline = run.program.task.compute(sums), run.program.task.headline
    means = {name: float(np.mean(figures[name])) for name in names}
    models = {}
    if len(run.seeds_R) > 1:
        values_R = figures[headline]
        spread = (np.std(values_R, ddof=1), np.min(values_R), np.max(values_R))
        for statistic, value in zip(_SPREAD, spread, strict=True):
            means[f"{headline}_{statistic}"] = float(value)
        models[f"{prefix}models"] = [
            {"seed": seed} | {name: float(figures[name][r]) for name in names}
            for r, seed in enumerate(run.seeds_R)
        ]
    return figure_fields(EpochRecord if prefix else StepRecord, prefix, means) | models
