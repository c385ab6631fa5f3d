"""What a network uses of the best matrix rate that a card measured: a peak that was reached."""

import statistics
from collections.abc import Iterable

from jaxbench.cards.card import Figure


def share_of_measured(
    figures: Iterable[Figure],
    arithmetic: str,
    flops_per_s_per_device: float | None,
    num_devices: int,
    backend: str,
) -> float | None:
    """Return FLOP/s over the measured matrix rate; None where one of them is unknown.

    Args:
      figures: of a card.
      arithmetic: the type that the network multiplies in, one of `ARITHMETICS`.
      flops_per_s_per_device: the network's own operations, see `Utilization`.
      num_devices, backend: of the network's run. CPU devices share the processor whose rate the
        card has.
    """
    name = f"matmul_{arithmetic}_tflops"
    rates = [figure.value for figure in figures if figure.name == name]
    rate = statistics.median(rates) if rates else None
    if not rate or flops_per_s_per_device is None:
        return None
    share = flops_per_s_per_device / (1e12 * rate)
    return share * num_devices if backend == "cpu" else share
