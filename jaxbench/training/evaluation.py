"""Evaluate a state on the whole evaluation split."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxbench.clock import Stopwatch
from jaxbench.training.dispatch import MetricsQueue
from jaxbench.training.run import TrainRun
from jaxbench.training.train_step import TrainState


class EvalMetrics(NamedTuple):
    total: dict[str, np.ndarray]  # {metric: sums_R} over the whole split
    time_s: float


def evaluate(run: TrainRun, state: TrainState) -> EvalMetrics:
    """Evaluate every example of the split exactly once.

    Raises:
      Diverged: no model has a finite loss any more.
    """
    watch, num_models = Stopwatch(), len(run.seeds_R)
    total = {name: np.zeros(num_models) for name in run.program.task.eval_metrics}

    def eval_steps() -> Iterator[np.ndarray]:
        queue = MetricsQueue()
        for batch in run.feed.eval_batches():
            yield from queue.push(run.program.eval_step(state, run.feed.eval_data, batch))
        yield from queue.drain()

    with run.clock.phase("eval"):
        for done, packed in enumerate(eval_steps(), 1):
            for name, sums_R in run.program.eval_metrics(packed).items():
                total[name] += sums_R
            what = f"evaluating epoch {len(run.progress.epochs) + 1}/{run.plan.num_epochs}"
            run.console.progress(what, done, run.feed.eval_steps, "")
        if (total["count"] != run.feed.eval_count).any():
            raise AssertionError(
                f"evaluated {total['count']} examples, the split has {run.feed.eval_count}"
            )
        # The last update of all may have broken the network, after the last training loss.
        run.check_losses("evaluation", total)
    return EvalMetrics(total, watch.elapsed_s())
