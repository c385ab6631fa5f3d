"""Published rates as settings: the attention that ran."""

import dataclasses

from jaxbench.analysis.published import read_published_rates
from jaxbench.predict.networks import NETWORKS, network_shape
from jaxbench.predict.rates import _rate
from tests.conftest import refusal


def test_the_shape_of_a_transformers_rate_has_the_attention_that_ran():
    (row, *_) = [row for row in read_published_rates() if row.network == "vit_s16"]
    fused, unfused, unknown = (
        _rate(dataclasses.replace(row, attention=attention)).setting.shape
        for attention in ("fused", "unfused", None)
    )
    assert (fused.macs, fused.weights) == (unfused.macs, unfused.weights)
    assert fused.touched < unfused.touched and fused.kept_bytes(2) < unfused.kept_bytes(2)
    assert unknown == unfused == NETWORKS["vit_s16"]


def test_every_fitted_rate_of_a_network_with_attention_says_which_ran():
    for row in read_published_rates():
        if row.network in NETWORKS and not row.not_fitted:
            forms = {network_shape(row.network, fused) for fused in (True, False)}
            assert (row.attention is None) == (len(forms) == 1), row


def test_a_rate_needs_the_peaks_of_its_device():
    row = dataclasses.replace(read_published_rates()[0], device="tpu:v4", precision="fp32")
    refusal(_rate, row, told="TPU v4: no peak of its fp32 arithmetic or its memory is known")


def test_a_rate_in_fp8_is_not_fitted():
    rows = [row for row in read_published_rates() if row.precision == "fp8"]
    assert rows and all(row.not_fitted == "yes" for row in rows)
    refusal(_rate, rows[0], told="precision 'fp8': predictions have no such term")
