"""Train a network: the state, the two steps of a device, and the loop. Read it from top to bottom.

`build_program` makes a Program of a config: the network, its optimizer, and both steps on a mesh.
`train_and_evaluate` calls them until the run is done. `modes/train.py` calls this file. All that
happens in a step or between two steps is called from here.

A step sees one device's B examples. With `replicas=data_parallel` collectives over `AXIS` make what
it returns equal on every device. With `replicas=independent` devices exchange nothing.
Letters: B examples of a device, M metrics, R models, x any further axes (HxWxC of images, T of
tokens). JAX returns before the devices have begun, so a step that was called is only queued.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.data import augment
from jaxbench.data.feeds.feed import UNPACK_BATCH
from jaxbench.errors import Terminated
from jaxbench.hardware.environment import process_memory_bytes
from jaxbench.models.layers import keep_products_and_sums
from jaxbench.parallel.fsdp import mean_gradients
from jaxbench.parallel.mesh import AXIS, DataMesh, host_device
from jaxbench.parallel.signals import defer_signals, graceful_stop
from jaxbench.records.validity import impossible_epoch
from jaxbench.schema import EpochRecord
from jaxbench.tasks import pack_sums
from jaxbench.training.compilation import jit_init
from jaxbench.training.loss_scale import LossScale, all_finite, first_loss_scale
from jaxbench.training.optimizers import num_updates
from jaxbench.training.prediction import predict_views
from jaxbench.training.program import Program
from jaxbench.training.run import (
    StepMeter,
    TrainRun,
    as_they_arrive,
    means_over_models,
    write_step_record,
)


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes."""

    step: jax.Array  # int32, steps done
    params: Any
    batch_stats: Any
    opt_state: Any
    loss_scale: LossScale | None = None  # only under fp16


# ---------------------------------------------------------------------------- the training step


def train_step(
    program: Program, state: TrainState, train_data: Any, batch: Any
) -> tuple[TrainState, jax.Array]:
    """Return the state after one update, and sums_M with the values of `Program.unpack_train_sums`.

    The config's feed places `train_data` and `batch` on the devices. Under fp16 the loss is scaled,
    and a step whose gradients overflow changes only `step` and the loss scale: the optimizer's own
    count stays, and so does the learning rate. Under fsdp the arguments are those of all devices.
    """
    compute = bind(compute_gradients, program)
    if program.sharding:  # under fsdp this is a step of all devices; only `compute` runs on each
        compute = program.sharding.per_device(compute, gradients=True)
    # It needs no optimizer state.
    grads, batch_stats, sums_M = compute(state.replace(opt_state=()), train_data, batch)
    with jax.named_scope("optimizer"):
        # Not `state.step`, which counts the steps that fp16 skips too.
        learning_rate = program.schedule(num_updates(state.opt_state))
        new_state = apply_gradients(program, state, grads, batch_stats)
        # Not summed over the devices: all devices of a model have the same values.
        values = [learning_rate]
        if new_state.loss_scale:
            values += [new_state.loss_scale.skipped_steps, new_state.loss_scale.scale]
        values = jnp.stack([jnp.asarray(value, sums_M.dtype) for value in values])
        sums_M = jnp.concatenate([sums_M, values])
    new_state = new_state.replace(step=state.step + 1)
    if program.sharding:
        new_state = program.sharding.constrain(new_state)
    return new_state, sums_M


