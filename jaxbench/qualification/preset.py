"""Which networks a card has: fixed and numbered, so that cards can be compared."""

from typing import NamedTuple

# Another number for any change below: cards of two presets are not of the same work.
PRESET_VERSION = 1


class PresetNetwork(NamedTuple):
    """An experiment, as `--experiment` names it, and its batch on each device."""

    spec: str
    batch_per_device: int


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


STANDARD = Preset(
    f"standard-{PRESET_VERSION}",
    (
        PresetNetwork("resnet50", 64),
        PresetNetwork("cnn10", 512),
        PresetNetwork("wrn28_10", 128),
    ),
    ("bf16", "fp32"),
    largest=True,
    check_width=4096,
)
# A CPU would take minutes for a step of the networks above.
CPU = Preset(
    f"cpu-{PRESET_VERSION}",
    (
        PresetNetwork("cnn10:tiny", 16),
        PresetNetwork("wrn28_10:tiny", 16),
        PresetNetwork("resnet50:tiny", 16),
    ),
    ("fp32", "bf16"),
    largest=False,
    check_width=256,
)


def choose_preset(platform: str) -> Preset:
    """Return the preset for the devices of a platform of JAX's."""
    return CPU if platform == "cpu" else STANDARD
