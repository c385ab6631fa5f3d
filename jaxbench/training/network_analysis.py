"""What a network does with the options that it is given, read from its traced passes.

A custom network may ignore its `dtype` or `norm_axis`. Then a record of the config's `precision`
and `batch_norm` would be false.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from jaxbench.config import Config
from jaxbench.hardware.peaks import utilization
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.parallel.mesh import AXIS, DataMesh
from jaxbench.precision import Precision, precision_of
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.tracing import read_network
from jaxbench.training.optimizers import describe_groups
from jaxbench.training.parameter_groups import ParameterUses, read_uses
from jaxbench.xla.jaxpr import FLOPS_PER_MAC, Dataflow, MatmulOrConv, find_matmuls_and_convs

# Their own types know no `replace(eqns=...)`.
_JAXPRS: Any = (ClosedJaxpr, Jaxpr)


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkTrace:
    """A network's shapes and its traced forward pass, each found when it is asked for.

    Attributes:
      input_shape: the shape and type of one normalised image, or of int32 tokens_1xT.
    """

    module: NetworkAdapter
    mesh: DataMesh
    input_shape: jax.ShapeDtypeStruct

    @functools.cached_property
    def variables(self) -> dict[str, Any]:
        """The shapes and types of `params` and `batch_stats`."""
        return jax.eval_shape(self.module.init, jax.random.key(0), self.input_shape)

    @functools.cached_property
    def forward(self) -> jax.stages.Traced:
        """The training forward pass of one image, traced from shapes; it is never compiled."""
        return self.trace_forward()

    def trace_forward(self) -> jax.stages.Traced:
        """Trace the forward pass anew."""

        def forward(dropout_key, params, batch_stats, images_1xHxWxC):
            variables = {"params": params, "batch_stats": batch_stats}
            rows = {
                "keys_B": jax.random.split(jax.random.key(0), 1),
                "labels_B": jnp.zeros(1, jnp.int32),
            }
            return self.module.forward(
                variables, images_1xHxWxC, train=True, dropout_key=dropout_key, **rows
            )

        # In JAX 0.10 what pmap returns cannot be traced without being lowered.
        mesh = dataclasses.replace(self.mesh, parallelism="shard_map")
        step = mesh.map_devices(forward, sharded=(False,) * 4, sharded_output=False)
        key = jax.eval_shape(lambda: jax.random.key(0))
        variables = self.variables
        return step.trace(key, variables["params"], variables["batch_stats"], self.input_shape)

    @functools.cached_property
    def uses(self) -> ParameterUses:
        """What the forward pass does with the parameters."""
        return read_uses(self.forward)


class NetworkAnalysis:
    """What training on one image computes.

    Attributes:
      output_shape: of one image.
      macs_by_dtype: multiply-accumulates of the forward pass by the type of their operands.
      macs_once: those with each loop's body counted once, as XLA does.
      forward_macs: all of them.
      main_precision: the precision that most of them are in, see `precision_of`.
      batch_norm: whose images the statistics that it updates come from: each device's (`local`),
        all devices' (`sync`), or both (`local and sync`); None without any.
      output_dtype: before the outputs are widened for the loss.
      draws_by_device: whether outputs depend on the key that a device has for whole arrays.
    """

    def __init__(
        self,
        trace: NetworkTrace,
        config: Config,
        precision: Precision,
        uses_gradients: Callable[[], Sequence[bool]],
    ):
        self._trace, self._config = trace, config
        self._precision, self._uses_gradients = precision, uses_gradients
        traced = trace.forward
        jaxpr = traced.jaxpr.jaxpr
        macs_by_dtype, self.macs_once = Counter(), 0
        for op in find_matmuls_and_convs(jaxpr):
            macs_by_dtype[op.dtype] += op.macs
            self.macs_once += op.macs // op.times
        self.macs_by_dtype: dict[str, int] = dict(macs_by_dtype)
        self.forward_macs = macs_by_dtype.total()
        self._main_dtype = max(macs_by_dtype, key=macs_by_dtype.__getitem__, default=None)
        # The key is the first input, the image the last; the last outputs are the updated
        # statistics.
        inputs = [{"key"}, *[set()] * (len(jaxpr.invars) - 2), {"local"}]
        depends = Dataflow(lambda parts: set().union(*parts), _exchanged).outputs(jaxpr, inputs)
        output, updated = traced.out_info
        num_outputs = len(depends) - len(jax.tree.leaves(updated))
        statistics = set().union(*depends[num_outputs:])
        self.output_shape, self.output_dtype = output.shape[1:], output.dtype.name
        self.batch_norm = " and ".join(sorted(statistics - {"key"})) or None
        self.draws_by_device = any("key" in parts for parts in depends[:num_outputs])

    @property
    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self._trace.variables["params"]))

    @property
    def num_trained(self) -> int:
        """How many parameters are trained."""
        leaves = jax.tree.leaves(self._trace.variables["params"])
        pairs = zip(leaves, self._uses_gradients(), strict=True)
        return sum(leaf.size for leaf, is_used in pairs if is_used)

    @property
    def main_precision(self) -> str:
        dtype = self._main_dtype
        return precision_of(dtype) if dtype else self._config.precision

    @functools.cached_property
    def shape(self) -> NetworkShape:
        """The network's layers, from which its memory is estimated."""
        return read_network(self._trace.forward.jaxpr.jaxpr)

    @functools.cached_property
    def work(self) -> "TrainingWork":
        """What training computes. It takes seconds to count, so no start waits for it."""
        return count_training(self._trace.forward, self._uses_gradients())

    @property
    def training_flops(self) -> int:
        """How many floating-point operations training takes for one image, as MFU counts them."""
        return self.work.training_macs * FLOPS_PER_MAC

    def utilization(self, images_per_s: float, flops: int | None = None) -> dict[str, Any]:
        """Return the fields of `Utilization` at a rate.

        The peak is that of the type that the network does most of its arithmetic in. `flops` are
        those of an image, by default of its training.
        """
        flops = flops or self.training_flops
        fields = utilization(self._trace.mesh, self.main_precision, images_per_s, flops)
        if tokens := self._config.data.sequence_length:
            fields |= {"tokens_per_image": tokens, "tokens_per_s": images_per_s * tokens}
            if self.flops_by_6n and flops == self.training_flops and fields["mfu"] is not None:
                fields["mfu_by_6n"] = fields["mfu"] * self.flops_by_6n / flops
        return fields

    @functools.cached_property
    def flops_by_6n(self) -> int | None:
        """What training on a sequence takes by the usual count, 6 N T and attention's products.

        N are all parameters, T the tokens (Chowdhery et al. 2022, appendix B). Embeddings that are
        looked up count too, which `training_flops` leaves out. None for images, and for a network
        of which a part is not trained.
        """
        tokens = self._config.data.sequence_length
        if not tokens or self.num_trained < self.num_parameters:
            return None
        attention = sum(layer.macs for layer in self.shape.layers if not layer.weights)
        return 6 * (self.num_parameters * tokens + attention)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return a row for each group of parameters that the update rule treats alike."""
        trace = self._trace
        return describe_groups(self._config, trace.variables["params"], lambda: trace.uses)

    def warnings(self) -> list[str]:
        """Return what the network does that differs from the config's fields."""
        config, precision = self._config, self._precision
        warnings = []
        compute_macs = sum(self.macs_by_dtype.get(n, 0) for n in precision.product_dtypes)
        if 2 * compute_macs < self.forward_macs:
            warnings.append(
                f"precision={config.precision}, but {1 - compute_macs / self.forward_macs:.0%} of "
                f"the network's multiplications are in {self._main_dtype}; "
                f"{config.model.network_name} must pass dtype to the layers"
            )
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


