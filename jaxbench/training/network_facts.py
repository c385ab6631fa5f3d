"""What a network does with the options that it is given, read from its traced passes.

A network of one's own may ignore its `dtype` or `norm_axis`. Then a record of the config's
`precision` and `batch_norm` would be false.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.parallel.mesh import AXIS, DataMesh
from jaxbench.precision import Precision
from jaxbench.xla.dataflow import Dataflow
from jaxbench.xla.flops import CUDNN_ATTENTION, Product, find_products
from jaxbench.xla.least_bytes import count_activation_bytes


@dataclasses.dataclass(frozen=True)
class NetworkFacts:
    """What training on one image does; what names no pass is of the forward pass.

    Attributes:
      output_shape: of one image.
      macs_by_dtype: multiply-accumulates by the type of their operands.
      batch_norm: whose images the statistics that it updates come from: all devices' (`sync`),
        each one's own (`local`), or some of each (`partly sync`); None without any.
      macs_once: multiply-accumulates with each loop's body counted once, as XLA does.
      output_dtype: of its outputs, before they are widened for the loss.
      cudnn_attention: whether attention is cuDNN's.
      draws_by_device: whether its outputs depend on the key that a device has for whole arrays.
      activation_bytes: the least of activations that training moves, see `least_bytes`; None
        where its rules do not say.
    """

    output_shape: tuple[int, ...]
    macs_by_dtype: dict[str, int]
    batch_norm: str | None
    macs_once: int
    output_dtype: str = "float32"
    cudnn_attention: bool = False
    draws_by_device: bool = False
    activation_bytes: int | None = None

    @property
    def forward_macs(self) -> int:
        return sum(self.macs_by_dtype.values())

    @property
    def main_dtype(self) -> str | None:
        """The type of most multiply-accumulates; None without any."""
        return max(self.macs_by_dtype, key=self.macs_by_dtype.get, default=None)

    def bytes_lower_bound(self, images: int, state_bytes: int) -> int | None:
        """Return the least bytes that a step moves on a device; None where the rules do not say.

        Args:
          images: of the step on the device.
          state_bytes: of the state there, which is read and written once.
        """
        if self.activation_bytes is None:
            return None
        return images * self.activation_bytes + 2 * state_bytes

    def check(self, config: Config) -> None:
        """Raise BadInput where batch norm takes its statistics elsewhere than the config says."""
        if self.batch_norm not in (None, config.batch_norm):
            raise BadInput(
                f"batch_norm={config.batch_norm}: the network's batch norm is {self.batch_norm}; "
                f"{config.model.hand_on('norm_axis', 'every BatchNorm as axis_name')}"
            )

    def warnings(self, config: Config, precision: Precision) -> list[str]:
        """Return what the network does and the config's fields do not say."""
        warnings = self._precision_warnings(config, precision)
        narrow = np.dtype(self.output_dtype)
        if narrow != np.promote_types(narrow, np.float32) and narrow.itemsize < 4:
            warnings.append(
                f"the network's logits are in {self.output_dtype}, which costs accuracy; its last "
                "layer should compute in param_dtype"
            )
        if self.draws_by_device:
            warnings.append(
                "the network draws dropout for a device's whole batch, so losses depend on the "
                "number of devices; jaxbench.models.layers.dropout draws for each example"
            )
        return warnings

    def _precision_warnings(self, config: Config, precision: Precision) -> list[str]:
        share = self.macs_by_dtype.get(np.dtype(precision.compute_dtype).name, 0) / max(
            1, self.forward_macs
        )
        if share >= 0.5 or not self.forward_macs:
            return []
        return [
            f"precision={config.precision}, but {1 - share:.0%} of the network's multiplications "
            f"are in {self.main_dtype}; {config.model.hand_on('dtype', 'the layers')}"
        ]


def trace_network(
    model: NetworkAdapter, mesh: DataMesh, params: Any, batch_stats: Any, image: Any
) -> Any:
    """Trace the training forward pass of one image; shapes and arithmetic, never compiled.

    Args:
      model: the network.
      mesh: the devices, over which it may exchange batch norm's statistics.
      params, batch_stats, image: their shapes.
    """

    def forward(dropout_key, params, batch_stats, images_1xHxWxC):
        variables = {"params": params, "batch_stats": batch_stats}
        keys_B = jax.random.split(jax.random.key(0), 1)
        return model.forward(
            variables, images_1xHxWxC, train=True, keys_B=keys_B, dropout_key=dropout_key
        )

    # In JAX 0.10 what pmap returns cannot be traced without being lowered.
    mesh = dataclasses.replace(mesh, parallelism="shard_map")
    step = mesh.pmap(forward, sharded=(False,) * 4, sharded_output=False)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step.trace(key, params, batch_stats, image)


def read_facts(traced: Any) -> NetworkFacts:
    """Return the facts of a traced training forward pass, see `trace_network`."""
    jaxpr = traced.jaxpr.jaxpr
    macs_by_dtype, macs_once, primitives = Counter(), 0, set()
    for product in find_products(jaxpr):
        primitives.add(product.primitive)
        macs_by_dtype[product.dtype] += product.macs
        macs_once += product.macs // product.times
    num_inputs, num_outputs = len(jaxpr.invars), len(jaxpr.outvars)
    # The image is the last input; the updated statistics are the last outputs.
    origins = _ORIGINS.outputs(jaxpr, [0] * (num_inputs - 1) + [_LOCAL])
    output, updated = traced.out_info
    num_statistics = len(jax.tree.leaves(updated))
    found = {*origins[num_outputs - num_statistics :]} - {0}
    batch_norm = _NAMES[found.pop() if len(found) == 1 else _PARTLY] if found else None
    # The key is the first input, and what comes of it is followed as images are.
    drawn = _ORIGINS.outputs(jaxpr, [_LOCAL] + [0] * (num_inputs - 1))[
        : num_outputs - num_statistics
    ]
    return NetworkFacts(
        output.shape[1:],
        dict(macs_by_dtype),
        batch_norm,
        macs_once,
        output_dtype=output.dtype.name,
        cudnn_attention=CUDNN_ATTENTION in primitives,
        draws_by_device=any(drawn),
        activation_bytes=count_activation_bytes(jaxpr),
    )


