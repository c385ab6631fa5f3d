"""Train a network: the state, the two steps of a device, and the loop. Read it from top to bottom.

`build_program` makes a config's network and both steps on a mesh. `train_and_evaluate` calls the
steps until the run is done. `modes/train.py` calls this file. All that happens in a step or between
two steps is called from here; `training/run.py` holds the parts of the loop.

A step sees one device's B examples; under fsdp `train_step` sees those of all devices. With
`replicas=data_parallel` collectives over `AXIS` make what it returns equal on every device. With
`replicas=independent` devices exchange nothing.
Letters: B examples of a device, M metrics, R models, x any further axes (HxWxC of images, T of
tokens). JAX returns before the devices have begun, so a step that was called is only queued.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbench.aliases import Batch, DType, PyTree
from jaxbench.batch_layout import BatchLayout
from jaxbench.checkpoints.checkpoint import Checkpoints
from jaxbench.checkpoints.resume import mark_records
from jaxbench.clock import Clock, Stopwatch, duration
from jaxbench.config import Config
from jaxbench.data import augment
from jaxbench.data.feeds.feed import UNPACK_BATCH, Feed
from jaxbench.errors import Diverged, Terminated
from jaxbench.hardware.environment import process_memory_bytes
from jaxbench.hardware.telemetry.sampler import Telemetry, no_telemetry
from jaxbench.models.layers import keep_products_and_sums
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import AXIS, DataMesh, wait_for
from jaxbench.parallel.signals import defer_signals, graceful_stop
from jaxbench.records.next_steps import say_time_left
from jaxbench.records.validity import impossible_epoch
from jaxbench.records.writers import Writer, Writers
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.rows import rate_in_words
from jaxbench.schema import EpochRecord, Record, StepRecord, metric_fields
from jaxbench.tasks import pack_sums
from jaxbench.training.compilation import jit_init
from jaxbench.training.loss_scale import LossScale, LossScales, all_finite, first_loss_scale
from jaxbench.training.optimizers import num_updates
from jaxbench.training.prediction import predict_views
from jaxbench.training.profiler import Profiler
from jaxbench.training.program import NORMS, UPDATES, Network, Program, create_network
from jaxbench.training.run import (
    EpochSums,
    MetricsQueue,
    RunProgress,
    StepTimer,
    TrainPlan,
    as_they_arrive,
    score_of,
)

# After this many seconds of steps a long run says how long it takes.
MEASURED_S = 10.0
# The spread of the primary metric over several models: sample deviation, extremes.
SPREAD = ("std", "min", "max")


class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes."""

    step: jax.Array  # int32, steps done
    params: PyTree
    batch_stats: PyTree
    opt_state: optax.OptState
    loss_scale: LossScale | None = None  # only under fp16


# ---------------------------------------------------------------------------- the training step


def train_step(
    network: Network, state: TrainState, train_data: Batch, batch: Batch
) -> tuple[TrainState, jax.Array]:
    """Return the state after one update, and sums_M with the values of `Network.unpack_train_sums`.

    The config's feed places `train_data` and `batch` on the devices. Under fp16 the loss is scaled,
    and a step whose gradients overflow changes only `step` and the loss scale: the optimizer's own
    count stays, and so does the learning rate.
    """
    # Under fsdp this is a step of all devices, and only `compute` runs on each: see `Replicated`.
    compute = network.sharding.per_device(bind(compute_gradients, network), gradients=True)
    # It needs no optimizer state.
    grads, batch_stats, sums_M = compute(state.replace(opt_state=()), train_data, batch)
    with jax.named_scope("optimizer"):
        # Not `state.step`, which counts the steps that fp16 skips too.
        learning_rate = network.schedule(num_updates(state.opt_state))
        new_state, norms = apply_gradients(network, state, grads, batch_stats)
        # Not summed over the devices: all devices of a model have the same values.
        values = [*norms, learning_rate]
        if new_state.loss_scale:
            values += [new_state.loss_scale.skipped_steps, new_state.loss_scale.scale]
        values = jnp.stack([jnp.asarray(value, sums_M.dtype) for value in values])
        sums_M = jnp.concatenate([sums_M, values])
    new_state = new_state.replace(step=state.step + 1)
    return network.sharding.constrain(new_state), sums_M


