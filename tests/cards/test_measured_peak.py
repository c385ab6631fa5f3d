"""The share of the matrix rate that a card measured."""

import pytest

from jaxbench.cards.card import measured
from jaxbench.cards.measured_peak import share_of_measured

RATES = [measured("matmul_bf16_tflops", rate, device=at) for at, rate in enumerate((600, 700, 800))]


@pytest.mark.parametrize(
    ("arithmetic", "flops_per_s", "num_devices", "backend", "share"),
    [
        ("bf16", 350e12, 8, "gpu", 0.5),  # of the median, each device by itself
        ("bf16", 35e12, 8, "cpu", 0.4),  # simulated devices share the processor
        ("fp32", 350e12, 8, "gpu", None),
        ("bf16", None, 8, "gpu", None),
    ],
)
def test_a_share_is_that_of_the_same_arithmetic(
    arithmetic, flops_per_s, num_devices, backend, share
):
    found = share_of_measured(RATES, arithmetic, flops_per_s, num_devices, backend)
    assert found == (share and pytest.approx(share))
