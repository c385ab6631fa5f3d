"""Event files that TensorBoard opens, written by tensorboardX without TensorFlow."""

import pathlib
from typing import Any

import numpy as np

from jaxbench.clock import now
from jaxbench.records.writers import Writer
from jaxbench.schema import EpochRecord, Record, Summary, value_of


class TensorBoardWriter(Writer):
    """Write scalars over the training step, and images, into a folder `tensorboard`."""

    def __init__(self, folder: pathlib.Path):
        # Imported late: it costs a third of a second, for which --mode=describe need not wait.
        from tensorboardX.event_file_writer import EventsWriter

        path = folder / "tensorboard"
        path.mkdir(exist_ok=True)
        # A resumed run adds a file; two may begin in one second.
        suffix = f".{len(list(path.iterdir()))}"
        # Not SummaryWriter: its thread writes later, and checkpoints count on what is in the file.
        self._events = EventsWriter(str(path / "events"), suffix)
        self._events.flush()

    def write(self, record: Record) -> None:
        from tensorboardX.summary import scalar

        for tag, value in record.points().items():
            self._add(scalar(tag, value), value_of(record, "step"))
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