def _exchanged(equation: Any, inputs: list[set[str]]) -> list[set[str]] | None:
    """Return what a collective over all devices makes of its inputs; None if it is none."""
    params = equation.params
    if equation.primitive.name not in ("psum", "pmax", "pmin", "all_gather"):
        return None
    axes = params.get("axes", params.get("axis_name", ()))
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    if AXIS not in axes or params.get("axis_index_groups") is not None:
        return None
    return [{"sync" if part == "local" else part for part in parts} for parts in inputs]


class TrainingWork(NamedTuple):
    """The multiply-accumulates of training on one image."""

    training_macs: int  # of the forward and the backward pass, for MFU
    # Of a step, without gradients that no update needs; each loop's body counts once.
    step_macs_once: int


def count_training(traced: Any, updates: Sequence[bool]) -> TrainingWork:
    """Count what training computes.

    It is counted in the gradient of the traced network, without what no result depends on and
    without rematerialisation. By convention MFU counts a trained layer three times: forward, and
    for the gradients of its weights and of its input. No step computes the gradient of the images,
    so `training_macs` adds it in the layers that are trained.

    Args:
      traced: `NetworkTrace.forward`.
      updates: for each parameter whether an update needs its gradient.
    """
    forward = _without_remat(traced.jaxpr)
    num_params, num_results = len(updates), len(forward.out_avals)

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

    try:  # tokens are not differentiable, and a network need not be by its images
        gradient, num_images = trace_gradient(by_images=True), 1
    except Exception:
        gradient, num_images = trace_gradient(by_images=False), 0

    # A convolution's gradient counts as its forward operation: padding makes their sizes differ.
    forward_macs = defaultdict(set)
    for op in find_matmuls_and_convs(forward.jaxpr):
        if op.primitive == "conv_general_dilated":
            forward_macs[op.sizes].add(op.macs // op.times)

    def find_needed(by_images: bool) -> Iterator[tuple[MatmulOrConv, int]]:
        """Yield the operations that are needed, and the multiply-accumulates of each."""
        needed = [True] * num_results + list(updates) + [by_images] * num_images
        for op in find_matmuls_and_convs(dce_jaxpr(gradient, needed)[0]):
            macs = op.macs // op.times
            if op.primitive == "conv_general_dilated" and (alike := forward_macs[op.sizes]):
                macs = min(alike, key=lambda near: abs(near - macs))
            yield op, macs

    trained, once = set(), 0
    for op, macs in find_needed(by_images=False):
        once += macs
        trained.add(op.scope)
    training_macs = sum(
        op.times * macs for op, macs in find_needed(by_images=True) if op.scope in trained
    )
    return TrainingWork(training_macs, once)


def _without_remat(value: Any) -> Any:
    """Return a jaxpr, or what contains some, in which the backward pass computes nothing again."""
    if type(value) in (tuple, list):
        return type(value)(map(_without_remat, value))
    if not isinstance(value, _JAXPRS):
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
