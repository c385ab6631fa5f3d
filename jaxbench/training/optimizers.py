"""Learning-rate schedules and optimizers, made of optax's.

Letters: K, I, O a kernel's side, inputs and outputs; G matrices of R rows and C columns.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxbench.config import Config, ModelConfig, OptimizerConfig
from jaxbench.errors import BadInput
from jaxbench.own.code import Code
from jaxbench.own.errors import describe_error


def create_schedule(config: Config, steps_per_epoch: int) -> optax.Schedule:
    """Return update -> learning rate, scaled linearly from the base batch to the global batch."""
    optimizer = config.optimizer
    peak = optimizer.learning_rate * config.batch_size / optimizer.base_batch_size
    warmup_steps = round(optimizer.warmup_epochs * steps_per_epoch)
    total_steps = config.schedule_steps(steps_per_epoch)
    decay_steps = max(1, total_steps - warmup_steps)
    # The step of the highest rate: neither the first nor after the last.
    top = min(max(1, round(optimizer.pct_start * total_steps)), total_steps - 1)
    match optimizer.schedule:
        case "constant":
            schedule = optax.constant_schedule(peak)
        case "step":
            # Boundaries count from the end of warm-up once the two are joined below.
            factors = {
                epoch * steps_per_epoch - warmup_steps: optimizer.decay_factor
                for epoch in optimizer.decay_epochs
            }
            schedule = optax.piecewise_constant_schedule(peak, factors)
        case "cosine":
            schedule = optax.cosine_decay_schedule(peak, decay_steps)
        case "linear":
            schedule = optax.linear_schedule(peak, 0.0, decay_steps)
        case "one_cycle" | "triangle" if total_steps == 1:  # no room to rise and fall
            schedule = optax.constant_schedule(peak)
        case "one_cycle":
            # From 1/25 of the peak to 1/10,000 of that, as PyTorch's OneCycleLR. The top is where
            # `pct_start` of the steps are done, the end after the last: both one step later there.
            schedule = optax.piecewise_interpolate_schedule(
                "cosine", peak / 25, {top: 25.0, total_steps: 1 / (25 * 1e4)}
            )
        case "triangle":
            up = optax.linear_schedule(optimizer.start_factor * peak, peak, top)
            down = optax.linear_schedule(peak, optimizer.end_factor * peak, total_steps - top)
            schedule = optax.join_schedules([up, down], [top])
        case unknown:
            raise ValueError(f"no schedule {unknown!r}")
    if not warmup_steps:
        return schedule
    # The first step already moves: the rate reaches its peak in `warmup_steps` equal rises.
    warmup = optax.linear_schedule(peak / warmup_steps, peak, max(1, warmup_steps - 1))
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def num_updates(opt_state: optax.OptState) -> jax.Array:
    """Return how many updates an optimizer has made, by its own count."""
    # Groups of parameters and adam's moments have counts of their own, all of them equal.
    if isinstance(opt_state, OwnState):
        return opt_state.count
    [(_, count), *_] = optax.tree_utils.tree_get_all_with_path(opt_state, "count")
    return count


def create_optimizer(
    config: Config, schedule: optax.Schedule, steps_per_epoch: int
) -> optax.GradientTransformation:
    """Build the update rule that a config names: clipping, and all groups with their decay."""
    rule = _grouped_rule(config, schedule, steps_per_epoch)
    norm = config.optimizer.max_gradient_norm
    return optax.chain(optax.clip_by_global_norm(norm), rule) if norm else rule


def _grouped_rule(
    config: Config, schedule: optax.Schedule, steps_per_epoch: int
) -> optax.GradientTransformation:
    """Build the update rule of all groups of parameters, weight decay included."""
    optimizer, early = config.optimizer, config.model.trainable_epochs()
    if optimizer.name == "own":
        return _own_rule(optimizer.update_rule, schedule, config.model, early)
    batches = config.batch_size / optimizer.base_batch_size
    rate = optimizer.learning_rate * batches
    total_steps = config.schedule_steps(steps_per_epoch)
    create_rule = functools.partial(_create_rule, total_steps=total_steps)
    # The full rate of each group.
    rates = {
        "kernel": rate,
        "head": optimizer.head_learning_rate * batches or rate,
        "bias": optimizer.bias_learning_rate * batches or rate,
    }
    if set(rates.values()) == {rate} and not early and optimizer.name != "muon":
        return create_rule(optimizer, schedule, rate)
    # Muon is for kernels; all other parameters take plain steps.
    plain = optimizer
    if optimizer.name == "muon":
        plain = dataclasses.replace(optimizer, name="nesterov", momentum=optimizer.sgd_momentum)

    def scaled(own_rate: float) -> optax.Schedule:
        return lambda step: schedule(step) * (own_rate / rate if rate else 0.0)

    rules = {
        group: create_rule(optimizer if group == "kernel" else plain, scaled(own_rate), own_rate)
        for group, own_rate in rates.items()
    }
    for path, epochs in early.items():
        steps, own_rate = round(epochs * steps_per_epoch), rates[_group(path)]
        falling = optax.linear_schedule(own_rate, 0.0, steps)
        rules[path] = create_rule(plain, falling, own_rate) if steps else optax.set_to_zero()

    def group(path, _):
        name = "/".join(key.key for key in path)
        return name if name in early else _group(name)

    return optax.partition(rules, functools.partial(jax.tree_util.tree_map_with_path, group))


class OwnState(NamedTuple):
    """The state of an update rule of the user's own, with the number of its updates."""

    count: jax.Array
    rule: optax.OptState


