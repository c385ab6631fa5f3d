"""Sanity checks: which figures of a card cannot be true."""

import collections
import math
from collections.abc import Collection, Iterator

from jaxbench.analysis.scaling_model import bus_factor
from jaxbench.cards.card import Card, Figure
from jaxbench.cards.figures import ARITHMETICS, COLLECTIVES, FIGURES, MEMORY
from jaxbench.cards.network_checks import check_networks
from jaxbench.clock import seconds_ago
from jaxbench.hardware.peak_table import (
    accelerator_limit,
    cpu_flops_limit,
    find_bandwidth,
    find_peak,
)
from jaxbench.hardware.targets.target import most_link_bytes_per_s

# GeForce boards run at clocks above the one that the maker names, by a quarter; memory does not.
_ABOVE_NOMINAL = {"tflops": 1.3, "gb_per_s": 1.05}
_ROUNDING = 1e-6
_PAIR = "pair_gb_per_s"
# The time between parts is counted, and a part's end is not that of the card.
_UNACCOUNTED_S = 1.0
# Twice the longest that a card may be asked to take.
_MOST_MINUTES = 14 * 24 * 60.0
# No round of a step and its comparison is shorter.
_SHORTEST_CALL_S = 1e-6
_DURATIONS = ("dispatch_latency_s", "compile_cold_s", "compile_warm_s")
# The least of labels that are whole numbers.
_COUNTS = {"batch": 1, "bytes": 1, "round": 0}
# If the card does not tell the cores: no host has more; and what no core of one moves.
_MOST_CORES, _BYTES_PER_S = 4096, 192 * 6.5e9


def implausible(card: Card) -> list[str]:
    """Return why figures of a card cannot be true, a reason an entry."""
    kinds = {device.id: device.kind for device in card.devices}
    reasons = [*_environment(card), *_times(card)]
    for figure in card.figures():
        found = [*_alone(figure), *_labels(figure, kinds), *_beyond(figure, card)]
        if figure.device in (None, *kinds):
            found += _nominal(figure, kinds.get(figure.device, card.environment["device_kind"]))
        else:
            found.append("there is no such device")
        reasons += [f"{figure}: {why}" for why in found]
    return [*reasons, *_collectives(card), *check_networks(card), *_corruption(card)]


def _environment(card: Card) -> Iterator[str]:
    """Yield what is wrong with the devices, the load and the date."""
    count, ids = card.environment["num_devices"], {device.id for device in card.devices}
    if count < 1 or count != len(card.devices) or count != len(ids):
        yield f"num_devices is {count}, {len(ids)} different device(s) are listed"
    if card.environment["device_kind"] != ", ".join(sorted({d.kind for d in card.devices})):
        yield "device_kind is not the kind of the devices"
    percent, processes = card.load.other_cpu_percent, card.load.other_gpu_processes
    if percent is not None and not 0 <= percent <= 100:
        yield f"other_cpu_percent is {percent:g}: at least 0, at most 100"
    if processes is not None and processes < 0:
        yield f"other_gpu_processes is {processes}: at least 0"
    # A day for clocks that are set wrong.
    if seconds_ago(card.created_at) < -24 * 3600:
        yield f"created_at is {card.created_at}, which is yet to come"


def _alone(figure: Figure) -> Iterator[str]:
    """Yield what is wrong with a figure, whatever the others are."""
    value, (low, high), kind = float(figure.value), figure.ends, FIGURES[figure.name]
    if not low <= value <= high:
        yield f"{value:g} lies outside its own interval, {low:g} to {high:g}"
    if low < kind.low or high > kind.high:
        end = low if low < kind.low else high
        yield f"{end:g} cannot be: at least {kind.low:g}, at most {kind.high:g}"
    if kind.is_count and not value.is_integer():
        yield f"{value:g} is no whole number"
    if figure.nominal is None:
        return
    share = value / figure.nominal
    if figure.share_of_nominal is None or abs(figure.share_of_nominal - share) > _ROUNDING:
        yield f"its share of {figure.nominal:g} is {share:.4f}, not {figure.share_of_nominal}"


def _labels(figure: Figure, ids: Collection[int]) -> Iterator[str]:
    for name, least in _COUNTS.items():
        value = figure.labels.get(name, least)
        if type(value) is not int or value < least:
            yield f"{name} must be a whole number, {least} or more"
    for name in ("source", "peer"):
        if name in figure.labels and figure.labels[name] not in ids:
            yield f"{name} is no device"


def _nominal(figure: Figure, kind: str) -> Iterator[str]:
    """Yield what is wrong with a published peak, and with a value that is above it."""
    published = _published(figure.name, kind)
    given = "none" if figure.nominal is None else f"{figure.nominal:g}"
    if published is None:
        if figure.nominal is not None:
            yield f"nominal is {given}; no published peak of {kind[:60]} is known"
        return
    if figure.nominal is None or abs(figure.nominal / published - 1) > _ROUNDING:
        yield f"nominal is {given}; the published peak of {kind[:60]} is {published:g}"
    margin = next(m for unit, m in _ABOVE_NOMINAL.items() if figure.name.endswith(unit))
    if figure.ends[1] > margin * published:
        yield f"{figure.ends[1]:g} is more than {margin:g} times the published {published:g}"


