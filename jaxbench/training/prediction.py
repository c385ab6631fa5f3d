"""The network's outputs for test images, and their means over views (test-time augmentation)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxbench.config import Config
from jaxbench.data.augment import evaluation_views


def predict_views(
    network: Callable[[jax.Array], jax.Array],
    images_BxHxWxC: jax.Array,
    mask_B: jax.Array,
    config: Config,
) -> tuple[jax.Array, jax.Array | None]:
    """Return outputs_Bx of the images as they are, and mean_Bx over their views.

    Images of which the network is sure keep their own outputs in the second, see
    `Config.test_time_augmentation_fraction`. It is None without test-time augmentation.

    Args:
      network: images_BxHxWxC -> outputs_Bx, for any B.
      mask_B: true for real images, false for padding.
    """
    translate = config.test_time_augmentation == "mirror_translate"
    fraction = config.test_time_augmentation_fraction
    if config.test_time_augmentation == "none":
        return network(images_BxHxWxC), None
    if fraction == 1:
        views_VxBxHxWxC, weights_V = evaluation_views(images_BxHxWxC, translate=translate)
        # All views at once: one network to compile rather than six.
        outputs_VxBx = _outputs(network, views_VxBxHxWxC)
        return outputs_VxBx[0], _mean(weights_V, outputs_VxBx)
    outputs_Bx = network(images_BxHxWxC)
    # Padding is sure of itself.
    confidence_B = jnp.where(mask_B, jnp.max(jax.nn.softmax(outputs_Bx), axis=-1), 2)
    _, unsure_U = jax.lax.top_k(-confidence_B, math.ceil(fraction * len(images_BxHxWxC)))
    views_VxUxHxWxC, weights_V = evaluation_views(images_BxHxWxC[unsure_U], translate=translate)
    single_Ux = outputs_Bx[unsure_U]
    others_VxUx = _outputs(network, views_VxUxHxWxC[1:])  # the first is the image itself
    mean_Ux = _mean(weights_V, jnp.concatenate([single_Ux[None], others_VxUx]))
    # Of a batch that is partly padding, fewer.
    is_counted_U = jnp.arange(len(unsure_U)) < jnp.ceil(fraction * jnp.sum(mask_B))
    mean_Ux = jnp.where(is_counted_U[:, None], mean_Ux, single_Ux)
    return outputs_Bx, outputs_Bx.at[unsure_U].set(mean_Ux)


def _outputs(network, views_VxBxHxWxC):
    outputs_Nx = network(views_VxBxHxWxC.reshape(-1, *views_VxBxHxWxC.shape[2:]))
    return outputs_Nx.reshape(*views_VxBxHxWxC.shape[:2], *outputs_Nx.shape[1:])


def _mean(weights_V, outputs_VxBx):
    return jnp.tensordot(weights_V.astype(outputs_VxBx.dtype), outputs_VxBx, axes=1)
