"""From a config to the network, and to the two steps that run on a mesh."""

import dataclasses
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

from jaxbench.aliases import Step
from jaxbench.batch_layout import BatchLayout
from jaxbench.config import Config
from jaxbench.config.custom import check_task, describe_error
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import compute_capability, has_fp8
from jaxbench.microbench.attention import preferred_attention
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.models.transformer_block import FUSED_ATTENTION, block_options
from jaxbench.parallel.mesh import AXIS, DataMesh, wait_for
from jaxbench.parallel.sharding import FullySharded, Replicated, shard_state, split_axis
from jaxbench.precision import Precision, get_precision
from jaxbench.tasks import Denoising, Task, get_task, sums_by_name
from jaxbench.training.compilation import in_background
from jaxbench.training.network_analysis import NetworkAnalysis, NetworkTrace
from jaxbench.training.optimizers import create_optimizer, create_schedule

# What a step returns of its update: the norms over all parameters of the gradients, before they are
# clipped, of the update and of the parameters after it; and 1, or 0 if fp16 skipped the step.
NORMS, UPDATES = ("gradient_norm", "update_norm", "parameter_norm"), "updates"


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """The network of a config, and how it is trained; no device holds any of it.

    Attributes:
      mesh: the devices that it will be on.
      sharding: where its state will lie on them.
      module: the flax module.
      schedule: update -> learning rate.
      trace: the shapes of its parameters, and its forward pass.
    """

    config: Config
    mesh: DataMesh
    sharding: Replicated | FullySharded
    precision: Precision
    task: Task
    module: NetworkAdapter
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    trace: NetworkTrace

    @functools.cached_property
    def analysis(self) -> NetworkAnalysis:
        """What the network computes, counted when it is asked for."""
        return NetworkAnalysis(self.trace, self.config, self.precision, lambda: self.uses_gradients)

    @functools.cached_property
    def uses_gradients(self) -> list[bool]:
        """Whether an update needs a parameter's gradient, for each leaf of the parameters."""
        params, config = self.trace.variables["params"], self.config
        can_freeze = config.optimizer.name == "custom" or config.model.trainable_epochs()
        if not can_freeze:
            return [True] * len(jax.tree.leaves(params))
        opt_state = jax.eval_shape(self.optimizer.init, params)
        jaxpr = jax.make_jaxpr(self.optimizer.update)(params, opt_state, params)
        needed = dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals))[1]
        return needed[: len(jax.tree.leaves(params))]

    @property
    def epoch_sums(self) -> tuple[str, ...]:
        """The names of the values of a training step that are summed over an epoch."""
        return (*self.task.train_sums, *NORMS, UPDATES)

    def unpack_train_sums(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of a training step's packed metrics; wait for them.

        `learning_rate` is the rate of the step's update. Under fp16 `skipped_steps` and
        `loss_scale` are those after the step.
        """
        scaled = ("skipped_steps", "loss_scale") if self.precision.scales_loss else ()
        return sums_by_name((*self.epoch_sums, "learning_rate", *scaled), packed)

    def unpack_eval_sums(self, packed: Any) -> dict[str, np.ndarray]:
        """Return {metric: values_R} of an evaluation step's packed metrics; wait for them."""
        return sums_by_name(self.task.eval_sums, packed)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A network's steps on the devices of its mesh; nothing is compiled yet.

    Attributes:
      layout: how the batch is split over the devices.
      init: seed -> TrainState of one model, on `sharding.init_device` or split.
      train_step: (state, train_data, batch) -> (state, sums_M); the state given to it is gone
        afterwards. `train_data` and `batch` come from the feed. The sums are those of all devices
        or, if each trains a model, sums_RxM: see `Network.unpack_train_sums`.
      eval_step: (state, eval_data, batch) -> sums_M: see `Network.unpack_eval_sums`.
    """

    network: Network
    layout: BatchLayout
    init: Step
    train_step: Step
    eval_step: Step

    def place_train_state(
        self, state: Any = None, params_from_images: Callable[[], dict[str, Any]] = dict
    ) -> Any:
        """Place a state: on each device whole, a part, or its own model's.

        None initialises it as `initial_state` does; else it is as `device_get` fetched it from
        there.
        """
        network = self.network
        if state is None and network.config.replicas == "independent":
            seeds_R = network.config.seeds(network.mesh.num_devices)
            states = [
                jax.device_get(self.initial_state(params_from_images, seed)) for seed in seeds_R
            ]
            state = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
        if state is None:
            state = self.initial_state(params_from_images)
        return network.sharding.place(state)

    def initial_state(
        self, params_from_images: Callable[[], dict[str, Any]] = dict, seed: int | None = None
    ) -> Any:
        """Initialise one model's state from a seed, by default the config's.

        `init` draws it, but for the parameters that are computed from training images.
        """
        self.begin_init()()
        state = self.init(np.uint32(self.network.config.seed if seed is None else seed))
        wait_for(state)  # nothing would interrupt the copy to other devices
        from_images = params_from_images()
        if not from_images:
            return state
        params = flax.traverse_util.flatten_dict(state.params)
        for path, computed in flax.traverse_util.flatten_dict(from_images).items():
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
        return in_background(compile_init, self.network.sharding.init_device.platform)

    def abstract_train_state(self) -> Any:
        """Return the shapes and types of the state."""
        state = jax.eval_shape(self.init, np.uint32(0))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)

    def abstract_placed_state(self) -> Any:
        """Return the shapes, types and shardings of what `place_train_state` returns."""
        return self.network.sharding.shapes(self.abstract_train_state())

    def state_bytes_per_device(self) -> int:
        """Return the size of what a device has of the state."""
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(self.abstract_placed_state())
        )

    def check(self) -> None:
        """Raise BadInput if the network cannot be built or does not fit the task, by shapes."""
        network, config = self.network, self.network.config
        data, task, module = config.data, network.task, network.module
        name = config.model.network_name
        examples = "sequences" if data.sequence_length else "images"
        expected = task.output_shape(data.example_shape, data.num_classes)
        try:
            state, analysis = self.abstract_train_state(), network.analysis
        except BadInput:
            raise
        except Exception as error:
            problem = f"{name} cannot be built for {examples} of {data.example_shape}"
            raise BadInput(describe_error(problem, error)) from error
        if (state.batch_stats or analysis.draws_by_device) and not module.takes_train:
            layer = "batch norm" if state.batch_stats else "dropout"
            raise BadInput(
                f"{module.label} has {layer}, and its __call__ takes no `train`, without which "
                "it cannot tell training from evaluation"
            )
        removes_noise = isinstance(task, Denoising)
        if module.takes_labels != removes_noise:
            takes = "takes" if module.takes_labels else "takes no"
            raise BadInput(
                f"{module.label}.__call__ {takes} `labels_B`, which is for networks that remove "
                f"noise from examples of a class (task='denoising'), and the task is {task.name}"
            )
        params = jax.tree.leaves(state.params)
        if analysis.output_shape != expected or not all(leaf.size for leaf in params):
            raise BadInput(
                f"{name} makes outputs of shape {analysis.output_shape} with "
                f"{analysis.num_parameters:,} parameters from {examples} of {data.example_shape}; "
                f"{task.name} expects {expected}"
            )
        devices = network.mesh.num_devices
        if network.sharding.gathers and all(split_axis(p.shape, devices) is None for p in params):
            raise BadInput(
                f"parallelism='fsdp': {devices} devices divide no axis of a parameter, so that "
                "each would hold the whole state; take fewer devices, or another parallelism"
            )
        if analysis.batch_norm not in (None, config.batch_norm):
            raise BadInput(
                f"batch_norm={config.batch_norm}: the network's batch norm is "
                f"{analysis.batch_norm}; "
                f"{name} must pass norm_axis or axis_name to every BatchNorm"
            )
        if config.optimizer.name == "custom":
            try:
                update = network.optimizer.update
                updates, _ = jax.eval_shape(update, state.params, state.opt_state, state.params)
                jax.eval_shape(optax.apply_updates, state.params, updates)
            except Exception as error:
                raise BadInput(describe_error("optimizer.update_rule fails", error)) from error
        check_task(task, data.example_shape, expected, network.precision.param_dtype)


def create_network(config: Config, mesh: DataMesh, steps_per_epoch: int) -> Network:
    """Create the network of a config for the devices of a mesh.

    Raises:
      BadInput: the model's config cannot make a network.
    """
    precision, device = get_precision(config.precision), mesh.devices[0]
    sharding = shard_state(config, mesh)
    if precision.narrow_dtype and not has_fp8(device):
        raise BadInput(
            f"precision='fp8': {device.device_kind} has no units for it; NVIDIA GPUs of "
            "compute capability 8.9 (Ada) or more and TPU7x have; precision=bf16 runs here"
        )

    def create(precision: Precision, **changed: Any) -> Any:
        return config.model.create(
            num_classes=config.data.num_classes,
            dtype=precision.compute_dtype,
            param_dtype=precision.param_dtype,
            norm_axis=AXIS if config.batch_norm == "sync" else None,
            **options | changed,
        )

    try:
        attention = preferred_attention(config, device).name
        options = block_options(config, attention, compute_capability(device))
        # Drawn in float64, initial parameters would be others than those of fp32.
        drawn = create(get_precision("fp32")) if precision.name == "fp64" else None
        module = traced = NetworkAdapter(create(precision), precision.param_dtype, drawn)
        if attention == "flash":
            # What its kernels compute again, and skip, counts no more than in other attention.
            counted = create(precision, attention=FUSED_ATTENTION)
            traced = NetworkAdapter(counted, precision.param_dtype, drawn)
    except BadInput:
        raise
    except Exception as error:
        problem = f"{config.model.network_name} cannot be created"
        raise BadInput(describe_error(problem, error)) from error
    shape = (1, *config.data.example_shape)
    dtype = jnp.int32 if len(shape) == 2 else precision.compute_dtype
    trace = NetworkTrace(traced, mesh, jax.ShapeDtypeStruct(shape, dtype))
    task = get_task(
        config.task,
        test_time_augmentation=config.test_time_augmentation != "none",
        byte_tokens=config.data.num_classes == 256,
    )
    schedule = create_schedule(config, steps_per_epoch)
    # While the state is made the optimizer asks what the network does with its parameters.
    optimizer = create_optimizer(config, schedule, steps_per_epoch, lambda: trace.uses)
    return Network(config, mesh, sharding, precision, task, module, schedule, optimizer, trace)
