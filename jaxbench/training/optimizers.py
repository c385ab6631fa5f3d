"""Learning-rate schedules and optimizers, made of optax's.

Letters: K, I, O a kernel's side, inputs and outputs.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxbench.config import Config, OptimizerConfig


def create_schedule(config: Config, steps_per_epoch: int) -> optax.Schedule:
    """Return update -> learning rate, scaled linearly from the base batch to the global batch."""
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
        schedule = optax.cosine_onecycle_schedule(total_steps, peak, pct_start=optimizer.pct_start)
    elif optimizer.schedule == "triangle":
        top = min(max(1, round(optimizer.pct_start * total_steps)), max(1, total_steps - 1))
        up = optax.linear_schedule(optimizer.start_factor * peak, peak, top)
        down = optax.linear_schedule(peak, optimizer.end_factor * peak, total_steps - top)
        schedule = optax.join_schedules([up, down], [top])
    else:
        raise ValueError(f"no schedule {optimizer.schedule!r}")
    if not warmup_steps:
        return schedule
    # The first step already moves: the rate reaches its peak in `warmup_steps` equal rises.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def num_updates(opt_state: optax.OptState) -> jax.Array:
    """Return how many updates an optimizer has made, by its own count."""
    # Groups of parameters and adam's moments have counts of their own, all of them equal.
    [(_, count), *_] = optax.tree_utils.tree_get_all_with_path(opt_state, "count")
    return count


def create_optimizer(
    config: Config, schedule: optax.Schedule, steps_per_epoch: int
) -> optax.GradientTransformation:
    """Build the update rule that a config names, weight decay included, for all groups."""
    optimizer, early = config.optimizer, config.model.trainable_epochs()
    batches = config.batch_size / optimizer.base_batch_size
    rate = optimizer.learning_rate * batches
    # The full rate of each group.
    rates = {
        "kernel": rate,
        "head": optimizer.head_learning_rate * batches or rate,
        "bias": optimizer.bias_learning_rate * batches or rate,
    }
    if set(rates.values()) == {rate} and not early and optimizer.name != "muon":
        return _create_rule(optimizer, schedule, rate)
    # Muon is for kernels; all other parameters take plain steps.
    plain = optimizer
    if optimizer.name == "muon":
        plain = dataclasses.replace(optimizer, name="nesterov", momentum=optimizer.sgd_momentum)

    def scaled(own_rate: float) -> optax.Schedule:
        return lambda step: schedule(step) * (own_rate / rate if rate else 0.0)

    rules = {
        group: _create_rule(optimizer if group == "kernel" else plain, scaled(own_rate), own_rate)
        for group, own_rate in rates.items()
    }
    for path, epochs in early.items():
        steps, own_rate = round(epochs * steps_per_epoch), rates[_group(path)]
        falling = optax.linear_schedule(own_rate, 0.0, steps)
        rules[path] = _create_rule(plain, falling, own_rate) if steps else optax.set_to_zero()

    def groups(params: Any) -> Any:
        def group(path, _):
            name = "/".join(key.key for key in path)
            return name if name in early else _group(name)

        return jax.tree_util.tree_map_with_path(group, params)

    return optax.partition(rules, groups)


def _group(path: str) -> str:
    """Return the group of a parameter (`layer/kernel`); each group has a rate of its own."""
    if not path.endswith("/kernel"):
        return "bias"
    return "head" if path == "head/kernel" else "kernel"


def _create_rule(
    optimizer: OptimizerConfig, schedule: optax.Schedule, rate: float
) -> optax.GradientTransformation:
    """Build one group's update rule; `rate` is the schedule's full rate."""
    mask = _is_kernel if optimizer.weight_decay_on == "kernels" else None
    if optimizer.name == "adamw":
        return optax.adamw(
            schedule,
            b1=optimizer.b1,
            b2=optimizer.b2,
            eps=optimizer.eps,
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
    if optimizer.name == "muon":
        return optax.chain(
            optax.contrib.scale_by_muon(
                ns_steps=optimizer.newton_schulz_steps,
                beta=optimizer.momentum,
                weight_dimension_numbers=_as_matrices,
            ),
            optax.scale_by_learning_rate(schedule),
            _keep_norms(),
        )
    if optimizer.name in ("sgd", "nesterov"):
        update = optax.sgd(
            schedule, momentum=optimizer.momentum or None, nesterov=optimizer.name == "nesterov"
        )
    elif optimizer.name == "adam":
        update = optax.adam(schedule, b1=optimizer.b1, b2=optimizer.b2, eps=optimizer.eps)
    elif optimizer.name == "adadelta":
        update = optax.adadelta(schedule, rho=optimizer.rho, eps=optimizer.eps)
    else:
        raise ValueError(f"no optimizer {optimizer.name!r}")
    if not optimizer.weight_decay:
        return update
    decay = optimizer.weight_decay
    if optimizer.weight_decay_mode == "decoupled":
        decay = decay / rate if rate else 0.0
    return optax.chain(optax.add_decayed_weights(decay, mask), update)


def _as_matrices(params: Any) -> Any:
    """Return how Muon takes kernels for matrices: a column for each output."""

    def as_matrix(kernel_KxKxIxO):
        outputs = kernel_KxKxIxO.ndim - 1
        return optax.contrib.MuonDimensionNumbers(tuple(range(outputs)), outputs)

    return jax.tree.map(as_matrix, params)


def _keep_norms() -> optax.GradientTransformation:
    """Scale every kernel to a Frobenius norm of the root of its outputs, before the step is added.

    Batch norm takes no notice of a kernel's length, but the angle that a step of fixed length turns
    it by depends on it (Jordan, airbench94_muon).
    """

    def keep(update, kernel_KxKxIxO):
        norm = jnp.linalg.norm(kernel_KxKxIxO.reshape(-1))
        full = jnp.sqrt(kernel_KxKxIxO.shape[-1]).astype(norm.dtype)
        factor = full / jnp.where(norm > 0, norm, full)
        return update + (factor - 1) * kernel_KxKxIxO

    return optax.stateless(lambda updates, params: jax.tree.map(keep, updates, params))


def _is_kernel(params: Any) -> Any:
    """Return a tree of booleans: true for kernels, false for biases and batch norm's scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
