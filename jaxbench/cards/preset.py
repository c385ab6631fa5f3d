"""Which networks a card has: fixed and numbered, so that cards can be compared."""

from typing import NamedTuple

# The largest batch is a multiple of this number of images on each device.
MULTIPLE = 8


class PresetNetwork(NamedTuple):
    """A network of a preset.

    Attributes:
      spec: the experiment, as `--experiment` names it.
      batch_per_device: its stated batch of images, or of sequences, on each device.
      flops_per_image: operations of a training step for one of them, by which cards are checked.
    """

    spec: str
    batch_per_device: int
    flops_per_image: int


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
    "standard-1",
    (
        PresetNetwork("resnet50", 64, 24_535_105_536),
        PresetNetwork("cnn10", 512, 1_596_079_104),
        PresetNetwork("wrn28_10", 128, 31_459_972_608),
        PresetNetwork("vit_s16_synthetic", 64, 27_445_045_248),
        PresetNetwork("gpt124m_synthetic", 4, 874_944_921_600),
    ),
    ("bf16", "fp32"),
    largest=True,
    check_width=4096,
)
# A CPU would take minutes for a step of the networks above.
CPU = Preset(
    "cpu-1",
    (
        PresetNetwork("cnn10:tiny", 16, 26_101_632),
        PresetNetwork("wrn28_10:tiny", 16, 75_009_792),
        PresetNetwork("resnet50:tiny", 16, 4_402_176),
        PresetNetwork("vit_s16_synthetic:tiny", 16, 3_153_792),
        PresetNetwork("gpt124m_synthetic:tiny", 16, 24_870_912),
    ),
    ("fp32", "bf16"),
    largest=False,
    check_width=256,
)
# Cards of two presets are not of the same work: whatever changes is a preset of another number. The
# old ones stay here, so that their cards can be checked.
PRESETS = {preset.name: preset for preset in (STANDARD, CPU)}


def choose_preset(platform: str) -> Preset:
    """Return the preset for the devices of a platform of JAX's."""
    return CPU if platform == "cpu" else STANDARD
