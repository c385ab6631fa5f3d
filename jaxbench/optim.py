"""Learning-rate schedules and optimizers, all of them optax's."""

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
        schedule = optax.cosine_decay_schedule(
            peak, max(1, config.epochs * steps_per_epoch - warmup_steps)
        )
    else:
        raise ValueError(f"no schedule {optimizer.schedule!r}")
    if not warmup_steps:
        return schedule
    # The first step already moves: the rate reaches its peak in `warmup_steps` equal rises.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def tabulate_schedule(schedule: optax.Schedule, num_steps: int) -> np.ndarray:
    """Returns the learning rate of every step, float array of shape (num_steps,).

    Made before training, so that the log can name the rate without asking a busy device for it.
    """
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(num_steps)))


def create_optimizer(config: Config, schedule: optax.Schedule) -> optax.GradientTransformation:
    optimizer = config.optimizer
    update = optax.sgd(
        schedule, momentum=optimizer.momentum or None, nesterov=optimizer.name == "nesterov"
    )
    if not optimizer.weight_decay:
        return update
    return optax.chain(optax.add_decayed_weights(optimizer.weight_decay), update)
