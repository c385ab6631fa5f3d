"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

_EPOCH_TAGS = {
    "train_loss": "train/epoch_loss",
    "train_top1": "train/epoch_top1",
    "eval_loss": "eval/loss",
    "eval_top1": "eval/top1",
    "epoch_time_s": "time/epoch_s",
    "data_wait_s": "time/data_wait_s",
    "images_per_s": "throughput/images_per_s",
    "images_per_s_per_device": "throughput/images_per_s_per_device",
    "peak_memory_bytes": "memory/peak_bytes",
}
_STEP_TAGS = {
    "loss": "train/loss",
    "top1": "train/top1",
    "learning_rate": "train/learning_rate",
}


class TensorBoardWriter:
    """Writes scalars over the training step."""

    def __init__(self, folder: pathlib.Path):
        # Imported late: it costs a third of a second that --mode=describe need not wait for.
        from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: Mapping[str, Any]) -> None:
        tags = {"epoch": _EPOCH_TAGS, "step": _STEP_TAGS}.get(record["kind"], {})
        for key, tag in tags.items():
            if record.get(key) is not None and math.isfinite(record[key]):
                self._events.add_scalar(tag, record[key], record["step"])
        if record["kind"] == "epoch":
            self._events.flush()

    def close(self) -> None:
        self._events.close()
