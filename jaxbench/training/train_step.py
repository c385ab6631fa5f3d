"""The training step and the evaluation step of one device.

They run under `DataMesh.parallelize` and see one device's B examples. With `replicas=data_parallel`
collectives over `AXIS` make what they return equal on every device. With `replicas=independent`
devices exchange nothing.
"""

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax

from jaxbench.config import Config, DataConfig
from jaxbench.data import augment
from jaxbench.data.feeds import resident, stream
from jaxbench.data.vary import vary
from jaxbench.distributed.mesh import AXIS
from jaxbench.distributed.state_sharding import StateSharding, mean_gradients
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.models.remat import keep_products_and_sums
from jaxbench.precision import Precision
from jaxbench.tasks import Task, pack_metrics
from jaxbench.training.loss_scale import LossScale, all_finite, first_loss_scale, select_tree
from jaxbench.training.optimizers import num_updates
from jaxbench.training.prediction import predict

_UNPACK = {
    "resident": resident.unpack_batch,
    "stream": stream.unpack_batch,
    "synthetic": stream.unpack_batch,
}


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes."""

    step: jax.Array  # int32, steps done
    params: Any
    batch_stats: Any
    opt_state: Any


class ScaledTrainState(TrainState):
    """The state under fp16; an empty field in the others' would make old checkpoints unreadable."""

    loss_scale: LossScale


def make_init(
    model: NetworkAdapter,
    optimizer: optax.GradientTransformation,
    *,
    example_shape: tuple[int, ...],
    precision: Precision,
    sharding: StateSharding | None = None,
) -> Callable:
    """Build init(seed) -> TrainState, on the default device or where a sharding puts its parts."""

    def init(seed):
        spec = network_input((1, *example_shape), precision)
        variables = model.init(jax.random.key(seed), jnp.zeros(spec.shape, spec.dtype))
        params = variables["params"]
        state = {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            "batch_stats": variables["batch_stats"],
            "opt_state": optimizer.init(params),
        }
        if precision.scales_loss:
            state = ScaledTrainState(loss_scale=first_loss_scale(), **state)
        else:
            state = TrainState(**state)
        return sharding.constrain(state) if sharding else state

    # XLA's CPU compiler takes up to 20 s to optimise a random draw for every parameter, which runs
    # once: for networks of up to 36 M parameters the plain code was quicker in all.
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.__version_info__ < (0, 11):  # then it had another emitter: quicker, with equal results
        options["xla_cpu_use_fusion_emitters"] = False
    return jax.jit(init, compiler_options=options if jax.default_backend() == "cpu" else None)


def network_input(shape: tuple[int, ...], precision: Precision) -> jax.ShapeDtypeStruct:
    """Return the shape and type that a network gets: normalised images, or int32 tokens_BxT."""
    return jax.ShapeDtypeStruct(shape, jnp.int32 if len(shape) == 2 else precision.compute_dtype)


def train_metric_names(task: Task, precision: Precision) -> tuple[str, ...]:
    """Return the names of a training step's metrics_M: sums over the batch, then its own values.

    `learning_rate` is the rate of the step's update. Under fp16 `skipped_steps` and `loss_scale`
    are those after the step.
    """
    scaled = ("skipped_steps", "loss_scale") if precision.scales_loss else ()
    return (*task.metrics, "learning_rate", *scaled)


