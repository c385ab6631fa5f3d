"""Which figures a whole card has: without one of them its part is incomplete."""

import collections
from collections.abc import Iterator

from jaxbench.cards.card import Card, Part
from jaxbench.cards.figures import COLLECTIVES, MEMORY
from jaxbench.cards.preset import PRESETS

_ALWAYS = {
    "ceilings": ("matmul_fp32_tflops", "matmul_bf16_tflops", *MEMORY, "dispatch_latency_s"),
    "collectives": ("pair_gb_per_s",),
    "soak": ("drift_percent",),
    "corruption": ("rounds", "mismatches"),
}


def missing_figures(part: Part, card: Card) -> Iterator[str]:
    """Yield what a part lacks that was measured; what its own notes name is left out."""
    devices = collections.defaultdict(set)
    for figure in part.figures:
        devices[figure.name].add(figure.device)
    yield from (name for name in _ALWAYS.get(part.name, ()) if name not in devices)
    # Of simulated devices only the first is measured.
    if part.name == "ceilings" and card.environment["backend"] != "cpu":
        for name, found in devices.items():
            lacking = (device.id for device in card.devices if device.id not in found)
            yield from (f"{name}, device {device}" for device in lacking)
    if part.name == "collectives":
        ran = {figure.labels["collective"] for figure in part.named("bus_gb_per_s")}
        yield from (name for name in COLLECTIVES if name not in ran)
    if part.name == "networks":
        yield from _missing_networks(part, card)


def _missing_networks(part: Part, card: Card) -> Iterator[str]:
    preset = PRESETS.get(card.preset)
    notes = [f"{check.name}, {check.found}" for check in part.checks if check.status != "ok"]
    labels = [figure.labels for figure in part.named("images_per_s")]
    ran = {(own["network"], own["precision"]) for own in labels}
    for precision in preset.precisions if preset else ():
        for network in preset.networks:
            batch = network.batch_per_device * card.environment["num_devices"]
            name = f"{network.spec} {precision} {batch}"
            is_noted = any(name in note for note in notes)
            if (network.spec, precision) not in ran and not is_noted:
                yield name
