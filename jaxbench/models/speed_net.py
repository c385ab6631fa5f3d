"""The small network of the fastest published recipes for 94 % top-1 on CIFAR-10.

    whitening  2x2 convolution that decorrelates patches, GELU
    three groups: 3x3 convolution, 2x2 max-pool, batch norm, GELU, 3x3 convolution, batch norm, GELU
      (or SiLU)
    max-pool over what is left (3x3 of 32x32 images), dense without bias, scaled down

With 64, 256 and 256 channels 1,971,640 parameters. The design is that of K. Jordan, "94% on
CIFAR-10 in 3.29 Seconds on a Single GPU" (arXiv 2404.00498) and cifar10-airbench, which go back to
D. Page's "How to Train Your ResNet" and T. Balsam's hlb-CIFAR10.
"""

import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.aliases import DType
from jaxbench.config.fields import choice, number
from jaxbench.config.model import ModelConfig
from jaxbench.models.layers import Network, classify, max_pool

_SIDE = 2  # of a patch
# Added to the patches' variances, so that directions of little variance are not amplified much.
_EPSILON = 5e-4
# Of the logits, over the root of the number of features: 1/256 for 256 of them, as published. At
# other widths logits begin as large, and the same learning rate moves them as far.
_HEAD_SCALE = 1 / 16
# Images whose patches are in memory at once.
_CHUNK = 250
# As published; the form with tanh has no finite gradient in fp16 from 150 on.
_gelu = functools.partial(nn.gelu, approximate=False)
_ACTIVATIONS: dict[str, Any] = {"gelu": _gelu, "silu": nn.silu}


@dataclasses.dataclass(kw_only=True)
class SpeedNetConfig(ModelConfig):
    """Configuration of `SpeedNet`.

    Attributes:
      channels: Channels of the three groups.
      whitening_images: Training images from which the first convolution's kernel is computed, to
        whiten their patches; the kernel is then not trained. 0 draws the kernel and trains it.
      whitening_bias_epochs: Epochs in which the first convolution's bias is trained, at a rate that
        falls to 0.
      norm_momentum: Decay of batch norm's running averages in a step.
      activation: Activation of the three groups; the whitened patches always go through GELU.
    """

    channels: tuple[int, ...] = number((64, 256, 256), low=1)
    whitening_images: int = number(5000, low=0)
    whitening_bias_epochs: float = number(3.0, low=0)
    norm_momentum: float = number(0.6, low=0, high=1)
    activation: str = choice("gelu", "silu")

    def create(self, **options):
        return SpeedNet(config=self, **options)

    def num_init_images(self):
        return self.whitening_images

    def parameters_from_images(self, images_NxHxWxC):
        return {"whitening": {"kernel": whitening_kernel(images_NxHxWxC)}}

    def trainable_epochs(self):
        kernel = {"whitening/kernel": 0.0} if self.whitening_images else {}
        return kernel | {"whitening/bias": self.whitening_bias_epochs}


def whitening_kernel(images_NxHxWxC: np.ndarray) -> np.ndarray:
    """Return kernel_2x2xCxF, F = 8 C, whose outputs for patches of these images are uncorrelated.

    The eigenvectors of the patches' second moments, each divided by the root of its eigenvalue plus
    `_EPSILON`, then the same negated: the activation that follows keeps positive values.
    """
    channels = images_NxHxWxC.shape[-1]
    size = _SIDE * _SIDE * channels
    moments, count = np.zeros((size, size)), 0
    for start in range(0, len(images_NxHxWxC), _CHUNK):
        chunk = images_NxHxWxC[start : start + _CHUNK]
        patches = np.lib.stride_tricks.sliding_window_view(chunk, (_SIDE, _SIDE), axis=(1, 2))
        patches_PxS = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, size)
        moments += patches_PxS.T @ patches_PxS
        count += len(patches_PxS)
    variances_S, vectors_SxS = np.linalg.eigh(moments / count)
    half_SxS = vectors_SxS / np.sqrt(np.maximum(variances_S, 0) + _EPSILON)
    kernel_SxF = np.concatenate([half_SxS, -half_SxS], axis=1).astype(np.float32)
    return kernel_SxF.reshape(_SIDE, _SIDE, channels, 2 * size)


def identity_first(key: jax.Array, shape: tuple[int, ...], dtype: DType) -> jax.Array:
    """Draw kernel_3x3xIxO as PyTorch does, but with the identity for the first I outputs."""
    kernel = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)
    passed = min(shape[2:])
    identity = jnp.eye(shape[2], passed, dtype=dtype)
    return kernel.at[..., :passed].set(0).at[1, 1, :, :passed].set(identity)


class SpeedNet(Network):
    """Images in, logits out; arguments and result as in `WideResNet`."""

    config: SpeedNetConfig
    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, train: bool, keys_B=None):
        conv, norm = self.layers(train)
        norm = functools.partial(norm, momentum=self.config.norm_momentum, use_scale=False)
        outputs = 2 * _SIDE**2 * images_BxHxWxC.shape[-1]
        whitening = conv(outputs, (_SIDE, _SIDE), use_bias=True, padding="VALID", name="whitening")
        x = _gelu(whitening(images_BxHxWxC))
        conv = functools.partial(conv, kernel_size=(3, 3), kernel_init=identity_first)
        activation = _ACTIVATIONS[self.config.activation]
        for group, channels in enumerate(self.config.channels, 1):
            x = max_pool(conv(channels, name=f"conv{group}_1")(x), window=2, stride=2)
            x = activation(norm(name=f"norm{group}_1")(x))
            x = conv(channels, name=f"conv{group}_2")(x)
            x = activation(norm(name=f"norm{group}_2")(x))
        features_BxF = jnp.max(x, axis=(1, 2))
        options = {"use_bias": False, "kernel_init": nn.initializers.normal(1.0)}
        logits_BxK = classify(features_BxF, self.num_classes, self.param_dtype, **options)
        return logits_BxK * (_HEAD_SCALE / math.sqrt(features_BxF.shape[-1]))
