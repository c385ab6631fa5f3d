"""What the backward pass keeps of the forward pass: a policy for `jax.checkpoint`."""

from typing import Any

# The third is cuDNN's attention, as JAX names it.
_KEPT = (
    "conv_general_dilated",
    "dot_general",
    "dot_product_attention_fwd_wrapper",
    "reduce_sum",
    "psum",
)


def keep_products_and_sums(primitive: Any, *_: Any, **__: Any) -> bool:
    """Return whether the backward pass keeps a primitive's output; it computes all others again.

    For `Config.remat=save_dots`. Sums, of the batch and over devices, are what batch norm takes its
    statistics from. Under fsdp no gathered parameter is kept so: it is gathered again.
    """
    return primitive.name in _KEPT
