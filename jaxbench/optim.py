"""Learning-rate schedules and optimizers, all of them optax's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbench.config import Config


def create_schedule(config: Config, steps_per_epoch: int) -> optax.Schedule:
    """Returns step -> learning rate, scaled linearly from the base batch to the global batch."""
    optimizer = config.optimizer
    peak = optimizer.learning_rate * config.batch_size / optimizer.base_batch_size
    warmup_steps = round(optimizer.warmup_epochs * steps_per_epoch)
    total_steps = config.epochs * steps_per_epoch
    decay_steps = max(1, total_steps - warmup_steps)
    if optimizer.schedule == "constant":
        schedule = optax.constant_schedule(peak)
    elif optimizer.schedule == "step":
        # Boundaries count from the end of warm-up once the two are joined below.
        schedule = optax.piecewise_constant_schedule(
            peak,
            {
                epoch * steps_per_epoch - warmup_steps: optimizer.decay_factor
                for epoch in optimizer.decay_epochs
            },
        )
    elif optimizer.schedule == "cosine":
        schedule = optax.cosine_decay_schedule(peak, decay_steps)
    elif optimizer.schedule == "linear":
        schedule = optax.linear_schedule(peak, 0.0, decay_steps)
    elif optimizer.schedule == "one_cycle":
        schedule = optax.cosine_onecycle_schedule(total_steps, peak, pct_start=optimizer.rise)
    else:
        raise ValueError(f"no schedule {optimizer.schedule!r}")
    if not warmup_steps:
        return schedule
    # The first step already moves: the rate reaches its peak in `warmup_steps` equal rises.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def tabulator(schedule: optax.Schedule, num_steps: int) -> Callable[[int], np.ndarray]:
    """Returns a function: first step -> the learning rates of it and the `num_steps` - 1 after it.

    Asked before an epoch's steps are queued, so that the log can name each step's rate without
    asking a busy device for it.
    """
    rates = jax.jit(jax.vmap(schedule))
    return lambda first: np.asarray(rates(jnp.arange(first, first + num_steps, dtype=jnp.int32)))


def create_optimizer(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Builds the update rule that a config names, weight decay included."""
    optimizer = config.optimizer
    mask = _is_kernel if optimizer.weight_decay_on == "kernels" else None
    if optimizer.name == "adamw":
        return optax.adamw(
            schedule,
            b1=optimizer.beta1,
            b2=optimizer.beta2,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            mask=mask,
        )
    if optimizer.name == "lars":
        return optax.lars(
            schedule,
            weight_decay=optimizer.weight_decay,
            weight_decay_mask=mask or True,
            # Layer-wise rates suit kernels; batch norm's parameters and biases take plain steps.
            trust_ratio_mask=_is_kernel,
            momentum=optimizer.momentum,
        )
    if optimizer.name in ("sgd", "nesterov"):
        update = optax.sgd(
            schedule, momentum=optimizer.momentum or None, nesterov=optimizer.name == "nesterov"
        )
    elif optimizer.name == "adam":
        update = optax.adam(schedule, b1=optimizer.beta1, b2=optimizer.beta2, eps=optimizer.epsilon)
    elif optimizer.name == "adadelta":
        update = optax.adadelta(schedule, rho=optimizer.rho, eps=optimizer.epsilon)
    else:
        raise ValueError(f"no optimizer {optimizer.name!r}")
    if not optimizer.weight_decay:
        return update
    return optax.chain(optax.add_decayed_weights(optimizer.weight_decay, mask), update)


def _is_kernel(params: Any) -> Any:
    """A tree of booleans: true for kernels, false for biases and batch norm's scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