def compute_gradients(
    network: Network, state: TrainState, train_data: Batch, batch: Batch
) -> tuple[PyTree, PyTree, jax.Array]:
    """Return the gradients of the mean loss over all devices, batch_stats and summed sums_M."""
    config = network.config
    with jax.named_scope("data"):
        # `unpack_resident` of feeds/feed.py, or `unpack_batch` of feeds/stream.py.
        examples = UNPACK_BATCH[config.data.feed](train_data, batch, state.step)
        keys_B = augment.example_keys(examples.seed, examples.epoch, examples.indices_B)
        examples, mixture = augment.augment_batch(examples, keys_B, config.data, network.precision)
        inputs_Bx = augment.network_inputs(
            examples.inputs_Bx, train_data, config.data, network.precision
        )
    loss = functools.partial(loss_fn, network)
    if state.loss_scale:
        loss = state.loss_scale.scaled(loss)
    rows = (examples.labels_Bx, examples.mask_B, augment.dropout_keys(keys_B), mixture)
    grads, batch_stats, sums_M = accumulate_gradients(
        loss,
        state.params,
        state.batch_stats,
        (inputs_Bx, *rows),
        num_parts=config.gradient_accumulation_steps,
        num_sums=len(network.task.train_sums),
        sums_dtype=network.precision.param_dtype,
    )
    if config.replicas == "data_parallel":
        with jax.named_scope("gradient_reduction"):
            # All devices have equally many images, so the mean of their means is the mean.
            grads = network.sharding.mean_gradients(grads)
            if config.batch_norm == "local":
                # Each device has its own running averages here; replicas must not drift apart.
                batch_stats = jax.lax.pmean(batch_stats, AXIS)
        with jax.named_scope("metrics"):
            sums_M = jax.lax.psum(sums_M, AXIS)
    return grads, batch_stats, sums_M


def loss_fn(
    network: Network, params, batch_stats, inputs_Bx, labels_Bx, mask_B, keys_B, mixture
) -> tuple[jax.Array, tuple[PyTree, jax.Array]]:
    """Return (mean loss, (batch_stats, sums_M)).

    `mixture` is an `augment.Mixture` or None; of mixed images the label with the larger weight
    counts as the right one.
    """
    config, task = network.config, network.task

    def forward(params, batch_stats, inputs_Bx, keys_B):
        variables = {"params": params, "batch_stats": batch_stats}
        # `NetworkAdapter.apply` returns (outputs_Bx, batch_stats).
        rows = {"keys_B": keys_B, "labels_B": labels_Bx}
        return network.module.apply(variables, inputs_Bx, train=True, **rows)

    # Under fsdp the backward pass gathers the parameters again. Transformers do so block by block,
    # see `block_options`.
    gathers = network.sharding.gathers and not config.model.has_blocks
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
    params: PyTree,
    batch_stats: PyTree,
    batch: tuple,
    *,
    num_parts: int,
    num_sums: int,
    sums_dtype: DType,
) -> tuple[PyTree, PyTree, jax.Array]:
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
    # A loop in the program rather than an unrolled one: only one part's activations are alive.
    (grads, batch_stats, sums_M), _ = jax.lax.scan(
        add_part, (zeros, batch_stats, jnp.zeros(num_sums, sums_dtype)), parts
    )
    return jax.tree.map(lambda g: g / num_parts, grads), batch_stats, sums_M


