"""Sanity checks: which figures of a card cannot be true."""

import collections
import math
from collections.abc import Collection, Iterator, Mapping

from jaxbench.analysis.scaling_model import bus_factor
from jaxbench.cards.card import Card, Figure
from jaxbench.cards.figures import COLLECTIVES, FIGURES, MATMULS, published_peak
from jaxbench.cards.preset import MULTIPLE, PRESETS, Preset
from jaxbench.cards.run_figures import share_of_measured
from jaxbench.clock import seconds_ago
from jaxbench.hardware.peak_table import accelerator_limit, cpu_flops_limit, find_peak
from jaxbench.hardware.targets.target import most_link_bytes_per_s
from jaxbench.terminal import four_digits

# GeForce boards run at clocks above the one that the maker names, by a quarter; memory does not.
_ABOVE_NOMINAL = {"tflops": 1.3, "gb_per_s": 1.05}
_ROUNDING = 1e-6
_PAIR = "pair_gb_per_s"
# The time between parts is counted, and a part's end is not that of the card.
_UNACCOUNTED_S = 1.0
# No round of a step and its comparison is shorter.
_SHORTEST_CALL_S = 1e-6
_DURATIONS = ("dispatch_latency_s", "compile_cold_s", "compile_warm_s")
# The least of labels that are whole numbers.
_COUNTS = {"batch": 1, "bytes": 1, "round": 0}
# If the card does not tell the cores: no host has more; and what no core of one moves.
_MOST_CORES, _BYTES_PER_S = 4096, 192 * 6.5e9
# A network's matrices may suit a device better than the measured ones do.
_ABOVE_CEILING = 1.1
# Winograd's convolutions with tiles of 2 x 2 multiply 2.25 times less often than is counted
# (Lavin and Gray 2016); libraries use them in fp32.
_WINOGRAD = 2.25
# The types that a network of a precision may be multiplied in.
_MULTIPLIED_IN = {"fp32": ("fp32", "tf32", "bf16"), "bf16": ("bf16",), "fp16": ("fp16",)}
# All devices together take more than the least.
_LEAST_W = 1.0


def implausible(card: Card) -> list[str]:
    """Return why figures of a card cannot be true, a reason an entry."""
    kinds = {device["id"]: device["kind"] for device in card.environment["devices"]}
    reasons = [*_environment(card), *_times(card)]
    for figure in card.figures():
        kind = kinds.get(figure.device, card.environment["device_kind"])
        why = [*_alone(figure), *_labels(figure, kinds), *_beyond(figure, kind, card)]
        if figure.device in (None, *kinds):
            why += _nominal(figure, kind)
        else:
            why.append("there is no such device")
        reasons += [f"{figure}: {one}" for one in why]
    return [*reasons, *_collectives(card), *_networks(card), *_corruption(card)]


def _environment(card: Card) -> Iterator[str]:
    """Yield what is wrong with the devices and the date."""
    count, devices = card.environment["num_devices"], card.environment["devices"]
    ids, kinds = ({device[name] for device in devices} for name in ("id", "kind"))
    if not count == len(devices) == len(ids):
        yield f"num_devices is {count}, {len(ids)} different device(s) are listed"
    if card.environment["device_kind"] != ", ".join(sorted(kinds)):
        yield "device_kind is not the kind of the devices"
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
    published = published_peak(figure.name, kind)
    stated = "none" if figure.nominal is None else f"{figure.nominal:g}"
    if published is None:
        if figure.nominal is not None:
            yield f"nominal is {stated}; no published peak of {kind[:60]} is known"
        return
    if figure.nominal is None or abs(figure.nominal / published - 1) > _ROUNDING:
        yield f"nominal is {stated}; the published peak of {kind[:60]} is {published:g}"
    margin = next(m for unit, m in _ABOVE_NOMINAL.items() if figure.name.endswith(unit))
    if figure.ends[1] > margin * published:
        yield f"{figure.ends[1]:g} is more than {margin:g} times the published {published:g}"


def _beyond(figure: Figure, device_kind: str, card: Card) -> Iterator[str]:
    """Yield that a rate is above what no such hardware does, whether a peak is known or not."""
    kind = FIGURES[figure.name]
    if kind.bounded_by:
        limit = kind.times_bound * _limit(kind.bounded_by, device_kind, card)
        if figure.ends[1] > limit:
            yield f"{figure.ends[1]:g} is more than any such hardware reaches: {limit:g}"


def _limit(bounded_by: str, device_kind: str, card: Card) -> float:
    """Return in TFLOP/s, or in GB/s, what bounds figures of a device."""
    if card.environment["backend"] == "cpu":
        cores = card.environment.get("cpu_cores")
        cores = cores if cores and 0 < cores <= _MOST_CORES else _MOST_CORES
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
            rate, count = rates.get(figure.key[1:]), card.environment["num_devices"]
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
        ids = {device["id"] for device in card.environment["devices"]}
        if part.figures and {*counted} != ids:
            yield f"corruption: mismatches are counted of {len(counted)} device(s), not of each"
        for device, count in named.items():
            if count > counted.get(device, 0):
                yield f"corruption: device {device} has {count} mismatches named, fewer counted"


