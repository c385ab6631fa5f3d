"""The numeric types of a run, chosen by the config and never by the platform."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp

from jaxbench.aliases import DType


@dataclasses.dataclass(frozen=True)
class Precision:
    """fp32, bf16 and fp16 differ in `compute_dtype`; fp64 widens everything, for checking.

    fp8 is bf16 with narrower operands of the dense layers of transformers: see models/fp8.py.
    """

    name: str
    compute_dtype: DType  # activations, and parameters as the convolutions see them
    param_dtype: DType  # parameters, optimizer state, batch-norm statistics, logits, loss
    narrow_dtype: DType | None = None  # operands of dense layers, if others than `compute_dtype`

    @property
    def product_dtypes(self) -> set[str]:
        """The names of the types of the operands of products."""
        return {jnp.dtype(t).name for t in (self.compute_dtype, self.narrow_dtype) if t}

    @property
    def scales_loss(self) -> bool:
        """Whether gradients of the unscaled loss would be lost: see training/loss_scale.py."""
        return self.compute_dtype == jnp.float16

    def enabled(self) -> contextlib.AbstractContextManager:
        """Return a context that allows arrays of these types: JAX has fp64 off by default."""
        return jax.enable_x64(self.param_dtype == jnp.float64)


_PRECISIONS = {
    "fp32": Precision("fp32", jnp.float32, jnp.float32),
    "bf16": Precision("bf16", jnp.bfloat16, jnp.float32),
    "fp16": Precision("fp16", jnp.float16, jnp.float32),
    "fp64": Precision("fp64", jnp.float64, jnp.float64),
    "fp8": Precision("fp8", jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn),
}


def precision_of(dtype: str) -> str:
    """Return the name of the precision that computes in a type, or the type if there is none."""
    names = {
        jnp.dtype(p.narrow_dtype or p.compute_dtype).name: name for name, p in _PRECISIONS.items()
    }
    return names.get(dtype, dtype)


def get_precision(name: str) -> Precision:
    """Return the types of a precision, such as bf16."""
    return _PRECISIONS[name]