class TrainingWork(NamedTuple):
    """The multiply-accumulates of training on one image.

    Attributes:
      training_macs: of the forward and the backward pass, for MFU.
      step_macs: those that a step must do, {`Product.reduction`: count}: without gradients that no
        update needs, and without what a causal mask hides from cuDNN's attention.
      step_macs_once: those with each loop's body counted once.
    """

    training_macs: int
    step_macs: dict[float, int]
    step_macs_once: int


def count_training(traced: Any, updates: Sequence[bool]) -> TrainingWork:
    """Count what training computes.

    It is counted in the gradient of the traced network, without what no result depends on and
    without rematerialisation. By convention MFU counts a trained layer three times: forward, and
    for the gradients of its weights and of its input. No step computes the gradient of the images,
    so `training_macs` adds it in the layers that are trained.

    Args:
      traced: what `trace_network` returned.
      updates: for each parameter whether an update needs its gradient.
    """
    forward = _without_remat(traced.jaxpr)
    num_params = len(updates)

    def trace_gradient(by_images: bool) -> Any:
        def differentiate(key, *arrays):
            params, statistics, image = arrays[:num_params], arrays[num_params:-1], arrays[-1]

            def network(params, images):
                image_1x = images[0] if images else image
                outputs, *updated = jaxpr_as_fun(forward)(key, *params, *statistics, image_1x)
                return outputs, updated

            images = (image,) if by_images else ()
            outputs, pull_back, updated = jax.vjp(network, params, images, has_aux=True)
            return [outputs, *updated], *pull_back(jnp.ones_like(outputs))

        inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in forward.in_avals]
        return jax.jit(differentiate).trace(*inputs).jaxpr.jaxpr

    if jnp.issubdtype(forward.in_avals[-1].dtype, jnp.inexact):
        try:
            gradient = trace_gradient(by_images=True)
        except Exception:  # a network need not be differentiable by its images
            gradient = trace_gradient(by_images=False)
    else:  # tokens
        gradient = trace_gradient(by_images=False)
    num_results = len(forward.out_avals)
    num_images = len(gradient.outvars) - num_results - num_params

    # A gradient counts as its product: padding makes the sizes of their convolutions differ.
    counted = defaultdict(set)
    for product in find_products(forward.jaxpr):
        counted[product.sizes].add(product.macs // product.times)

    def find_needed(images: bool) -> Iterator[tuple[Product, int]]:
        """Yield the products that are needed, and how many multiply-accumulates one of each is."""
        needed = [True] * num_results + list(updates) + [images] * num_images
        for product in find_products(dce_jaxpr(gradient, needed)[0]):
            macs = product.macs // product.times
            near = min(counted[product.sizes] or {macs}, key=lambda other: abs(other - macs))
            yield product, near

    step_macs, trained, once = Counter(), set(), 0
    for product, macs in find_needed(images=False):
        step_macs[product.reduction] += product.times * macs - product.masked_macs
        once += macs
        trained.add(product.scope)
    training_macs = sum(
        product.times * macs
        for product, macs in find_needed(images=True)
        if product.scope in trained
    )
    return TrainingWork(training_macs, dict(step_macs), once)


def _without_remat(value: Any) -> Any:
    """Return a jaxpr, or what holds some, in which the backward pass computes nothing again."""
    if type(value) in (tuple, list):
        return type(value)(map(_without_remat, value))
    if not isinstance(value, (ClosedJaxpr, Jaxpr)):
        return value
    # From JAX 0.12 on a closed jaxpr is its own jaxpr.
    if (inner := getattr(value, "jaxpr", value)) is not value:
        return value.replace(jaxpr=_without_remat(inner))
    equations = []
    for equation in value.eqns:
        params = {name: _without_remat(param) for name, param in equation.params.items()}
        if "prevent_cse" in params:
            params["policy"] = jax.checkpoint_policies.everything_saveable
        equations.append(equation.replace(params=params))
    return value.replace(eqns=equations)


# Whose images a value comes from: nobody's (0), all devices', those of some, the device's own.
_SYNC, _PARTLY, _LOCAL = 1, 2, 3
_NAMES = {_SYNC: "sync", _PARTLY: "partly sync", _LOCAL: "local"}
_REDUCTIONS = ("psum", "pmax", "pmin", "all_gather")


def _exchanged(equation: Any, origins: list[int]) -> list[int] | None:
    """Return the origins of what devices exchange; None for any other equation."""
    params = equation.params
    if equation.primitive.name not in _REDUCTIONS:
        return None
    axes = params.get("axes", params.get("axis_name", ()))
    if AXIS not in (axes if isinstance(axes, (tuple, list)) else (axes,)):
        return None
    exchanged = _SYNC if params.get("axis_index_groups") is None else _PARTLY
    return [min(origin, exchanged) for origin in origins]


# A value that comes from several is the one of them that fewest devices share.
_ORIGINS = Dataflow(functools.partial(max, default=0), _exchanged)
