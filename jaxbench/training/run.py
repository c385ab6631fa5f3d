"""The parts of a training run."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxbench.checkpoints.checkpointer import Checkpoints
from jaxbench.checkpoints.kept_records import mark_records
from jaxbench.clock import Clock
from jaxbench.data.feeds.feed import Feed
from jaxbench.distributed import coordination
from jaxbench.distributed.signals import defer_first_signal
from jaxbench.errors import Diverged
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.telemetry.sampler import Telemetry, no_telemetry
from jaxbench.records.schema import Record
from jaxbench.records.validity import impossible_arithmetic
from jaxbench.records.writers import Writer, Writers
from jaxbench.records.writers.console import Console
from jaxbench.training.batches import TrainBatches
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.plan import TrainPlan
from jaxbench.training.profiler import Profiler
from jaxbench.training.program import Program
from jaxbench.training.run_progress import RunProgress
from jaxbench.training.train_step import TrainState


@dataclasses.dataclass(kw_only=True)
class TrainRun:
    """The parts that the training loop calls.

    Attributes:
      telemetry: is told what is measured, for the energy of an image.
      checkpoints: writes checkpoints; None in a run without a run directory.
      profiler: traces some of the steps; None for none.
      loss_scales: after the last step.
    """

    program: Program
    feed: Feed
    plan: TrainPlan
    clock: Clock
    console: Console
    writer: Writer = dataclasses.field(default_factory=Writers)
    progress: RunProgress = dataclasses.field(default_factory=RunProgress)
    telemetry: Telemetry = dataclasses.field(default_factory=no_telemetry)
    checkpoints: Checkpoints | None = None
    profiler: Profiler | None = None
    batches: TrainBatches = dataclasses.field(init=False)
    loss_scales: LossScales = dataclasses.field(init=False)

    def __post_init__(self):
        self.batches = TrainBatches(self.feed)
        self.loss_scales = LossScales(None, self.seeds_R, self.console.say)

    @property
    def seeds_R(self) -> tuple[int, ...]:
        """Return the seed of each model."""
        return self.program.config.seeds(self.program.mesh.num_devices)

    @property
    def corrupt(self) -> dict[str, str]:
        """Return {name: reason} of the images that could not be decoded so far."""
        return {**self.progress.corrupt, **self.feed.corrupt}

    @property
    def is_done(self) -> bool:
        return self.plan.is_done(self.progress.epochs)

    def impossible_rates(self) -> list[str]:
        """Return why the fastest epoch's rate cannot be true, on devices like this process's."""
        rated = [epoch for epoch in self.progress.epochs if epoch.images_per_s_per_device]
        if not rated:
            return []
        fastest = max(rated, key=lambda epoch: epoch.images_per_s_per_device)
        flops_per_s = fastest.images_per_s_per_device * self.program.training_flops
        reasons = impossible_arithmetic(flops_per_s, flops_limit(self.program.mesh.devices))
        return [f"epoch {fastest.epoch}: {why}" for why in reasons]

    def write(self, record: Record) -> None:
        with self.clock.phase("records"):
            self.writer.write(record)

    def checkpoint_due(self, epochs_done: int | None = None, last: bool = False) -> bool:
        """Return whether it is time for a checkpoint, see `Checkpoints.due`.

        Where each process has a part of the state, all of them save it, when process 0's clock
        says so. They ask it after epochs only: asking between steps would make them wait.
        """
        due = self.checkpoints is not None and self.checkpoints.due(epochs_done, last)
        if not self.program.is_state_across_processes:
            return due
        return epochs_done is not None and coordination.broadcast_value(due)

    def save_checkpoint(self, state: TrainState) -> None:
        """Save a checkpoint, where any are written; nothing may be queued on the devices."""
        if self.program.is_state_across_processes:
            state = self.program.sharding.fetch(state)
        if self.checkpoints is None:
            return
        epochs, score = self.progress.epochs, None
        if epochs and not self.progress.epoch_metrics:
            score = epochs[-1].evaluated(self.program.task.headline)
        self.progress.corrupt = self.corrupt
        with self.clock.phase("checkpoint"), defer_first_signal():
            self.writer.flush()
            marks = mark_records(self.checkpoints.folder.parent)
            point = {"records": marks, "totals_s": self.clock.totals_s()}
            point["windows"] = [*self.telemetry.windows]
            self.checkpoints.save(state, self.progress.to_json() | point, score)

    def wait_for_checkpoints(self) -> None:
        """Return when no checkpoint is being written any more."""
        if self.checkpoints is not None:
            with self.clock.phase("checkpoint"), defer_first_signal():
                self.checkpoints.wait()

    def check_losses(self, what: str, metrics: Mapping[str, np.ndarray]) -> float:
        """Return the mean loss over the models.

        Under fp16 a loss that is not finite need not be the end: activations of some images
        overflow, the step is skipped, and the next may not be. A model has diverged when steps were
        skipped down to the lowest loss scale, or when nothing is trained after the evaluation.

        Args:
          what: `training` or `evaluation`.
          metrics: {metric: values_R} of a training step or of an evaluation.

        Raises:
          Diverged: no model has a finite loss any more.
        """
        progress, because = self.progress, ""
        losses_R = metrics["loss"] / metrics["count"]
        diverged_R = ~np.isfinite(losses_R)
        is_last = what == "evaluation" and progress.step == self.plan.total_steps
        if self.loss_scales.lost_R is not None and not is_last:
            diverged_R = self.loss_scales.lost_R
            because = " and the gradients overflow float16 at every loss scale down to 1"
        if diverged_R.all():
            raise Diverged(
                f"the {what} loss is {losses_R[0]}{because} at step {progress.step}, "
                f"epoch {len(progress.epochs) + 1}"
            )
        return float(np.mean(losses_R))
