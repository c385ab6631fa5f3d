"""The least bytes of activations, counted by hand for networks of a few products."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from jaxbench.models.batch_norm import BatchNorm
from jaxbench.models.layers import dropout, max_pool
from jaxbench.xla.least_bytes import count_activation_bytes

# Two channels become eight.
IMAGES, OUTPUT = 4 * 4 * 4 * 2, 4 * 4 * 4 * 8


def count(network):
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
def test_batch_norm_between_products(norm):
    def chain(images):
        for _ in range(2):
            images = nn.relu(norm(use_running_average=False)(product(images)))
        return product(jnp.mean(product(images), axis=(1, 2)), channels=4)

    # The first product has no gradient of its input. The gradient of the third follows from
    # that of the eight means.
    first, second, third, means, logits = 7 * OUTPUT, 9 * OUTPUT, OUTPUT + 2 * 32, 4 * 32, 3 * 16
    assert count(network(chain)) == 2 * IMAGES + first + second + third + means + logits


def test_dropout_and_wider_types_move_nothing():
    def chain(images):
        x = dropout(product(images), 0.5, jax.random.split(jax.random.key(0), 1), layer=0)
        return product(x.astype(jnp.float32))

    assert count(network(chain)) == 2 * IMAGES + (1 + 2 + 1 + 1) * OUTPUT + 3 * OUTPUT


def test_a_residual_sum():
    def block(images):
        x = product(images)
        return product(x + product(x))

    # The sum is written and read, beside the terms; the gradient of its second use is added.
    stem, branch, total, last = 6 * OUTPUT, 3 * OUTPUT, 5 * OUTPUT, 3 * OUTPUT
    assert count(network(block)) == 2 * IMAGES + stem + branch + total + last


@pytest.mark.parametrize("pool", [max_pool, lambda x, *_: nn.avg_pool(x, (2, 2), (2, 2))])
def test_pooled_and_repeated_and_joined(pool):
    def unet(images):
        x = product(images)
        small = pool(x, 2, 2)
        again = jnp.repeat(jnp.repeat(small, 2, axis=1), 2, axis=2)
        return product(jnp.concatenate([x, again], axis=-1))

    # Neither what is repeated nor what is joined is written.
    full, small, last = 5 * OUTPUT + OUTPUT // 4, 4 * OUTPUT // 4, 3 * OUTPUT
    assert count(network(unet)) == 2 * IMAGES + full + small + last


def test_attention_and_loops_are_not_counted():
    def attention(images):
        x = product(images)
        return jnp.einsum("bhwc,bhvc->bhwv", x, x)

    def loop(images):
        return jax.lax.scan(lambda x, _: (x * 2, None), product(images), length=3)[0]

    assert count(network(attention)) is None
    assert count(network(loop)) is None
