"""Look up accelerators by the names that clouds' offers have: H100:8, tpu-v5e-8.

`accelerators.csv` has the names of SkyPilot 0.14.1 for machines of one host that
`jaxbench.hardware.targets` describes. A name may stand for several devices, such as an H100 on SXM
or PCIe; its first target is the one that it is compiled for.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence

from jaxbench.analysis.pricing import Price
from jaxbench.errors import BadInput, one_of
from jaxbench.files import read_table
from jaxbench.hardware.peak_table import devices_per_chip, without_maker
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.metrics import words

# The most GPUs of one host that clouds rent.
_MOST_GPUS = 16


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A rented machine's accelerators."""

    name: str  # `H100:1` or `tpu-v5e-8`
    skypilot: str  # what SkyPilot's `accelerators` takes
    target: Target  # what jaxbench compiles for

    @property
    def is_tpu(self) -> bool:
        return self.target.platform == "tpu"

    @property
    def folder(self) -> str:
        """What its files and results are called."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


def parse_accelerators(names: Sequence[str]) -> list[Accelerator]:
    """Return the accelerators of these names; one text may hold several, with commas between.

    Raise BadInput for no name, an unknown one, an impossible number, or one machine twice.
    """
    if not any(names):
        raise BadInput(f"give --accelerator=NAME:N, such as H100:1; there are {', '.join(_rows())}")
    accelerators = [_parse(name.strip()) for text in names for name in text.split(",")]
    for accelerator in accelerators:
        if accelerators.count(accelerator) > 1:
            raise BadInput(f"--accelerator={','.join(names)}: names {accelerator.name} twice")
    return accelerators


@functools.cache
def catalogue_names(device_kind: str, num_devices: int | None) -> frozenset[str]:
    """Return what catalogues of prices call a device, by its name in JAX; lower case.

    A TPU's name holds the size of its slice, so it must have just these devices.
    """
    kind, names = without_maker(device_kind), set()
    for row in _rows().values():
        for target in map(parse_target, row["targets"].split()):
            fits = target.platform == "gpu" or target.num_devices == num_devices
            if fits and without_maker(target.kind) == kind:
                names |= {row["name"].lower(), row["skypilot"].lower()}
    return frozenset(names)


def is_price_of(price: Price, num_devices: int | None, *kinds: str) -> bool:
    """Return whether a price is of a device by one of its names, and of enough of its chips.

    A catalogue has names of its own.
    """
    names = {kind.casefold() for kind in kinds} | catalogue_names(kinds[0], num_devices)
    # Four devices are written "4x TPU v2" too.
    named = re.sub(r"^\d+ ?[x×] ?", "", words(price.hardware).casefold())
    enough = price.devices is None or price.devices >= num_chips(kinds[0], num_devices)
    return named in names and enough


def num_chips(device_kind: str, num_devices: int | None) -> int:
    """Return the chips of so many devices."""
    return math.ceil((num_devices or 1) / devices_per_chip(device_kind))


def lowest_price(listed: Iterable[Price], device_kind: str, num_devices: int) -> Price | None:
    """Return the lowest of the prices that are of just this machine."""
    counts = (None, num_chips(device_kind, num_devices))
    fitting = [
        price
        for price in listed
        if price.devices in counts and is_price_of(price, num_devices, device_kind)
    ]
    return min(fitting, key=lambda price: price.usd_per_hour, default=None)


def _parse(text: str) -> Accelerator:
    name, colon, count = text.partition(":")
    rows = {row[key].lower(): row for row in _rows().values() for key in ("name", "skypilot")}
    row = rows.get(name.lower())
    if row is None:
        raise BadInput(f"--accelerator={text}: {one_of(name, _rows())}")
    target = row["targets"].split()[0]
    count = count if colon else "1"
    # A slice is one accelerator.
    is_tpu = target.startswith("tpu:")
    most = 1 if is_tpu else _MOST_GPUS
    if count not in map(str, range(1, most + 1)):
        hint = "1, a TPU's name holds its size" if is_tpu else f"1 to {most} GPUs of one host"
        raise BadInput(f"--accelerator={text}: {count!r} must be {hint}")
    suffix = "" if is_tpu else f":{count}"
    parsed = parse_target(target + suffix)
    return Accelerator(row["name"] + suffix, f"{row['skypilot']}:{count}", parsed)


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in read_table(__file__, "accelerators.csv")}
