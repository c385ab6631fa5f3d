"""Learning-rate schedules and optimizers, made of optax's.

Letters: K, I, O a kernel's side, inputs and outputs; G matrices of R rows and C columns.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxbench.config import Config, OptimizerConfig
from jaxbench.config.custom import Code, describe_error
from jaxbench.errors import BadInput
from jaxbench.training.parameter_groups import (
    ParameterUses,
    is_matrix,
    parameter_groups,
    path_text,
)


def create_schedule(config: Config, steps_per_epoch: int) -> optax.Schedule:
    """Return update -> learning rate, scaled linearly from the base batch to the global batch."""
    optimizer = config.optimizer
    peak = optimizer.learning_rate * config.batch_size / optimizer.base_batch_size
    warmup_steps = round(optimizer.warmup_epochs * steps_per_epoch)
    total_steps = config.schedule_steps(steps_per_epoch)
    decay_steps = max(1, total_steps - warmup_steps)
    match optimizer.schedule:
        case "constant":
            schedule = optax.constant_schedule(peak)
        case "step":
            decays = collections.Counter(
                max(1, round(at * total_steps)) for at in optimizer.decay_at
            )
            factors = {step: optimizer.decay_factor**times for step, times in decays.items()}
            schedule = optax.piecewise_constant_schedule(peak, factors)
        case "cosine":
            schedule = optax.cosine_decay_schedule(peak, decay_steps)
        case "linear":
            schedule = optax.linear_schedule(peak, 0.0, decay_steps)
    if not warmup_steps:
        return schedule
    # The first step already moves: the rate reaches its peak in `warmup_steps` equal rises.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    if optimizer.schedule == "step":  # decays count from the start, also those inside warm-up
        return lambda step: schedule(step) * (warmup(step) / peak if peak else 1.0)
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def num_updates(opt_state: optax.OptState) -> jax.Array:
    """Return how many updates an optimizer has made, by its count."""
    # Groups of parameters and adam's moments have their counts too, all of them equal.
    return optax.tree_utils.tree_get_all_with_path(opt_state, "count")[0][1]


def create_optimizer(
    config: Config,
    schedule: optax.Schedule,
    steps_per_epoch: int,
    uses: Callable[[], ParameterUses],
) -> optax.GradientTransformation:
    """Build the update rule that a config names: clipping, and all groups with their decay.

    `uses` is called once the parameters are known, and only if a field needs it.
    """
    optimizer = config.optimizer
    if optimizer.name == "custom" and optimizer.update_rule:
        return _custom_rule(config, optimizer.update_rule, schedule)
    grouped = functools.partial(_grouped_rule, config, schedule, steps_per_epoch, uses)
    rule = optax.GradientTransformation(
        lambda params: grouped(params).init(params),
        lambda updates, state, params: grouped(params).update(updates, state, params),
    )
    if not optimizer.max_gradient_norm:
        return rule
    # The norm is that of what is trained, so that no step computes the other gradients.
    frozen = {path for path, epochs in config.model.trainable_epochs().items() if not epochs}
    trained = optax.masked(optax.set_to_zero(), functools.partial(_are_named, frozen))
    clipped = optax.clip_by_global_norm(optimizer.max_gradient_norm)
    return optax.chain(trained, clipped, rule) if frozen else optax.chain(clipped, rule)


def _grouped_rule(
    config: Config,
    schedule: optax.Schedule,
    steps_per_epoch: int,
    uses: Callable[[], ParameterUses],
    params: Any,
) -> optax.GradientTransformation:
    """Build the update rule of all groups of parameters, weight decay included."""
    optimizer, early = config.optimizer, config.model.trainable_epochs()
    total_steps = config.schedule_steps(steps_per_epoch)
    create_rule = functools.partial(_create_rule, total_steps=total_steps)
    rate, rates = full_rates(config)
    if set(rates.values()) == {rate} and not early and optimizer.name != "muon":
        return create_rule(optimizer, schedule, rate)
    # Muon is for kernels; all other parameters take plain steps.
    plain = optimizer
    if optimizer.name == "muon":
        plain = dataclasses.replace(optimizer, name="nesterov", momentum=optimizer.sgd_momentum)

    def scaled(group_rate: float) -> optax.Schedule:
        return lambda step: schedule(step) * (group_rate / rate if rate else 0.0)

    rules, labels = {}, []
    leaves, structure = jax.tree.flatten_with_path(parameter_groups(config, params, uses))
    for path, group in leaves:
        label, group_rate = path_text(path), rates[group]
        if label not in early:
            label = group
            kind = optimizer if group == "kernel" else plain
            rules[label] = create_rule(kind, scaled(group_rate), group_rate)
        elif steps := round(early[label] * steps_per_epoch):
            falling = optax.linear_schedule(group_rate, 0.0, steps)
            rules[label] = create_rule(plain, falling, group_rate)
        else:
            label = "frozen"
            rules[label] = optax.set_to_zero()
        labels.append(label)
    return optax.partition(rules, jax.tree.unflatten(structure, labels))


def describe_groups(
    config: Config, params: Any, uses: Callable[[], ParameterUses]
) -> list[dict[str, Any]]:
    """Return a row for each group: its parameters, full learning rate and weight decay.

    A custom update rule knows no groups, and has no rows.
    """
    optimizer, early = config.optimizer, config.model.trainable_epochs()
    if optimizer.name == "custom":
        return []
    rates, rows = full_rates(config)[1], {}
    groups = parameter_groups(config, params, uses)
    leaves = jax.tree.leaves_with_path(params)
    for (path, leaf), group in zip(leaves, jax.tree.leaves(groups), strict=True):
        name = path_text(path)
        decays = optimizer.weight_decay_on == "all" or is_matrix(path, leaf)
        decays &= optimizer.name != "muon" or group != "kernel"
        epochs = early.get(name)
        row = {
            "group": group,
            "learning_rate": 0.0 if epochs == 0 else rates[group],
            "epochs": epochs,
            "weight_decay": optimizer.weight_decay if decays else 0.0,
        }
        row = rows.setdefault(tuple(row.values()), row | {"parameters": 0, "names": []})
        row["parameters"] += leaf.size
        row["names"].append(name)
    return sorted(rows.values(), key=lambda row: -row["parameters"])


def full_rates(config: Config) -> tuple[float, dict[str, float]]:
    """Return the full learning rate for the global batch, and that of each group."""
    optimizer = config.optimizer
    batches = config.batch_size / optimizer.base_batch_size
    rate = optimizer.learning_rate * batches
    return rate, {
        "kernel": rate,
        "embedding": rate,
        "head": optimizer.head_learning_rate * batches or rate,
        "bias": optimizer.bias_learning_rate * batches or rate,
    }


def _custom_rule(
    config: Config, update_rule: Code, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Build the rule of `optimizer.update_rule`; raise BadInput if it fails."""
    if early := config.model.trainable_epochs():
        raise BadInput(
            f"optimizer.name='custom': {config.model.network_name} trains {next(iter(early))}"
            + (f" and {len(early) - 1} others" if len(early) > 1 else "")
            + " for another time than the rest; a custom update rule cannot stop them"
        )

    def checked(function, *args):
        try:
            return function(*args)
        except Exception as error:
            raise BadInput(describe_error("optimizer.update_rule fails", error)) from error

    rule = checked(update_rule, schedule)
    if not isinstance(rule, optax.GradientTransformation):
        raise BadInput(
            f"optimizer.update_rule: {update_rule.__name__} returned a {type(rule).__name__}, "
            "expected an optax.GradientTransformation"
        )
    # The first of the two only counts the updates.
    counted = optax.chain(optax.scale_by_schedule(lambda count: 1), rule)
    return optax.GradientTransformation(functools.partial(checked, counted.init), counted.update)


