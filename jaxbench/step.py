"""What one device does in a training and in an evaluation step.

The functions made here run under `DataMesh.parallelize`: they see one device's B examples, meet
the others through collectives over `AXIS`, and return values that are equal on every device.
"""

from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbench.config import DataConfig
from jaxbench.data import augment
from jaxbench.data.resident import take
from jaxbench.devices import AXIS
from jaxbench.precision import Precision

# A step's metrics are one small array, so that one transfer fetches them: sums over the real
# examples of the global batch, divided on the host.
LOSS_SUM, CORRECT, COUNT = range(3)


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes; the same on every device."""

    step: jax.Array  # int32, steps done
    params: Any
    batch_stats: Any
    opt_state: Any


def create_train_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    image_shape: tuple[int, int, int],
    precision: Precision,
) -> TrainState:
    """Initialises parameters from the seed, on the default device."""

    def create(seed):
        images_1xHxWxC = jnp.zeros((1, *image_shape), precision.compute_dtype)
        variables = model.init(jax.random.key(seed), images_1xHxWxC, train=False)
        params = variables["params"]
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=variables.get("batch_stats", {}),
            opt_state=optimizer.init(params),
        )

    return jax.jit(create)(np.uint32(seed))


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    *,
    data: DataConfig,
    precision: Precision,
    sync_batch_norm: bool,
) -> Callable:
    """Builds train_step(state, train_data, order_SxB) -> (state, metrics_3).

    `train_data` and `order_SxB` are what `ResidentFeed` places on the devices.
    """

    def train_step(state: TrainState, train_data, order_SxB):
        steps_per_epoch = order_SxB.shape[0]
        with jax.named_scope("input"):
            batch = take(train_data, order_SxB, state.step)
            keys_B = augment.example_keys(
                train_data["seed"], state.step // steps_per_epoch, batch.indices_B
            )
            images_BxHxWxC = augment.crop_and_flip(
                keys_B,
                batch.images_BxHxWxC,
                padding=data.crop_padding,
                fill=data.crop_fill,
                flip=data.flip,
            )
            images_BxHxWxC = augment.normalize(
                images_BxHxWxC, train_data["mean"], train_data["std"], precision.compute_dtype
            )

        def loss_fn(params):
            logits_BxK, updated = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                images_BxHxWxC,
                train=True,
                mutable=["batch_stats"],
            )
            losses_B = cross_entropy(logits_BxK, batch.labels_B)
            return jnp.mean(losses_B), (losses_B, logits_BxK, updated["batch_stats"])

        with jax.named_scope("forward_backward"):
            (_, (losses_B, logits_BxK, batch_stats)), grads = jax.value_and_grad(
                loss_fn, has_aux=True
            )(state.params)
        with jax.named_scope("all_reduce"):
            # Every device has the same share of the batch, so the mean of means is the mean.
            grads = jax.lax.pmean(grads, AXIS)
            if not sync_batch_norm:
                # Each device has its own running averages here; replicas must not drift apart.
                batch_stats = jax.lax.pmean(batch_stats, AXIS)
            metrics_3 = sum_metrics(losses_B, logits_BxK, batch.labels_B, batch.mask_B)
        with jax.named_scope("update"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        state = TrainState(
            step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
        )
        return state, metrics_3

    return train_step


def make_eval_step(model: nn.Module, *, precision: Precision) -> Callable:
    """Builds eval_step(state, eval_data, order_1xB) -> metrics_3; padded rows count for nothing."""

    def eval_step(state: TrainState, eval_data, order_1xB):
        batch = take(eval_data, order_1xB, jnp.zeros((), jnp.int32))
        images_BxHxWxC = augment.normalize(
            batch.images_BxHxWxC, eval_data["mean"], eval_data["std"], precision.compute_dtype
        )
        logits_BxK = model.apply(
            {"params": state.params, "batch_stats": state.batch_stats},
            images_BxHxWxC,
            train=False,
        )
        losses_B = cross_entropy(logits_BxK, batch.labels_B)
        return sum_metrics(losses_B, logits_BxK, batch.labels_B, batch.mask_B)

    return eval_step


def cross_entropy(logits_BxK: jax.Array, labels_B: jax.Array) -> jax.Array:
    """Returns losses_B in the type of the logits."""
    return optax.softmax_cross_entropy_with_integer_labels(logits_BxK, labels_B)


def sum_metrics(losses_B, logits_BxK, labels_B, mask_B) -> jax.Array:
    """Returns metrics_3 (LOSS_SUM, CORRECT, COUNT) summed over all devices' unmasked rows."""
    # `where`, not a product: a padded row may hold nan or inf, and nan * 0 is nan.
    loss_sum = jnp.sum(jnp.where(mask_B, losses_B, 0))
    correct = jnp.sum(mask_B & (jnp.argmax(logits_BxK, axis=-1) == labels_B))
    metrics_3 = jnp.stack(
        [loss_sum, correct.astype(losses_B.dtype), jnp.sum(mask_B).astype(losses_B.dtype)]
    )
    return jax.lax.psum(metrics_3, AXIS)
