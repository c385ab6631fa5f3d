"""Sanity checks: which figures of a card cannot be true."""

import collections
from collections.abc import Iterator

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.figures import FIGURES
from jaxbench.terminal import four_digits

# GeForce boards run at clocks above the one that the maker names, by a quarter; memory does not.
_ABOVE_NOMINAL = {"tflops": 1.3, "gb_per_s": 1.05}
# A network's matrices may suit a device better than the measured ones do.
_ABOVE_CEILING = 1.1
# Winograd's convolutions with tiles of 2 x 2 multiply 2.25 times less often than is counted
# (Lavin and Gray 2016); libraries use them in fp32.
_WINOGRAD = 2.25
# The types that a network of a precision may be multiplied in.
_MULTIPLIED_IN = {"fp32": ("fp32", "tf32", "bf16"), "bf16": ("bf16",), "fp16": ("fp16",)}
_ROUNDING = 1e-6
# The time between parts is counted, and a part's end is not that of the card.
_UNACCOUNTED_S = 1.0


def implausible(card: Card) -> list[str]:
    """Return why figures of a card cannot be true, a reason an entry."""
    devices = card.environment.get("devices")
    ids = {one.get("id") for one in devices if isinstance(one, dict)} if devices else None
    reasons = []
    for figure in card.figures():
        reasons += [f"{figure}: {why}" for why in _alone(figure)]
        if ids is not None and figure.device not in (None, *ids):
            reasons.append(f"{figure}: there is no such device")
    return [*reasons, *_networks(card), *_corruption(card), *_times(card)]


def _alone(figure: Figure) -> Iterator[str]:
    """Yield what is wrong with a figure, whatever the others are."""
    value, (low, high), kind = figure.value, figure.ends, FIGURES[figure.name]
    if not low <= value <= high:
        yield f"{value:g} lies outside its own interval, {low:g} to {high:g}"
    if not kind.low <= value <= kind.high:
        yield f"{value:g} cannot be: at least {kind.low:g}, at most {kind.high:g}"
    if figure.nominal is None:
        return
    margin = next((m for unit, m in _ABOVE_NOMINAL.items() if figure.name.endswith(unit)), 1.0)
    if value > margin * figure.nominal:
        yield f"{value:g} is more than {margin:g} times the published {figure.nominal:g}"
    share = value / figure.nominal
    if figure.share_of_nominal is None or abs(figure.share_of_nominal - share) > _ROUNDING:
        yield f"its share of {figure.nominal:g} is {share:.4f}, not {figure.share_of_nominal}"


def _networks(card: Card) -> Iterator[str]:
    """Yield which networks compute more than products of matrices on the same devices do."""
    ceilings, networks = card.part("ceilings"), card.part("networks")
    if ceilings is None or networks is None:
        return
    flops = {figure.key[1:]: figure.value for figure in networks.named("flops_per_image")}
    for figure in networks.named("mfu", "images_per_s"):
        precision = figure.labels["precision"]
        names = [f"matmul_{own}_tflops" for own in _MULTIPLIED_IN.get(precision, ())]
        matmuls = [*ceilings.named(*names)]
        margin = _ABOVE_CEILING * (_WINOGRAD if precision == "fp32" else 1.0)
        if figure.name == "mfu":
            shares = [own.value / own.nominal for own in matmuls if own.nominal]
            if shares and figure.value > margin * max(shares):
                yield (
                    f"{figure}: {figure.value:.3f} of the peak, matrix products reach "
                    f"{max(shares):.3f}"
                )
        elif matmuls and figure.key[1:] in flops:
            count = 1 if figure.device is not None else card.environment["num_devices"]
            tflops = figure.value * flops[figure.key[1:]] / 1e12
            most_tflops = count * max(own.ends[1] for own in matmuls)
            if tflops > margin * most_tflops:
                yield (
                    f"{figure}: {four_digits(tflops)} TFLOP/s by its own arithmetic, matrix "
                    f"products on {count} device(s) reach {four_digits(most_tflops)}"
                )


def _corruption(card: Card) -> Iterator[str]:
    """Yield which device has more mismatches named than counted."""
    if part := card.part("corruption"):
        counted = {figure.device: figure.value for figure in part.named("mismatches")}
        named = collections.Counter(figure.device for figure in part.named("mismatched_values"))
        for device, count in named.items():
            if count > counted.get(device, 0):
                yield f"corruption: device {device} has {count} mismatches named, fewer counted"


def _times(card: Card) -> Iterator[str]:
    taken_s = card.minutes_taken * 60
    parts_s = sum(part.time_s for part in card.parts)
    if parts_s > taken_s + _UNACCOUNTED_S:
        yield f"the parts took {parts_s:.1f} s, the whole card {taken_s:.1f} s"
    for part in card.parts:
        if part.time_s < 0 or (part.figures and part.time_s == 0):
            yield f"{part.name}: took {part.time_s:g} s for {len(part.figures)} figures"
