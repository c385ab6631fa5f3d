"""How long a run took to reach an accuracy."""

import dataclasses
import math
from collections.abc import Sequence

from jaxbench.analysis.pricing import first_at_target
from jaxbench.records.schema import EpochRecord
from jaxbench.reports.fields import number, text
from jaxbench.reports.formats import percent
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
      epoch, time_s, images, flops, energy_j: up to the target; flops are the network's own, forward
        and backward; None, or infinite time, where it was not
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
    flops: float | None
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
    own = [(run.summary.target_accuracy or {}).get("value"), run.document.target_accuracy]
    target = next((value for value in (asked, *own) if value is not None), None)
    # Models that are trained apart have no score of their own in an epoch's record.
    if target is None or run.mode != "train" or run.config.get("replicas") == "independent":
        return None
    # A task of the user's own has a score of its own.
    epochs = [
        {f"eval_{name}": value for name, value in epoch.eval_metrics.items()} | epoch
        for epoch in run.of_kind(EpochRecord)
    ]
    asked_for = f"eval_{text(run.summary, 'target_accuracy', 'score') or 'top1'}"
    scores = (asked_for, *SCORES)
    score = next((s for s in scores for e in epochs if number(e, s) is not None), asked_for)
    evaluated = [
        e for e in epochs if None not in (number(e, f) for f in ("epoch", "elapsed_s", score))
    ]
    reached = first_at_target(evaluated, score, target)
    parts_s = [math.inf]
    if reached is not None:
        parts_s = [e.epoch_time_s for e in epochs[: epochs.index(reached) + 1]]
    steps = number(reached, "step")
    images = None if None in (run.batch_size, steps) else steps * run.batch_size
    flops = run.document.training_flops_per_image
    # The whole run's energy, so only where it ended with the target.
    ends_there = reached is not None and (run.summary.target_accuracy or {}).get("value") == target
    return TimeToTarget(
        run,
        target,
        score,
        [(e.elapsed_s, number(e, score)) for e in evaluated],
        epoch=number(reached, "epoch"),
        time_s=math.inf if reached is None else number(reached, "elapsed_s"),
        images=images,
        flops=None if None in (images, flops) else images * flops,
        energy_j=(run.summary.target_accuracy or {}).get("energy_j") if ends_there else None,
        epochs_s=None if None in parts_s else sum(parts_s),
    )
