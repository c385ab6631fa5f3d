"""From a config to the two steps that run on a mesh."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import numpy as np
import optax

from jaxbench.clock import Clock, Stopwatch
from jaxbench.config import Config
from jaxbench.distributed.mesh import AXIS, DataMesh, device_memory_bytes
from jaxbench.errors import BadInput
from jaxbench.geometry import BatchGeometry
from jaxbench.precision import Precision, get_precision
from jaxbench.records.schema import CompileRecord
from jaxbench.tasks import Task, get_task, metrics_by_name
from jaxbench.training.optimizers import create_optimizer, create_schedule
from jaxbench.training.train_step import (
    TrainState,
    make_eval_step,
    make_init,
    make_train_step,
    train_metric_names,
)
from jaxbench.xla.collectives import count_collectives
from jaxbench.xla.compile_cache import watch_cache
from jaxbench.xla.flops import count_macs


@dataclasses.dataclass(frozen=True)
class Program:
    """The network and its steps; nothing in it has run or been compiled yet.

    Attributes:
      model: the flax module.
      schedule: update -> learning rate.
      init: seed -> TrainState of one model, on the default device.
      train_step: (state, train_data, batch) -> (state, packed metrics); the state given to it is
        gone afterwards. `train_data` and `batch` come from the feed. The metrics are metrics_M of
        all devices or, where each trains a model of its own, metrics_RxM: see `train_metrics`.
      eval_step: (state, eval_data, batch) -> packed metrics: see `eval_metrics`.
      data_dependent_params: () -> the parameters that are computed from training images; all others
        are drawn.
    """

    config: Config
    mesh: DataMesh
    task: Task
    precision: Precision
    model: nn.Module
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    init: Any
    train_step: Any
    eval_step: Any
    data_dependent_params: Callable[[], dict[str, Any]] = dict

    def train_metrics(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of a training step's packed metrics; wait for them."""
        return metrics_by_name(train_metric_names(self.task, self.precision), packed)

    def eval_metrics(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of an evaluation step's packed metrics; wait for them."""
        return metrics_by_name(self.task.eval_metrics, packed)

    def repeat_train_step(self, num_steps: int) -> Any:
        """Make one call of several training steps, all with the same batch.

        Returns:
          (state, train_data, batch) -> (state, metrics of the last step), compiled on first call;
          the state given to it is gone afterwards.
        """
        step = make_train_step(
            self.model,
            self.optimizer,
            self.schedule,
            config=self.config,
            task=self.task,
            precision=self.precision,
        )

        def steps(state, data, batch):
            def one(state, _):
                # Tied to the state, or XLA would do once what each step does with the same batch.
                return step(*jax.lax.optimization_barrier((state, data, batch)))

            state, metrics_S = jax.lax.scan(one, state, length=num_steps)
            return state, metrics_S[-1]

        own = self.config.replicas == "independent"
        return self.mesh.parallelize(
            steps, sharded=(own, False, True), sharded_output=own, donate=(0,)
        )

    @functools.cached_property
    def geometry(self) -> BatchGeometry:
        """How a step's batch is split over models, processes and devices."""
        return BatchGeometry.create(self.config, self.mesh.num_devices, self.mesh.process)

    def place_train_state(self) -> TrainState:
        """Initialise the state and place it: whole on every device, or on each its own."""
        seeds_R = self.config.seeds(self.mesh.num_devices)
        if self.config.replicas == "data_parallel":
            return self.mesh.replicate(self.create_train_state())
        states = [jax.device_get(self.create_train_state(seed)) for seed in seeds_R]
        return self.mesh.shard(jax.tree.map(lambda *leaves: np.stack(leaves), *states))

    def place_saved_state(self, state: TrainState) -> TrainState:
        """Place a state that `device_get` fetched from where `place_train_state` put it."""
        if self.config.replicas == "data_parallel":
            return self.mesh.replicate(state)
        return self.mesh.shard(state)

    def create_train_state(self, seed: int | None = None) -> TrainState:
        """Initialise one model's state on the default device, from the config's seed if None."""
        state = self.init(np.uint32(self.config.seed if seed is None else seed))
        data_dependent_params = self.data_dependent_params()
        if not data_dependent_params:
            return state
        params = flax.traverse_util.flatten_dict(state.params)
        for path, given in flax.traverse_util.flatten_dict(data_dependent_params).items():
            drawn = params[path]
            if drawn.shape != given.shape:
                raise ValueError(f"{path}: {given.shape} follows from images, not {drawn.shape}")
            params[path] = jax.numpy.asarray(given, drawn.dtype)
        return state.replace(params=flax.traverse_util.unflatten_dict(params))

    def abstract_train_state(self) -> TrainState:
        """Return the shapes and types of the state."""
        return self.init.eval_shape(np.uint32(0))

    def abstract_placed_state(self) -> TrainState:
        """Return the shapes and types of what `place_train_state` returns."""
        state = self.abstract_train_state()
        if self.config.replicas == "data_parallel":
            return state
        devices = self.mesh.num_devices
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((devices, *leaf.shape), leaf.dtype), state
        )

    def check(self) -> None:
        """Raise BadInput where the network cannot be built or does not fit the task.

        Nothing is computed: shapes are enough to tell.
        """
        data = self.config.data
        name = type(self.config.model).__name__
        expected = self.task.output_shape(data.image_shape, data.num_classes)
        try:
            state = self.abstract_train_state()
            outputs = self._traced_forward.out_info
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            raise BadInput(
                f"{name} cannot be built for images of {data.image_shape}: "
                f"{type(error).__name__}: {message}"
            ) from error
        sizes = [leaf.size for leaf in jax.tree.leaves(state.params)]
        if outputs.shape != (1, *expected) or not all(sizes):
            raise BadInput(
                f"{name} makes outputs of shape {outputs.shape[1:]} with {sum(sizes):,} parameters "
                f"from images of {data.image_shape}; {self.task.name} expects {expected}"
            )

    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_train_state().params))

    def forward_macs(self) -> dict[str, int]:
        """Return the multiply-accumulates of one image's forward pass, by flax module path."""
        return self._forward_macs

    @functools.cached_property
    def _forward_macs(self) -> dict[str, int]:
        return count_macs(self._traced_forward)

    @functools.cached_property
    def _traced_forward(self) -> Any:
        """Return the forward pass of one image: shapes and arithmetic, never compiled."""

        def forward(params, batch_stats, images_1xHxWxC):
            variables = {"params": params, "batch_stats": batch_stats}
            return self.model.apply(variables, images_1xHxWxC, train=False)

        state = self.abstract_train_state()
        shape = (1, *self.config.data.image_shape)
        image = jax.ShapeDtypeStruct(shape, self.precision.compute_dtype)
        return jax.jit(forward).trace(state.params, state.batch_stats, image)


