"""The operations that `jaxbench kernels` compiles, and their times beside a reference."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxbench.microbench.operations import Argument, Operation, list_operations, time_beside
from jaxbench.xla.jaxpr import find_matmuls_and_convs

OPERATIONS = {one.name: one for one in list_operations("cpu")}
# The count of a jaxpr does not know these products.
UNKNOWN = ("product_mxfp8", "ragged_product")


def test_names_are_unique_and_the_fused_attention_is_only_where_there_is_one():
    on_gpu = [one.name for one in list_operations("gpu", fused="xla")]
    assert len(set(on_gpu)) == len(on_gpu)
    assert {*on_gpu} - {*OPERATIONS} == {"fused_attention", "fused_attention_gradients"}


@pytest.mark.parametrize(
    "name",
    [name for name in OPERATIONS if not name.endswith("_gradients") and name not in UNKNOWN],
)
def test_the_needed_multiply_accumulates_are_those_of_the_traced_operation(name):
    one = OPERATIONS[name]
    jaxpr = jax.make_jaxpr(one.function)(*one.shapes()).jaxpr
    assert one.macs == sum(product.macs for product in find_matmuls_and_convs(jaxpr))
    assert one.num_bytes > 2**20


def test_sizes_on_a_cpu_are_an_eighth():
    for one in list_operations("gpu"):
        assert OPERATIONS[one.name].macs * 8 == one.macs


def test_gradients_are_those_of_a_given_gradient():
    by_name = {one.name: one for one in list_operations("cpu")}
    operation = by_name["conv3x3_gradients"]
    shapes = [(2, 4, 4, 64), (2, 4, 4, 64), (3, 3, 64, 64)]
    arrays = [Argument(jnp.float32, shape).create(n) for n, shape in enumerate(shapes)]
    of_images, of_kernel = operation.function(*arrays)

    def total(images, kernel):
        return jnp.sum(by_name["conv3x3"].function(images, kernel) * arrays[0])

    expected = jax.grad(total, (0, 1))(*arrays[1:])
    assert jnp.allclose(of_images, expected[0], atol=1e-3)
    assert jnp.allclose(of_kernel, expected[1], atol=1e-3)


def test_arguments_are_what_their_fields_say():
    tokens = Argument(jnp.int32, (1000,), below=7).create(0)
    assert (tokens.min(), tokens.max()) == (0, 6)
    assert (Argument(jnp.int32, (3,), filled=4).create(0) == 4).all()
    assert abs(float(Argument(jnp.float32, (1000,)).create(1).std()) - 1) < 0.1


def test_a_share_is_of_the_reference_of_the_same_kind(monkeypatch):
    """An operation that takes four times as long for the same work has a quarter of its rate."""
    side = 512
    arrays = (Argument(jnp.float32, (side, side)),)

    def chained(times, x):
        return functools.reduce(lambda left, _: jnp.dot(left, x), range(times), x)

    one, four = (Operation(f"{n}", functools.partial(chained, n), arrays, side**3) for n in (1, 4))
    call_s, share = time_beside(four, one, jax.devices()[0], rounds=5, window_s=0.01)
    assert call_s.value > 0 and 0.1 < share.value < 0.6  # a quarter
    by_bytes = [one._replace(macs=0) for one in (four, one)]
    _, share = time_beside(*by_bytes, jax.devices()[0], rounds=5, window_s=0.01)
    assert 0.1 < share.value < 0.6
