"""Diffusion transformers (Peebles and Xie 2022), which predict the noise in an image's latents.

Patches of the latents become tokens, fixed positions are added, and the sum of the vectors of the
noise level and of the class modulates each block (adaLN-zero): it scales and shifts what the block
normalises, and gates what it adds. Every block begins as the identity, and the network with 0.

    XL/2  width 1152, 28 blocks of 16 heads, patches of 2x2: 674,816,272 parameters for latents of
          32x32x4 and 1000 classes. The published 675,129,632 are those, 294,912 fixed positions and
          18,448 of outputs that predict a variance.
    S/2   width 384, 12 blocks of 6 heads: 32,858,896

One example takes these multiply-accumulates, with T tokens, width D, L blocks, patches of
P x P x C and MLP ratio R:

    2 T P P C D + L ((4 + 2 R) T D D + 2 T T D + 6 D D) + 3 D D + 256 D

XL/2 for 32x32x4: 118.6 GMAC, as published.

In training an example's latents are mixed with Gaussian noise at a level that is drawn evenly (Ho
et al. 2020), and its class is replaced by "none" at times. jaxbench neither samples from the
network, nor averages its parameters for that, nor encodes images.

Letters: as in transformer_block.py; S levels of noise.
"""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.aliases import DType
from jaxbench.config.fields import choice, fraction, number
from jaxbench.errors import BadInput
from jaxbench.models.layers import Network
from jaxbench.models.transformer_block import TransformerConfig, attend, gelu
from jaxbench.models.vit import sincos_positions

# Sines and cosines of a noise level.
_FREQUENCIES = 256
_INIT = nn.initializers.normal(0.02)


class DitBlock(nn.Module):
    """Tokens and conditions in, tokens out, of the same shape and in `dtype`.

    Attributes:
      heads: N, which divides the width.
      mlp_width: of the MLP's hidden layer.
      dtype: what it computes in; norms and the softmax compute in at least float32.
      param_dtype: what parameters are stored in.
      attention: see `attend`.
      product: of the layers of tokens, as `jax.lax.dot_general`.
    """

    heads: int
    mlp_width: int
    dtype: DType
    param_dtype: DType
    attention: str = "xla"
    product: Callable[..., jax.Array] = jax.lax.dot_general

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array, conditions_BxD: jax.Array) -> jax.Array:
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        width = x_BxTxD.shape[-1]

        def dense(name, x, features):
            init = nn.initializers.xavier_uniform()
            options = {"kernel_init": init, "dot_general": self.product, **types}
            return nn.Dense(features, name=name, **options)(x)

        shift1, scale1, gate1, shift2, scale2, gate2 = modulations(conditions_BxD, 6, **types)
        y_BxTxD = modulate(x_BxTxD, shift1, scale1, **types)
        query, key, value = (
            dense(name, y_BxTxD, width).reshape(*y_BxTxD.shape[:2], self.heads, -1)
            for name in ("query", "key", "value")
        )
        y_BxTxD = attend(query, key, value, False, self.attention).reshape(x_BxTxD.shape)
        x_BxTxD = x_BxTxD + gate1 * dense("out", y_BxTxD, width)
        y_BxTxD = modulate(x_BxTxD, shift2, scale2, **types)
        y_BxTxM = gelu(dense("mlp1", y_BxTxD, self.mlp_width))
        return x_BxTxD + gate2 * dense("mlp2", y_BxTxM, width)


def modulations(conditions_BxD: jax.Array, count: int, **types: Any) -> list[jax.Array]:
    """Return `count` arrays_Bx1xD, 0 in a new network, for use inside a compact module."""
    zeros, width = nn.initializers.zeros, conditions_BxD.shape[-1]
    dense = nn.Dense(count * width, name="modulation", kernel_init=zeros, **types)
    return jnp.split(dense(nn.silu(conditions_BxD))[:, None], count, axis=-1)


