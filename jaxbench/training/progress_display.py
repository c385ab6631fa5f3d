"""Show progress on the console between two records."""

from jaxbench.clock import duration
from jaxbench.training.run import TrainRun


def show_progress(run: TrainRun, loss: float, step_time_s: float) -> None:
    """Show how far the epoch has come, the rate, the last loss and the time left."""
    epoch, images = run.progress.epoch_metrics, run.program.geometry.images_per_step
    run.console.progress(
        f"epoch {epoch.epoch + 1}/{run.plan.num_epochs}",
        epoch.steps,
        len(run.plan.steps(epoch.epoch)),
        f"{images / step_time_s:,.1f} images/s  loss {loss:.4f}"
        f"  {duration(_remaining_s(run, step_time_s))} left",
    )


def _remaining_s(run: TrainRun, step_time_s: float) -> float:
    """Estimate the seconds of the steps and evaluations that are left, at the present rate."""
    epochs, plan = run.progress.epochs, run.plan
    evaluated = (epoch for epoch in reversed(epochs) if epoch.eval_count is not None)
    if last := next(evaluated, None):
        eval_time_s = last.eval_time_s
    else:
        # None so far; a forward pass takes about a third of a training step.
        geometry = run.program.geometry
        eval_images = geometry.num_models * run.feed.num_eval
        eval_time_s = eval_images * step_time_s / geometry.images_per_step / 3
    steps = plan.total_steps - run.progress.step
    return steps * step_time_s + plan.num_evaluations(len(epochs)) * eval_time_s
