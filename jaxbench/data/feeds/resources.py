"""What a feed occupies on host and devices, for the record."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedResources:
    """What a feed occupies on host and devices.

    Attributes:
      num_threads: host threads (of each worker process) that prepare batches, None where none do.
      num_workers: processes that prepare training batches, 0 where threads of this one do.
      jpeg_decoder: what decodes images on the fly, None where nothing does.
      resident_bytes_per_device: size of the arrays that stay on each device.
      sent_bytes_per_step: what the host sends to all devices for a training step.
    """

    num_threads: int | None = None
    num_workers: int | None = None
    jpeg_decoder: str | None = None
    resident_bytes_per_device: int
    sent_bytes_per_step: float
