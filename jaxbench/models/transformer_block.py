"""The pre-norm transformer blocks that the vision transformer and the language model share.

    x + attention(norm(x)), then x + mlp(norm(x))

Letters: T tokens, D the width, N attention heads, G heads of keys and values (as many, or fewer
which several heads of queries share), F the width of one head.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType
from jaxbench.config import Config
from jaxbench.config.fields import choice
from jaxbench.config.model import ModelConfig
from jaxbench.errors import BadInput
from jaxbench.models.fp8 import fp8_dot_general
from jaxbench.models.layers import keep_products_and_sums

# The first compute capability that multiplies bf16 and runs cuDNN's flash attention, by NVIDIA's
# support matrix.
_AMPERE = 8.0
# The limit on all GPUs that have it; the width of a head is a multiple of 8.
_CUDNN_HEAD_WIDTH = 128
# Flash attention reads the tokens in blocks of this many at least. Compilers for older TPUs refuse
# its products of bf16.
_FLASH_TOKENS = 128
_NOT_FOR_FLASH = ("TPU v2", "TPU v3")
# The name of the function below in a traced network.
FUSED_ATTENTION = "fused_attention"


class TransformerBlock(nn.Module):
    """Tokens in, tokens out, of the same shape and in `dtype`.

    Biases start at 0. The tanh form of GELU is between the two layers of the MLP.

    Attributes:
      heads: N, which divides the width.
      mlp_width: of the MLP's hidden layer.
      dtype: what it computes in; norms and the softmax compute in at least float32.
      param_dtype: what parameters are stored in.
      causal: whether each token attends only to itself and to those before it.
      rotary: whether queries and keys are rotated by their positions; see `rotate`.
      attention: see `attend`.
      product: of dense layers, as `jax.lax.dot_general`.
      kernel_init: of the kernels.
      residual_init: of the kernels of `out` and `mlp2`, whose outputs are added to the tokens; None
        takes `kernel_init`.
    """

    heads: int
    mlp_width: int
    dtype: DType
    param_dtype: DType
    causal: bool = False
    rotary: bool = False
    attention: str = "xla"
    product: Callable[..., jax.Array] = jax.lax.dot_general
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    residual_init: nn.initializers.Initializer | None = None

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width, init = x_BxTxD.shape[-1], self.kernel_init
        last = self.residual_init or init

        dense: Any = functools.partial(nn.Dense, dot_general=self.product, **types)

        y_BxTxD = nn.LayerNorm(name="norm1", **types)(x_BxTxD)
        query, key, value = (
            dense(width, name=name, kernel_init=init)(y_BxTxD).reshape(
                *y_BxTxD.shape[:2], self.heads, width // self.heads
            )
            for name in ("query", "key", "value")
        )
        if self.rotary:
            query, key = rotate(query), rotate(key)
        y_BxTxNxF = attend(query, key, value, self.causal, self.attention)
        y_BxTxD = y_BxTxNxF.reshape(x_BxTxD.shape)
        x_BxTxD = x_BxTxD + dense(width, name="out", kernel_init=last)(y_BxTxD)
        y_BxTxD = nn.LayerNorm(name="norm2", **types)(x_BxTxD)
        y_BxTxM = gelu(dense(self.mlp_width, name="mlp1", kernel_init=init)(y_BxTxD))
        return x_BxTxD + dense(width, name="mlp2", kernel_init=last)(y_BxTxM)


@dataclasses.dataclass(kw_only=True)
class TransformerConfig(ModelConfig):
    """Base of the transformers' configurations, which add `width`, `depth` and `heads`.

    Attributes:
      attention: Implementation of attention. xla: matrix products and a softmax in fp32, on any
        device; memory grows with the square of the tokens. cudnn: cuDNN's flash attention, for
        NVIDIA GPUs from Ampere on under bf16 or fp16 and an even number of tokens. flash: JAX's
        flash attention for TPUs from v4 on, under bf16 or fp32 and a multiple of 128 tokens. auto:
        the fastest of those that the device can do, timed before the run (under --deterministic:
        cudnn if it can, else xla); run.json records which (`attention`), and why
        (`attention_reason`).
    """

    has_blocks: typing.ClassVar[bool] = True
    # Whether each token attends only to itself and to those before it.
    causal: typing.ClassVar[bool] = False
    # The class of the network's blocks.
    block: typing.ClassVar[type[nn.Module]] = TransformerBlock

    attention: str = choice("auto", "xla", "cudnn", "flash")

    def num_tokens(self, example_shape: tuple[int, ...]) -> int:
        """Return T, how many tokens an example of this shape makes."""
        return example_shape[0]


def apply_blocks(network: Any, x_BxTxD: jax.Array, **options: Any) -> jax.Array:
    """Apply a network's blocks, each with these options, and the last norm, inside of its call."""
    config = network.config
    for index in range(1, config.depth + 1):
        x_BxTxD = network.block(
            heads=config.heads,
            mlp_width=config.mlp_ratio * config.width,
            attention=network.attention,
            name=f"block{index}",
            **network.types,
            **options,
        )(x_BxTxD)
    return nn.LayerNorm(name="norm", **network.types)(x_BxTxD)


