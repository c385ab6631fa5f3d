"""Which networks a card has: fixed and numbered, so that cards can be compared."""

import pathlib
from typing import NamedTuple

import msgspec

from jaxbench.files import parse_rows, read_text

# The largest batch is a multiple of this number of images on each device.
MULTIPLE = 8


class PresetNetwork(msgspec.Struct, frozen=True):
    """A line of networks.csv, which explains the columns."""

    spec: str
    batch_per_device: int
    flops_per_image: int
    public: str | None = None
    preset: str = ""


class Preset(NamedTuple):
    """What is run on one kind of hardware.

    Attributes:
      name: with the version, as a card has it.
      networks: the first one is trained in the soak, too.
      precisions: that each network is trained in.
      largest: whether the largest batch that fits is measured, too.
      check_width: side of the matrices whose products are compared bit for bit.
    """

    name: str
    networks: tuple[PresetNetwork, ...]
    precisions: tuple[str, ...]
    largest: bool
    check_width: int


def _networks(preset: str) -> tuple[PresetNetwork, ...]:
    rows = parse_rows(read_text(pathlib.Path(__file__).with_name("networks.csv")), PresetNetwork)
    return tuple(row for row in rows if row.preset == preset)


STANDARD = Preset("standard-1", _networks("standard-1"), ("bf16", "fp32"), True, 4096)
# A CPU would take minutes for a step of the standard networks.
CPU = Preset("cpu-1", _networks("cpu-1"), ("fp32", "bf16"), False, 256)
# Cards of two presets are not of the same work: whatever changes is a preset of another number. The
# old ones stay here, so that their cards can be checked.
PRESETS = {preset.name: preset for preset in (STANDARD, CPU)}


def choose_preset(platform: str) -> Preset:
    """Return the preset for the devices of a platform of JAX's."""
    return CPU if platform == "cpu" else STANDARD