def _create_rule(
    optimizer: OptimizerConfig, schedule: optax.Schedule, rate: float, total_steps: int
) -> optax.GradientTransformation:
    """Build one group's update rule; `rate` is the full rate of the schedule."""
    decay, momentum = optimizer.weight_decay, optimizer.momentum
    mask = _are_matrices if optimizer.weight_decay_on == "kernels" else None
    moments = {"b1": optimizer.b1, "b2": optimizer.b2, "eps": optimizer.eps}
    match optimizer.name:
        case "sgd" | "nesterov":
            is_nesterov = optimizer.name == "nesterov"
            update = optax.sgd(schedule, momentum=momentum or None, nesterov=is_nesterov)
        case "adam":
            update = optax.adam(schedule, **moments)
        case "adadelta":
            update = optax.adadelta(schedule, rho=optimizer.rho, eps=optimizer.eps)
        case "adamw":
            return optax.adamw(schedule, **moments, weight_decay=decay, mask=mask)
        case "muon":
            # As published, momentum is a plain sum: optax's own is corrected for its start.
            rules = [
                optax.trace(momentum, nesterov=True),
                _orthogonalize(optimizer.newton_schulz_coefficients, optimizer.newton_schulz_steps),
                optax.scale_by_learning_rate(schedule),
            ]
            if optimizer.norm_interval:
                rules.append(_keep_norms(optimizer.norm_interval, total_steps))
            return optax.chain(*rules)
    if optimizer.weight_decay_mode == "decoupled":
        decay = decay / rate if rate else 0.0
    return optax.chain(optax.add_decayed_weights(decay, mask), update) if decay else update


