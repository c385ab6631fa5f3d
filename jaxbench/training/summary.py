"""The summary of a training run, computed from the records of its epochs."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbench.analysis.statistics import dependent, held_up, slowed_down
from jaxbench.analysis.steady_rate import steady_rate
from jaxbench.records.schema import EpochRecord, TrainSummary
from jaxbench.records.schema.training import Evaluation, figure_fields
from jaxbench.records.validity import impossible_total
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.plan import comparable
from jaxbench.training.run_progress import RunProgress

# A run compiles several programs: it has a hit only if all of them were fetched.
_OUTCOMES = ("miss", "off", "hit")


def summarize(
    progress: RunProgress,
    *,
    headline: str,
    num_devices: int,
    loss_scales: LossScales,
    wall_s: float,
    warnings: Sequence[str] = (),
    **fields: Any,
) -> TrainSummary:
    """Return the summary record, of however much has been done.

    Evaluations are judged by the figure `headline`. The warnings are those of the checkpoints.
    `fields` are others of the summary, its status among them.
    """
    epochs, compile_s = progress.epochs, progress.compile_s
    complete = [epoch for epoch in epochs if epoch.complete]
    later = [epoch for epoch in complete if epoch.epoch > 1]
    evaluated_s = [epoch.epoch_time_s for epoch in later if epoch.eval_count is not None]
    first_epoch_s = next((epoch.epoch_time_s for epoch in complete if epoch.epoch == 1), None)
    train_time_s = sum(epoch.train_time_s for epoch in epochs)
    images = sum(epoch.images for epoch in epochs)
    rate = steady_rate(map(vars, epochs))
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
        **_last_and_best(epochs, headline, loss_scales.lost_R),
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
        invalid=progress.invalid
        + impossible_total((epoch.epoch_time_s for epoch in epochs), wall_s),
    )


def _last_and_best(
    epochs: Sequence[EpochRecord], headline: str, lost_R: np.ndarray | None
) -> dict[str, Any]:
    """Return the last evaluation's figures, the best score, and which models have diverged."""
    evaluated = [epoch for epoch in epochs if epoch.eval_count is not None]
    if not evaluated:
        return {}
    last = evaluated[-1]
    best = max(evaluated, key=lambda epoch: comparable(epoch.evaluated(headline)))
    fields = {field.name: getattr(last, field.name) for field in dataclasses.fields(Evaluation)}
    fields |= figure_fields(TrainSummary, "best_eval_", {headline: best.evaluated(headline)})
    fields["best_epoch"] = best.epoch
    if last.eval_models:
        # Under fp16 a model that skips all steps keeps its parameters, and their finite loss.
        fields["diverged_seeds"] = [
            model["seed"]
            for r, model in enumerate(last.eval_models)
            if (lost_R is not None and lost_R[r]) or not math.isfinite(comparable(model["loss"]))
        ]
    return fields
