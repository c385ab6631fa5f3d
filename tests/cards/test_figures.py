"""Fractions of the matrix rate that a card has measured."""

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.figures import share_of_measured

RATES = [measured("matmul_fp32_tflops", 50.0, device=0)]
RATES += [
    measured("matmul_bf16_tflops", rate, device=at) for at, rate in enumerate((600, 700, 800))
]


@pytest.mark.parametrize(
    ("arithmetic", "precision", "flops_per_s", "backend", "share"),
    [
        ("bf16", "bf16", 350e12, "gpu", 0.5),  # of the median, each device by itself
        ("bf16", "bf16", 35e12, "cpu", 0.4),  # simulated devices share the processor
        ("fp16", "fp16", 350e12, "gpu", None),
        ("bf16", "bf16", None, "gpu", None),
        ("bf16", "fp32", 350e12, "tpu", 0.5),
        # Without a published peak nothing says whether fp32 is multiplied in TF32.
        (None, "fp32", 50e12, "gpu", None),
        (None, "fp32", 5e12, "cpu", 0.8),
        (None, "bf16", 350e12, "gpu", 0.5),
        ("bf16", "bf16", 701e12, "gpu", None),  # more than was measured is no fraction of it
    ],
)
def test_a_share_is_that_of_the_same_arithmetic(arithmetic, precision, flops_per_s, backend, share):
    found = share_of_measured(RATES, arithmetic, precision, flops_per_s, 8, backend)
    assert found == (share and pytest.approx(share))