def compute_gradients(
    program: Program, state: TrainState, train_data: Any, batch: Any
) -> tuple[Any, Any, jax.Array]:
    """Return the gradients of the mean loss over all devices, batch_stats and summed sums_M."""
    config = program.config
    with jax.named_scope("data"):
        # `unpack_resident` of feeds/feed.py, or `unpack_batch` of feeds/stream.py.
        examples = UNPACK_BATCH[config.data.feed](train_data, batch, state.step)
        keys_B = augment.example_keys(examples.seed, examples.epoch, examples.indices_B)
        examples, mixture = augment.augment_batch(examples, keys_B, config.data, program.precision)
        inputs_Bx = augment.network_inputs(
            examples.inputs_Bx, train_data, config.data, program.precision
        )
    loss = functools.partial(loss_fn, program)
    if state.loss_scale:
        loss = state.loss_scale.scaled(loss)
    rows = (examples.labels_Bx, examples.mask_B, augment.dropout_keys(keys_B), mixture)
    grads, batch_stats, sums_M = accumulate_gradients(
        loss,
        state.params,
        state.batch_stats,
        (inputs_Bx, *rows),
        num_parts=config.gradient_accumulation_steps,
        num_sums=len(program.task.train_sums),
    )
    if config.replicas == "data_parallel":
        with jax.named_scope("gradient_reduction"):
            # All devices have equally many images, so the mean of their means is the mean.
            grads = mean_gradients(grads)
            if config.batch_norm == "local":
                # Each device has its own running averages here; replicas must not drift apart.
                batch_stats = jax.lax.pmean(batch_stats, AXIS)
        with jax.named_scope("metrics"):
            sums_M = jax.lax.psum(sums_M, AXIS)
    return grads, batch_stats, sums_M


def loss_fn(
    program: Program, params, batch_stats, inputs_Bx, labels_Bx, mask_B, keys_B, mixture
) -> tuple[jax.Array, tuple[Any, jax.Array]]:
    """Return (mean loss, (batch_stats, sums_M)).

    `mixture` is an `augment.Mixture` or None; of mixed images the label with the larger weight
    counts as the right one.
    """
    config, task = program.config, program.task

    def forward(params, batch_stats, inputs_Bx, keys_B):
        variables = {"params": params, "batch_stats": batch_stats}
        # `NetworkAdapter.apply` returns (outputs_Bx, batch_stats).
        return program.model.apply(variables, inputs_Bx, train=True, keys_B=keys_B)

    # Under fsdp the backward pass gathers the parameters again. Transformers do so block by block,
    # see `block_options`.
    gathers = config.parallelism == "fsdp" and not config.model.has_blocks
    if config.remat == "save_dots" or gathers:
        forward = jax.checkpoint(forward, policy=keep_products_and_sums)
    # JAX names the backward pass after the forward pass: transpose(jvp(forward)).
    with jax.named_scope("forward"):
        outputs_Bx, batch_stats = forward(params, batch_stats, inputs_Bx, keys_B)
    with jax.named_scope("loss"):
        losses_B = task.losses(outputs_Bx, labels_Bx, config.label_smoothing)
        if mixture is not None:
            weight_B, other_labels_B = mixture
            others_B = task.losses(outputs_Bx, other_labels_B, config.label_smoothing)
            losses_B = weight_B * losses_B + (1 - weight_B) * others_B
        loss = jnp.mean(losses_B)
    with jax.named_scope("metrics"):
        sums = task.metric_sums(losses_B, outputs_Bx, labels_Bx, mask_B)
        sums_M = pack_sums(task.train_sums, sums)
    return loss, (batch_stats, sums_M)


def accumulate_gradients(
    loss: Callable,
    params: Any,
    batch_stats: Any,
    batch: tuple,
    *,
    num_parts: int,
    num_sums: int,
) -> tuple[Any, Any, jax.Array]:
    """Differentiate the mean loss of a batch, `num_parts` equal parts one after the other.

    Args:
      loss: (params, batch_stats, *part) -> (mean loss, (batch_stats, sums_M)).
      batch: arrays whose first axis, B, `num_parts` divides.

    Returns:
      The gradients of the mean over all B, the batch statistics after the last part, and the
      metrics summed over the parts.
    """
    grad_fn = jax.grad(loss, has_aux=True)
    if num_parts == 1:
        grads, (batch_stats, sums_M) = grad_fn(params, batch_stats, *batch)
        return grads, batch_stats, sums_M

    def add_part(carry, part):
        grads, batch_stats, sums_M = carry
        part_grads, (batch_stats, part_sums_M) = grad_fn(params, batch_stats, *part)
        grads = jax.tree.map(jnp.add, grads, part_grads)
        return (grads, batch_stats, sums_M + part_sums_M), None

    parts = jax.tree.map(lambda x: x.reshape(num_parts, -1, *x.shape[1:]), batch)
    zeros = jax.tree.map(jnp.zeros_like, params)
    dtype = jax.tree.leaves(params)[0].dtype
    # A loop in the program rather than an unrolled one: only one part's activations are alive.
    (grads, batch_stats, sums_M), _ = jax.lax.scan(
        add_part, (zeros, batch_stats, jnp.zeros(num_sums, dtype)), parts
    )
    return jax.tree.map(lambda g: g / num_parts, grads), batch_stats, sums_M


