"""Look up accelerators by the names that clouds' offers have: H100:8, tpu-v5e-8.

`accelerators.csv` has the names of SkyPilot 0.14.1 and dstack 0.22.5 for machines of one host that
`jaxbench.hardware.targets` describes. A name may stand for several devices, such as an H100 on SXM
or PCIe; its first target is the one that it is compiled for.
"""

import csv
import dataclasses
import functools
import pathlib
import re
from collections.abc import Sequence

from jaxbench.errors import BadInput, nearest
from jaxbench.hardware.targets.target import Target, parse_target

_TABLE = pathlib.Path(__file__).with_name("accelerators.csv")
# The most GPUs of one host that clouds rent.
_MOST_GPUS = 16


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A rented machine's accelerators.

    Attributes:
      name: as it was given, `H100:1` or `tpu-v5e-8`.
      skypilot: what SkyPilot's `accelerators` takes.
      dstack: what dstack's `gpu` takes.
      target: the same machine as jaxbench compiles for it.
    """

    name: str
    skypilot: str
    dstack: str
    target: Target

    @property
    def is_tpu(self) -> bool:
        return self.target.platform == "tpu"

    @property
    def folder(self) -> str:
        """What its files and results are called."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


def parse_accelerators(names: Sequence[str]) -> list[Accelerator]:
    """Return the accelerators of these names; one text may hold several, with commas between.

    Raises:
      BadInput: no name, an unknown one, an impossible number, or one machine twice.
    """
    if not any(names):
        raise BadInput(f"give --accelerator=NAME:N, such as H100:1; there are {', '.join(_rows())}")
    found = [_parse(name.strip()) for text in names for name in text.split(",")]
    folders = [one.folder for one in found]
    for one in found:
        if folders.count(one.folder) > 1:
            raise BadInput(f"--accelerator={','.join(names)}: names {one.name} twice")
    return found


@functools.cache
def catalogue_names(device_kind: str, num_devices: int | None) -> frozenset[str]:
    """Return what catalogues of prices call a device, by its name in JAX; lower case.

    A TPU's name holds the size of its slice, so it must have just these devices.
    """
    # Older drivers leave the maker out.
    kind, found = device_kind.removeprefix("NVIDIA "), set()
    for row in _rows().values():
        targets = [parse_target(target) for target in row["targets"].split()]
        alike = [own for own in targets if own.kind.removeprefix("NVIDIA ") == kind]
        if any(own.platform == "gpu" or own.num_devices == num_devices for own in alike):
            found |= {row["name"].lower(), row["skypilot"].lower()}
    return frozenset(found)


def catalogue_offer(name: str) -> str:
    """Return what a catalogue of prices calls an offer, such as `H100:1`."""
    own, colon, count = name.partition(":")
    return _rows().get(own, {}).get("skypilot", own) + colon + count


def _parse(text: str) -> Accelerator:
    name, colon, count = text.partition(":")
    names = {row[own].lower(): row for row in _rows().values() for own in ("name", "skypilot")}
    row = names.get(name.lower())
    if row is None:
        raise BadInput(
            f"--accelerator={text}: no accelerator {name!r} is known; there are "
            f"{', '.join(_rows())}{nearest(name, _rows())}"
        )
    target = row["targets"].split()[0]
    if row["name"].startswith("tpu-"):
        if colon and count != "1":
            generation = row["name"].rpartition("-")[0]
            sizes = ", ".join(own for own in _rows() if own.startswith(generation))
            raise BadInput(f"--accelerator={text}: a TPU's name holds its size; there are {sizes}")
        # A slice is one accelerator.
        return Accelerator(row["name"], f"{row['skypilot']}:1", row["dstack"], parse_target(target))
    if colon and not (re.fullmatch("[1-9][0-9]?", count) and int(count) <= _MOST_GPUS):
        raise BadInput(
            f"--accelerator={text}: {count!r} is no number of GPUs of one host; 1 to {_MOST_GPUS}"
        )
    count = count or "1"
    return Accelerator(
        f"{row['name']}:{count}",
        f"{row['skypilot']}:{count}",
        f"{row['dstack']}:{count}",
        parse_target(f"{target}:{count}"),
    )


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    with open(_TABLE, newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}
