"""How long a run took to reach an accuracy."""

import dataclasses
import math
from collections.abc import Sequence

from jaxbench.metrics import percent
from jaxbench.records import schema
from jaxbench.records.schema import EpochRecord
from jaxbench.reports.runs import SCORES, ReportedRun

# A run that ended so without reaching its target never does. One that was broken off is not known.
NEVER_REACHED = ("done", "diverged", "invalid", "failed", "oom", "timeout")
# Fewer seeds are no result.
FEWEST_SEEDS = 5


@dataclasses.dataclass(frozen=True)
class TimeToTarget:
    """What a run took to its target, a share of the field `score` in an epoch's record.

    Attributes:
      evaluations: (seconds since the run's start, score as a share), in order; none where the run
        ended before its first one.
      epoch, time_s, images, training_flops, energy_j: up to the target; the operations are the
        network's own, forward and backward; None, or infinite time, where it was not
        reached.
      epochs_s: seconds spent in epochs with their evaluations, start-up and compilation excluded;
        None where that is not known.
    """

    run: ReportedRun
    target: float
    score: str
    evaluations: Sequence[tuple[float, float]]
    epoch: float | None
    time_s: float
    images: float | None
    training_flops: float | None
    energy_j: float | None
    epochs_s: float | None

    # Of all processes of a resumed run, for its price.
    paid_s = property(lambda self: self.run.paid_s(self.time_s))
    reached = property(lambda self: self.epoch is not None)
    title = property(lambda self: SCORES.get(self.score, self.score.removeprefix("eval_")))
    label = property(lambda self: f"{self.title} {percent(self.target)}")
    best_score = property(lambda self: max((own for _, own in self.evaluations), default=None))

    @property
    def ended(self) -> bool:
        """Whether its time is known: it reached the target, or ended without reaching it."""
        return self.reached or self.run.status in NEVER_REACHED


def time_to_target(run: ReportedRun, asked: float | None) -> TimeToTarget | None:
    """Return what a run took to its target, or to the one that is asked; None where it has none."""
    to_stop = run.summary.target_accuracy or {}
    targets = (asked, to_stop.get("value"), run.document.target_accuracy)
    target = next((value for value in targets if value is not None), None)
    # Models that are trained apart have no score of their own in an epoch's record.
    if target is None or run.mode != "train" or run.config.get("replicas") == "independent":
        return None
    epochs = run.of_kind(EpochRecord)
    asked_for = to_stop.get("score") or "top1"
    scores = (asked_for, *schema.SCORES)
    score = next((s for s in scores for e in epochs if e.evaluated(s) is not None), asked_for)
    evaluated = [
        (epoch, value) for epoch in epochs if (value := epoch.evaluated(score)) is not None
    ]
    reached = next((epoch for epoch, value in evaluated if value >= target), None)
    images = flops = None
    if reached and run.batch_size:
        images = reached.step * run.batch_size
        flops_per_image = run.document.training_flops_per_image
        flops = flops_per_image and images * flops_per_image
    # The whole run's energy, so only if it ended with the target.
    ends_there = reached and to_stop.get("value") == target
    return TimeToTarget(
        run,
        target,
        f"eval_{score}",
        [(epoch.elapsed_s, value) for epoch, value in evaluated],
        epoch=reached and reached.epoch,
        time_s=reached.elapsed_s if reached else math.inf,
        images=images,
        training_flops=flops,
        energy_j=to_stop.get("energy_j") if ends_there else None,
        epochs_s=sum(one.epoch_time_s for one in epochs[: epochs.index(reached) + 1])
        if reached
        else math.inf,
    )
