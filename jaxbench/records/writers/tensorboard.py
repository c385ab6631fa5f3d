"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.clock import now
from jaxbench.records.reader import flat
from jaxbench.records.schema import SCORES, EpochRecord, Record, Summary
from jaxbench.records.writers import Writer


class TensorBoardWriter(Writer):
    """Write scalars over the training step, images, the experiment's fields and the summary.

    Args:
      folder: gets a folder `tensorboard`.
      eval_metrics: names of a task's figures, without their `eval_`.
      config: the experiment's fields, nested.
    """

    def __init__(
        self, folder: pathlib.Path, eval_metrics: Sequence[str], config: Mapping[str, Any]
    ):
        # Imported late: it costs a third of a second, for which --mode=describe need not wait.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import hparams

        path = folder / "tensorboard"
        path.mkdir(exist_ok=True)
        # A resumed run adds a file; two may begin in one second.
        suffix = f".{len(list(path.iterdir()))}"
        # Not SummaryWriter: its thread writes later, and checkpoints count on what is in the file.
        self._events = EventsWriter(str(path / "events"), suffix)
        # For TensorBoard's table of runs, from the first moment on: the fields, and the curves and
        # figures of the summary to compare runs by. The end follows with the summary.
        figures = [f"eval/{name}" for name in eval_metrics]
        summary = [f"best_eval_{name}" for name in eval_metrics if name in SCORES]
        self._of_summary = (*summary, "images_per_s", "median_epoch_s", "wall_s")
        figures += [f"summary/{name}" for name in self._of_summary]
        fields = {
            # Numbers and truth values keep their type; all else becomes text.
            name: value if isinstance(value, (bool, int, float)) else str(value)
            for name, value in flat(config)
        }
        *begin, self._end = hparams(fields, dict.fromkeys(figures, 0.0))
        if suffix == ".0":
            for part in begin:
                self._add(part, 0)
        self._events.flush()

    def write(self, record: Record) -> None:
        from tensorboardX.summary import scalar

        for tag, value in record.points().items():
            self._add(scalar(tag, value), record.step)
        if isinstance(record, Summary):
            # The columns of that table only: each is a chart of one point, too.
            for name in self._of_summary:
                value = getattr(record, name, None)
                if value is not None and math.isfinite(value):
                    self._add(scalar(f"summary/{name}", value), 0)
            self._add(self._end, 0)
        if isinstance(record, (EpochRecord, Summary)):
            self._events.flush()

    def add_images(self, tag: str, images_NxHxWxC: np.ndarray, step: int) -> None:
        """Show images side by side: uint8, one channel or three."""
        import cv2
        from tensorboardX.proto.summary_pb2 import Summary

        row_HxWxC = np.concatenate(list(images_NxHxWxC), axis=1)
        height, width, channels = row_HxWxC.shape
        _, png = cv2.imencode(".png", row_HxWxC[..., ::-1])
        image = Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=png.tobytes()
        )
        self._add(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
        self._events.flush()

    def _add(self, summary: Any, step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        moment_s = now().timestamp()
        self._events.write_event(Event(wall_time=moment_s, step=int(step), summary=summary))

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()