def apply_gradients(
    network: Network, state: TrainState, grads: PyTree, batch_stats: PyTree
) -> tuple[TrainState, jax.Array]:
    """Return the state after an update, and the values of `NORMS` and `UPDATES`.

    Under fp16 the gradients are scaled, and the values of a skipped step are 0.
    """
    if state.loss_scale:
        grads = state.loss_scale.unscaled(grads)
    updates, opt_state = network.optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    # XLA computes no gradient that nothing uses, such as that of a frozen parameter.
    pairs = zip(jax.tree.leaves(grads), network.uses_gradients, strict=True)
    used = [grad for grad, is_used in pairs if is_used]
    # Some frozen parameters are stored in the type for computing.
    wide = optax.tree.cast((used, updates, params), network.precision.param_dtype)
    norms = jnp.stack([*map(optax.tree.norm, wide), 1.0])
    new_state = state.replace(params=params, batch_stats=batch_stats, opt_state=opt_state)
    if not state.loss_scale:
        return new_state, norms
    # All devices have the same gradients, so they decide alike. Check batch_stats too: XLA may
    # compile a ReLU so that nan becomes 0, which hides an overflow from the gradients.
    finite = all_finite((used, batch_stats))
    loss_scale = state.loss_scale.adjust(finite)
    # Not `lax.cond`: on a GPU a branch waits for the host.
    selected = optax.tree_utils.tree_where(finite, new_state, state)
    return selected.replace(loss_scale=loss_scale), jnp.where(finite, norms, 0)


# ---------------------------------------------------------------------------- the evaluation step


def eval_step(network: Network, state: TrainState, eval_data: Batch, batch: Batch) -> jax.Array:
    """Return sums_M, named by `Task.eval_sums`; padded rows count for nothing."""
    config, task = network.config, network.task
    with jax.named_scope("data"):
        # An evaluation batch has an order of one row, so that its step is 0.
        examples = UNPACK_BATCH[config.data.feed](eval_data, batch, jnp.zeros((), jnp.int32))
        inputs_Bx = augment.network_inputs(
            examples.inputs_Bx, eval_data, config.data, network.precision
        )

    rows = {}
    if network.module.takes_labels:  # it draws noise by the keys, the same in each evaluation
        rows["keys_B"] = augment.example_keys(jnp.uint32(0), jnp.int32(0), examples.indices_B)
        rows["labels_B"] = examples.labels_Bx

    def forward(inputs_Bx):
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return network.module.apply(variables, inputs_Bx, train=False, **rows)[0]

    with jax.named_scope("forward"):
        outputs_Bx, mean_Bx = predict_views(forward, inputs_Bx, examples.mask_B, config)
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


def create_train_state(network: Network, seed: jax.Array) -> TrainState:
    """Initialise one model's state, on one device or split over all."""
    variables = network.module.init(jax.random.key(seed), jnp.zeros_like(network.trace.input_shape))
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        opt_state=network.optimizer.init(variables["params"]),
        loss_scale=first_loss_scale() if network.precision.scales_loss else None,
    )
    return network.sharding.constrain(state)


def build_program(
    config: Config, mesh: DataMesh, layout: BatchLayout, steps_per_epoch: int
) -> Program:
    """Build the network, its optimizer and both steps for a mesh; see `Program`."""
    network = create_network(config, mesh, steps_per_epoch)
    sharding = network.sharding
    init, training, evaluation = (
        bind(step, network) for step in (create_train_state, train_step, eval_step)
    )
    return Program(
        network=network,
        layout=layout,
        init=jit_init(init, sharding.init_device, sharding.init_sharding),
        # The state is donated: its memory holds the new state, and the old one must not be read.
        train_step=sharding.on_all_devices(training, donate=(0,)),
        eval_step=sharding.on_all_devices(sharding.per_device(evaluation)),
    )


def bind(step: Callable, network: Network) -> Callable:
    """Return step(network, ...) as a function of its other arguments."""
    bound: Any = functools.partial(step, network)
    bound.__name__ = step.__name__
    return bound


# ---------------------------------------------------------------------------- the loop


