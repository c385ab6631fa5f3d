"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

_EPOCH_TAGS = {
    "epoch_time_s": "time/epoch_s",
    "data_wait_s": "time/data_wait_s",
    "images_per_s": "throughput/images_per_s",
    "images_per_s_per_device": "throughput/images_per_s_per_device",
    "peak_memory_bytes": "memory/peak_bytes",
}
_STEP_TAGS = {"learning_rate": "train/learning_rate"}


class TensorBoardWriter:
    """Writes scalars over the training step.

    Args:
      folder: gets a folder `tensorboard`.
      train_figures, eval_figures: names of a task's figures, without their `train_`, `eval_`.
    """

    def __init__(
        self, folder: pathlib.Path, train_figures: Sequence[str], eval_figures: Sequence[str]
    ):
        # Imported late: it costs a third of a second that --mode=describe need not wait for.
        from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(folder / "tensorboard"))
        self._tags = {
            "epoch": {f"train_{name}": f"train/epoch_{name}" for name in train_figures}
            | {f"eval_{name}": f"eval/{name}" for name in eval_figures}
            | _EPOCH_TAGS,
            "step": {name: f"train/{name}" for name in train_figures} | _STEP_TAGS,
        }

    def write(self, record: Mapping[str, Any]) -> None:
        for key, tag in self._tags.get(record["kind"], {}).items():
            if record.get(key) is not None and math.isfinite(record[key]):
                self._events.add_scalar(tag, record[key], record["step"])
        if record["kind"] == "epoch":
            self._events.flush()

    def close(self) -> None:
        self._events.close()