def modulate(x_BxTxD: jax.Array, shift_Bx1xD: Any, scale_Bx1xD: Any, **types: Any) -> jax.Array:
    """Return the normalised tokens, scaled and shifted, for use inside a compact module."""
    y_BxTxD = nn.LayerNorm(use_bias=False, use_scale=False, **types)(x_BxTxD)
    return y_BxTxD * (1 + scale_Bx1xD) + shift_Bx1xD


@dataclasses.dataclass(kw_only=True)
class DitConfig(TransformerConfig):
    """DiT-XL/2; DiT-S/2 is `width=384, depth=12, heads=6`.

    Attributes:
      patch: Side of the square patches of latents, in pixels, that become a token each.
      width: Width of the tokens: 384 (S), 768 (B), 1024 (L), 1152 (XL), a multiple of 4 and of the
        heads.
      depth: Number of transformer blocks.
      heads: Attention heads.
      mlp_ratio: Width of the hidden layer of each block's MLP, in widths of the tokens.
      latent_channels: Channels of the latents, the last of `data.image_shape`.
      noise_levels: Levels of noise, from nearly none to nearly all.
      noise_schedule: How the noise grows with its level. linear: as Ho et al. 2020. cosine: as
        Nichol and Dhariwal 2021.
      class_dropout: Fraction of the training examples whose class is replaced by "none", for
        guidance without a classifier.
    """

    block: typing.ClassVar[type[nn.Module]] = DitBlock

    patch: int = number(2, low=1)
    width: int = number(1152, low=8)
    depth: int = number(28, low=1)
    heads: int = number(16, low=1)
    mlp_ratio: int = number(4, low=1)
    latent_channels: int = number(4, low=1)
    noise_levels: int = number(1000, low=2)
    noise_schedule: str = choice("linear", "cosine")
    class_dropout: float = fraction(0.1)

    def validate(self) -> None:
        if self.width % 4 or self.width % self.heads:
            raise BadInput(f"model.width={self.width}: no multiple of 4 and of {self.heads} heads")

    def num_tokens(self, example_shape: tuple[int, ...]) -> int:
        return math.prod(side // self.patch for side in example_shape[:2])

    def create(self, **options):
        return Dit(config=self, **options)

    def signal_shares(self) -> np.ndarray:
        """Return shares_S, what is left of the latents' variance at each level, in float64."""
        levels = self.noise_levels
        if self.noise_schedule == "linear":
            # Of 1000 levels from 0.0001 to 0.02, as published; fewer levels take larger steps.
            betas_S = np.linspace(0.1, 20, levels) / levels
        else:
            ends = np.cos((np.arange(levels + 1) / levels + 0.008) / 1.008 * np.pi / 2) ** 2
            betas_S = 1 - ends[1:] / ends[:-1]
        return np.cumprod(1 - np.minimum(betas_S, 0.999))


class Draws(typing.NamedTuple):
    """What training draws for each example, by its key alone."""

    levels_B: jax.Array  # int32, 0 to S-1
    noise_BxHxWxC: jax.Array  # float32
    dropped_B: jax.Array  # whether its class is replaced


def draw(keys_B: jax.Array, shape: tuple[int, ...], config: DitConfig) -> Draws:
    """Draw a level, noise of this shape, and whether the class is dropped, for each example."""

    def one(key):
        # Types by name: under fp64 the defaults would draw other bits.
        keys = jax.random.split(key, 3)
        level = jax.random.randint(keys[0], (), 0, config.noise_levels, jnp.int32)
        noise = jax.random.normal(keys[1], shape, jnp.float32)
        return Draws(level, noise, jax.random.bernoulli(keys[2], jnp.float32(config.class_dropout)))

    return jax.vmap(one)(keys_B)


class Dit(Network):
    """Latents in, the error of the predicted noise out, both BxHxWxC; see `predict_noise`.

    The output is in `param_dtype`. In an evaluation no class is dropped.
    """

    config: DitConfig
    num_classes: int
    attention: str = "xla"
    block: type[nn.Module] = DitBlock

    def __call__(self, latents_BxHxWxC, train: bool, keys_B, labels_B):
        config, dtype = self.config, self.param_dtype
        *sides, channels = latents_BxHxWxC.shape[1:]
        if channels != config.latent_channels:
            raise BadInput(
                f"data.image_shape={latents_BxHxWxC.shape[1:]}: Dit is for latents of "
                f"{config.latent_channels} channels, of an image's 8x8 pixels each; for images "
                f"themselves set model.latent_channels={channels}"
            )
        if any(side % config.patch for side in sides):
            raise BadInput(f"model.patch={config.patch}: must divide {sides[0]} and {sides[1]}")
        draws = draw(keys_B, latents_BxHxWxC.shape[1:], config)
        noise_BxHxWxC = draws.noise_BxHxWxC.astype(dtype)
        share_B = jnp.asarray(config.signal_shares(), dtype)[draws.levels_B]
        share_Bx1x1x1 = share_B[:, None, None, None]
        noisy_BxHxWxC = (
            jnp.sqrt(share_Bx1x1x1) * latents_BxHxWxC.astype(dtype)
            + jnp.sqrt(1 - share_Bx1x1x1) * noise_BxHxWxC
        )
        # The last row of the table of classes is that of none.
        classes_B = jnp.where(draws.dropped_B & train, self.num_classes, labels_B)
        predicted = self.predict_noise(noisy_BxHxWxC.astype(self.dtype), draws.levels_B, classes_B)
        return predicted - noise_BxHxWxC

    @nn.compact
    def predict_noise(self, noisy_BxHxWxC, levels_B, classes_B):
        """Return the noise_BxHxWxC in noisy latents, in `param_dtype`.

        Args:
          levels_B: int32, how noisy they are.
          classes_B: int32, their classes; `num_classes` for none.
        """
        config, types = self.config, self.types
        batch, *_, channels = noisy_BxHxWxC.shape
        dense = {"kernel_init": _INIT, **types}
        y_BxD = nn.Dense(config.width, name="level1", **dense)(self._waves(levels_B))
        level_BxD = nn.Dense(config.width, name="level2", **dense)(nn.silu(y_BxD))
        classes = nn.Embed(
            self.num_classes + 1, config.width, name="classes", embedding_init=_INIT, **types
        )
        conditions_BxD = level_BxD + classes(classes_B)

        patch = (config.patch, config.patch)
        x = nn.Conv(config.width, patch, patch, "VALID", name="patches", **types)(noisy_BxHxWxC)
        rows, columns = x.shape[1:3]
        positions_TxD = sincos_positions(
            rows, columns, config.width, self.param_dtype, wavelengths=config.width // 4
        )
        x_BxTxD = x.reshape(batch, -1, config.width) + positions_TxD.astype(self.dtype)
        for index in range(1, config.depth + 1):
            x_BxTxD = self.block(
                config.heads,
                config.mlp_ratio * config.width,
                attention=self.attention,
                name=f"block{index}",
                **types,
            )(x_BxTxD, conditions_BxD)
        x_BxTxD = modulate(x_BxTxD, *modulations(conditions_BxD, 2, **types), **types)
        # The last layer is in `param_dtype`, as `layers.classify` says; it starts at 0.
        types = types | {"dtype": self.param_dtype, "kernel_init": nn.initializers.zeros}
        pixels = nn.Dense(math.prod(patch) * channels, name="head", **types)(x_BxTxD)
        pixels = pixels.reshape(batch, rows, columns, *patch, channels)
        return pixels.transpose(0, 1, 3, 2, 4, 5).reshape(noisy_BxHxWxC.shape)

    def _waves(self, levels_B: jax.Array) -> jax.Array:
        """Return waves_BxF of the noise levels: cosines, then sines, at falling speeds."""
        half = _FREQUENCIES // 2
        dtype = jnp.promote_types(self.dtype, jnp.float32)
        speeds = 10_000.0 ** -(jnp.arange(half, dtype=dtype) / half)
        angles_BxF = levels_B[:, None].astype(dtype) * speeds
        return jnp.concatenate([jnp.cos(angles_BxF), jnp.sin(angles_BxF)], axis=1)
