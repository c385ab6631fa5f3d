"""The progress of a run: everything that a checkpoint needs beside the arrays."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.records.schema import EpochRecord, record_from_json
from jaxbench.training.epoch_metrics import EpochMetrics


@dataclasses.dataclass(kw_only=True)
class RunProgress:
    """The progress of a run since its first process.

    Attributes:
      step: the number of steps done.
      epochs: the records of the epochs done; a checkpoint has their number only.
      epoch_metrics: of the epoch under way; None between two epochs.
      learning_rate: of the last step, the mean over the models.
      compile_s: seconds that the first process spent lowering and compiling.
      compile_cache: the outcome for each of its programs.
      first_step_s: seconds of the first step; None where it was profiled.
      import_s, startup_s: seconds of the first process before its clock started, and up to the end
        of the first step. They are in no checkpoint: the clock of a resumed run counts on.
      invalid: figures that fail a sanity check.
      corrupt: {name: reason} of images that earlier processes could not decode.
      traced: the numbers of the steps that the profiler has traced.
    """

    step: int = 0
    epochs: list[EpochRecord] = dataclasses.field(default_factory=list)
    epoch_metrics: EpochMetrics | None = None
    learning_rate: float | None = None
    compile_s: float = 0.0
    compile_cache: list[str] = dataclasses.field(default_factory=list)
    first_step_s: float | None = None
    import_s: float | None = None
    startup_s: float | None = None
    invalid: list[str] = dataclasses.field(default_factory=list)
    corrupt: dict[str, str] = dataclasses.field(default_factory=dict)
    traced: list[int] = dataclasses.field(default_factory=list)

    def end_first_step(self, step_time_s: float, wall_s: float) -> None:
        """Note the seconds of the first step, and those on the clock at its end."""
        self.first_step_s = step_time_s
        if self.import_s is not None:
            self.startup_s = self.import_s + wall_s

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        left_out = ("epochs", "import_s", "startup_s")
        # Copies: a thread writes them while the run continues.
        found = {
            name: copy.copy(value) for name, value in vars(self).items() if name not in left_out
        }
        metrics = self.epoch_metrics and self.epoch_metrics.to_json()
        return {**found, "epochs_done": len(self.epochs), "epoch_metrics": metrics}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], names: Sequence[str]) -> "RunProgress":
        """Read what `to_json` returned.

        Args:
          found: with the records of the `epochs` done.
          names: of the task's metrics.
        """
        fields = [field.name for field in dataclasses.fields(cls)]
        metrics = found.get("epoch_metrics") or found.get("progress")  # its former name
        read = {
            "epochs": [record_from_json(epoch) for epoch in found["epochs"]],
            "epoch_metrics": metrics and EpochMetrics.from_json(metrics, names),
        }
        return cls(**{name: found[name] for name in fields if name in found} | read)
