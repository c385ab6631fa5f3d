"""Check a card that somebody hands in: its files, its figures and its verdict."""

import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.card_file import card_path, digest_file, list_files, read_card
from jaxbench.cards.figures import FIGURES, MATMULS, published_peak
from jaxbench.cards.preset import PRESETS
from jaxbench.cards.verdict import Thresholds, judge, load_thresholds
from jaxbench.clock import seconds_ago
from jaxbench.errors import BadInput
from jaxbench.hardware.peak_table import accelerator_limit
from jaxbench.hardware.targets.target import most_link_bytes_per_s

# The types that a network of a precision may be multiplied in.
_MULTIPLIED_IN = {"fp32": ("fp32", "tf32", "bf16"), "bf16": ("bf16",), "fp16": ("fp16",)}
# Winograd's convolutions with tiles of 2 x 2 multiply 2.25 times less often than is counted
# (Lavin and Gray 2016); libraries use them in fp32.
_WINOGRAD = 2.25


def check_card(path: str | pathlib.Path) -> list[str]:
    """Return what is wrong with a card and with the files beside it, a line each.

    A card may travel without its files. If one of them is beside it, all must be, and no others.
    """
    try:
        card = read_card(path)
    except BadInput as error:
        return [str(error)]
    return [*_altered(card, card_path(path).parent), *impossible(card), *_misjudged(card)]


def _altered(card: Card, folder: pathlib.Path) -> Iterator[str]:
    """Yield the files beside the card that have changed since it was made."""
    beside = list_files(folder)
    if not {*beside} & {*card.files}:
        return
    for name in sorted({*beside, *card.files}):
        try:
            if name not in card.files:
                yield f"{name}: was added to the card's files"
            elif name not in beside:
                yield f"{name}: was removed from the card's files"
            elif digest_file(folder / name) != card.files[name]:
                yield f"{name}: is not the file that the card was made of"
        except OSError as error:
            yield f"{name}: {error.strerror}"


def impossible(card: Card) -> Iterator[str]:
    """Yield which figures of a card cannot be true: figures.csv has the bounds."""
    # A day for clocks that are set wrong.
    if (seconds_ago(card.created_at) or 0) < -24 * 3600:
        yield f"created_at is {card.created_at}, which is in the future"
    preset = PRESETS.get(card.preset)
    if preset is None:
        yield f"preset {card.preset[:60]!r}: this jaxbench has {', '.join(PRESETS)}"
    operations = {one.spec: one.flops_per_image for one in preset.networks} if preset else {}
    kinds = {device["id"]: device["kind"] for device in card.environment["devices"]}
    figures = {figure.key: figure for figure in card.figures()}
    for figure in figures.values():
        device_kind = kinds.get(figure.device, card.environment["device_kind"])
        least, most = FIGURES[figure.name].min, _most(figure, device_kind, card, figures)
        low, high = figure.ends
        if not least <= low <= figure.value <= high <= most:
            yield (
                f"{figure}: {figure.value:g} ({low:g} to {high:g}) cannot be: it is {least:g} at "
                f"least, {most:g} at most"
            )
        published = published_peak(figure.name, device_kind)
        if figure.nominal != published:
            yield f"{figure}: its nominal is {figure.nominal}, the published peak is {published}"
        if figure.name == "flops_per_image" and preset:
            counted = operations.get(str(figure.labels["network"]))
            if figure.value != counted:
                yield f"{figure}: {figure.value:.11g} is not the preset's network, {counted}"


def _most(figure: Figure, device_kind: str, card: Card, figures: Mapping[tuple, Figure]) -> float:
    """Return the most that a figure can be on its hardware."""
    kind, environment = FIGURES[figure.name], card.environment
    on_cpu = environment["backend"] == "cpu"
    unit: Any
    number, _, quantity = (kind.max_cpu if on_cpu else kind.max_accelerator).partition(" ")
    if quantity == "core":
        unit = environment.get("cpu_cores")
    elif quantity == "peak":
        unit = published_peak(figure.name, device_kind)
        unit = unit or accelerator_limit("tflops" if figure.name in MATMULS else "gb_per_s")
    elif quantity in ("link", "host_link"):
        unit = most_link_bytes_per_s(device_kind, quantity == "host_link") / 1e9
    elif quantity == "matmul":
        operations = figures.get(("flops_per_image", *figure.key[1:]))
        unit = operations and operations.value and _flops_per_s(figure, card) / operations.value
    elif quantity == "device_s":
        rate = figures.get(("images_per_s", *figure.key[1:]))
        unit = rate and rate.value and environment["num_devices"] / rate.value
    else:
        unit = 1
    return float(number) * unit if number and unit else math.inf


def _flops_per_s(rate: Figure, card: Card) -> float:
    """Return what a network would reach that computes as fast as products of matrices do."""
    precision, count = rate.labels["precision"], card.environment["num_devices"]
    names = [f"matmul_{name}_tflops" for name in _MULTIPLIED_IN.get(str(precision), ())]
    # A CPU computes bf16 in fp32, too, and simulated devices share the processor.
    if card.environment["backend"] == "cpu":
        names, count = MATMULS, 1
    tflops = max((one.ends[1] for one in card.figures() if one.name in names), default=math.inf)
    return 1e12 * tflops * count * (_WINOGRAD if precision == "fp32" else 1)


def _misjudged(card: Card) -> Iterator[str]:
    """Yield if the verdict is not what the figures give by the limits that it names."""
    if card.verdict is None:
        yield "it has no verdict"
    elif (outcome := judge(card, _limits(card)).outcome) != card.verdict.outcome:
        yield f"its verdict is {card.verdict.outcome}, its figures give {outcome}"


def custom_limits(card: Card) -> str | None:
    """Return a line with the limits that are not those that ship with jaxbench, None without."""
    limits = _limits(card)
    changed = [
        f"{name} {_limit(limits[name])} in place of {_limit(limit)}"
        for name, limit in load_thresholds().items()
        if limits[name] != limit
    ]
    return f"judged by custom limits: {', '.join(changed)}" if changed else None


def _limits(card: Card) -> Thresholds:
    """Return the limits of a card's verdict; None for a limit that is newer than the card."""
    if card.verdict is None:
        return load_thresholds()
    return {**dict.fromkeys(load_thresholds()), **card.verdict.thresholds}


def _limit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"