def _own_rule(
    update_rule: Code, schedule: optax.Schedule, model: ModelConfig, early: dict[str, float]
) -> optax.GradientTransformation:
    """Build the user's update rule.

    Raises:
      BadInput: it fails, or is none; or parameters of the network train for a time of their own.
    """
    if early:
        raise BadInput(
            f"optimizer.name='own': {model.network_name} trains {', '.join(early)} for a time of "
            "their own, which an update rule of one's own knows nothing of"
        )
    try:
        rule = update_rule(schedule)
    except Exception as error:
        raise BadInput(describe_error("optimizer.update_rule fails", error)) from error
    if not isinstance(rule, optax.GradientTransformation):
        raise BadInput(
            f"optimizer.update_rule: {update_rule.__name__} returned a {type(rule).__name__}, "
            "expected an optax.GradientTransformation"
        )
    rule = optax.with_extra_args_support(rule)

    def init(params):
        try:
            return OwnState(jnp.zeros((), jnp.int32), rule.init(params))
        except Exception as error:
            raise BadInput(describe_error("optimizer.update_rule fails", error)) from error

    def update(grads, state, params=None):
        updates, inner = rule.update(grads, state.rule, params)
        return updates, OwnState(optax.safe_increment(state.count), inner)

    return optax.GradientTransformation(init, update)


def _group(path: str) -> str:
    """Return the group of a parameter (`layer/kernel`); each group has a rate of its own."""
    if not path.endswith("/kernel"):
        return "bias"
    return "head" if path == "head/kernel" else "kernel"


def _create_rule(
    optimizer: OptimizerConfig, schedule: optax.Schedule, rate: float, total_steps: int
) -> optax.GradientTransformation:
    """Build one group's update rule; `rate` is the full rate of the schedule."""
    mask = _decay_mask(optimizer)
    moments = {"b1": optimizer.b1, "b2": optimizer.b2, "eps": optimizer.eps}
    match optimizer.name:
        case "sgd" | "nesterov":
            is_nesterov, momentum = optimizer.name == "nesterov", optimizer.momentum or None
            sgd = optax.sgd(schedule, momentum=momentum, nesterov=is_nesterov)
            return _with_decay(sgd, optimizer, rate)
        case "adam":
            return _with_decay(optax.adam(schedule, **moments), optimizer, rate)
        case "adadelta":
            adadelta = optax.adadelta(schedule, rho=optimizer.rho, eps=optimizer.eps)
            return _with_decay(adadelta, optimizer, rate)
        case "adamw":
            return optax.adamw(schedule, **moments, weight_decay=optimizer.weight_decay, mask=mask)
        case "lars":
            return optax.lars(
                schedule,
                weight_decay=optimizer.weight_decay,
                weight_decay_mask=mask or True,
                # Layer-wise rates suit kernels; batch norm's parameters and biases take plain
                # steps.
                trust_ratio_mask=_is_kernel,
                momentum=optimizer.momentum,
            )
        case "muon":
            # As published, momentum is a plain sum: optax's own is corrected for its start.
            return optax.chain(
                optax.trace(optimizer.momentum, nesterov=True),
                _orthogonalize(optimizer.newton_schulz_coefficients, optimizer.newton_schulz_steps),
                optax.scale_by_learning_rate(schedule),
                _keep_norms(optimizer.norm_interval, total_steps),
            )
        case unknown:
            raise ValueError(f"no optimizer {unknown!r}")


