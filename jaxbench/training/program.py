"""From a config to the two steps that run on a mesh."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters.partial_eval import dce_jaxpr

from jaxbench.batch_layout import BatchLayout
from jaxbench.clock import wait_until
from jaxbench.config import Config
from jaxbench.config.custom import check_task, describe_error
from jaxbench.errors import BadInput
from jaxbench.hardware.peaks import utilization
from jaxbench.hardware.targets.target import compute_capability
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.models.transformer_block import block_options
from jaxbench.parallel.fsdp import StateSharding, split_axis
from jaxbench.parallel.mesh import AXIS, DataMesh, all_ready
from jaxbench.precision import Precision, get_precision, precision_of
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.tracing import read_network
from jaxbench.tasks import Task, get_task, sums_by_name
from jaxbench.training.compilation import in_background
from jaxbench.training.network_analysis import (
    NetworkAnalysis,
    TrainingWork,
    analyze_network,
    count_training,
    trace_network,
)
from jaxbench.training.optimizers import create_optimizer, create_schedule, describe_groups
from jaxbench.training.parameter_groups import ParameterUses, read_uses
from jaxbench.xla.jaxpr import FLOPS_PER_MAC


class Program:
    """The network of a config, its optimizer and its steps on a mesh; nothing is compiled yet.

    Attributes:
      config, mesh, layout: the experiment, its devices, how the batch is split over them.
      schedule: update -> learning rate.
      sharding: how the state is split over the devices; None if it is not.
      data_dependent_params: () -> the parameters that are computed from training images; all others
        are drawn.
      init: seed -> TrainState of one model, on `init_device` or split.
      init_device: the host's CPU; if the state is split, a device that has a part.
      train_step: (state, train_data, batch) -> (state, sums_M); the state given to it is gone
        afterwards. `train_data` and `batch` come from the feed. The sums are those of all devices
        or, if each trains a model, sums_RxM: see `unpack_train_sums`.
      eval_step: (state, eval_data, batch) -> sums_M: see `unpack_eval_sums`.

    Raises:
      BadInput: the model's config cannot make a network.
    """

    # `jaxbench.train.build_program` sets them.
    init: Any
    init_device: jax.Device
    train_step: Any
    eval_step: Any

    def __init__(
        self, config: Config, mesh: DataMesh, layout: BatchLayout, steps_per_epoch: int
    ) -> None:
        self.config, self.mesh, self.layout = config, mesh, layout
        self.precision = get_precision(config.precision)
        self.task: Task = get_task(
            config.task,
            test_time_augmentation=config.test_time_augmentation != "none",
            byte_tokens=config.data.num_classes == 256,
        )
        self.model = _create_network(config, mesh, self.precision)
        self.schedule = create_schedule(config, steps_per_epoch)
        self.optimizer = create_optimizer(
            config, self.schedule, steps_per_epoch, lambda: self._parameter_uses
        )
        self.sharding = StateSharding(mesh) if config.parallelism == "fsdp" else None
        self.data_dependent_params: Callable[[], dict[str, Any]] = dict

    def unpack_train_sums(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of a training step's packed metrics; wait for them.

        `learning_rate` is the rate of the step's update. Under fp16 `skipped_steps` and
        `loss_scale` are those after the step.
        """
        scaled = ("skipped_steps", "loss_scale") if self.precision.scales_loss else ()
        return sums_by_name((*self.task.train_sums, "learning_rate", *scaled), packed)

    def unpack_eval_sums(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of an evaluation step's packed metrics; wait for them."""
        return sums_by_name(self.task.eval_sums, packed)

    def place_train_state(self, state: Any = None) -> Any:
        """Place a state: on each device whole, a part, or its own model's.

        None initialises it; else it is as `device_get` fetched it from there.
        """
        if self.config.replicas == "independent":
            if state is None:
                seeds_R = self.config.seeds(self.mesh.num_devices)
                states = [jax.device_get(self.initial_state(seed)) for seed in seeds_R]
                state = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
            return self.mesh.shard(state)
        if state is None:
            state = self.initial_state()
        return self.sharding.place(state) if self.sharding else self.mesh.replicate(state)

    @property
    def is_state_across_processes(self) -> bool:
        """Return whether no process has the whole state on its devices."""
        return self.sharding is not None and self.mesh.process[1] > 1

    def initial_state(self, seed: int | None = None) -> Any:
        """Initialise one model's state as `init` does, from the config's seed if None."""
        self.begin_init()()
        state = self.init(np.uint32(self.config.seed if seed is None else seed))
        wait_until(lambda: all_ready(state))  # nothing would interrupt the copy to other devices
        data_dependent_params = self.data_dependent_params()
        if not data_dependent_params:
            return state
        params = flax.traverse_util.flatten_dict(state.params)
        for path, computed in flax.traverse_util.flatten_dict(data_dependent_params).items():
            drawn = params[path]
            if drawn.shape != computed.shape:
                raise ValueError(f"{path}: {computed.shape} follows from images, not {drawn.shape}")
            params[path] = jnp.asarray(computed, drawn.dtype)
        return state.replace(params=flax.traverse_util.unflatten_dict(params))

    def begin_init(self) -> Callable[[], Any]:
        """Begin to compile `init`, once; return a function that waits for the end."""
        return self._wait_for_init

    @functools.cached_property
    def _wait_for_init(self) -> Callable[[], Any]:
        compile_init = self.init.lower(np.uint32(0)).compile
        return in_background(compile_init, self.init_device.platform)

    def abstract_train_state(self) -> Any:
        """Return the shapes and types of the state."""
        state = self.init.eval_shape(np.uint32(0))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)

    def abstract_placed_state(self) -> Any:
        """Return the shapes, types and shardings of what `place_train_state` returns."""
        state = self.abstract_train_state()
        if self.sharding:
            return self.sharding.shapes(state)
        return self.mesh.shapes(state, rows=self.config.replicas == "independent")

    def state_bytes_per_device(self) -> int:
        """Return the size of what a device has of the state."""
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(self.abstract_placed_state())
        )

    def check(self) -> None:
        """Raise BadInput if the network cannot be built or does not fit the task, by shapes."""
        data = self.config.data
        name = self.config.model.network_name
        examples = "sequences" if data.sequence_length else "images"
        expected = self.task.output_shape(data.example_shape, data.num_classes)
        try:
            state, analysis = self.abstract_train_state(), self.analysis
        except BadInput:
            raise
        except Exception as error:
            problem = f"{name} cannot be built for {examples} of {data.example_shape}"
            raise BadInput(describe_error(problem, error)) from error
        if (state.batch_stats or analysis.draws_by_device) and not self.model.takes_train:
            layer = "batch norm" if state.batch_stats else "dropout"
            raise BadInput(
                f"{self.model.label} has {layer}, and its __call__ takes no `train`, without which "
                "it cannot tell training from evaluation"
            )
        sizes = [leaf.size for leaf in jax.tree.leaves(state.params)]
        if analysis.output_shape != expected or not all(sizes):
            raise BadInput(
                f"{name} makes outputs of shape {analysis.output_shape} with {sum(sizes):,} "
                f"parameters from {examples} of {data.example_shape}; {self.task.name} expects "
                f"{expected}"
            )
        shapes = (leaf.shape for leaf in jax.tree.leaves(state.params))
        num_devices = self.mesh.num_devices
        if self.sharding and all(split_axis(shape, num_devices) is None for shape in shapes):
            raise BadInput(
                f"parallelism='fsdp': {num_devices} devices divide no axis of a parameter, so that "
                "each would hold the whole state; take fewer devices, or another parallelism"
            )
        if analysis.batch_norm not in (None, self.config.batch_norm):
            raise BadInput(
                f"batch_norm={self.config.batch_norm}: the network's batch norm is "
                f"{analysis.batch_norm}; "
                f"{name} must pass norm_axis or axis_name to every BatchNorm"
            )
        if self.config.optimizer.name == "custom":
            try:
                params = state.params
                updates, _ = jax.eval_shape(self.optimizer.update, params, state.opt_state, params)
                jax.eval_shape(optax.apply_updates, params, updates)
            except Exception as error:
                raise BadInput(describe_error("optimizer.update_rule fails", error)) from error
        check_task(self.task, data.example_shape, expected, self.precision.param_dtype)

    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_train_state().params))

    @functools.cached_property
    def _traced(self) -> Any:
        shapes = vars(self.abstract_train_state())
        return trace_network(self.model, self.mesh, self.input_shape, shapes)

    @functools.cached_property
    def _parameter_uses(self) -> ParameterUses:
        # The optimizer asks for them while the state is made, which `_traced` needs.
        shapes = jax.eval_shape(self.model.init, jax.random.key(0), self.input_shape)
        return read_uses(trace_network(self.model, self.mesh, self.input_shape, shapes))

    @property
    def input_shape(self) -> jax.ShapeDtypeStruct:
        """The shape and type of one normalised image, or of int32 tokens_1xT, for the network."""
        shape = (1, *self.config.data.example_shape)
        dtype = jnp.int32 if len(shape) == 2 else self.precision.compute_dtype
        return jax.ShapeDtypeStruct(shape, dtype)

    @functools.cached_property
    def analysis(self) -> NetworkAnalysis:
        """What the network does, found by tracing it."""
        return analyze_network(self._traced)

    @functools.cached_property
    def shape(self) -> NetworkShape:
        """The network's layers, from which its memory is estimated."""
        return read_network(self._traced.jaxpr.jaxpr)

    @functools.cached_property
    def work(self) -> TrainingWork:
        """What training computes. It takes seconds to count, so no start waits for it."""
        state = self.abstract_train_state()
        needed = [True] * len(jax.tree.leaves(state.params))
        can_freeze = self.config.optimizer.name == "custom" or self.config.model.trainable_epochs()
        # A scaled loss needs all gradients: they tell whether it overflowed.
        if can_freeze and not self.precision.scales_loss:
            params = state.params
            update = jax.make_jaxpr(self.optimizer.update)(params, state.opt_state, params)
            needed = dce_jaxpr(update.jaxpr, [True] * len(update.out_avals))[1][: len(needed)]
        return count_training(self._traced, needed)

    def utilization(self, images_per_s: float, flops: int | None = None) -> dict[str, Any]:
        """Return the fields of `Utilization` at a rate.

        The peak is that of the type that the network does most of its arithmetic in. `flops` are
        those of an image, by default of its training.
        """
        flops = flops or self.training_flops
        fields = utilization(self.mesh, self.main_precision, images_per_s, flops)
        if tokens := self.config.data.sequence_length:
            fields |= {"tokens_per_image": tokens, "tokens_per_s": images_per_s * tokens}
        return fields

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return a row for each group of parameters that the update rule treats alike."""
        params = self.abstract_train_state().params
        return describe_groups(self.config, params, lambda: self._parameter_uses)

    @property
    def main_precision(self) -> str:
        """The precision that most of the arithmetic is in, see `precision_of`."""
        dtype = self.analysis.main_dtype
        return precision_of(dtype) if dtype else self.config.precision

    @property
    def forward_macs(self) -> int:
        """How many multiply-accumulates the forward pass of one image takes."""
        return self.analysis.forward_macs

    @property
    def training_flops(self) -> int:
        """How many floating-point operations training takes for one image, as MFU counts them."""
        return self.work.training_macs * FLOPS_PER_MAC


def _create_network(config: Config, mesh: DataMesh, precision: Precision) -> NetworkAdapter:
    def create(precision: Precision) -> Any:
        return config.model.create(
            num_classes=config.data.num_classes,
            dtype=precision.compute_dtype,
            param_dtype=precision.param_dtype,
            norm_axis=AXIS if config.batch_norm == "sync" else None,
            **block_options(config, compute_capability(mesh.devices[0]), precision.compute_dtype),
        )

    try:
        # Drawn in float64, initial parameters would be others than those of fp32.
        drawn = create(get_precision("fp32")) if precision.name == "fp64" else None
        return NetworkAdapter(create(precision), precision.param_dtype, drawn)
    except BadInput:
        raise
    except Exception as error:
        problem = f"{config.model.network_name} cannot be created"
        raise BadInput(describe_error(problem, error)) from error
