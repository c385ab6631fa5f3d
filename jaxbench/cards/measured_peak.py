"""What a network uses of the best matrix rate that a card measured: a peak that was reached."""

import statistics
from collections.abc import Iterable

from jaxbench.cards.card import Figure


def share_of_measured(
    figures: Iterable[Figure],
    arithmetic: str | None,
    precision: str,
    flops_per_s_per_device: float | None,
    num_devices: int,
    backend: str,
) -> float | None:
    """Return FLOP/s over the measured matrix rate; None if one of them is unknown.

    It is also None above 1: then the network did not do the operations that are counted for it, or
    not in this arithmetic.

    Args:
      figures: of a card.
      arithmetic: the type that the network multiplies in, one of `ARITHMETICS`; None if no
        published peak of the device is known.
      precision: of the network. It says the arithmetic, but for fp32 on accelerators: there JAX may
        multiply in TF32 or bf16.
      flops_per_s_per_device: the network's own operations, see `Utilization`.
      num_devices, backend: of the network's run. CPU devices share the processor whose rate the
        card has.
    """
    if arithmetic is None and precision == "fp32" and backend != "cpu":
        return None
    name = f"matmul_{arithmetic or precision}_tflops"
    rates = [figure.value for figure in figures if figure.name == name]
    rate = statistics.median(rates) if rates else None
    if not rate or flops_per_s_per_device is None:
        return None
    share = flops_per_s_per_device / (1e12 * rate)
    share *= num_devices if backend == "cpu" else 1
    return share if share <= 1 else None