@dataclasses.dataclass(kw_only=True)
class Loop:
    """What the loop trains, how far it is, and where its records go.

    Attributes:
      loss_scales: after the last step.
      checkpoints: None if none are written.
      first_batch: {(epoch, step): batch}, both counted from 0, of the first step to train; the loop
        takes it out.
    """

    program: Program
    feed: Feed
    plan: TrainPlan
    clock: Clock
    console: Console
    progress: RunProgress
    loss_scales: LossScales
    writer: Writer = dataclasses.field(default_factory=Writers)
    # Gets the times that are measured, for the energy of an image.
    telemetry: Telemetry = dataclasses.field(default_factory=no_telemetry)
    checkpoints: Checkpoints | None = None
    profiler: Profiler = dataclasses.field(default_factory=lambda: Profiler(range(0), None))
    first_batch: dict[tuple[int, int], Batch] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network, self.config = self.program.network, self.program.network.config
        self.seeds_R = self.config.seeds(self.network.mesh.num_devices)
        self.timer = StepTimer(self.progress, self.clock, self.telemetry)
        # One for the whole run: it knows from earlier steps how long a step takes.
        self.queue = MetricsQueue(self.network.unpack_train_sums, self.config.step_log)
        self.has_said_time_left = False

    @property
    def is_done(self) -> bool:
        epochs, plan = self.progress.epochs, self.plan
        return len(epochs) == plan.num_epochs or any(map(plan.reaches_target, epochs[-1:]))

    def write(self, record: Record) -> None:
        """Write a record to metrics.jsonl, its CSV file, the console and TensorBoard.

        `record_run` in modes/runner.py adds these writers; `writers/rows.py` formats the line.
        """
        with self.clock.phase("records"):
            self.writer.write(record)


def train_and_evaluate(run: Loop, state: TrainState) -> TrainState:
    """Train and evaluate the epochs that are left; return the state after them.

    Raises:
      Diverged: no model has a finite loss any more.
      KeyboardInterrupt, Terminated: Ctrl-C or SIGTERM came. If the run writes checkpoints, there is
        one of all that was done, but for fsdp across processes; after a second Ctrl-C there may be
        none.
    """
    state_is_valid, open_epoch = True, None
    try:
        while not run.is_done:
            epoch = run.progress.sums.epoch
            # A signal is raised at the end of the `with`.
            with run.clock.phase("train"), graceful_stop() as stop_requested:
                state_is_valid = False  # each step donates the state before it
                state = train_epoch(run, state, stop_requested)
                state_is_valid = True
            # If max_steps cuts the last epoch, a run with a higher max_steps continues in it. So
            # its checkpoint keeps the metadata of now, before the epoch has its records.
            is_cut = run.plan.total_steps == run.config.max_steps
            if is_cut and epoch + 1 == run.plan.num_epochs:
                open_epoch = checkpoint_metadata(run)
            if run.progress.sums.interval_steps:
                with defer_signals():
                    write_step_record(run)
            eval_sums, eval_time_s = None, 0.0
            if run.plan.evaluates_after(epoch):
                eval_sums, eval_time_s = evaluate(run, state)
            write_epoch_record(run, eval_sums, eval_time_s)
            if checkpoint_due(run, epoch + 1, last=run.is_done):
                save_checkpoint(run, state, open_epoch)
    except (KeyboardInterrupt, Terminated):
        # Under fsdp other processes have parts of the state, and may not be where this one is.
        if state_is_valid and not run.network.sharding.is_across_processes:
            save_checkpoint(run, state, open_epoch)
        raise
    return state


def train_epoch(run: Loop, state: TrainState, stop_requested: Callable[[], bool]) -> TrainState:
    """Train the steps that are left of an epoch; a request to stop ends them early."""
    begun = run.progress.sums  # not at 0 if the run is resumed in the middle of an epoch
    steps = run.plan.steps(begun.epoch)[begun.steps :]
    with run.profiler, run.timer:
        with run.clock.phase("data_wait"):
            batches = take_batches(run, begun.epoch, begun.steps, len(steps))
        for step in steps:
            if stop_requested():
                break
            save_before_step(run, state, step)
            trace_step(run, state, step)
            watch = Stopwatch()
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                with run.clock.phase("data_wait"), jax.profiler.TraceAnnotation("data_wait"):
                    batch = next(batches)
                # Everything that the step reads is on the devices.
                with run.network.mesh.transfer_guard():
                    state, sums_M = run.program.train_step(state, run.feed.train_data, batch)
            # Counts the earlier steps whose sums have arrived. A loss that is not finite ends the
            # run here, some steps later.
            for sums in run.queue.push(sums_M):
                count_step(run, sums)
            if step == 1 and not run.profiler.is_tracing:
                finish_steps(run, state)
                run.progress.first_step_s = watch.elapsed_s()
                if run.progress.import_s is not None:
                    run.progress.startup_s = run.progress.import_s + run.clock.wall_s()
        if run.profiler.is_tracing:
            end_trace(run, state)
        finish_steps(run, state)
    return state


