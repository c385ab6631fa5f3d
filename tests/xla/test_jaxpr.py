"""Counting in traced functions: multiply-accumulates, and the least bytes of activations."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxbench.models.batch_norm import BatchNorm
from jaxbench.models.layers import dropout, max_pool
from jaxbench.xla.jaxpr import find_matmuls_and_convs
from jaxbench.xla.least_bytes import count_activation_bytes


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


@pytest.mark.parametrize(
    ("kernel", "stride", "reduction"), [(1, 1, 1.0), (3, 1, 4.5), (5, 1, 12.5), (3, 2, 1.0)]
)
def test_fast_algorithms_leave_two_multiplications_a_pixel(kernel, stride, reduction):
    """For the gradients too; libraries have none for strides."""

    def convolve(images, weights):
        return lax.conv_general_dilated(
            images, weights, (stride, stride), "SAME", dimension_numbers=NHWC
        )

    shapes = (2, 16, 16, 3), (kernel, kernel, 3, 5)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    gradient = jax.jit(jax.grad(lambda *args: convolve(*args).sum(), (0, 1))).trace(*args)
    products = find_matmuls_and_convs(gradient.jaxpr.jaxpr)
    assert {product.reduction for product in products} == {reduction}


# Two channels become eight.
IMAGES, OUTPUT = 4 * 4 * 4 * 2, 4 * 4 * 4 * 8


def least_bytes(network):
    image = jax.ShapeDtypeStruct((1, 4, 4, 2), jnp.float32)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros(image.shape)))

    def forward(params, image):
        return network.apply(params, image, mutable=["batch_stats"])

    return count_activation_bytes(jax.jit(forward).trace(params, image).jaxpr.jaxpr)


def product(x, channels=8):
    return nn.Dense(channels, use_bias=False)(x)


def network(function):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, images):
            return function(images)

    return Network()


@pytest.mark.parametrize("norm", [BatchNorm, nn.BatchNorm])
def test_least_bytes_of_batch_norm_between_products(norm):
    def chain(images):
        for _ in range(2):
            images = nn.relu(norm(use_running_average=False)(product(images)))
        return product(jnp.mean(product(images), axis=(1, 2)), channels=4)

    # The first product has no gradient of its input. The gradient of the third follows from
    # that of the eight means.
    first, second, third, means, logits = 7 * OUTPUT, 9 * OUTPUT, OUTPUT + 2 * 32, 4 * 32, 3 * 16
    assert least_bytes(network(chain)) == 2 * IMAGES + first + second + third + means + logits


def test_least_bytes_of_dropout_and_wider_types_move_nothing():
    def chain(images):
        x = dropout(product(images), 0.5, jax.random.split(jax.random.key(0), 1), layer=0)
        return product(x.astype(jnp.float32))

    assert least_bytes(network(chain)) == 2 * IMAGES + (1 + 2 + 1 + 1) * OUTPUT + 3 * OUTPUT


def test_least_bytes_of_a_residual_sum():
    def block(images):
        x = product(images)
        return product(x + product(x))

    # The sum is written and read, beside the terms; the gradient of its second use is added.
    stem, branch, total, last = 6 * OUTPUT, 3 * OUTPUT, 5 * OUTPUT, 3 * OUTPUT
    assert least_bytes(network(block)) == 2 * IMAGES + stem + branch + total + last


@pytest.mark.parametrize("pool", [max_pool, lambda x, *_: nn.avg_pool(x, (2, 2), (2, 2))])
def test_least_bytes_of_pooled_and_repeated_and_joined(pool):
    def unet(images):
        x = product(images)
        small = pool(x, 2, 2)
        again = jnp.repeat(jnp.repeat(small, 2, axis=1), 2, axis=2)
        return product(jnp.concatenate([x, again], axis=-1))

    # Neither what is repeated nor what is joined is written.
    full, small, last = 5 * OUTPUT + OUTPUT // 4, 4 * OUTPUT // 4, 3 * OUTPUT
    assert least_bytes(network(unet)) == 2 * IMAGES + full + small + last


def test_least_bytes_of_attention_and_loops_are_not_counted():
    def attention(images):
        x = product(images)
        return jnp.einsum("bhwc,bhvc->bhwv", x, x)

    def loop(images):
        return jax.lax.scan(lambda x, _: (x * 2, None), product(images), length=3)[0]

    assert least_bytes(network(attention)) is None
    assert least_bytes(network(loop)) is None