def make_train_step(
    model: NetworkAdapter,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    config: Config,
    task: Task,
    precision: Precision,
    sharding: StateSharding | None = None,
) -> Callable:
    """Build train_step(state, train_data, batch) -> (state, metrics_M).

    `train_metric_names` has the names of the metrics. The config's feed places `train_data` and
    `batch` on the devices. Under fp16 the loss is scaled, and a step whose gradients overflow
    changes only `step` and the loss scale: the optimizer's own count stays, and so does the
    learning rate. With a sharding it is a step of all devices, for `jax.jit`.
    """
    differentiate = _make_differentiate(model, config, task, precision)
    if sharding:
        differentiate = sharding.per_device(differentiate, gradients=True)

    def train_step(state: TrainState, train_data, batch):
        # Devices compute gradients without the optimizer's arrays.
        grads, batch_stats, metrics_M = differentiate(
            state.replace(opt_state=()), train_data, batch
        )
        with jax.named_scope("optimizer"):
            own = {"learning_rate": schedule(num_updates(state.opt_state))}
            updated = _update(optimizer, state, grads, batch_stats)
            if precision.scales_loss:
                own["skipped_steps"] = updated.loss_scale.skipped_steps
                own["loss_scale"] = updated.loss_scale.scale
            # After the sum over the devices: all devices of a model have the same values.
            names = train_metric_names(task, precision)[len(task.metrics) :]
            own_values = [jnp.asarray(own[name], metrics_M.dtype) for name in names]
            metrics_M = jnp.concatenate([metrics_M, jnp.stack(own_values)])
        updated = updated.replace(step=state.step + 1)
        return sharding.constrain(updated) if sharding else updated, metrics_M

    return train_step


def _make_differentiate(
    model: NetworkAdapter, config: Config, task: Task, precision: Precision
) -> Callable:
    """Build differentiate(state, train_data, batch) -> (gradients, batch_stats, metrics_M)."""
    loss_fn = _make_loss_fn(model, config, task)

    def differentiate(state: TrainState, train_data, batch):
        with jax.named_scope("data"):
            examples = _UNPACK[config.data.feed](train_data, batch, state.step)
            keys_B = augment.example_keys(examples.seed, examples.epoch, examples.indices_B)
            examples, mixture = vary(examples, keys_B, config.data, precision)
            images_BxHxWxC = _normalize(examples.images_BxHxWxC, train_data, config.data, precision)
        rows = (examples.labels_Bx, examples.mask_B, augment.dropout_keys(keys_B), mixture)
        grads, batch_stats, metrics_M = accumulate_gradients(
            state.loss_scale.scaled(loss_fn) if precision.scales_loss else loss_fn,
            state.params,
            state.batch_stats,
            (images_BxHxWxC, *rows),
            num_parts=config.gradient_accumulation_steps,
            num_metrics=len(task.metrics),
        )
        if config.replicas == "data_parallel":
            with jax.named_scope("gradient_reduction"):
                # Every device has as many of the images, so the mean of means is the mean.
                grads = mean_gradients(grads)
                if config.batch_norm == "local":
                    # Each device has its own running averages here; replicas must not drift apart.
                    batch_stats = jax.lax.pmean(batch_stats, AXIS)
            with jax.named_scope("metrics"):
                metrics_M = jax.lax.psum(metrics_M, AXIS)
        return grads, batch_stats, metrics_M

    return differentiate


def _make_loss_fn(model: NetworkAdapter, config: Config, task: Task) -> Callable:
    """Build loss_fn(params, batch_stats, images_BxHxWxC, labels_Bx, mask_B, keys_B, mixture).

    It returns (mean loss, (batch_stats, metrics_M)). `mixture` is an `augment.Mixture` or None;
    of mixed images the label with the larger share counts as the right one.
    """

    def forward(params, batch_stats, images_BxHxWxC, keys_B):
        variables = {"params": params, "batch_stats": batch_stats}
        return model.apply(variables, images_BxHxWxC, train=True, keys_B=keys_B)

    # Under fsdp no parameter is kept whole for the backward pass; `block_class` has the blocks'.
    gathers = config.parallelism == "fsdp" and not config.model.has_blocks
    if config.remat == "norms" or gathers:
        forward = jax.checkpoint(forward, policy=keep_products_and_sums)

    def loss_fn(params, batch_stats, images_BxHxWxC, labels_Bx, mask_B, keys_B, mixture):
        # JAX names the backward pass after the forward pass: transpose(jvp(forward)).
        with jax.named_scope("forward"):
            outputs_Bx, batch_stats = forward(params, batch_stats, images_BxHxWxC, keys_B)
        with jax.named_scope("loss"):
            losses_B = task.losses(outputs_Bx, labels_Bx, config.label_smoothing)
            if mixture is not None:
                share_B, other_labels_B = mixture
                others_B = task.losses(outputs_Bx, other_labels_B, config.label_smoothing)
                losses_B = share_B * losses_B + (1 - share_B) * others_B
            loss = jnp.mean(losses_B)
        with jax.named_scope("metrics"):
            metrics = task.batch_metrics(losses_B, outputs_Bx, labels_Bx, mask_B)
            metrics_M = pack_metrics(task.metrics, metrics)
        return loss, (batch_stats, metrics_M)

    return loss_fn


