"""Check a card that somebody hands in: its files, its figures and its verdict."""

import collections
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxbench.cards.card import Card, Figure, Verdict
from jaxbench.cards.card_file import CARD, card_path, digest_file, list_files, read_card
from jaxbench.cards.expected import setting_of_figure
from jaxbench.cards.figures import FIGURES, MATMULS, PARTS, published_peak
from jaxbench.cards.from_runs import contradictions
from jaxbench.cards.preset import PRESETS
from jaxbench.cards.verdict import Thresholds, judge, load_thresholds
from jaxbench.clock import seconds_ago
from jaxbench.errors import BadInput
from jaxbench.hardware.peak_table import accelerator_limit
from jaxbench.hardware.targets.target import most_link_bytes_per_s, target_of_kind
from jaxbench.paths import user_path
from jaxbench.terminal import warn

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
    folder = card_path(path).parent
    wrong = [*_altered(card, folder), *impossible(card), *contradictions(card, folder)]
    return [*wrong, *_misjudged(card)]


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


def load_fleet(folder: str | None) -> list[Card]:
    """Return the cards in or below a folder; None is the results of this checkout, if it is one.

    Cards that cannot be read or true are named and left out.

    Raises:
      BadInput: there is no such folder, or no card in it.
    """
    shipped = pathlib.Path(__file__).parents[2] / "results"
    path = shipped if folder is None else user_path(folder)
    cards = []
    for file in sorted(path.rglob(CARD)):
        try:
            card = read_card(file)
            if problem := next(impossible(card), None):
                raise BadInput(f"{file}: {problem}")
            cards.append(card)
        except BadInput as error:
            warn(f"jaxbench: {error}: left out of the fleet")
    if folder is not None and not (folder and cards):
        raise BadInput(f"--fleet={folder}: there is no card in it")
    return cards


def impossible(card: Card) -> Iterator[str]:
    """Yield which figures of a card cannot be true: figures.csv has the bounds."""
    # A day for clocks that are set wrong.
    age_s = seconds_ago(card.created_at)
    if age_s is None or age_s < -24 * 3600:
        yield f"created_at is {card.created_at!r:.60}, which is in the future or no time"
    time_s = sum(part.time_s for part in card.parts if not PARTS[part.name].measured_in)
    if time_s > 1.01 * 60 * card.minutes_taken:
        yield f"its parts took {time_s:.0f} s of {60 * card.minutes_taken:.0f} s"
    preset = PRESETS.get(card.preset)
    if preset is None:
        yield f"preset {card.preset[:60]!r}: this jaxbench has {', '.join(PRESETS)}"
    operations = {one.spec: one.flops_per_image for one in preset.networks} if preset else {}
    num_devices, device_kind = card.environment["num_devices"], card.environment["device_kind"]
    kinds: dict[int | None, str] = {one["id"]: one["kind"] for one in card.environment["devices"]}
    is_cpu, named = card.environment["backend"] == "cpu", ", ".join(sorted({*kinds.values()}))
    if (len(kinds), named) != (num_devices, device_kind) or is_cpu != (device_kind == "cpu"):
        yield f"{card.hardware}: its environment has {len(kinds)} x {named}"
    kinds[None] = device_kind
    target = target_of_kind(device_kind, num_devices)
    figures = {figure.key: figure for figure in card.figures()}
    counts = collections.Counter([*(part.name for part in card.parts), *map(str, card.figures())])
    for name, count in counts.items():
        if count > 1:
            yield f"{name}: is on the card {count} times"
    for figure in figures.values():
        if figure.device not in kinds:
            yield f"{figure}: the card has no such device"
            continue
        device_kind = kinds[figure.device]
        least, most = _least(figure, card), _most(figure, device_kind, card, figures)
        low, high = figure.ends
        if not least <= low <= figure.value <= high <= most:
            yield (
                f"{figure}: {figure.value:g} ({low:g} to {high:g}) cannot be: it is {least:g} at "
                f"least, {most:g} at most"
            )
        published = published_peak(figure.name, device_kind)
        if figure.nominal != published:
            yield f"{figure}: its nominal is {figure.nominal}, the published peak is {published}"
        share = figure.nominal and figure.value / figure.nominal
        if figure.share_of_nominal != share:
            yield f"{figure}: its share of the peak is {figure.share_of_nominal}, not {share}"
        if target and (needed := _needed_bytes(figure, card)) > target.memory_bytes:
            gib = f"{needed / 2**30:,.1f} of {target.memory_bytes / 2**30:,.1f} GiB"
            yield f"{figure}: needs {gib} of a device's memory"
        if figure.name == "flops_per_image" and preset:
            counted = operations.get(str(figure.labels["network"]))
            if figure.value != counted:
                yield f"{figure}: {figure.value:.11g} is not the preset's network, {counted}"