def gelu(x: jax.Array) -> jax.Array:
    """Apply GELU in its tanh form, as GPT-2 does; to fp16 values in float32.

    In fp16 its cube overflows from 41 on, and its gradient is nan from about 150 on.
    """
    if x.dtype == jnp.float16:
        return nn.gelu(x.astype(jnp.float32)).astype(x.dtype)
    return nn.gelu(x)


def block_options(
    config: Config, attention: str | None = "xla", compute_capability: float | None = None
) -> dict[str, Any]:
    """Return what only a network of transformer blocks is created with; nothing for others.

    Args:
      config: of the experiment.
      attention: of `possible_attention`.
      compute_capability: of NVIDIA GPUs; None for other devices.
    """
    if not config.model.has_blocks:
        return {}
    block: Any = config.model.block  # type: ignore[attr-defined]
    if config.remat == "blocks":
        # It keeps only the input, and computes the rest of each block again, one after the other.
        block = nn.remat(block)
    elif config.remat == "none" and config.parallelism == "fsdp":
        # It keeps what `remat=save_dots` keeps: no parameter.
        block = nn.remat(block, policy=keep_products_and_sums)
    if config.precision == "fp8":
        block = functools.partial(block, product=fp8_dot_general)
    if attention == "xla":
        attention = plain_attention(compute_capability)
    return {"block": block, "attention": attention}


def plain_attention(compute_capability: float | None) -> str:
    """Return what `attend` calls the attention that XLA compiles on such devices."""
    return "einsum" if compute_capability and compute_capability < _AMPERE else "xla"


def possible_attention(
    config: Config, compute_capability: float | None, dtype: DType, tpu: str | None = None
) -> tuple[tuple[str | None, ...], str | None]:
    """Return the attention that a network may have on these devices, and why it has no choice.

    The first one is preferred: it is taken where nothing is timed. It is None for a network without
    blocks. The reason is None unless the devices have a fused attention that cannot do this one.

    Args:
      config: of the experiment.
      compute_capability: of NVIDIA GPUs; None for other devices.
      dtype: what the network computes in.
      tpu: JAX's name of a TPU, such as TPU v4; None for other devices.

    Raises:
      BadInput: `model.attention` is cudnn or flash, and the devices cannot do it.
    """
    if not config.model.has_blocks:
        return (None,), None
    model: Any = config.model
    asked = model.attention
    if asked == FUSED_ATTENTION:  # asked for by a trace only
        return (asked,), None

    def refusal(name: str) -> str | None:
        head_width, tokens = model.width // model.heads, model.num_tokens(config.data.example_shape)
        return refuse_fused(name, compute_capability, tpu, dtype, head_width, tokens)

    if asked in ("cudnn", "flash"):
        if why := refusal(asked):
            raise BadInput(f"model.attention={asked!r}: it is for {why}")
        return (asked,), None
    other = "flash" if tpu else "cudnn"
    if why := refusal(other):
        return ("xla",), f"{other} is for {why}"
    if asked == "xla":
        return ("xla",), None
    return (("xla", "flash") if tpu else ("cudnn", "xla")), None


def refuse_fused(
    name: str,
    compute_capability: float | None,
    tpu: str | None,
    dtype: DType,
    head_width: int,
    tokens: int,
) -> str | None:
    """Return None if cudnn or flash can do this attention, else what it needs."""
    if name == "flash":
        if tpu is None or tpu in _NOT_FOR_FLASH:
            return "TPUs from v4 on"
        if dtype not in (jnp.bfloat16, jnp.float32):
            return "precision=bf16 or fp32"
        if tokens % _FLASH_TOKENS:
            return f"a multiple of {_FLASH_TOKENS} tokens, not {tokens}"
        return None
    if (compute_capability or 0) < _AMPERE:
        return f"NVIDIA GPUs of compute capability {_AMPERE} (Ampere) or more"
    if jnp.dtype(dtype).itemsize != 2:
        return "precision=bf16 or fp16"
    if head_width % 8 or head_width > _CUDNN_HEAD_WIDTH:
        return f"heads with a multiple of 8 up to {_CUDNN_HEAD_WIDTH} as width, not {head_width}"
    # JAX's bound on the gradient.
    return f"an even number of tokens, not {tokens}" if tokens % 2 else None


