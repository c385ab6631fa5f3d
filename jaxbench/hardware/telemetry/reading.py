"""The interface of readers: a `Reader` yields a `Reading` for each device."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Reading:
    """The sensors of one device at one moment.

    Attributes:
      device: gpu0, tpu0, host; the number is the JAX device's id.
      kind: gpu, mig (a slice of a GPU; the values are the whole board's), tpu, host.
      values: {column of telemetry.csv: value}; without sensors that the device lacks.
      errors: why sensors that the device may have could not be read.
    """

    device: str
    kind: str
    values: Mapping[str, float | str]
    errors: Sequence[str] = ()


class Reader(Protocol):
    """Reads all devices of one library; called in one thread only.

    Attributes:
      name: of the library, for messages.
      reads_energy: whether the start and end of a measured window are sampled too.
    """

    name: str
    reads_energy: bool

    def read(self) -> Iterator[Reading]:
        """Yield each device's reading as soon as it is taken. May raise any Exception."""
        ...