def _with_decay(
    update: optax.GradientTransformation, optimizer: OptimizerConfig, rate: float
) -> optax.GradientTransformation:
    """Add `weight_decay` times the parameters to the gradient, before an update rule."""
    decay = optimizer.weight_decay
    if not decay:
        return update
    if optimizer.weight_decay_mode == "decoupled":
        decay = decay / rate if rate else 0.0
    return optax.chain(optax.add_decayed_weights(decay, _decay_mask(optimizer)), update)


def _decay_mask(optimizer: OptimizerConfig) -> Callable[[Any], Any] | None:
    """Return which parameters decay; None for all."""
    return _is_kernel if optimizer.weight_decay_on == "kernels" else None


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
        places = collections.defaultdict(list)
        for place, kernel in enumerate(kernels):
            places[math.prod(kernel.shape[:-1]), kernel.shape[-1]].append(place)
        for (rows, columns), group in places.items():
            x_GxRxC = jnp.stack([kernels[place].reshape(rows, columns) for place in group])
            # The products are smaller with the shorter side in front.
            x_GxRxC = iterate(x_GxRxC.mT).mT if rows > columns else iterate(x_GxRxC)
            for place, x_RxC in zip(group, x_GxRxC, strict=True):
                kernels[place] = x_RxC.reshape(kernels[place].shape)
        return jax.tree.unflatten(structure, kernels)

    return optax.stateless(lambda updates, _: orthogonalize(updates))


class NormState(NamedTuple):
    """How many updates there were, and at which of them kernels were last scaled to their norms."""

    count: jax.Array
    scaled_at: jax.Array


def _keep_norms(interval: tuple[int, ...], total_steps: int) -> optax.GradientTransformation:
    """Scale every kernel to a Frobenius norm of the root of its outputs, before the step is added.

    Batch norm takes no notice of a kernel's length, but the angle that a step of fixed length turns
    it by depends on it (Jordan, airbench94_muon). `interval` is `OptimizerConfig.norm_interval`.
    """
    first, last = interval

    def keep(is_due, update, kernel_KxKxIxO):
        norm = jnp.linalg.norm(kernel_KxKxIxO.reshape(-1))
        full = jnp.sqrt(kernel_KxKxIxO.shape[-1]).astype(norm.dtype)
        factor = full / jnp.where(norm > 0, norm, full)
        return update + jnp.where(is_due, factor - 1, 0) * kernel_KxKxIxO

    def keep_all(updates, state, params):
        count = optax.safe_increment(state.count)
        progress = jnp.minimum(count.astype(jnp.float32) / total_steps, 1)
        every = first + jnp.floor((last - first) * progress).astype(count.dtype)
        is_due = count - state.scaled_at >= every
        # A choice rather than a branch: on a GPU the host would wait to learn which one it is.
        updates = jax.tree.map(functools.partial(keep, is_due), updates, params)
        return updates, NormState(count, jnp.where(is_due, count, state.scaled_at))

    def init(params):
        return NormState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    return optax.GradientTransformation(init, keep_all)


def _is_kernel(params: Any) -> Any:
    """Return a tree of booleans: true for kernels, false for biases and batch norm's scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
