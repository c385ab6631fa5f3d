"""What a reader hands back each time it is asked."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Reading:
    """One device at one moment.

    Attributes:
      device: gpu0, tpu0, host; the number is the JAX device's id.
      kind: gpu, mig (a slice of a GPU: the readings are the whole board's), tpu, host.
      values: by the columns of telemetry.csv; a sensor that is not there is absent.
      errors: what could not be read although the sensor may be there.
    """

    device: str
    kind: str
    values: Mapping[str, float | str]
    errors: Sequence[str] = ()


class Reader(Protocol):
    """Asks one library for all its devices; called in a thread of its own, and in no other.

    Attributes:
      name: stands in messages.
      reads_energy: is worth asking at the beginning and the end of what is measured too.
    """

    name: str
    reads_energy: bool

    def read(self) -> Iterator[Reading]:
        """Yields each device's reading as soon as it is taken; any Exception may come out."""
        ...
