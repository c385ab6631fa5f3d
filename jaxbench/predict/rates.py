"""Published rates of training as what predictions are fitted to."""

import functools
import pathlib
from typing import NamedTuple

from jaxbench.analysis.published import RATES, PublishedRate, read_published_rates
from jaxbench.errors import BadInput, one_of
from jaxbench.hardware.peak_table import devices_per_chip, find_bandwidth, find_peak, without_maker
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.networks import NETWORKS, network_shape

# NVIDIA's generations by the compute capability's first digits.
_GENERATIONS = {
    "5.2": "Maxwell",
    "6.0": "Pascal",
    "6.1": "Pascal",
    "7.0": "Volta",
    "7.5": "Turing",
    "8.0": "Ampere",
    "8.6": "Ampere graphics",
    "8.9": "Ada",
    "9.0": "Hopper",
    "10.0": "Blackwell",
    "12.0": "Blackwell graphics",
}
_TPU = "TPU v4, v5"
# Google's others, by what their names begin with after "TPU ".
_TPUS = {"v2": "TPU v2, v3", "v3": "TPU v2, v3", "v6": "TPU v6e, 7x", "7": "TPU v6e, 7x"}


class Setting(NamedTuple):
    """What a rate depends on.

    Attributes:
      network: its name among the public ones, or None.
      target: one device or host of the kind.
      num_devices: JAX devices, in whole chips of TPUs.
      arithmetic: of the products: `16` (fp16 or bf16), tf32 or fp32.
      element_bytes: of an activation.
      batch: examples of each device in a step.
    """

    shape: NetworkShape
    network: str | None
    target: Target
    num_devices: int
    arithmetic: str
    element_bytes: int
    batch: float
    software: str

    @property
    def generation(self) -> str:
        if self.target.platform == "tpu":
            name = self.kind.removeprefix("TPU").lstrip()
            return next((one for start, one in _TPUS.items() if name.startswith(start)), _TPU)
        return _GENERATIONS[self.target.specs["compute_capability"]]

    @property
    def network_name(self) -> str:
        """The network's public name, else one by its sizes."""
        return self.network or f"{self.shape.macs:,} MACs, {self.shape.weights:,} weights"

    @property
    def kind(self) -> str:
        """The device's name in JAX."""
        return self.target.kind

    @property
    def link(self) -> str:
        """What connects its devices: none, fast (NVLink, a TPU's), PCIe, or through the host."""
        if self.num_devices == 1:
            return "none"
        if self.target.platform == "tpu" or self.target.link.startswith("NVLink"):
            return "fast"
        # GeForce cards since Ampere exchange through the host's memory.
        newer = "GeForce" in self.kind and self.generation not in ("Pascal", "Turing")
        return "through the host" if newer else "PCIe"

    @property
    def uses_xla(self) -> bool:
        return self.by_jax or "XLA" in self.software or "TPU" in self.software

    @property
    def by_jax(self) -> bool:
        return is_jax(self.software)


def is_jax(software: str) -> bool:
    """Return whether a software runs JAX, as MaxText does."""
    return software.startswith("JAX")


class Rate(NamedTuple):
    """A row of the calibration table; `step_s` is the time of a step."""

    setting: Setting
    step_s: float
    lower_bound: bool
    source: str
    date: str

    @property
    def rate(self) -> float:
        """Examples a second of all devices."""
        return self.setting.batch * self.setting.num_devices / self.step_s


def arithmetic_of(kind: str, precision: str, matmul_precision: str | None = None) -> str:
    """Return what a device multiplies in: `16`, tf32 or fp32; else the precision's own name.

    fp16 and bf16 are equal on a device with units for them, and so is fp32 on TPUs, which multiply
    it in bf16 by default.
    """
    peak = find_peak(kind, precision, matmul_precision)
    arithmetic = peak.arithmetic if peak else precision
    return "16" if peak and arithmetic in ("bf16", "fp16") else arithmetic


@functools.cache
def read_rates(path: pathlib.Path = RATES) -> list[Rate]:
    """Return the rows of a table of rates that predictions are from, jaxbench's by default.

    Raises:
      BadInput: the file has an unknown network, device or value; with its line.
    """
    rates = []
    for number, row in enumerate(read_published_rates(path), 1):
        try:
            rates += [] if row.not_fitted == "yes" else [_rate(row)]
        except BadInput as error:
            raise BadInput(f"{path}: row {number}: {error}") from None
    if not rates:
        raise BadInput(f"{path}: has no rate below its first line")
    return rates


def _rate(row: PublishedRate) -> Rate:
    if row.network not in NETWORKS:
        raise BadInput(f"network {row.network!r}: {one_of(row.network, NETWORKS)}")
    if row.precision == "fp8":
        raise BadInput(
            "precision 'fp8': predictions have no such term; give the row not_fitted=yes"
        )
    target, count = devices_of(row.device, row.num_devices)
    arithmetic = "16" if row.precision in ("bf16", "fp16") else row.precision
    fused = None if row.attention is None else row.attention == "fused"
    setting = Setting(
        shape=network_shape(row.network, fused),
        network=row.network,
        target=target,
        num_devices=count,
        arithmetic=arithmetic,
        element_bytes=2 if arithmetic == "16" else 4,
        batch=row.batch_size / count,
        software=row.software,
    )
    peaks_of(setting)
    step_s = row.batch_size / row.examples_per_s
    return Rate(setting, step_s, row.lower_bound == "yes", row.source or "", row.date or "")


def devices_of(device: str, chips: int) -> tuple[Target, int]:
    """Return one device of a published rate, and how many JAX devices the chips are.

    Each of two JAX devices on a chip has half of its batch.
    """
    platform, _, name = device.partition(":")
    if platform == "tpu":
        target = parse_target(f"{device}:{'1x1x1' if name in ('v4', 'v5p', 'tpu7x') else '1x1'}")
    elif (target := parse_target(device)).num_devices > 1:
        raise BadInput(f"device {device!r}: must name one; num_devices says how many")
    return target, chips * devices_per_chip(target.kind)


def peaks_of(setting: Setting) -> tuple[float, float, float]:
    """Return a device's FLOP/s, the FLOP/s with fp32 accumulation, and bytes/s of its memory.

    Raise BadInput if one is unknown.

    GeForce cards since Turing have half the rate with fp32 accumulation on paper. Published rates
    show no such half, so the first is that of narrow accumulation.
    """
    name = {"16": "fp16", "tf32": "fp32", "fp32": "fp32"}[setting.arithmetic]
    precisions = (name, "bf16") if name == "fp16" else (name,)
    matmul = "highest" if setting.arithmetic == "fp32" else None
    peaks = [find_peak(setting.kind, one, matmul) for one in precisions]
    peak = next((one for one in peaks if one), None) or find_peak(setting.kind, "fp32", "highest")
    bandwidth = find_bandwidth(setting.kind)
    if peak is None or bandwidth is None:
        raise BadInput(f"{setting.kind}: no peak of its {name} arithmetic or its memory is known")
    halved = without_maker(setting.kind).startswith("GeForce RTX")
    halved = halved and peak.arithmetic in ("fp16", "bf16", "tf32")
    return peak.flops_per_s * (2 if halved else 1), peak.flops_per_s, bandwidth