def apply_gradients(
    program: Program, state: TrainState, grads: Any, batch_stats: Any
) -> TrainState:
    """Return the state after an update with the gradients, which are scaled under fp16."""
    if state.loss_scale:
        grads = state.loss_scale.unscaled(grads)
    updates, opt_state = program.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    new_state = state.replace(params=params, batch_stats=batch_stats, opt_state=opt_state)
    if not state.loss_scale:
        return new_state
    # All devices have the same gradients, so they decide alike. Check batch_stats too: XLA may
    # compile a ReLU so that nan becomes 0, which hides an overflow from the gradients.
    finite = all_finite((grads, batch_stats))
    loss_scale = state.loss_scale.adjust(finite)
    # Not `lax.cond`: on a GPU a branch waits for the host.
    selected = optax.tree_utils.tree_where(finite, new_state, state)
    return selected.replace(loss_scale=loss_scale)


# ---------------------------------------------------------------------------- the evaluation step


def eval_step(program: Program, state: TrainState, eval_data: Any, batch: Any) -> jax.Array:
    """Return sums_M, named by `Task.eval_sums`; padded rows count for nothing."""
    config, task = program.config, program.task
    with jax.named_scope("data"):
        # An evaluation batch has an order of one row, so that its step is 0.
        examples = UNPACK_BATCH[config.data.feed](eval_data, batch, jnp.zeros((), jnp.int32))
        inputs_Bx = augment.network_inputs(
            examples.inputs_Bx, eval_data, config.data, program.precision
        )

    def network(inputs_Bx):
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return program.model.apply(variables, inputs_Bx, train=False)[0]

    with jax.named_scope("forward"):
        outputs_Bx, mean_Bx = predict_views(network, inputs_Bx, examples.mask_B, config)
    with jax.named_scope("loss"):
        losses_B = task.losses(outputs_Bx, examples.labels_Bx, 0.0)
    with jax.named_scope("metrics"):
        rows = (examples.labels_Bx, examples.mask_B)
        sums = task.metric_sums(losses_B, outputs_Bx, *rows)
        if mean_Bx is not None:
            sums["top1_tta"] = task.metric_sums(losses_B, mean_Bx, *rows)["top1"]
        sums_M = pack_sums(task.eval_sums, sums)
        return jax.lax.psum(sums_M, AXIS) if config.replicas == "data_parallel" else sums_M


# ---------------------------------------------------------------------------- on all devices


def create_train_state(program: Program, seed: jax.Array) -> TrainState:
    """Initialise one model's state, on one device or split over all."""
    variables = program.model.init(jax.random.key(seed), jnp.zeros_like(program.input_shape))
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        opt_state=program.optimizer.init(variables["params"]),
        loss_scale=first_loss_scale() if program.precision.scales_loss else None,
    )
    return program.sharding.constrain(state) if program.sharding else state


def build_program(
    config: Config, mesh: DataMesh, layout: BatchLayout, steps_per_epoch: int
) -> Program:
    """Build the network, its optimizer and both steps for a mesh; see `Program`."""
    program = Program(config, mesh, layout, steps_per_epoch)
    is_split = program.sharding is not None  # then the host need not have room for the state
    program.init_device = jax.local_devices()[0] if is_split else host_device()
    init = bind(create_train_state, program)
    program.init = jit_init(init, program.init_device, is_split=is_split)
    # The state is donated: its memory holds the new state, and the old one must not be read.
    program.train_step = on_all_devices(program, bind(train_step, program), donate=(0,))
    evaluation = bind(eval_step, program)
    if program.sharding:
        evaluation = program.sharding.per_device(evaluation)
    program.eval_step = on_all_devices(program, evaluation)
    return program


