"""The parts of a training run."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from jaxbench.clock import Clock
from jaxbench.data.feeds.feed import Feed
from jaxbench.hardware.utilization import utilization
from jaxbench.records.schema import Record
from jaxbench.records.writers import Writer, Writers
from jaxbench.records.writers.console import Console
from jaxbench.training.batches import TrainBatches
from jaxbench.training.checkpointing import CheckpointSaver
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.plan import TrainPlan
from jaxbench.training.profiler import Profiler
from jaxbench.training.program import Program
from jaxbench.training.run_progress import RunProgress
from jaxbench.training.train_step import TrainState
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC


@dataclasses.dataclass(kw_only=True)
class TrainRun:
    """The parts that the training loop calls.

    Attributes:
      program: the network and its steps.
      feed: the data on the devices.
      plan: when to evaluate and when to end.
      clock: counts the seconds of each phase.
      console: shows lines and progress.
      writer: gets the records.
      progress: what has been done so far.
      measured: (images) -> a context for work on that many, or on as many as `images()` returns at
        its end.
      checkpoints: writes them; None for none.
      profiler: traces some of the steps; None for none.
      batches: of the training steps.
      loss_scales: after the last step.
    """

    program: Program
    feed: Feed
    plan: TrainPlan
    clock: Clock
    console: Console
    writer: Writer = dataclasses.field(default_factory=Writers)
    progress: RunProgress = dataclasses.field(default_factory=RunProgress)
    measured: Callable[..., contextlib.AbstractContextManager] = contextlib.nullcontext
    checkpoints: CheckpointSaver | None = None
    profiler: Profiler | None = None
    batches: TrainBatches = dataclasses.field(init=False)
    loss_scales: LossScales = dataclasses.field(init=False)

    def __post_init__(self):
        self.checkpoints = self.checkpoints or CheckpointSaver(self.clock)
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

    def utilization(self, images_per_s: float) -> dict[str, Any]:
        """Return the utilization of the devices at a rate of training."""
        flops = sum(self.program.forward_macs().values()) * TRAINING_FLOPS_PER_MAC
        return utilization(self.program.mesh, self.program.config.precision, images_per_s, flops)

    def write(self, record: Record) -> None:
        with self.clock.phase("records"):
            self.writer.write(record)

    def save_checkpoint(self, state: TrainState) -> None:
        """Save a checkpoint, where any are written; nothing may be queued on the devices."""
        epochs, score = self.progress.epochs, None
        if epochs and not self.progress.epoch_metrics:
            score = getattr(epochs[-1], f"eval_{self.program.task.headline}")
        self.progress.corrupt = self.corrupt
        self.checkpoints.save(state, self.progress, score)
