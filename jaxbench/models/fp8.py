"""Products of dense layers with operands of 8 bits, for `precision=fp8`.

The operands of the forward product are float8_e4m3fn. In the backward products the gradient is
float8_e5m2, which has a wider range and one bit less (Micikevicius et al. 2022). Each array is
scaled, by its largest value now, to the end of its type's range; nothing is remembered from one
step to the next. Products are added up in float32.

Letters: I and O the inputs and outputs of a layer, N rows of inputs.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxbench.aliases import DType

_FORWARD, _BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


def fp8_dot_general(
    x_BxI: jax.Array, kernel_IxO: jax.Array, dimension_numbers: Any, **unused: Any
) -> jax.Array:
    """Return x @ kernel in the type of x; called by `nn.Dense` as `jax.lax.dot_general` is."""
    if dimension_numbers != (((x_BxI.ndim - 1,), (0,)), ((), ())) or kernel_IxO.ndim != 2:
        raise ValueError(f"not the product of a dense layer: {dimension_numbers}")
    y_NxO = _product(x_BxI.reshape(-1, x_BxI.shape[-1]), kernel_IxO)
    return y_NxO.reshape(*x_BxI.shape[:-1], -1)


@jax.custom_vjp
def _product(x_NxI: jax.Array, kernel_IxO: jax.Array) -> jax.Array:
    return _forward(x_NxI, kernel_IxO)[0]


def _forward(x_NxI, kernel_IxO):
    scaled = _scale(x_NxI, _FORWARD), _scale(kernel_IxO, _FORWARD)
    # An empty array tells the type, which no residual but an array can.
    return _dot(*scaled, 1, 0, x_NxI.dtype), (*scaled, jnp.zeros(0, x_NxI.dtype))


def _backward(residuals, dy_NxO):
    x_NxI, kernel_IxO, typed = residuals
    dy_NxO = _scale(dy_NxO, _BACKWARD)
    dx_NxI = _dot(dy_NxO, kernel_IxO, 1, 1, typed.dtype)
    return dx_NxI, _dot(x_NxI, dy_NxO, 0, 0, typed.dtype)


_product.defvjp(_forward, _backward)


def _scale(array: jax.Array, dtype: DType) -> tuple[jax.Array, jax.Array]:
    """Return an array in 8 bits, and the factor that it was divided by."""
    wide = array.astype(jnp.float32)
    most = jnp.max(jnp.abs(wide))
    factor = jnp.where(most > 0, most / float(jnp.finfo(dtype).max), 1.0)
    return (wide / factor).astype(dtype), factor


def _dot(one: tuple, other: tuple, axis: int, other_axis: int, dtype: DType) -> jax.Array:
    """Return the product over one axis of each of two scaled matrices."""
    axes = (((axis,), (other_axis,)), ((), ()))
    product = jax.lax.dot_general(one[0], other[0], axes, preferred_element_type=jnp.float32)
    return (product * (one[1] * other[1])).astype(dtype)
