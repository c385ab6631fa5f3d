"""Check a card that somebody hands in."""

import math
import pathlib
from collections.abc import Iterator

from jaxbench.cards.card import Card, Figure
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.figures import FIGURES, MATMULS, PRESETS
from jaxbench.cards.from_runs import SENSORS
from jaxbench.clock import now, seconds_since_1970
from jaxbench.errors import BadInput
from jaxbench.hardware.peak_table import accelerator_limit
from jaxbench.hardware.targets.target import most_link_bytes_per_s
from jaxbench.hardware.telemetry.sensors import bounds
from jaxbench.paths import user_path
from jaxbench.terminal import warn


def check_card(path: str | pathlib.Path) -> list[str]:
    """Return what is wrong with a card, a line each."""
    try:
        card = read_card(path)
    except BadInput as error:
        return [str(error)]
    return [*impossible(card), *([] if card.verdict.findings else ["it has no verdict"])]


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
    created_s = seconds_since_1970(card.created_at)
    if created_s is None or created_s > now().timestamp() + 24 * 3600:
        yield f"created_at is {card.created_at!r:.60}, which is in the future or no time"
    preset = PRESETS.get(card.preset)
    if preset is None:
        yield f"preset {card.preset[:60]!r}: this jaxbench has {', '.join(PRESETS)}"
        return
    operations = {one.spec: one.flops_per_image for one in preset.networks}
    for figure in card.figures():
        least, most = _bounds(figure, card)
        low, high = figure.ends
        if not least <= low <= figure.value <= high <= most:
            yield (
                f"{figure}: {figure.value:g} ({low:g} to {high:g}) cannot be: it is {least:g} at "
                f"least, {most:g} at most"
            )
        if figure.name == "flops_per_image":
            counted = operations.get(str(figure.labels["network"]))
            if figure.value != counted:
                yield f"{figure}: {figure.value:.11g} is not the preset's network, {counted}"


def _bounds(figure: Figure, card: Card) -> tuple[float, float]:
    """Return the least and the most that a figure can be on its hardware."""
    kind, environment = FIGURES[figure.name], card.environment
    on_cpu, device_kind = environment["backend"] == "cpu", environment["device_kind"]
    number, _, quantity = (kind.max_cpu if on_cpu else kind.max_accelerator).partition(" ")
    unit: float | None = 1.0
    if quantity == "sensor":
        return bounds(SENSORS[figure.name].rpartition("_")[0], device_kind)
    if quantity == "core":
        unit = environment.get("cpu_cores")
    elif quantity == "peak":
        rate = "tflops" if figure.name in MATMULS else "gb_per_s"
        unit = card.peak_of(figure) or accelerator_limit(rate, device_kind)
    elif quantity in ("link", "host_link"):
        unit = most_link_bytes_per_s(device_kind, quantity == "host_link") / 1e9
    elif quantity == "matmul":
        networks = {one.spec: one for one in PRESETS[card.preset].networks}
        network = networks.get(str(figure.labels["network"]))
        tflops = max((one.ends[1] for one in card.figures() if one.name in MATMULS), default=0)
        devices = 1 if on_cpu else environment["num_devices"]  # simulated ones share a processor
        unit = 1e12 * tflops * devices / network.flops_per_image if network else None
    return kind.min, float(number) * unit if number and unit else math.inf