def _orthogonalize(
    coefficients: tuple[float, ...], num_iterations: int
) -> optax.GradientTransformation:
    """Orthogonalise kernels_KxKxIxO as matrices with a column for each output (Newton-Schulz).

    Matrices of one shape are iterated as one batch.
    """
    a, b, c = coefficients

    def iterate(x_GxRxC):
        norm_Gx11 = jnp.linalg.norm(x_GxRxC, axis=(1, 2), keepdims=True)
        x_GxRxC = x_GxRxC / (norm_Gx11 + 1e-8)
        for _ in range(num_iterations):
            square_GxRxR = x_GxRxC @ x_GxRxC.mT
            x_GxRxC = a * x_GxRxC + (b * square_GxRxR + c * square_GxRxR @ square_GxRxR) @ x_GxRxC
        return x_GxRxC

    def orthogonalize(updates):
        kernels, structure = jax.tree.flatten(updates)
        groups = collections.defaultdict(list)
        for index, kernel in enumerate(kernels):
            groups[math.prod(kernel.shape[:-1]), kernel.shape[-1]].append(index)
        for (rows, columns), group in groups.items():
            x_GxRxC = jnp.stack([kernels[index].reshape(rows, columns) for index in group])
            # The products are smaller with the shorter side in front.
            x_GxRxC = iterate(x_GxRxC.mT).mT if rows > columns else iterate(x_GxRxC)
            for index, x_RxC in zip(group, x_GxRxC, strict=True):
                kernels[index] = x_RxC.reshape(kernels[index].shape)
        return jax.tree.unflatten(structure, kernels)

    return optax.stateless(lambda updates, _: orthogonalize(updates))


def _keep_norms(interval: tuple[int, ...], total_steps: int) -> optax.GradientTransformation:
    """Scale every kernel to a Frobenius norm of the root of its outputs, before the step is added.

    Batch norm takes no notice of a kernel's length, but the angle that a step of fixed length turns
    it by depends on it (Jordan, airbench94_muon). `interval` is `OptimizerConfig.norm_interval`.

    The state is how many updates there were, and at which of them kernels were last scaled.
    """
    first, last = interval

    def keep(is_due, update, kernel_KxKxIxO):
        norm = jnp.linalg.norm(kernel_KxKxIxO.reshape(-1))
        full = jnp.sqrt(kernel_KxKxIxO.shape[-1]).astype(norm.dtype)
        factor = full / jnp.where(norm > 0, norm, full)
        return update + jnp.where(is_due, factor - 1, 0) * kernel_KxKxIxO

    def keep_all(updates, state, params):
        count = optax.safe_increment(state["count"])
        progress = jnp.minimum(count.astype(jnp.float32) / total_steps, 1)
        every = first + jnp.floor((last - first) * progress).astype(count.dtype)
        is_due = count - state["scaled_at"] >= every
        # A choice rather than a branch: on a GPU the host would wait to learn which one it is.
        updates = jax.tree.map(functools.partial(keep, is_due), updates, params)
        scaled_at = jnp.where(is_due, count, state["scaled_at"])
        return updates, {"count": count, "scaled_at": scaled_at}

    def init(params):
        return {name: jnp.zeros((), jnp.int32) for name in ("count", "scaled_at")}

    return optax.GradientTransformation(init, keep_all)


def _are_named(names: set[str], params: Any) -> Any:
    """Return a tree of booleans: true for the parameters with these paths."""
    return jax.tree.map_with_path(lambda path, _: path_text(path) in names, params)


def _are_matrices(params: Any) -> Any:
    """Return a tree of booleans: true for kernels and embeddings, see `is_matrix`."""
    return jax.tree.map_with_path(is_matrix, params)
