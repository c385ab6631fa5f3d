"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxbench.writers.curves import Curves


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
        from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(folder / "tensorboard"))
        self._config = dict(_flat(config))
        self._curves = Curves(train_figures, eval_figures)

    def write(self, record: Mapping[str, Any]) -> None:
        for tag, value in self._curves.points(record).items():
            self._events.add_scalar(tag, value, record["step"])
        if record["kind"] == "epoch":
            self._events.flush()
        if record["kind"] == "summary":
            self._write_hyperparameters(record)

    def _write_hyperparameters(self, summary: Mapping[str, Any]) -> None:
        """For TensorBoard's table of runs, with the figures to compare them by."""
        figures = {
            f"summary/{key}": value
            for key, value in summary.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        if figures:
            # Into the same folder as the curves: one run, not two.
            self._events.add_hparams(self._config, figures, name=".")

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
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._events.file_writer.add_summary(summary, step)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names; what is no number, text or truth value becomes text."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, (bool, int, float)) else str(value)