def _update(
    optimizer: optax.GradientTransformation, state: TrainState, grads: Any, batch_stats: Any
) -> TrainState:
    """Return the state after an update with the gradients, which under fp16 are scaled."""
    scaling = state.loss_scale if isinstance(state, ScaledTrainState) else None
    if scaling:
        grads = scaling.unscaled(grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    updated = state.replace(params=params, batch_stats=batch_stats, opt_state=opt_state)
    if not scaling:
        return updated
    # The gradients are those that all devices have: they decide alike. The statistics count because
    # a compiler that takes short cuts may have a ReLU turn nan into 0.
    finite = all_finite((grads, batch_stats))
    scaling = scaling.adjust(finite)
    return select_tree(finite, updated, state).replace(loss_scale=scaling)


def _normalize(images_BxHxWxC, statistics, data: DataConfig, precision: Precision) -> jax.Array:
    """Return what the network gets: see `network_input`."""
    if data.sequence_length:
        return images_BxHxWxC.astype(jnp.int32)
    if data.standardization == "per_image":
        return augment.whiten(images_BxHxWxC, precision.param_dtype, precision.compute_dtype)
    return augment.normalize(
        images_BxHxWxC, statistics["mean"], statistics["std"], precision.compute_dtype
    )


def accumulate_gradients(
    loss_fn: Callable,
    params: Any,
    batch_stats: Any,
    batch: tuple,
    *,
    num_parts: int,
    num_metrics: int,
) -> tuple[Any, Any, jax.Array]:
    """Differentiate the mean loss of a batch, `num_parts` equal parts one after the other.

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
        add_part, (zeros, batch_stats, jnp.zeros(num_metrics, dtype)), parts
    )
    return jax.tree.map(lambda g: g / num_parts, grads), batch_stats, metrics_M


def make_eval_step(
    model: NetworkAdapter, *, config: Config, task: Task, precision: Precision
) -> Callable:
    """Build eval_step(state, eval_data, batch) -> metrics_M, named by `Task.eval_metrics`.

    Padded rows count for nothing.
    """

    def eval_step(state: TrainState, eval_data, batch):
        with jax.named_scope("data"):
            examples = _UNPACK[config.data.feed](eval_data, batch, jnp.zeros((), jnp.int32))
            images_BxHxWxC = _normalize(examples.images_BxHxWxC, eval_data, config.data, precision)

        def network(images_BxHxWxC):
            variables = {"params": state.params, "batch_stats": state.batch_stats}
            return model.apply(variables, images_BxHxWxC, train=False)[0]

        with jax.named_scope("forward"):
            outputs_Bx, mean_Bx = predict(network, images_BxHxWxC, examples.mask_B, config)
        with jax.named_scope("loss"):
            losses_B = task.losses(outputs_Bx, examples.labels_Bx, 0.0)
        with jax.named_scope("metrics"):
            rows = (examples.labels_Bx, examples.mask_B)
            metrics = task.batch_metrics(losses_B, outputs_Bx, *rows)
            if mean_Bx is not None:
                metrics["top1_tta"] = task.batch_metrics(losses_B, mean_Bx, *rows)["top1"]
            metrics_M = pack_metrics(task.eval_metrics, metrics)
            return (
                jax.lax.psum(metrics_M, AXIS) if config.replicas == "data_parallel" else metrics_M
            )

    return eval_step
