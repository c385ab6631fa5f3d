"""What a network does with the options that it is given, read from its traced forward pass.

A network of one's own may ignore its `dtype` or `norm_axis`. Then a record of the config's
`precision` and `batch_norm` would be false.
"""

import dataclasses
import functools
from collections import Counter
from typing import Any

import jax
import numpy as np

from jaxbench.config import Config
from jaxbench.distributed.mesh import AXIS, DataMesh
from jaxbench.errors import BadInput
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.precision import Precision
from jaxbench.xla.dataflow import Dataflow
from jaxbench.xla.flops import CUDNN_ATTENTION, find_products
from jaxbench.xla.least_bytes import count_activation_bytes


@dataclasses.dataclass(frozen=True)
class NetworkFacts:
    """What the training forward pass of one image does.

    Attributes:
      output_shape: of one image.
      macs_by_dtype: multiply-accumulates by the type of their operands.
      batch_norm: whose images the statistics that it updates come from: all devices' (`sync`),
        each one's own (`local`), or some of each (`partly sync`); None without any.
      macs_once: multiply-accumulates with each loop's body counted once, as XLA does.
      output_dtype: of its outputs, before they are widened for the loss.
      cudnn_attention: whether attention is cuDNN's.
      draws_by_device: whether its outputs depend on the key that a device has for whole arrays.
      masked_macs: those that cuDNN's attention need not do, because a causal mask hides them.
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
    masked_macs: int = 0
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
    step = mesh.parallelize(forward, sharded=(False,) * 4, sharded_output=False)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return step.trace(key, params, batch_stats, image)


def read_facts(traced: Any) -> NetworkFacts:
    """Return the facts of a traced training forward pass."""
    jaxpr = traced.jaxpr.jaxpr
    macs_by_dtype, macs_once, masked_macs, primitives = Counter(), 0, 0, set()
    for product in find_products(jaxpr):
        primitives.add(product.primitive)
        macs_by_dtype[product.dtype] += product.macs
        macs_once += product.macs // max(1, product.times)
        masked_macs += product.masked_macs
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
        draws_by_device=any(drawn[: num_outputs - num_statistics]),
        masked_macs=masked_macs,
        activation_bytes=count_activation_bytes(jaxpr),
    )


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
