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

from jaxbench.config import Config
from jaxbench.data import augment
from jaxbench.data.resident import take
from jaxbench.devices import AXIS
from jaxbench.precision import Precision

# A step's metrics are one small array, so that one transfer fetches them: sums over the real
# examples of the global batch, divided on the host.
LOSS_SUM, CORRECT, CORRECT_TOP5, COUNT = range(4)
NUM_METRICS = 4


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
    config: Config,
    precision: Precision,
) -> Callable:
    """Builds train_step(state, train_data, order_SxB) -> (state, metrics_M).

    `train_data` and `order_SxB` are what `ResidentFeed` places on the devices.
    """

    data = config.data

    def loss_fn(params, batch_stats, images_BxHxWxC, labels_B, mask_B, keys_B):
        logits_BxK, updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            images_BxHxWxC,
            train=True,
            keys_B=keys_B,
            mutable=["batch_stats"],
        )
        losses_B = cross_entropy(logits_BxK, labels_B, config.label_smoothing)
        metrics_M = local_metrics(losses_B, logits_BxK, labels_B, mask_B)
        # A network without batch norm has no statistics to update.
        return jnp.mean(losses_B), (updated.get("batch_stats", batch_stats), metrics_M)

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
        with jax.named_scope("forward_backward"):
            grads, batch_stats, metrics_M = accumulate_gradients(
                loss_fn,
                state.params,
                state.batch_stats,
                (images_BxHxWxC, batch.labels_B, batch.mask_B, keys_B),
                num_parts=config.accumulate_steps,
            )
        with jax.named_scope("all_reduce"):
            # Every device has the same share of the batch, so the mean of means is the mean.
            grads = jax.lax.pmean(grads, AXIS)
            if config.batch_norm == "local":
                # Each device has its own running averages here; replicas must not drift apart.
                batch_stats = jax.lax.pmean(batch_stats, AXIS)
            metrics_M = jax.lax.psum(metrics_M, AXIS)
        with jax.named_scope("update"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        state = TrainState(
            step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
        )
        return state, metrics_M

    return train_step


def accumulate_gradients(
    loss_fn: Callable, params: Any, batch_stats: Any, batch: tuple, *, num_parts: int
) -> tuple[Any, Any, jax.Array]:
    """Differentiates the mean loss of a batch, `num_parts` equal parts one after the other.

    Args:
      loss_fn: (params, batch_stats, *part) -> (mean loss, (batch_stats, metrics_M)).
      batch: arrays whose first axis, B, `num_parts` divides.

    Returns:
      The gradients of the mean over all B, the batch statistics after the last part, and the
      metrics summed over the parts.
    """
    grad_fn = jax.grad(loss_fn, has_aux=True)
    if num_parts == 1:
        grads, (batch_stats, metrics_M) = grad_fn(params, batch_stats, *batch)
        return grads, batch_stats, metrics_M

    def add_part(carry, part):
        grads, batch_stats, metrics_M = carry
        part_grads, (batch_stats, part_metrics_M) = grad_fn(params, batch_stats, *part)
        grads = jax.tree.map(jnp.add, grads, part_grads)
        return (grads, batch_stats, metrics_M + part_metrics_M), None

    parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), batch)
    zeros = jax.tree.map(jnp.zeros_like, params)
    dtype = jax.tree.leaves(params)[0].dtype
    # A loop in the program rather than an unrolled one: only one part's activations are alive.
    (grads, batch_stats, metrics_M), _ = jax.lax.scan(
        add_part, (zeros, batch_stats, jnp.zeros(NUM_METRICS, dtype)), parts
    )
    return jax.tree.map(lambda g: g / num_parts, grads), batch_stats, metrics_M


def make_eval_step(model: nn.Module, *, precision: Precision) -> Callable:
    """Builds eval_step(state, eval_data, order_1xB) -> metrics_M; padded rows count for nothing."""

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
        metrics_M = local_metrics(losses_B, logits_BxK, batch.labels_B, batch.mask_B)
        return jax.lax.psum(metrics_M, AXIS)

    return eval_step


def cross_entropy(
    logits_BxK: jax.Array, labels_B: jax.Array, label_smoothing: float = 0.0
) -> jax.Array:
    """Returns losses_B in the type of the logits."""
    losses_B = optax.softmax_cross_entropy_with_integer_labels(logits_BxK, labels_B)
    if not label_smoothing:
        return losses_B
    # Against the even target: the mean over the classes of their negative log-probabilities.
    even_B = -jnp.mean(jax.nn.log_softmax(logits_BxK), axis=-1)
    return (1 - label_smoothing) * losses_B + label_smoothing * even_B


def local_metrics(losses_B, logits_BxK, labels_B, mask_B) -> jax.Array:
    """Returns metrics_M (LOSS_SUM, CORRECT, CORRECT_TOP5, COUNT) over this device's real rows."""
    # `where`, not a product: a padded row may hold nan or inf, and nan * 0 is nan.
    loss_sum = jnp.sum(jnp.where(mask_B, losses_B, 0))
    correct_B = jnp.argmax(logits_BxK, axis=-1) == labels_B
    own_Bx1 = jnp.take_along_axis(logits_BxK, labels_B[:, None], axis=-1, mode="clip")
    # Counting the better classes needs no sort.
    top5_B = jnp.sum(logits_BxK > own_Bx1, axis=-1) < 5
    counts = [jnp.sum(mask_B & hit_B) for hit_B in (correct_B, top5_B)] + [jnp.sum(mask_B)]
    return jnp.stack([loss_sum] + [count.astype(losses_B.dtype) for count in counts])
