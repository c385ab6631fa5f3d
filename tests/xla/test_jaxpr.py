"""Counting multiply-accumulates in traced functions."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxbench.xla.jaxpr import find_matmuls_and_convs


def macs_of(function, *shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = jax.jit(function).trace(*args)
    return sum(product.macs for product in find_matmuls_and_convs(traced.jaxpr.jaxpr))


NHWC = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize("stride, kernel", [(2, 2), (2, 3), (1, 3)])
def test_a_transposed_convolution_counts_no_zeros_between_pixels(stride, kernel):
    """As PyTorch's hooks count: each input pixel takes the whole kernel once."""

    def grow(images, weights):
        return lax.conv_transpose(images, weights, (stride, stride), "SAME", dimension_numbers=NHWC)

    assert macs_of(grow, (2, 5, 7, 3), (kernel, kernel, 3, 11)) == 2 * 5 * 7 * kernel**2 * 3 * 11


def test_groups_and_strides():
    def convolve(images, weights):
        return lax.conv_general_dilated(
            images, weights, (2, 2), "SAME", dimension_numbers=NHWC, feature_group_count=4
        )

    assert macs_of(convolve, (2, 8, 6, 12), (3, 3, 3, 20)) == 2 * 4 * 3 * 3**2 * 3 * 20


def test_the_body_of_a_scan_counts_as_often_as_it_runs():
    def steps(x, weights):
        return lax.scan(lambda x, _: (lax.map(lambda row: row @ weights, x), None), x, length=5)[0]

    assert macs_of(steps, (3, 1, 8), (8, 8)) == 5 * 3 * 8 * 8


def test_of_branches_the_one_with_the_least_counts():
    def either(x, weights):
        big, small = (lambda x: x @ weights @ weights), (lambda x: x @ weights)
        return lax.cond(x[0, 0] > 0, big, small, x)

    assert macs_of(either, (3, 8), (8, 8)) == 3 * 8 * 8