def take_batches(run: Loop, epoch: int, first: int, num_steps: int) -> Iterator[Batch]:
    """Return the batches of an epoch's steps from `first` on, on the devices."""
    batch = run.first_batch.pop((epoch, first), None)
    run.first_batch.clear()  # no step is left to take it if only the last evaluation is left
    if batch is None:
        return run.feed.train_batches(epoch, num_steps, first)
    later = run.feed.train_batches(epoch, num_steps - 1, first + 1)
    # Only the iterator holds the first batch, so that its memory is free after its step.
    return itertools.chain(iter([batch]), later)


def count_step(run: Loop, sums: dict[str, np.ndarray]) -> None:
    """Count a step whose {metric: values_R} have arrived: its record, progress, the time left."""
    progress = run.progress
    progress.step += 1
    progress.learning_rate = float(np.mean(sums["learning_rate"], dtype=np.float64))
    progress.sums.add(sums)
    run.loss_scales.update(progress.step, sums)
    loss = check_losses(run, "training", sums)
    if run.profiler.is_tracing:
        progress.sums.profiled_steps += 1
        return
    run.timer.count(int(sums["count"].sum()))
    if progress.step % run.config.log_every_steps == 0:
        write_step_record(run)
    run.timer.begin_interval()
    show_progress(run, loss)


def finish_steps(run: Loop, state: TrainState) -> None:
    """Count all steps that are queued; return when the devices have ended them."""
    for sums in run.queue.drain():
        count_step(run, sums)
    # The sums of the last step are fetched from one device; its state is on all.
    wait_for(state)


def check_losses(run: Loop, phase: str, metrics: Mapping[str, np.ndarray]) -> float:
    """Return the mean loss over the models; raise Diverged if no model has a finite one.

    `metrics` is {metric: values_R} of a training step or of an evaluation, as `phase` says. Under
    fp16 a loss that is not finite need not be the end: activations of some images overflow, the
    step is skipped, and the next may not be. A model has diverged if steps were skipped down to
    the lowest loss scale. After the last step of all there is no next one: then its loss decides.
    """
    progress, because = run.progress, ""
    losses_R = metrics["loss"] / metrics["count"]
    diverged_R = ~np.isfinite(losses_R)
    is_last = phase == "evaluation" and progress.step == run.plan.total_steps
    if run.loss_scales.lost_R is not None and not is_last:
        diverged_R = run.loss_scales.lost_R
        because = " and the gradients overflow float16 at every loss scale down to 1"
    if diverged_R.all():
        raise Diverged(
            f"the {phase} loss is {losses_R[0]}{because} at step {progress.step}, "
            f"epoch {len(progress.epochs) + 1}"
        )
    return float(np.mean(losses_R))


def show_progress(run: Loop, loss: float) -> None:
    """Show how far the epoch is, the rate, the last loss and the time left."""
    sums, plan, step_time_s = run.progress.sums, run.plan, run.timer.step_time_s()
    # The time of the first evaluation is not known yet.
    evaluations_s = [epoch.eval_time_s for epoch in run.progress.epochs if epoch.eval_time_s]
    steps_left = plan.total_steps - run.progress.step
    left_s = steps_left * step_time_s
    left_s += plan.num_evaluations(sums.epoch) * sum(evaluations_s[-1:])
    tokens = run.config.data.sequence_length
    rate = rate_in_words(run.program.layout.images_per_step / step_time_s, tokens)
    run.console.progress(
        f"epoch {sums.epoch + 1}/{plan.num_epochs}",
        sums.steps,
        len(plan.steps(sums.epoch)),
        f"{rate}  loss {loss:.4f}  {duration(left_s)} left",
    )
    if not run.has_said_time_left and run.timer.total_s() >= MEASURED_S:
        run.has_said_time_left = True
        steps = f"{steps_left:,} steps of {duration(step_time_s)} are left"
        say_time_left(run.console, left_s, steps)