def build_program(
    config: Config,
    mesh: DataMesh,
    steps_per_epoch: int,
    data_dependent_params: Callable[[], dict[str, Any]] = dict,
) -> Program:
    """Build the network, its optimizer and both steps for a mesh.

    Args:
      config: the experiment.
      mesh: the devices.
      steps_per_epoch: of training, for the schedule.
      data_dependent_params: see `Program`; without it all parameters are drawn.

    Raises:
      BadInput: the model's config cannot make a network.
    """
    precision = get_precision(config.precision)
    try:
        model = config.model.create(
            num_classes=config.data.num_classes,
            dtype=precision.compute_dtype,
            param_dtype=precision.param_dtype,
            norm_axis=AXIS if config.batch_norm == "sync" else None,
        )
    except Exception as error:
        raise BadInput(
            f"{type(config.model).__name__}.create fails with {type(error).__name__}: {error}"
        ) from error
    schedule = create_schedule(config, steps_per_epoch)
    optimizer = create_optimizer(config, schedule, steps_per_epoch)
    task = get_task(config.task, config.test_time_augmentation != "none")
    parts = {"config": config, "task": task, "precision": precision}
    # Where each device trains its own model, each has its own state, and its own metrics.
    own = config.replicas == "independent"
    sharded = (own, False, True)
    return Program(
        mesh=mesh,
        model=model,
        schedule=schedule,
        optimizer=optimizer,
        init=make_init(model, optimizer, image_shape=config.data.image_shape, precision=precision),
        train_step=mesh.parallelize(
            make_train_step(model, optimizer, schedule, **parts),
            sharded=sharded,
            sharded_output=own,
            donate=(0,),
        ),
        eval_step=mesh.parallelize(
            make_eval_step(model, **parts), sharded=sharded, sharded_output=own
        ),
        data_dependent_params=data_dependent_params,
        **parts,
    )


def compile_step(name: str, step: Any, *args: Any, clock: Clock | None = None) -> CompileRecord:
    """Lower and compile a step for these arguments (or their shapes); later calls reuse it."""
    clock = clock or Clock()
    with clock.phase("lower"):
        watch = Stopwatch()
        lowered = step.lower(*args)
        lower_s = watch.elapsed_s()
    with clock.phase("compile"), watch_cache() as cache:
        watch = Stopwatch()
        compiled = lowered.compile()
        compile_s = watch.elapsed_s()
    return CompileRecord(
        function=name,
        lower_s=lower_s,
        compile_s=compile_s,
        compile_cache=cache.outcome,
        memory=_planned_memory(compiled),
        device_memory_bytes=device_memory_bytes(),
        xla_flops_per_device=_xla_cost(compiled, "flops"),
        xla_bytes_per_device=_xla_cost(compiled, "bytes accessed"),
        collectives=count_collectives(compiled.as_text()),
    )


def _planned_memory(compiled: Any) -> dict[str, int] | None:
    """Return bytes on one device; arguments and outputs share `alias_bytes` of donated memory."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    sizes = {
        "argument_bytes": analysis.argument_size_in_bytes,
        "output_bytes": analysis.output_size_in_bytes,
        "alias_bytes": analysis.alias_size_in_bytes,
        "temporary_bytes": analysis.temp_size_in_bytes,
        "code_bytes": analysis.generated_code_size_in_bytes,
    }
    sizes["total_bytes"] = sum(sizes.values()) - 2 * sizes["alias_bytes"]
    return sizes


def _xla_cost(compiled: Any, name: str) -> float | None:
    analysis = compiled.cost_analysis()
    return analysis.get(name) if analysis else None
