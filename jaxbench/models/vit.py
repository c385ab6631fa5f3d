"""Vision transformers (Dosovitskiy et al. 2021) in the plain form of Beyer, Zhai and Kolesnikov.

"Better plain ViT baselines for ImageNet-1k" (arXiv 2205.01580): patches of the image become tokens,
fixed sine and cosine positions of two dimensions are added to them, pre-norm blocks follow, and the
mean of the last tokens is classified; there is no class token.

    S/16  width 384, 12 blocks of 6 heads: 22,122,472 parameters at 224x224 and 1000 classes
    B/16  width 768, 12 blocks of 12 heads: 87,006,184

The often quoted 22,050,664 and 86,567,656 are those of networks with a class token and learned
positions and without the hidden layer before the logits.

One image takes these multiply-accumulates, with T tokens, width D, L blocks, MLP width M, patches
of P x P x C and K classes:

    T P P C D + L (4 T D D + 2 T D M + 2 T T D) + D D + D K

2 T T D are attention's two products, queries with keys and weights with values, as PaLM counts them
(Chowdhery et al. 2022, appendix B). S/16 at 224x224: 4.574 GMAC, B/16: 17.472.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbench.aliases import DType
from jaxbench.config.fields import number, plain
from jaxbench.errors import BadInput
from jaxbench.models.layers import Network, keep_products_and_sums
from jaxbench.models.transformer_block import TransformerBlock, TransformerConfig, apply_blocks


@dataclasses.dataclass(kw_only=True)
class ViTConfig(TransformerConfig):
    """ViT-S/16; ViT-B/16 is `width=768, heads=12`.

    Attributes:
      patch: Side of the square patches, in pixels, that become a token each.
      width: Width of the tokens: 192 (Ti), 384 (S), 768 (B), a multiple of 4 and of the heads.
      depth: Number of transformer blocks.
      heads: Attention heads: 3 (Ti), 6 (S), 12 (B).
      mlp_ratio: Width of the hidden layer of each block's MLP, in widths of the tokens.
      pre_logits: A hidden layer with tanh before the logits, as wide as the tokens.
    """

    patch: int = number(16, low=1)
    width: int = number(384, low=8)
    depth: int = number(12, low=1)
    heads: int = number(6, low=1)
    mlp_ratio: int = number(4, low=1)
    pre_logits: bool = plain(True)

    def validate(self) -> None:
        if self.width % math.lcm(4, self.heads):
            raise BadInput(f"model.width={self.width}: no multiple of 4 and of {self.heads} heads")

    def num_tokens(self, example_shape: tuple[int, ...]) -> int:
        return math.prod(side // self.patch for side in example_shape[:2])

    def create(self, **options):
        return ViT(config=self, **options)


class ViT(Network):
    """Images in, logits out; arguments and result as in `WideResNet`."""

    config: ViTConfig
    num_classes: int
    attention: str = "xla"
    block: type[nn.Module] = TransformerBlock

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        config, types = self.config, self.types
        batch, *sides, _ = images_BxHxWxC.shape
        if any(side % config.patch for side in sides):
            raise BadInput(f"model.patch={config.patch}: must divide {sides[0]} and {sides[1]}")
        patch = (config.patch, config.patch)
        x = nn.Conv(config.width, patch, patch, "VALID", name="patches", **types)(images_BxHxWxC)
        rows, columns = x.shape[1:3]
        positions_TxD = sincos_positions(
            rows, columns, config.width, self.param_dtype, wavelengths=config.width // 4 - 1
        )
        x_BxTxD = x.reshape(batch, -1, config.width) + positions_TxD.astype(self.dtype)
        x_BxTxD = apply_blocks(self, x_BxTxD)
        x_BxD = jnp.mean(x_BxTxD.astype(self.param_dtype), axis=1)
        # The rest is in `param_dtype`, as `layers.classify` says; the head starts at 0.
        types = self.types | {"dtype": self.param_dtype}
        dense = nn.Dense
        if self.block is not TransformerBlock:  # as under fsdp: these keep no parameter either
            dense = nn.remat(dense, policy=keep_products_and_sums)
        if config.pre_logits:
            x_BxD = jnp.tanh(dense(config.width, name="pre_logits", **types)(x_BxD))
        zeros = nn.initializers.zeros
        return dense(self.num_classes, name="head", kernel_init=zeros, **types)(x_BxD)


def sincos_positions(
    rows: int, columns: int, width: int, dtype: DType, *, wavelengths: int
) -> jax.Array:
    """Return positions_TxD of a grid of tokens, row by row: sines and cosines of both coordinates.

    The width has four equal parts: sine and cosine of the column, sine and cosine of the row.
    Wavelength i is 2 pi times 10,000^(i / wavelengths) tokens, for i from 0 to width / 4 - 1. MoCo
    v3 has `wavelengths` = width / 4 - 1 (Chen, Xie and He 2021), DiT width / 4.
    """
    speeds = 10_000.0 ** -(jnp.arange(width // 4, dtype=dtype) / wavelengths)
    row_T, column_T = (
        place.reshape(-1, 1)
        for place in jnp.meshgrid(
            jnp.arange(rows, dtype=dtype), jnp.arange(columns, dtype=dtype), indexing="ij"
        )
    )
    parts = [turn(place * speeds) for place in (column_T, row_T) for turn in (jnp.sin, jnp.cos)]
    return jnp.concatenate(parts, axis=1)
