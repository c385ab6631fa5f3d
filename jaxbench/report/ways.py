"""A run's way to an accuracy."""

import dataclasses
import math
from collections.abc import Sequence

from jaxbench.report.collect import ReportedRun
from jaxbench.report.values import items, number

SCORES = {"eval_top1": "top-1", "eval_dice": "Dice"}
# Ended by themselves: that they did not get there is a result.
_ENDED = ("done", "diverged", "invalid")


@dataclasses.dataclass(frozen=True)
class Way:
    """A run's way to its target.

    Attributes:
      evaluations: (seconds since the run's start, score as a share), in order.
      epoch, time_s, images, energy_j: up to the target; None, or infinite time, where it was not
        reached.
    """

    run: ReportedRun
    target: float
    score: str
    evaluations: Sequence[tuple[float, float]]
    epoch: float | None
    time_s: float
    images: float | None
    energy_j: float | None

    @property
    def ended(self) -> bool:
        """Whether it says something of the time: it got there, or ended without."""
        return self.epoch is not None or self.run.status in _ENDED


def way_of(run: ReportedRun, asked: float | None) -> Way | None:
    """Returns a run's way to the target, None where it has none."""
    target = asked if asked is not None else number(run.summary, "target", "value")
    if target is None:
        target = _given_target(run)
    # Models that are trained apart have no score of their own in an epoch's record.
    if target is None or run.config.get("replicas") == "independent":
        return None
    epochs = run.of_kind("epoch")
    score = next((s for s in SCORES if any(number(e, s) is not None for e in epochs)), None)
    if score is None:
        return None
    evaluations, reached = [], None
    for record in epochs:
        time_s, value = number(record, "elapsed_s"), number(record, score)
        if time_s is None or value is None:
            continue
        evaluations.append((time_s, value))
        if reached is None and value >= target:
            reached = record
    if not evaluations:
        return None
    steps = number(reached, "step")
    known = reached is not None and run.batch_size is not None and steps is not None
    # The whole run's energy, so only where it ended with the target.
    ends_there = reached is not None and number(run.summary, "target", "value") == target
    return Way(
        run,
        target,
        score,
        evaluations,
        epoch=number(reached, "epoch"),
        time_s=math.inf if reached is None else number(reached, "elapsed_s"),
        images=steps * run.batch_size if known else None,
        energy_j=number(run.summary, "target", "energy_j") if ends_there else None,
    )


def _given_target(run: ReportedRun) -> float | None:
    """The target of a run that has no summary yet, from its command line."""
    for argument in items(run.document, "command_line"):
        if isinstance(argument, str) and argument.startswith("--stop_at_top1="):
            try:
                return number(float(argument.partition("=")[2]))
            except ValueError:
                return None
    return None