def bind(step: Callable, program: Program) -> Callable:
    """Return step(program, ...) as a function of its other arguments."""
    bound: Any = functools.partial(step, program)
    bound.__name__ = step.__name__
    return bound


def on_all_devices(program: Program, step: Callable, donate: tuple[int, ...] = ()) -> Any:
    """Return step(state, data, batch) of one device as a call of all.

    Under fsdp it is a step of all devices already. `donate` are the indices of the arguments whose
    memory the call reuses.
    """
    if program.sharding:
        return jax.jit(step, donate_argnums=donate)
    # With independent replicas each device has its row of the states and metrics.
    rows = program.config.replicas == "independent"
    return program.mesh.pmap(step, sharded=(rows, False, True), sharded_output=rows, donate=donate)


# ---------------------------------------------------------------------------- the loop


def train_and_evaluate(run: TrainRun, state: TrainState) -> TrainState:
    """Train and evaluate the epochs that are left; return the state after them.

    Raises:
      Diverged: no model has a finite loss any more.
      KeyboardInterrupt, Terminated: Ctrl-C or SIGTERM came. If the run writes checkpoints, there is
        one of all that was done, but for fsdp across processes; after a second Ctrl-C there may be
        none.
    """
    meter, state_is_valid = StepMeter(run), True
    try:
        while not run.is_done:
            epoch = len(run.progress.epochs)
            # A signal is raised at the end of the `with`.
            with run.clock.phase("train"), graceful_stop() as stop_requested:
                state_is_valid = False  # each step donates the state before it
                state = train_epoch(run, meter, state, epoch, stop_requested)
                state_is_valid = True
            # An epoch that max_steps ends is kept open: with more of them the run continues in it.
            is_cut = run.program.config.max_steps and epoch + 1 == run.plan.num_epochs
            open_epoch = run.checkpoint_metadata() if is_cut else None
            if run.progress.epoch_metrics.interval_steps:
                with defer_signals():
                    write_step_record(run)
            eval_sums, eval_time_s = None, 0.0
            if run.plan.evaluates_after(epoch):
                eval_sums, eval_time_s = evaluate(run, state)
            write_epoch_record(run, eval_sums, eval_time_s)
            if run.checkpoint_due(epoch + 1, last=run.is_done):
                run.save_checkpoint(state, open_epoch)
    except (KeyboardInterrupt, Terminated):
        # Under fsdp other processes have parts of the state, and may not be where this one is.
        if state_is_valid and not run.program.is_state_across_processes:
            run.save_checkpoint(state)
        raise
    return state


def train_epoch(
    run: TrainRun,
    meter: StepMeter,
    state: TrainState,
    epoch: int,
    stop_requested: Callable[[], bool],
) -> TrainState:
    """Train the steps that are left of an epoch; a request to stop ends them early.

    The run's hooks are called before each step, hook(run, meter, state, step), and at the end with
    None for the step.
    """
    steps = run.begin_epoch(epoch)
    with run.profiler, meter.timed():
        with run.clock.phase("data_wait"):
            batches = run.take_batches(epoch, len(steps))
        for step in [*steps, None]:
            if stop_requested():
                step = None
            for hook in run.hooks:
                hook(run, meter, state, step)
            if step is None:
                break
            watch = Stopwatch()
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                with run.clock.phase("data_wait"), jax.profiler.TraceAnnotation("data_wait"):
                    batch = next(batches)
                state, sums_M = run.program.train_step(state, run.feed.train_data, batch)
            # Counts the earlier steps whose sums have arrived: step records, progress, time left.
            # A loss that is not finite ends the run here, some steps later.
            meter.push(sums_M)
            # `startup_s` ends with the first step of the run.
            if step == 1 and not meter.is_paused:
                meter.drain(state)
                run.progress.end_first_step(watch.elapsed_s(), run.clock.wall_s())
        meter.drain(state)
    return state


def checkpoint_hook(run, meter, state, step) -> None:
    """Write a checkpoint before a step, but for the run's first, if it is time for one."""
    # Within a trace its time would be taken for that of steps.
    if step and step > 1 and not meter.is_paused and run.checkpoint_due():
        meter.drain(state)
        meter.pause()
        run.save_checkpoint(state)
        meter.resume()


