"""Which networks a card has: fixed and numbered, so that cards can be compared."""

from typing import NamedTuple

import msgspec

from jaxbench.cards.figures import load_rows


class PresetNetwork(msgspec.Struct, frozen=True):
    """A line of networks.csv, which explains the columns."""

    spec: str
    batch_per_device: int
    flops_per_image: int
    public: str = ""
    preset: str = ""


class Preset(NamedTuple):
    """What is run on one kind of hardware.

    Attributes:
      name: with the version, as a card has it.
      precisions: that each network is trained in.
      largest: whether the largest batch that fits is measured, too.
      check_width: side of the matrices whose products are compared bit for bit.
      networks: the first one is trained in the soak, too.
    """

    name: str
    precisions: tuple[str, ...]
    largest: bool
    check_width: int
    networks: tuple[PresetNetwork, ...]


def _preset(name: str, precisions: tuple[str, ...], largest: bool, check_width: int) -> Preset:
    rows = load_rows("networks.csv", PresetNetwork)
    networks = tuple(row for row in rows if row.preset == name)
    return Preset(name, precisions, largest, check_width, networks)


STANDARD = _preset("standard-1", ("bf16", "fp32"), True, 4096)
# A CPU would take minutes for a step of the standard networks.
CPU = _preset("cpu-1", ("fp32", "bf16"), False, 256)
# Cards of two presets are not of the same work: whatever changes is a preset of another number. The
# old ones stay here, so that their cards can be checked.
PRESETS = {preset.name: preset for preset in (STANDARD, CPU)}
