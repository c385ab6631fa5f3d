"""Sanity checks of a card's networks: the preset's work, and figures that follow from others."""

import math
from collections.abc import Iterator, Mapping

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.figures import FIGURES, MATMULS
from jaxbench.cards.measured_peak import share_of_measured
from jaxbench.cards.preset import MULTIPLE, PRESETS, Preset
from jaxbench.hardware.peak_table import find_peak
from jaxbench.terminal import four_digits

# A network's matrices may suit a device better than the measured ones do.
_ABOVE_CEILING = 1.1
# Winograd's convolutions with tiles of 2 x 2 multiply 2.25 times less often than is counted
# (Lavin and Gray 2016); libraries use them in fp32.
_WINOGRAD = 2.25
# The types that a network of a precision may be multiplied in.
_MULTIPLIED_IN = {"fp32": ("fp32", "tf32", "bf16"), "bf16": ("bf16",), "fp16": ("fp16",)}
_ROUNDING = 1e-6
# All devices together take more than the least.
_LEAST_W = 1.0


def check_networks(card: Card) -> Iterator[str]:
    """Yield which networks are not the preset's, and which of their figures cannot be true."""
    preset = PRESETS.get(card.preset)
    if preset is None or card.preset.startswith("cpu") != _on_cpu(card):
        yield f"preset {card.preset[:60]!r} is none of these devices: {', '.join(PRESETS)}"
        return
    part = card.part("networks")
    works: dict[tuple, dict[str, Figure]] = {}
    for figure in part.figures if part else ():
        works.setdefault(figure.key[1:], {})[figure.name] = figure
    for work in works.values():
        yield from _check_work(work, card, preset)


def _on_cpu(card: Card) -> bool:
    return card.environment["backend"] == "cpu"


def _check_work(work: Mapping[str, Figure], card: Card, preset: Preset) -> Iterator[str]:
    """Check the figures of a network, precision and batch."""
    one, count = next(iter(work.values())), max(1, card.environment["num_devices"])
    networks = [own for own in preset.networks if own.spec == one.labels["network"]]
    if not networks or one.labels["precision"] not in preset.precisions or one.device is not None:
        yield f"{one}: is not in {preset.name}"
        return
    [network], batch = networks, one.labels["batch"]
    stated = network.batch_per_device * count
    is_larger = type(batch) is int and batch > stated and batch % (MULTIPLE * count) == 0
    if batch != stated and not (preset.largest and is_larger):
        yield f"{one}: is not in {preset.name} on {count} device(s)"
    if missing := [name for name in ("images_per_s", "flops_per_image") if name not in work]:
        yield f"{one}: there is no {' and no '.join(missing)} of it"
        return
    flops, rate = work["flops_per_image"], work["images_per_s"].value
    if flops.value != network.flops_per_image:
        yield f"{flops}: {flops.value:.11g} is not the network's, {network.flops_per_image:.11g}"
    flops_per_s = rate * network.flops_per_image
    yield from _unlike(work, _expected(flops_per_s / count, one, card))
    yield from _above_ceiling(work["images_per_s"], flops_per_s, card)
    if energy := work.get("energy_j_per_image"):
        power_w = energy.value * rate
        if not _LEAST_W <= power_w <= FIGURES["power_mean_w"].high * count:
            yield f"{energy}: {four_digits(power_w)} W of {count} device(s) cannot be"


def _expected(flops_per_s: float, one: Figure, card: Card) -> dict[str, float | None]:
    """Return the figures that follow from each device's FLOP/s; None where nothing is known."""
    kinds = {device.kind for device in card.devices}
    precision, environment = one.labels["precision"], card.environment
    asked = environment.get("matmul_precision")
    peak = find_peak(kinds.pop(), precision, asked) if len(kinds) == 1 else None
    where = (environment["num_devices"], environment["backend"])
    share = share_of_measured(
        card.figures(), peak and peak.arithmetic, precision, flops_per_s, *where
    )
    return {"mfu": peak and flops_per_s / peak.flops_per_s, "measured_peak_share": share}


def _unlike(work: Mapping[str, Figure], expected: Mapping[str, float | None]) -> Iterator[str]:
    for name, value in expected.items():
        given = work[name].value if name in work else None
        if given is None or value is None:
            if given != value:
                yield f"{work['images_per_s']}: its {name} is {given}, it must be {value}"
        elif not math.isclose(given, value, rel_tol=_ROUNDING):
            yield f"{work[name]}: {given:.6g} does not follow from the others: {value:.6g}"


def _above_ceiling(rate: Figure, flops_per_s: float, card: Card) -> Iterator[str]:
    """Yield that a network computes more than products of matrices on the same devices do."""
    precision, ceilings = rate.labels["precision"], card.part("ceilings")
    own = [f"matmul_{name}_tflops" for name in _MULTIPLIED_IN[precision]]
    # A CPU computes bf16 in fp32, too, and simulated devices share the processor.
    names, count = (MATMULS, 1) if _on_cpu(card) else (own, card.environment["num_devices"])
    matmuls = [*ceilings.named(*names)] if ceilings else []
    most_tflops = count * max((one.ends[1] for one in matmuls), default=math.inf)
    margin = _ABOVE_CEILING * (_WINOGRAD if precision == "fp32" else 1.0)
    if flops_per_s / 1e12 > margin * most_tflops:
        yield (
            f"{rate}: {four_digits(flops_per_s / 1e12)} TFLOP/s by its own arithmetic, matrix "
            f"products on {count} device(s) reach {four_digits(most_tflops)}"
        )