def _published(name: str, kind: str) -> float | None:
    """Return the published peak that a figure is held against, in its unit."""
    arithmetic = name.removeprefix("matmul_").removesuffix("_tflops")
    if arithmetic in ARITHMETICS:
        peak = find_peak(kind, arithmetic, "highest")
        return peak and peak.flops_per_s / 1e12
    if name in MEMORY:
        peak = find_bandwidth(kind)
        return peak and peak / 1e9
    return None


def _beyond(figure: Figure, card: Card) -> Iterator[str]:
    """Yield that a rate is above what no such hardware does, whether a peak is known or not."""
    kind = FIGURES[figure.name]
    if not kind.bounded_by:
        return
    kinds = {device.id: device.kind for device in card.devices}
    device_kind = kinds.get(figure.device, card.environment["device_kind"])
    limit = kind.times_bound * _limit(kind.bounded_by, device_kind, card)
    if figure.ends[1] > limit:
        yield f"{figure.ends[1]:g} is more than any such hardware reaches: {limit:g}"


def _limit(bounded_by: str, device_kind: str, card: Card) -> float:
    """Return in TFLOP/s, or in GB/s, what bounds figures of a device."""
    if card.environment["backend"] == "cpu":
        cores = card.environment.get("cpu_cores")
        cores = cores if type(cores) is int and 0 < cores <= _MOST_CORES else _MOST_CORES
        is_arithmetic = bounded_by == "arithmetic"
        return cpu_flops_limit(cores, ()) / 1e12 if is_arithmetic else cores * _BYTES_PER_S / 1e9
    if bounded_by in ("arithmetic", "memory"):
        return accelerator_limit({"arithmetic": "tflops", "memory": "gb_per_s"}[bounded_by])
    link_bytes_per_s = most_link_bytes_per_s(device_kind, bounded_by == "host link")
    return _ABOVE_NOMINAL["gb_per_s"] * link_bytes_per_s / 1e9


def _collectives(card: Card) -> Iterator[str]:
    """Yield which bandwidths do not follow from others."""
    if part := card.part("collectives"):
        rates = {figure.key[1:]: figure for figure in part.named("algorithm_gb_per_s")}
        for figure in part.named("bus_gb_per_s"):
            rate, count = rates.get(figure.key[1:]), max(1, card.environment["num_devices"])
            factor = bus_factor(str(figure.labels["collective"]), count)
            if figure.labels["collective"] not in COLLECTIVES:
                yield f"{figure}: there is no such collective"
            elif rate is None:
                yield f"{figure}: there is no algorithm_gb_per_s of it"
            elif not all(map(_is_close, _all(figure), (factor * one for one in _all(rate)))):
                yield f"{figure}: {figure.value:g} is not {factor:g} times {rate.value:g}"
        ends = {(one.labels["source"], one.labels["peer"]): one for one in part.named(_PAIR)}
        for (source, peer), figure in ends.items():
            back = ends.get((peer, source))
            if back is None or _all(back) != _all(figure):
                yield f"{figure}: is not that of the way back, which is measured at once"


def _all(figure: Figure) -> tuple[float, ...]:
    return (figure.value, *figure.ends)


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_ROUNDING)


def _corruption(card: Card) -> Iterator[str]:
    """Yield too many rounds, and whose mismatches are not counted."""
    if part := card.part("corruption"):
        for figure in part.named("rounds"):
            if figure.value * _SHORTEST_CALL_S > 60 * card.minutes_taken:
                yield f"{figure}: {figure.value:g} in {card.minutes_taken:g} min"
        counted = {figure.device: figure.value for figure in part.named("mismatches")}
        named = collections.Counter(figure.device for figure in part.named("mismatched_values"))
        if {*counted} != ({device.id for device in card.devices} if part.figures else set()):
            yield f"corruption: mismatches are counted of {len(counted)} device(s), not of each"
        for device, count in named.items():
            if count > counted.get(device, 0):
                yield f"corruption: device {device} has {count} mismatches named, fewer counted"


def _times(card: Card) -> Iterator[str]:
    for name in ("minutes_asked", "minutes_taken"):
        if not 0 < getattr(card, name) <= _MOST_MINUTES:
            yield f"{name} is {getattr(card, name):g}: above 0, at most {_MOST_MINUTES:g}"
    taken_s = card.minutes_taken * 60
    parts_s = sum(part.time_s for part in card.parts)
    if parts_s > taken_s + _UNACCOUNTED_S:
        yield f"the parts took {parts_s:.1f} s, the whole card {taken_s:.1f} s"
    for part in card.parts:
        if part.time_s < 0 or (part.figures and part.time_s == 0):
            yield f"{part.name}: took {part.time_s:g} s for {len(part.figures)} figures"
        own_s = [figure.value for figure in part.named(*_DURATIONS)]
        if own_s and not 0 < min(own_s) <= sum(own_s) <= part.time_s + _UNACCOUNTED_S:
            yield f"{part.name}: took {part.time_s:.1f} s, by its figures {sum(own_s):g} s"
