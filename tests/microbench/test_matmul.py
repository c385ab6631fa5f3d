"""The matmul rate: what a call computes, what is counted, how shapes are searched."""

import jax
import numpy as np
import pytest

from jaxbench.microbench import matmul
from jaxbench.xla.hlo import arrays, instructions

_SHAPE = (64, 32, 128)


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16", "fp16", "int8"])
def test_no_matmul_of_a_call_is_optimised_away(arithmetic):
    """Each product is whole, and none has constants for operands."""
    calls = matmul.matmul_calls(jax.devices()[0], arithmetic, _SHAPE, window_s=0.01)
    hlo = calls._call.func.lower(*calls._call.args).compile().as_text()
    program = [*instructions(hlo)]
    dots = [one for one in program if one.opcode == "dot"]
    m, k, n = _SHAPE
    sizes = [array.size for dot in dots for array in arrays(dot.type)]
    assert sorted(sizes) == sorted([m * n, m * k] * (matmul.CHAIN // 2))
    assert not [one for one in program if one.opcode == "constant" and arrays(one.type)[0].size > 1]


def test_a_chain_multiplies_each_product_by_the_next_matrix():
    x, w, v = (np.random.default_rng(0).normal(size=s) for s in ((8, 4), (4, 16), (16, 4)))
    expected = x
    for number in range(matmul.CHAIN):
        expected = expected @ (v if number % 2 else w)
    found = matmul.chain("fp32", *map(np.float32, (x, w, v)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_an_int8_product_needs_the_one_before_it():
    """The first product's first element is in the second product's left side, and so on."""
    rng = np.random.default_rng(0)
    x, w, v, start = (
        rng.integers(-8, 8, size).astype(np.int8) for size in ((8, 4), (4, 16), (16, 4), (8, 16))
    )
    left, other = x.astype(np.int32), start.astype(np.int32)
    for number in range(matmul.CHAIN):
        product = left @ (v if number % 2 else w).astype(np.int32)
        other[0, 0] = product[0, 0].astype(np.int8)
        left, other = other, left
    np.testing.assert_array_equal(matmul.chain("int8", x, w, v, start), product)


def test_operations_are_two_for_each_multiplication():
    assert matmul.operations((2, 3, 5)) == matmul.CHAIN * 60


def test_the_best_of_all_shapes_is_returned_first():
    how, shown = {"rounds": 3, "window_s": 0.001, "search_s": 1000, "largest": 16}, []
    fp32 = matmul.measure_matmul(jax.devices()[1], "fp32", **how, show=shown.append)
    # Three shapes are searched; the three of them have a warm-up and three windows each.
    assert shown[0] == "search, matmul fp32 16x16x16" and len(shown) == 3 + 3 * (1 + 3)
    assert shown[-1].startswith("matmul fp32 ") and shown[-1].endswith(", window 3 of 3")
    assert fp32.tried == 3 == len(fp32.rates) and fp32.reason is None
    medians = [median for median, _, _ in fp32.rates.values()]
    assert medians == sorted(medians, reverse=True)
    assert {*fp32.rates} == {(16, 16, 16), (16, 16, 64), (64, 16, 16)}
    tf32 = matmul.measure_matmul(jax.devices()[1], "tf32", **how)
    assert not tf32.rates and "GPU" in tf32.reason


def test_what_the_backend_does_not_run_gets_a_reason(monkeypatch):
    def fail(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such type\nmore")

    monkeypatch.setattr(matmul.lax, "dot", fail)
    result = matmul.measure_matmul(jax.devices()[0], "fp16", rounds=3, largest=16)
    assert not result.rates and result.reason == "UNIMPLEMENTED: no such type"


def test_the_search_keeps_the_fastest(monkeypatch):
    """Of five shapes, the first and the last are the slowest."""
    calls_s = {1: 4.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 1e9}
    monkeypatch.setattr(matmul, "_shapes", lambda *_: [(side,) * 3 for side in calls_s])
    monkeypatch.setattr(matmul, "matmul_calls", lambda *how: FakeCalls(calls_s[how[2][0]]))
    monkeypatch.setattr(matmul, "measure_in_turn", lambda *_: None)
    result = matmul.measure_matmul(jax.devices()[0], "fp32", window_s=1e10)
    assert {side for side, _, _ in result.rates} == {2, 4, 8} and result.tried == 5


def test_the_search_stops_at_the_memorys_end(monkeypatch):
    """16^3 takes more than this memory's share, but something is always measured."""
    monkeypatch.setattr(matmul, "memory_bytes", lambda device: 1)
    result = matmul.measure_matmul(jax.devices()[0], "fp32", rounds=3, window_s=0.001, largest=16)
    assert [*result.rates] == [(16, 16, 16)]


class FakeCalls:
    def __init__(self, call_s):
        self.time_calls = lambda _: call_s

    def per_s(self, amount):
        return (amount,) * 3