def _times(card: Card) -> Iterator[str]:
    taken_s = card.minutes_taken * 60
    parts_s = sum(part.time_s for part in card.parts)
    if parts_s > taken_s + _UNACCOUNTED_S:
        yield f"the parts took {parts_s:.1f} s, the whole card {taken_s:.1f} s"
    for part in card.parts:
        if part.figures and not part.time_s:
            yield f"{part.name}: took {part.time_s:g} s for {len(part.figures)} figures"
        own_s = [figure.value for figure in part.named(*_DURATIONS)]
        if own_s and not 0 < min(own_s) <= sum(own_s) <= part.time_s + _UNACCOUNTED_S:
            yield f"{part.name}: took {part.time_s:.1f} s, by its figures {sum(own_s):g} s"


def _networks(card: Card) -> Iterator[str]:
    """Yield which networks are not the preset's, and which of their figures cannot be true."""
    preset = PRESETS.get(card.preset)
    on_cpu = card.environment["backend"] == "cpu"
    if preset is None or card.preset.startswith("cpu") != on_cpu:
        yield f"preset {card.preset[:60]!r} is none of these devices: {', '.join(PRESETS)}"
        return
    part = card.part("networks")
    works: dict[tuple, dict[str, Figure]] = {}
    for figure in part.figures if part else ():
        works.setdefault(figure.key[1:], {})[figure.name] = figure
    for work in works.values():
        yield from _check_work(work, card, preset)


def _check_work(work: Mapping[str, Figure], card: Card, preset: Preset) -> Iterator[str]:
    """Check the figures of a network, precision and batch."""
    one, count = next(iter(work.values())), card.environment["num_devices"]
    precision, batch = one.labels["precision"], one.labels["batch"]
    networks = {network.spec: network for network in preset.networks}
    network = networks.get(one.labels["network"])
    if network is None or precision not in preset.precisions or one.device is not None:
        yield f"{one}: is not in {preset.name}"
        return
    stated = network.batch_per_device * count
    is_larger = type(batch) is int and batch > stated and batch % (MULTIPLE * count) == 0
    if batch != stated and not (preset.largest and is_larger):
        yield f"{one}: is not in {preset.name} on {count} device(s)"
    if missing := [name for name in ("images_per_s", "flops_per_image") if name not in work]:
        yield f"{one}: there is no {' and no '.join(missing)} of it"
        return
    flops, rate = work["flops_per_image"], work["images_per_s"]
    if flops.value != network.flops_per_image:
        yield f"{flops}: {flops.value:.11g} is not the network's, {network.flops_per_image:.11g}"
    flops_per_s = rate.value * network.flops_per_image
    for name, expected in _expected(flops_per_s / count, precision, card).items():
        value = work[name].value if name in work else None
        if value is None or expected is None:
            if value != expected:
                yield f"{rate}: its {name} is {value}, it must be {expected}"
        elif not _is_close(value, expected):
            yield f"{work[name]}: {value:.6g} does not follow from the others: {expected:.6g}"
    yield from _above_ceiling(rate, flops_per_s, card)
    if energy := work.get("energy_j_per_image"):
        power_w = energy.value * rate.value
        if not _LEAST_W <= power_w <= FIGURES["power_mean_w"].high * count:
            yield f"{energy}: {four_digits(power_w)} W of {count} device(s) cannot be"


def _expected(flops_per_s: float, precision: str, card: Card) -> dict[str, float | None]:
    """Return the figures that follow from each device's FLOP/s; None if nothing is known."""
    environment = card.environment
    kind, *others = {device["kind"] for device in environment["devices"]}
    matmul_precision = environment.get("matmul_precision")
    peak = None if others else find_peak(kind, precision, matmul_precision)
    share = share_of_measured(
        card.figures(),
        peak and peak.arithmetic,
        precision,
        flops_per_s,
        environment["num_devices"],
        environment["backend"],
    )
    return {"mfu": peak and flops_per_s / peak.flops_per_s, "measured_peak_share": share}


def _above_ceiling(rate: Figure, flops_per_s: float, card: Card) -> Iterator[str]:
    """Yield that a network computes more than products of matrices on the same devices do."""
    precision, count = rate.labels["precision"], card.environment["num_devices"]
    names = [f"matmul_{name}_tflops" for name in _MULTIPLIED_IN[precision]]
    # A CPU computes bf16 in fp32, too, and simulated devices share the processor.
    if card.environment["backend"] == "cpu":
        names, count = MATMULS, 1
    rates = [one.ends[1] for one in card.figures() if one.name in names]
    most_tflops = count * max(rates, default=math.inf)
    margin = _ABOVE_CEILING * (_WINOGRAD if precision == "fp32" else 1.0)
    if flops_per_s / 1e12 > margin * most_tflops:
        yield (
            f"{rate}: {four_digits(flops_per_s / 1e12)} TFLOP/s by its own arithmetic, matrix "
            f"products on {count} device(s) reach {four_digits(most_tflops)}"
        )