def attend(
    query_BxTxNxF: jax.Array,
    key_BxTxGxF: jax.Array,
    value_BxTxGxF: jax.Array,
    causal: bool,
    attention: str,
) -> jax.Array:
    """Return softmax(query key^T / sqrt(F)) value, BxTxNxF, of each head.

    G divides N: the first N / G heads of queries share the first head of keys and values.

    Args:
      attention: xla or cudnn, as JAX names them, einsum for xla on GPUs that multiply no bf16,
        flash on TPUs, or fused_attention for cudnn and flash in a trace without such devices.
    """
    if attention == FUSED_ATTENTION:
        return fused_attention(query_BxTxNxF, key_BxTxGxF, value_BxTxGxF, causal)
    arrays, dtype = (query_BxTxNxF, key_BxTxGxF, value_BxTxGxF), query_BxTxNxF.dtype
    if attention == "cudnn" or (attention == "xla" and dtype not in (jnp.float16, jnp.float64)):
        return jax.nn.dot_product_attention(
            *arrays, is_causal=causal, implementation="cudnn" if attention == "cudnn" else "xla"
        )
    shared = query_BxTxNxF.shape[2] // key_BxTxGxF.shape[2]
    key_BxTxNxF, value_BxTxNxF = (jnp.repeat(x, shared, axis=2) for x in arrays[1:])
    if attention == "flash":
        return _flash(query_BxTxNxF, key_BxTxNxF, value_BxTxNxF, causal)
    # JAX's function asks for products by names that devices refuse (F16_F16_F32 CPUs and TPUs,
    # BF16_BF16_F32 GPUs before Ampere), and takes the softmax of fp64 in float32. Those GPUs
    # multiply bf16 as float32, and XLA does not round the scores.
    query_BxTxNxF = query_BxTxNxF / query_BxTxNxF.shape[-1] ** 0.5
    scores_BxNxTxT = jnp.einsum("btnf,bsnf->bnts", query_BxTxNxF, key_BxTxNxF)
    scores_BxNxTxT = scores_BxNxTxT.astype(jnp.promote_types(dtype, jnp.float32))
    if causal:
        earlier_TxT = jnp.tri(query_BxTxNxF.shape[1], dtype=bool)
        scores_BxNxTxT = jnp.where(earlier_TxT, scores_BxNxTxT, -jnp.inf)
    weights_BxNxTxT = jax.nn.softmax(scores_BxNxTxT).astype(dtype)
    return jnp.einsum("bnts,bsnf->btnf", weights_BxNxTxT, value_BxTxNxF)


def _flash(
    query_BxTxNxF: jax.Array, key_BxTxNxF: jax.Array, value_BxTxNxF: jax.Array, causal: bool
) -> jax.Array:
    # Only TPUs need these imports.
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

    tokens, width = query_BxTxNxF.shape[1], query_BxTxNxF.shape[3]
    # Larger blocks read keys and values less often; of fp32, 1024 exceed 16 MiB of VMEM.
    block = next(size for size in (512, 256, _FLASH_TOKENS) if tokens % size == 0)
    sizes = {field.name: block for field in dataclasses.fields(BlockSizes)} | {"block_b": 1}
    arrays_BxNxTxF = (x.swapaxes(1, 2) for x in (query_BxTxNxF, key_BxTxNxF, value_BxTxNxF))
    y_BxNxTxF = flash_attention(
        *arrays_BxNxTxF, causal=causal, sm_scale=width**-0.5, block_sizes=BlockSizes(**sizes)
    )
    return y_BxNxTxF.swapaxes(1, 2)


@functools.partial(jax.jit, static_argnums=3)
def fused_attention(
    query_BxTxNxF: jax.Array, key_BxTxGxF: jax.Array, value_BxTxGxF: jax.Array, causal: bool
) -> jax.Array:
    """Return what fused kernels return; `predict/tracing.py` knows it by its name."""
    return attend(query_BxTxNxF, key_BxTxGxF, value_BxTxGxF, causal, "xla")


def rotate(x_BxTxNxF: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotate each head's vectors by angles that grow with their positions (Su et al. 2021, RoPE).

    The first and second half of F are the two coordinates of F / 2 planes; the angle of plane i at
    position t is t / base^(2i / F). Products of queries and keys then depend only on distances.
    Computed in at least float32. F is even.
    """
    tokens, half = x_BxTxNxF.shape[1], x_BxTxNxF.shape[-1] // 2
    dtype = jnp.promote_types(x_BxTxNxF.dtype, jnp.float32)
    speeds = base ** -(jnp.arange(half, dtype=dtype) / half)
    angles_TxF = jnp.arange(tokens, dtype=dtype)[:, None] * speeds
    cos, sin = jnp.cos(angles_TxF)[:, None], jnp.sin(angles_TxF)[:, None]
    first, second = jnp.split(x_BxTxNxF.astype(dtype), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x_BxTxNxF.dtype)
