"""Which of a record's figures are curves over the training step, and what they are called."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_EPOCH_TAGS = {
    "epoch_time_s": "time/epoch_s",
    "data_wait_s": "time/data_wait_s",
    "images_per_s": "throughput/images_per_s",
    "images_per_s_per_device": "throughput/images_per_s_per_device",
    "peak_memory_bytes": "memory/peak_bytes",
}
_STEP_TAGS = {name: f"train/{name}" for name in ("learning_rate", "loss_scale", "skipped_steps")}


class Curves:
    """The same names in TensorBoard and Weights & Biases.

    Args:
      train_figures, eval_figures: names of a task's figures, without their `train_`, `eval_`.
    """

    def __init__(self, train_figures: Sequence[str], eval_figures: Sequence[str]):
        self._tags = {
            "epoch": {f"train_{name}": f"train/epoch_{name}" for name in train_figures}
            | {f"eval_{name}": f"eval/{name}" for name in eval_figures}
            | _EPOCH_TAGS,
            "step": {name: f"train/{name}" for name in train_figures} | _STEP_TAGS,
        }

    def points(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Returns what the record adds to the curves, by their names; what is unknown is absent."""
        return {
            tag: record[key]
            for key, tag in self._tags.get(record["kind"], {}).items()
            if record.get(key) is not None and math.isfinite(record[key])
        }
