"""A decoder language model with the shapes of GPT-2 (Radford et al. 2019).

Learned or rotary positions, causal pre-norm blocks, a last norm, and logits by the embedding of the
tokens (tied). The vocabulary is `data.num_classes`, the longest sequence `data.sequence_length`.
Norms have flax's epsilon, 1e-6.

    GPT-2 small  width 768, 12 blocks of 12 heads, 1024 learned positions:
                 124,439,808 parameters with its vocabulary of 50,257, 86,039,040 with bytes
    default      width 512, 6 blocks of 8 heads, as NanoDO (Liu et al. 2024) has them

One sequence takes these multiply-accumulates, with T tokens, width D, L blocks and K tokens to
choose from:

    T (12 L D D + D K) + 2 L T T D

2 L T T D are attention's two products, queries with keys and weights with values. They count whole,
though half of them is masked, as PaLM counts them (Chowdhery et al. 2022, appendix B). A training
step takes 6 operations for each: its "6 N + 12 L D T" for a token, where N are the parameters of
all products.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType
from jaxbench.config.fields import choice, number
from jaxbench.errors import BadInput
from jaxbench.models.layers import Network
from jaxbench.models.transformer_block import TransformerBlock, TransformerConfig, apply_blocks

# The standard deviation of initial kernels and embeddings, in GPT-2 and in Llama.
INIT_STD = 0.02


@dataclasses.dataclass(kw_only=True)
class GptConfig(TransformerConfig):
    """NanoDO's default; GPT-2 small is `width=768, depth=12, heads=12`.

    Attributes:
      width: Width of the tokens, a multiple of `model.heads`.
      depth: Number of transformer blocks.
      heads: Attention heads, which divide `model.width`.
      mlp_ratio: Width of the hidden layer of each block's MLP, in widths of the tokens.
      positions: How the network knows the order of the tokens. learned: a vector for each position,
        added to its token. rotary: queries and keys are rotated by their positions (RoPE).
    """

    causal = True

    width: int = number(512, low=2)
    depth: int = number(6, low=1)
    heads: int = number(8, low=1)
    mlp_ratio: int = number(4, low=1)
    positions: str = choice("learned", "rotary")

    def validate(self) -> None:
        multiple = self.heads * (2 if self.positions == "rotary" else 1)
        if self.width % multiple:
            raise BadInput(
                f"model.width={self.width}: no multiple of {multiple} ({self.positions} positions)"
            )

    def create(self, **options):
        return Gpt(config=self, **options)


class Gpt(Network):
    """Tokens_BxT in, logits_BxTxK in `param_dtype` out."""

    config: GptConfig
    num_classes: int
    attention: str = "xla"
    block: type[nn.Module] = TransformerBlock

    @nn.compact
    def __call__(self, tokens_BxT):
        config, types = self.config, self.types
        init = nn.initializers.normal(INIT_STD)
        embed = nn.Embed(
            self.num_classes, config.width, name="tokens", embedding_init=init, **types
        )
        x_BxTxD = embed(tokens_BxT)
        if config.positions == "learned":
            positions_T = jnp.arange(tokens_BxT.shape[1])
            x_BxTxD += nn.Embed(
                len(positions_T), config.width, name="positions", embedding_init=init, **types
            )(positions_T)
        x_BxTxD = apply_blocks(
            self,
            x_BxTxD,
            causal=config.causal,
            rotary=config.positions == "rotary",
            kernel_init=init,
            # Each block adds twice; the sum's variance then does not grow with the depth.
            residual_init=nn.initializers.normal(INIT_STD / (2 * config.depth) ** 0.5),
        )
        return token_logits(x_BxTxD, embed, self.param_dtype)


def token_logits(x_BxTxD: jax.Array, embed: nn.Embed, param_dtype: DType) -> jax.Array:
    """Return logits_BxTxK in `param_dtype`, by a vector for each of the K tokens."""
    whole_KxD = embed.embedding.astype(x_BxTxD.dtype)
    stored = embed.get_variable("params", "embedding")
    part = stored if isinstance(stored, nn.meta.AxisMetadata) else None
    return products_with_tokens(x_BxTxD, whole_KxD, part).astype(param_dtype)


@jax.custom_vjp
def products_with_tokens(
    x_BxTxD: jax.Array, embedding_KxD: jax.Array, part: Any = None
) -> jax.Array:
    """Return logits_BxTxK in at least float32, from operands that may be narrower.

    The backward products are as narrow: JAX's would multiply the gradient in float32, which takes
    GPUs and TPUs several times as long. Of a device's `part` of the embedding, in a box, it keeps
    only that, and gathers the embedding again.
    """
    dtype = jnp.promote_types(x_BxTxD.dtype, jnp.float32)
    return jnp.einsum("btd,kd->btk", x_BxTxD, embedding_KxD, preferred_element_type=dtype)


def _products_forward(x_BxTxD, embedding_KxD, part=None):
    residuals = x_BxTxD, embedding_KxD if part is None else part
    return products_with_tokens(x_BxTxD, embedding_KxD, part), residuals


def _products_backward(residuals, dlogits_BxTxK):
    x_BxTxD, embedding_KxD = residuals
    dlogits_BxTxK = dlogits_BxTxK.astype(x_BxTxD.dtype)
    if isinstance(embedding_KxD, nn.meta.AxisMetadata):
        # Without the barrier XLA would keep what the forward pass has gathered.
        part, dlogits_BxTxK = jax.lax.optimization_barrier((embedding_KxD, dlogits_BxTxK))
        embedding_KxD = part.unbox().astype(x_BxTxD.dtype)
    return (
        jnp.einsum("btk,kd->btd", dlogits_BxTxK, embedding_KxD),
        jnp.einsum("btk,btd->kd", dlogits_BxTxK, x_BxTxD),
        None,
    )


products_with_tokens.defvjp(_products_forward, _products_backward)
