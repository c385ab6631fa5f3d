"""Names of types that annotations share."""

from typing import Any

import jax
import numpy as np

Array = jax.Array | np.ndarray
Batch = dict[str, jax.Array]
DType = jax.typing.DTypeLike
PyTree = Any  # containers of arrays, nested, or one array
Step = jax.stages.Wrapped  # a jitted function