def evaluate(run: Loop, state: TrainState) -> tuple[dict[str, np.ndarray], float]:
    """Evaluate every example of the split exactly once; return {metric: sums_R} and the seconds.

    Raises:
      Diverged: no model has a finite loss any more.
    """
    watch, feed, network = Stopwatch(), run.feed, run.network
    sums = {name: np.zeros(len(run.seeds_R)) for name in network.task.eval_sums}
    title = f"evaluating epoch {len(run.progress.epochs) + 1}/{run.plan.num_epochs}"

    def queue_steps() -> Iterator[jax.Array]:
        for batch in feed.eval_batches():
            with run.network.mesh.transfer_guard():
                sums_M = run.program.eval_step(state, feed.eval_data, batch)
            yield sums_M

    with run.clock.phase("eval"):
        arriving = as_they_arrive(queue_steps(), network.unpack_eval_sums)
        for done, arrived in enumerate(arriving, 1):
            for name, sums_R in arrived.items():
                sums[name] += sums_R
            run.console.progress(title, done, feed.eval_steps, "")
        if (sums["count"] != feed.num_eval).any():
            raise AssertionError(
                f"evaluated {sums['count']} examples, the split has {feed.num_eval}"
            )
        # The last update of all may have broken the network, after the last training loss.
        check_losses(run, "evaluation", sums)
    return sums, watch.elapsed_s()


# ---------------------------------------------------------------------------- between two steps


def save_before_step(run: Loop, state: TrainState, step: int) -> None:
    """Save a checkpoint before a step, but for the run's first, if it is time for one."""
    # Within a trace its time would be taken for that of steps.
    if step > 1 and not run.profiler.is_tracing and checkpoint_due(run):
        finish_steps(run, state)
        run.timer.pause()
        save_checkpoint(run, state)
        run.timer.resume()


def trace_step(run: Loop, state: TrainState, step: int) -> None:
    """Start the trace before the first step that the profiler is to trace, end it after the last.

    The time of traced steps is in the phase `profile`, but for the waits for data, and in no rate.
    """
    profiler = run.profiler
    is_traced = step in profiler.steps
    if is_traced and not profiler.is_tracing:
        finish_steps(run, state)
        if run.progress.sums.interval_steps:
            write_step_record(run)
        run.timer.pause()
        end = run.plan.steps(run.progress.sums.epoch).stop  # a trace ends with the epoch
        profiler.start(range(step, min(profiler.steps.stop, end)), run.clock, run.console)
    elif profiler.is_tracing and not is_traced:
        end_trace(run, state)


def end_trace(run: Loop, state: TrainState) -> None:
    """Write the trace, and the record of the steps in it."""
    finish_steps(run, state)
    run.profiler.close()
    # After a request to stop there are fewer.
    run.progress.traced[:] = [one for one in run.progress.traced if one <= run.progress.step]
    write_step_record(run, profiled=True)
    run.timer.resume()


def checkpoint_due(run: Loop, epochs_done: int | None = None, last: bool = False) -> bool:
    """Return whether it is time for a checkpoint, see `Checkpoints.due`.

    If each process has a part of the state, all of them save it when it is due by process 0's
    clock. They ask it after epochs only: asking between steps would make them wait.
    """
    due = run.checkpoints is not None and run.checkpoints.due(epochs_done, last)
    if not run.network.sharding.is_across_processes:
        return due
    return epochs_done is not None and processes.broadcast_value(due)


def save_checkpoint(run: Loop, state: TrainState, metadata: dict[str, Any] | None = None) -> None:
    """Save a checkpoint if any are written; nothing may be queued on the devices.

    `metadata` are those to resume from, if not the present ones.
    """
    state = run.network.sharding.fetch(state)  # all processes take part in it
    if run.checkpoints is None:
        return
    epochs, score = run.progress.epochs, None
    if epochs and not run.progress.sums.steps:
        score = score_of(epochs[-1], run.network.task.primary_metric)
    kept = metadata or checkpoint_metadata(run) or {}
    with run.clock.phase("checkpoint"), defer_signals():
        run.checkpoints.save(state, kept, score)


def checkpoint_metadata(run: Loop) -> dict[str, Any] | None:
    """Return what a checkpoint keeps beside the state; None if none are written."""
    if run.checkpoints is None:
        return None
    with run.clock.phase("checkpoint"), defer_signals():
        run.writer.flush()
        return run.progress.to_json() | {
            "records": mark_records(run.checkpoints.folder.parent),
            "totals_s": run.clock.totals_s(),
            "windows": [*run.telemetry.windows],
        }


