"""The part collectives: collectives over all devices, and exchanges between two."""

import itertools
from typing import Any

from jaxbench.cards.card import measured
from jaxbench.microbench.collectives import (
    OPERATIONS,
    measure_collectives,
    measure_pairs,
    sizes_up_to,
)
from jaxbench.microbench.memory_bandwidth import memory_bytes
from jaxbench.qualification.ceilings import SHORT_ROUNDS, fit_window_s, in_unit
from jaxbench.qualification.session import QualifySession

# Each pair of devices is a program of its own. With more devices only neighbours and the first one.
_MOST_IN_ALL_PAIRS = 8


def measure(session: QualifySession, time_s: float) -> None:
    """Measure collectives over all devices, and exchanges between two."""
    mesh = session.mesh
    limit_bytes = 2**20 if session.on_cpu else 2**28
    most_bytes = min(limit_bytes, memory_bytes(mesh.devices[0]) // 32)
    # Half of the time goes into compiling.
    turns = len(sizes_up_to(most_bytes)) * len(OPERATIONS)
    options: dict[str, Any] = {"rounds": SHORT_ROUNDS, "show": session.show}
    window_s = fit_window_s(0.3 * time_s, turns, SHORT_ROUNDS, 0.1)
    for one in measure_collectives(mesh, most_bytes=most_bytes, window_s=window_s, **options):
        labels: dict[str, Any] = {"collective": one.operation, "bytes": one.num_bytes}
        bus = in_unit(1e9, one.bus_bytes_per_s())
        session.figures.append(measured("bus_gb_per_s", bus, **labels))
    pairs = _pairs(mesh.num_devices)
    window_s = fit_window_s(0.2 * time_s, len(pairs), SHORT_ROUNDS, 0.05)
    num_bytes = min(2**26, most_bytes)
    rates = measure_pairs(mesh, pairs, num_bytes=num_bytes, window_s=window_s, **options)
    for pair, bytes_per_s in rates.items():
        # Both directions at once, each at this rate.
        source, peer = (mesh.devices[position].id for position in pair)
        rate = in_unit(1e9, bytes_per_s)
        session.figures.append(measured("pair_gb_per_s", rate, source=source, peer=peer))


def _pairs(num_devices: int) -> list[tuple[int, int]]:
    """Return the pairs of devices that are measured."""
    pairs = [*itertools.combinations(range(num_devices), 2)]
    if num_devices <= _MOST_IN_ALL_PAIRS:
        return pairs
    return [(a, b) for a, b in pairs if a == 0 or b == a + 1]
