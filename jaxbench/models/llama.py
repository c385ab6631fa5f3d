"""A decoder language model with the shapes of Llama (Touvron et al. 2023), and adapters for it.

Pre-norm blocks with RMSNorm, rotary positions, attention in which several heads of queries share
one head of keys and values (Ainslie et al. 2023), and an MLP whose hidden layer is gated by SiLU
(Shazeer 2020). No biases. The logits have weights of their own. The vocabulary is
`data.num_classes`.

    TinyLlama 1.1B  width 2048, 22 blocks of 32 heads, 4 of keys and values, MLP 5632:
                    1,100,048,384 parameters with its vocabulary of 32,000
    Llama 3 8B      width 4096, 32 blocks of 32 heads, 8 of keys and values, MLP 14336:
                    8,030,261,248 parameters with its vocabulary of 128,256

One sequence takes these multiply-accumulates, with T tokens, width D, L blocks, G heads of keys
and values for N of queries, MLP width M and a vocabulary of K:

    T (L (2 D D (1 + G / N) + 3 D M) + D K) + 2 L T T D

With `lora_rank` R each projection of a block computes x W + (alpha / R) (x A) B, and only A and B
are trained (Hu et al. 2021). x A has R values for a token, and B begins at 0.

Letters: as in transformer_block.py; M the MLP's width, O the outputs of a projection, R the rank.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from jaxbench.aliases import DType
from jaxbench.config.fields import number
from jaxbench.errors import BadInput
from jaxbench.models.gpt import INIT_STD, token_logits
from jaxbench.models.layers import Network
from jaxbench.models.transformer_block import TransformerConfig, attend, rotate

_EPSILON = 1e-5  # of the norms
_PROJECTIONS = ("query", "key", "value", "out", "gate", "up", "down")


class LlamaBlock(nn.Module):
    """Tokens in, tokens out, of the same shape and in `dtype`.

    Attributes:
      config: of the network.
      dtype: what it computes in; norms, rotations and the softmax compute in at least float32.
      param_dtype: what trained parameters are stored in; see `LlamaConfig.stored`.
      attention: see `attend`.
      product: of projections with their kernels, as `jax.lax.dot_general`.
    """

    config: "LlamaConfig"
    dtype: DType
    param_dtype: DType
    attention: str = "xla"
    product: Callable[..., jax.Array] = jax.lax.dot_general

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        config, width = self.config, x_BxTxD.shape[-1]
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        stored = config.stored(self.dtype, self.param_dtype)
        norm = functools.partial(nn.RMSNorm, _EPSILON, dtype=self.dtype, param_dtype=stored)

        def project(name, x_Bx, features):
            return Projection(config, features, product=self.product, name=name, **types)(x_Bx)

        def heads(name, count):
            return project(name, y_BxTxD, count * head_width).reshape(
                *x_BxTxD.shape[:2], count, head_width
            )

        head_width = width // config.heads
        y_BxTxD = norm(name="norm1")(x_BxTxD)
        query_BxTxNxF, key_BxTxGxF = (
            rotate(heads(name, count), config.rope_base)
            for name, count in (("query", config.heads), ("key", config.kv_heads))
        )
        value_BxTxGxF = heads("value", config.kv_heads)
        y_BxTxNxF = attend(query_BxTxNxF, key_BxTxGxF, value_BxTxGxF, config.causal, self.attention)
        x_BxTxD = x_BxTxD + project("out", y_BxTxNxF.reshape(x_BxTxD.shape), width)
        y_BxTxD = norm(name="norm2")(x_BxTxD)
        gate_BxTxM, up_BxTxM = (project(n, y_BxTxD, config.mlp_width) for n in ("gate", "up"))
        return x_BxTxD + project("down", nn.silu(gate_BxTxM) * up_BxTxM, width)


class Projection(nn.Module):
    """A `product` with a kernel_DxO and, with a `lora_rank`, those of an adapter, in `dtype`."""

    config: "LlamaConfig"
    features: int
    dtype: DType
    param_dtype: DType
    product: Callable[..., jax.Array]

    @nn.compact
    def __call__(self, x_BxTxD):
        config = self.config

        def apply(product, x_Bx, name, init, features, stored):
            kernel = self.param(name, init, (x_Bx.shape[-1], features), stored)
            return product(x_Bx, kernel.astype(self.dtype), (((x_Bx.ndim - 1,), (0,)), ((), ())))

        init, stored = nn.initializers.normal(INIT_STD), config.stored(self.dtype, self.param_dtype)
        y_BxTxO = apply(self.product, x_BxTxD, "kernel", init, self.features, stored)
        if not config.has_adapters:
            return y_BxTxO
        dense = functools.partial(apply, jax.lax.dot_general, stored=self.param_dtype)
        # PyTorch's draw of a dense layer, which peft takes too.
        uniform = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        low_BxTxR = dense(x_BxTxD, "lora_a", uniform, config.lora_rank)
        added_BxTxO = dense(low_BxTxR, "lora_b", nn.initializers.zeros, self.features)
        return y_BxTxO + added_BxTxO * (config.lora_alpha / config.lora_rank)


@dataclasses.dataclass(kw_only=True)
class LlamaConfig(TransformerConfig):
    """TinyLlama 1.1B.

    Attributes:
      width: Width of the tokens, a multiple of twice `model.heads`.
      depth: Number of transformer blocks.
      heads: Attention heads of queries, which divide `model.width`.
      kv_heads: Heads of keys and values, which divide `model.heads`.
      mlp_width: Width of the hidden layer of each block's MLP.
      rope_base: Base of the rotations' speeds: 10,000, and 500,000 for Llama 3.
      max_tokens: The longest sequence that the network has positions for.
      lora_rank: Rank of the adapters of each block's projections, which are then all that is
        trained; 0 trains the whole network.
      lora_alpha: Factor of the adapters' outputs, divided by `model.lora_rank`.
    """

    block: typing.ClassVar[Any] = LlamaBlock
    causal = True

    width: int = number(2048, low=2)
    depth: int = number(22, low=1)
    heads: int = number(32, low=1)
    kv_heads: int = number(4, low=1)
    mlp_width: int = number(5632, low=1)
    rope_base: float = number(10_000.0, low=1)
    max_tokens: int = number(2048, low=1)
    lora_rank: int = number(0)
    lora_alpha: float = number(16.0, only_with={"has_adapters": [True]})

    @property
    def has_adapters(self) -> bool:
        return self.lora_rank > 0

    def validate(self) -> None:
        multiple = 2 * self.heads
        if self.width % multiple:
            raise BadInput(
                f"model.width={self.width}: no multiple of {multiple}, twice the "
                f"model.heads={self.heads}, for rotary positions"
            )
        if self.heads % self.kv_heads:
            raise BadInput(f"model.kv_heads={self.kv_heads}: must divide model.heads={self.heads}")
        if self.lora_rank > self.width:
            raise BadInput(
                f"model.lora_rank={self.lora_rank}: must be at most model.width={self.width}"
            )
        if self.has_adapters and self.lora_alpha <= 0:
            raise BadInput(
                f"model.lora_alpha={self.lora_alpha}: must be more than 0, or adapters do nothing"
            )

    def create(self, **options):
        return Llama(config=self, **options)

    def trainable_epochs(self):
        if not self.has_adapters:
            return {}
        block = [f"{name}/kernel" for name in _PROJECTIONS] + ["norm1/scale", "norm2/scale"]
        paths = [f"block{i}/{path}" for i in range(1, self.depth + 1) for path in block]
        return dict.fromkeys([*paths, "tokens/embedding", "norm/scale", "head/embedding"], 0.0)

    def stored(self, dtype: DType, param_dtype: DType) -> DType:
        """Return the type in which parameters other than adapters are stored.

        Beside adapters they are not trained, so that the type for computing is enough.
        """
        return dtype if self.has_adapters else param_dtype


class Llama(Network):
    """Tokens_BxT in, logits_BxTxK in `param_dtype` out."""

    config: LlamaConfig
    num_classes: int
    attention: str = "xla"
    block: type[nn.Module] = LlamaBlock

    @nn.compact
    def __call__(self, tokens_BxT):
        config, tokens = self.config, tokens_BxT.shape[1]
        if tokens > config.max_tokens:
            raise BadInput(
                f"data.sequence_length={tokens}: the network has positions for "
                f"model.max_tokens={config.max_tokens}"
            )
        stored = config.stored(self.dtype, self.param_dtype)
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": stored}
        init = nn.initializers.normal(INIT_STD)
        embed = functools.partial(
            nn.Embed, self.num_classes, config.width, embedding_init=init, **types
        )
        x_BxTxD = embed(name="tokens")(tokens_BxT)
        for index in range(1, config.depth + 1):
            x_BxTxD = self.block(
                config, attention=self.attention, name=f"block{index}", **self.types
            )(x_BxTxD)
        x_BxTxD = nn.RMSNorm(_EPSILON, name="norm", **types)(x_BxTxD)
        return token_logits(x_BxTxD, embed(name="head"), self.param_dtype)