def _least(figure: Figure, card: Card) -> float:
    kind = FIGURES[figure.name]
    return kind.min if card.environment["backend"] == "cpu" else kind.min_accelerator or kind.min


def _needed_bytes(figure: Figure, card: Card) -> float:
    """Return the least memory of a device that a figure's work needs; 0 if it is unknown."""
    if "collective" in figure.labels:
        return float(figure.labels["bytes"])
    if figure.name != "images_per_s" or not (setting := setting_of_figure(figure, card)):
        return 0.0
    from jaxbench.predict.prediction import least_memory_bytes  # imports JAX

    return least_memory_bytes(setting)


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
        rate = "tflops" if figure.name in MATMULS else "gb_per_s"
        unit = unit or accelerator_limit(rate, device_kind)
    elif quantity in ("link", "host_link"):
        unit = most_link_bytes_per_s(device_kind, quantity == "host_link") / 1e9
    elif quantity == "matmul":
        operations = figures.get(("flops_per_image", *figure.key[1:]))
        unit = operations and operations.value and _flops_per_s(figure, card) / operations.value
    elif quantity == "power":
        unit = accelerator_limit("w", device_kind)
        if figure.name == "energy_j_per_image":
            images = figures.get(("images_per_s", *figure.key[1:]))
            unit *= environment["num_devices"] / images.value if images and images.value else 0
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
        return
    stated, verdict = card.verdict, judge(card, _limits(card), card.verdict.expected)
    if stated.outcome != verdict.outcome:
        yield f"its verdict is {stated.outcome}, its figures give {verdict.outcome}"
    elif changed := sorted({*_judged(stated)} ^ {*_judged(verdict)}):
        yield f"its verdict does not follow from its figures: {': '.join(changed[0])}"


def _judged(verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    """Yield what rules say; a card that is older than a rule says nothing by it."""
    for one in verdict.findings:
        if one.status != "not_judged":
            yield one.part, one.rule, one.status


def custom_limits(card: Card) -> str | None:
    """Return a line with the limits that are not those that ship with jaxbench, None without."""
    limits = _limits(card)
    changed = [
        f"{name} {_limit(limits[name])} in place of {_limit(limit)}"
        for name, limit in load_thresholds().items()
        if limits[name] != limit and (card.verdict is None or name in card.verdict.thresholds)
    ]
    stated = card.verdict.thresholds if card.verdict else limits
    missing = dict.fromkeys(name.partition(".")[0] for name in limits if name not in stated)
    lines = [f"judged by custom limits: {', '.join(changed)}"] if changed else []
    lines += [f"judged without the newer rules {', '.join(missing)}"] if missing else []
    return "; ".join(lines) or None


def _limits(card: Card) -> Thresholds:
    """Return the limits of a card's verdict; None for a limit that is newer than the card."""
    if card.verdict is None:
        return load_thresholds()
    return {**dict.fromkeys(load_thresholds()), **card.verdict.thresholds}


def _limit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"
