"""Check whether a run has diverged."""

from collections.abc import Mapping

import numpy as np

from jaxbench.errors import Diverged
from jaxbench.training.run import TrainRun


def check_losses(run: TrainRun, what: str, metrics: Mapping[str, np.ndarray]) -> float:
    """Return the mean loss over the models.

    Under fp16 a loss that is not finite need not be the end: activations of some images overflow,
    the step is skipped, and the next may not be. A model has diverged when steps were skipped down
    to the lowest loss scale, or when nothing is trained after the evaluation.

    Args:
      run: the run.
      what: `training` or `evaluation`.
      metrics: {metric: values_R} of a training step or of an evaluation.

    Raises:
      Diverged: no model has a finite loss any more.
    """
    progress, because = run.progress, ""
    losses_R = metrics["loss"] / metrics["count"]
    diverged_R = ~np.isfinite(losses_R)
    is_last = what == "evaluation" and progress.step == run.plan.total_steps
    if run.loss_scales.lost_R is not None and not is_last:
        diverged_R = run.loss_scales.lost_R
        because = " and the gradients overflow float16 at every loss scale down to 1"
    if diverged_R.all():
        raise Diverged(
            f"the {what} loss is {losses_R[0]}{because} at step {progress.step}, "
            f"epoch {len(progress.epochs) + 1}"
        )
    return float(np.mean(losses_R))
