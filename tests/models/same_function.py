"""Two functions that must compute the same, forwards and backwards."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def assert_same_function(own: Callable, expected: Callable, variables: Any, x: jax.Array) -> None:
    """Check outputs and all gradients of `own(variables, x)` to rounding in fp64."""
    pairs = [jax.vjp(function, variables, x) for function in (own, expected)]
    (y, back), (expected_y, expected_back) = pairs
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-12)
    dy = jnp.asarray(np.random.default_rng(1).normal(size=y.shape))
    gradients = (jax.tree.leaves(one(dy)) for one in (back, expected_back))
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
