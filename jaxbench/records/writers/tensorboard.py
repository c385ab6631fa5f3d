"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.clock import now
from jaxbench.records.reader import flat
from jaxbench.records.writers.curves import Curves

_SCORES = ("top1", "dice")


class TensorBoardWriter:
    """Writes scalars over the training step, images, and at the end the hyperparameters.

    Args:
      folder: gets a folder `tensorboard`.
      train_figures, eval_figures: names of a task's figures, without their `train_`, `eval_`.
      config: the experiment's fields, dictionaries within dictionaries.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        train_figures: Sequence[str],
        eval_figures: Sequence[str],
        config: Mapping[str, Any],
    ):
        # Imported late: it costs a third of a second that --mode=describe need not wait for.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import hparams

        path = folder / "tensorboard"
        path.mkdir(exist_ok=True)
        # A run that goes on adds a file; in one second two may begin.
        suffix = f".{len(list(path.iterdir()))}"
        # Not SummaryWriter: it has a thread write, so that nobody can tell what is in the file.
        self._events = EventsWriter(str(path / "events"), suffix)
        self._curves = Curves(train_figures, eval_figures)
        # For TensorBoard's table of runs, from the first moment on: the fields, and by which curves
        # and figures of the summary to compare them. The end follows with the summary.
        figures = [f"eval/{name}" for name in eval_figures]
        figures += [f"summary/best_eval_{name}" for name in eval_figures if name in _SCORES]
        figures += [f"summary/{name}" for name in ("images_per_s", "median_epoch_s", "wall_s")]
        fields = {
            # What is no number or truth value becomes text.
            name: value if isinstance(value, (bool, int, float)) else str(value)
            for name, value in flat(config)
        }
        *begin, self._end = hparams(fields, dict.fromkeys(figures, 0.0))
        if suffix == ".0":
            for part in begin:
                self._add(part, 0)
        self._events.flush()

    def write(self, record: Mapping[str, Any]) -> None:
        for tag, value in self._curves.points(record).items():
            self._add_scalar(tag, value, record["step"])
        if record["kind"] == "summary":
            for key, value in record.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    self._add_scalar(f"summary/{key}", value, 0)
            self._add(self._end, 0)
        if record["kind"] in ("epoch", "summary"):
            self._events.flush()

    def _add_scalar(self, tag: str, value: float, step: int) -> None:
        from tensorboardX.summary import scalar

        self._add(scalar(tag, value), step)

    def add_images(self, tag: str, images_NxHxWxC: np.ndarray, step: int) -> None:
        """Shows a few images side by side.

        Args:
          tag: what they are.
          images_NxHxWxC: uint8, one channel or three.
          step: when.
        """
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

        wall_time_s = now().timestamp()
        self._events.write_event(Event(wall_time=wall_time_s, step=int(step), summary=summary))

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()