def profile_hook(run, meter, state, step) -> None:
    """Start and stop the trace of the steps that the profiler is to trace.

    Their time is in the phase `profile`, but for the waits for data, and in no rate.
    """
    profiler, is_traced = run.profiler, step in run.profiler.steps
    if is_traced and not profiler.is_tracing:
        meter.drain(state)
        if run.progress.epoch_metrics.interval_steps:
            write_step_record(run)
        meter.pause()
        end = run.plan.steps(run.progress.epoch_metrics.epoch).stop  # of the epoch, and the trace
        profiler.start(range(step, min(profiler.steps.stop, end)), run.clock, run.console)
    elif profiler.is_tracing and not is_traced:
        meter.drain(state)
        profiler.close()
        # After a request to stop there are fewer.
        run.progress.traced[:] = [one for one in run.progress.traced if one <= run.progress.step]
        write_step_record(run, profiled=True)
        meter.resume()


def evaluate(run: TrainRun, state: TrainState) -> tuple[dict[str, np.ndarray], float]:
    """Evaluate every example of the split exactly once; return {metric: sums_R} and the seconds.

    Raises:
      Diverged: no model has a finite loss any more.
    """
    watch, feed = Stopwatch(), run.feed
    sums = {name: np.zeros(len(run.seeds_R)) for name in run.program.task.eval_sums}

    with run.clock.phase("eval"):
        queued = (
            run.program.eval_step(state, feed.eval_data, batch) for batch in feed.eval_batches()
        )
        for done, sums_M in enumerate(as_they_arrive(queued), 1):
            for name, sums_R in run.program.unpack_eval_sums(sums_M).items():
                sums[name] += sums_R
            title = f"evaluating epoch {len(run.progress.epochs) + 1}/{run.plan.num_epochs}"
            run.console.progress(title, done, feed.eval_steps, "")
        if (sums["count"] != feed.num_eval).any():
            raise AssertionError(
                f"evaluated {sums['count']} examples, the split has {feed.num_eval}"
            )
        # The last update of all may have broken the network, after the last training loss.
        run.check_losses("evaluation", sums)
    return sums, watch.elapsed_s()


# ---------------------------------------------------------------------------- the metrics line


def write_epoch_record(
    run: TrainRun, eval_sums: dict[str, np.ndarray] | None, eval_time_s: float
) -> None:
    """Write the record of the epoch that is done: images/s, top-1 and what they are made of."""
    trained, program = run.progress.epoch_metrics, run.program
    timed_steps = trained.steps - trained.profiled_steps
    images_per_s = trained.images / trained.time_s if trained.images else None
    utilization = program.utilization(images_per_s) if images_per_s else {}
    evaluated = {}
    if eval_sums:
        evaluated = means_over_models(run, "eval_", eval_sums, program.task.eval_metrics)
        evaluated["eval_count"] = run.feed.num_eval
    record = EpochRecord(
        epoch=trained.epoch + 1,
        epochs=run.plan.num_epochs,
        step=run.progress.step,
        complete=timed_steps == run.plan.steps_per_epoch,
        epoch_time_s=trained.time_s + eval_time_s,
        train_time_s=trained.time_s,
        data_wait_s=trained.data_wait_s,
        eval_time_s=eval_time_s,
        images=trained.images,
        images_per_s=images_per_s,
        images_per_s_per_device=images_per_s and images_per_s / program.mesh.num_devices,
        tokens_per_s=utilization.get("tokens_per_s"),
        mfu=utilization.get("mfu"),
        profiled_steps=trained.profiled_steps,
        **means_over_models(run, "train_", trained.total, program.task.train_metrics),
        **evaluated,
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        peak_memory_bytes=program.mesh.peak_memory_bytes,
        process_memory_bytes=process_memory_bytes(),
        elapsed_s=run.clock.wall_s(),
    )
    images = timed_steps * program.layout.images_per_step
    # In one piece: an epoch is either under way or has its record.
    with defer_signals():
        run.progress.epochs.append(record)
        run.progress.invalid += impossible_epoch(record, images)
        run.write(record)
        run.progress.epoch_metrics = None