# ---------------------------------------------------------------------------- the metrics lines


def write_step_record(run: Loop, *, profiled: bool = False) -> None:
    """Write the record of the steps since the last one, whose metrics have just arrived."""
    sums, times = run.progress.sums, dict[str, Any]()
    # Without step_log metrics arrive together, and the time between two of them means nothing.
    if run.config.step_log and not profiled:
        step_time_s = sums.interval_time_s / sums.interval_steps
        images_per_s = run.program.layout.images_per_step / step_time_s
        times = {"step_time_s": step_time_s, "images_per_s": images_per_s}
    record = StepRecord(
        step=run.progress.step,
        epoch=sums.epoch + 1,
        **means_over_models(run, "", sums.interval, run.network.task.train_metrics),
        learning_rate=run.progress.learning_rate,
        **run.loss_scales.describe(),
        elapsed_s=run.clock.wall_s(),
        profiled=profiled or None,
        **times,
    )
    if times:
        run.console.say(
            f"step {record.step}, loss = {record.loss:.2f} "
            f"({record.images_per_s:.1f} examples/sec; {record.step_time_s:.3f} sec/batch)"
        )
    run.write(record)
    sums.begin_interval()


def write_epoch_record(
    run: Loop, eval_sums: dict[str, np.ndarray] | None, eval_time_s: float
) -> None:
    """Write the record of the epoch that is done: images/s, top-1 and what they are made of."""
    trained, network = run.progress.sums, run.network
    timed_steps = trained.steps - trained.profiled_steps
    images_per_s = trained.images / trained.time_s if trained.images else None
    utilization = network.analysis.utilization(images_per_s) if images_per_s else {}
    evaluated = {}
    if eval_sums:
        evaluated = means_over_models(run, "eval_", eval_sums, network.task.eval_metrics)
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
        images_per_s_per_device=images_per_s and images_per_s / network.mesh.num_devices,
        tokens_per_s=utilization.get("tokens_per_s"),
        mfu=utilization.get("mfu"),
        profiled_steps=trained.profiled_steps,
        **means_over_models(run, "train_", trained.total, network.task.train_metrics),
        **evaluated,
        learning_rate=run.progress.learning_rate,
        **mean_norms(trained),
        **run.loss_scales.describe(),
        peak_memory_bytes=network.mesh.peak_memory_bytes,
        process_memory_bytes=process_memory_bytes(),
        elapsed_s=run.clock.wall_s(),
    )
    images = timed_steps * run.program.layout.images_per_step
    # In one piece: an epoch is either under way or has its record.
    with defer_signals():
        run.progress.end_epoch(record)
        run.progress.invalid += impossible_epoch(record, images)
        run.write(record)


def mean_norms(trained: EpochSums) -> dict[str, Any]:
    """Return the norms of an epoch, means over its updates; none if a model made no update."""
    updates_R = trained.total[UPDATES]
    if not updates_R.all():
        return {}
    return {name: float(np.mean(trained.total[name] / updates_R)) for name in NORMS}


def means_over_models(
    run: Loop, prefix: str, sums: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, Any]:
    """Return the metrics of some sums as the fields of a record: means over the models.

    With several models, the spread of the primary metric and each model's metrics are added.
    """
    task, primary_metric = run.network.task, run.network.task.primary_metric
    metrics = task.compute({name: sums[name] for name in sums if name not in (*NORMS, UPDATES)})
    means = {name: float(np.mean(metrics[name])) for name in names}
    models = {}
    if len(run.seeds_R) > 1:
        values_R = metrics[primary_metric]
        spread = (np.std(values_R, ddof=1), np.min(values_R), np.max(values_R))
        for statistic, value in zip(SPREAD, spread, strict=True):
            means[f"{primary_metric}_{statistic}"] = float(value)
        models[f"{prefix}models"] = [
            {"seed": seed} | {name: float(metrics[name][r]) for name in names}
            for r, seed in enumerate(run.seeds_R)
        ]
    return metric_fields(EpochRecord if prefix else StepRecord, prefix, means) | models
