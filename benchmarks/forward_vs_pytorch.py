"""Do the networks compute what PyTorch computes? Outputs, gradients and running averages.

    pip install torch transformers
    python benchmarks/forward_vs_pytorch.py [--experiment=resnet50] [--image_size=64]

Gives the same random parameters, batch-norm statistics, images (or tokens) and labels to a network
of jaxbench/models and to its counterpart in pytorch_networks.py, in fp32 and in fp64. ResNets also
meet torchvision's, timm's and Hugging Face transformers' network, vision transformers its layers,
and language models its GPT-2, as far as they are installed. Nothing is downloaded.

A relative difference is the largest difference divided by the largest magnitude in that array;
where several arrays are compared, the worst one's. An array smaller than a thousandth of the
largest counts as large as that: the gradient of a key's bias is 0 but for rounding. Exit code 1 if
one in fp64 is above 1e-9. Rounding alone stays hundreds of times below that in networks this deep,
and a wrong epsilon, padding, stride or statistic shows a thousand times above. fp32 is printed to
show what rounding does there, and decides nothing: where a pre-activation lies within rounding of
0, the ReLU opens on one side only and moves gradient elements whole. A batch norm over a handful of
values magnifies rounding: keep the printed n, the values that a batch norm averages, at 8 or more.
"""

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags, logging
from pytorch_peers import Named, Peer, find_peers

from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.models.transformer_block import block_options
from jaxbench.precision import get_precision
from jaxbench.tasks import get_task

_EXPERIMENT = flags.DEFINE_list(
    "experiment",
    ["resnet50", "wrn28_10", "cnn10"],
    "Whose networks to compare, separated by commas; NAME:tiny is a small one of the same kind.",
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 2, "Images or sequences.", lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", 0, "Height and width of the images; 0 takes the experiment's.", lower_bound=0
)
_SEED = flags.DEFINE_integer("seed", 0, "Of parameters, images and labels.", lower_bound=0)

FP64_BOUND, LEAST_SHARE = 1e-9, 1e-3
# The share of the old running average that flax keeps; PyTorch's momentum is the other share.
KEPT = 0.9

# {name of a running variance: values that its batch norm averaged}
Counts = dict[str, int]


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What one network made of the images."""

    eval_logits_Bx: np.ndarray
    train_logits_Bx: np.ndarray
    loss: np.ndarray
    gradients: Named
    statistics: Named  # running averages after one training step


def main() -> int:
    try:
        import torch
    except ImportError:
        raise BadInput("this check needs PyTorch: pip install torch") from None
    import jax

    from jaxbench.hardware.backend_flags import prepare_backend

    prepare_backend()
    configs = [registry.load(spec) for spec in _EXPERIMENT.value]
    for config in configs:
        if _IMAGE_SIZE.value and not config.data.sequence_length:
            config.data.image_shape = (_IMAGE_SIZE.value,) * 2 + config.data.image_shape[2:]
    # All of them before the first one runs: a wrong name is told at once.
    peers = [find_peers(config) for config in configs]
    print(f"jax {jax.__version__} on {jax.default_backend()}, torch {torch.__version__} on cpu")
    worst = 0.0
    for config, (own_peers, note) in zip(configs, peers, strict=True):
        rng = np.random.default_rng(_SEED.value)
        examples_Bx, labels_Bx = _random_batch(config, rng)
        variables = _random_variables(config, examples_Bx, rng)
        num_parameters = sum(x.size for x in jax.tree.leaves(variables["params"]))
        print(
            f"\n{config.name}: {num_parameters:,} parameters, {_BATCH_SIZE.value} examples of "
            f"{'x'.join(map(str, config.data.example_shape))}, seed {_SEED.value}{note}"
        )
        for name in ("fp32", "fp64"):
            precision = get_precision(name)
            with precision.enabled():
                dtype = np.dtype(precision.param_dtype)
                cast = jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), variables)
                examples = examples_Bx
                if examples_Bx.dtype == np.float64:
                    examples = examples_Bx.astype(dtype)
                flax_run = _run_flax(config, precision, cast, examples, labels_Bx)
            for peer in own_peers:
                named = _convert(cast, peer)
                torch_run, counts = _run_torch(peer.build(), named, examples, labels_Bx, dtype)
                ours = flax_run(peer)
                rows = _compare(ours, torch_run, named, counts)
                print(f"  {name} against {peer.words}")
                for words, absolute, relative in rows:
                    # Written so that nan counts as a difference.
                    failed = name == "fp64" and not relative <= FP64_BOUND
                    print(
                        f"    {words:54s} max {absolute:8.2e}  relative {relative:8.2e}"
                        + ("  ABOVE THE BOUND" if failed else "")
                    )
                    if name == "fp64":
                        worst = max(worst, math.inf if math.isnan(relative) else relative)
    print(f"\nworst relative difference in fp64: {worst:.2e}, bound {FP64_BOUND:g}")
    return 0 if worst <= FP64_BOUND else 1


def _random_batch(config, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns images_BxHxWxC in float64 or tokens_BxT, and labels."""
    classes, shape = config.data.num_classes, (_BATCH_SIZE.value, *config.data.example_shape)
    if config.data.sequence_length:
        return rng.integers(classes, size=(2, *shape), dtype=np.int32)
    return rng.normal(size=shape), rng.integers(classes, size=_BATCH_SIZE.value, dtype=np.int32)


def _create_model(config, precision) -> NetworkAdapter:
    module = config.model.create(
        num_classes=config.data.num_classes,
        dtype=precision.compute_dtype,
        param_dtype=precision.param_dtype,
        norm_axis=None,
        **block_options(config, None, precision.compute_dtype),
    )
    return NetworkAdapter(module, precision.param_dtype)


def _random_variables(config, examples_Bx: np.ndarray, rng: np.random.Generator) -> Any:
    """Returns flax's variables in float64, no two channels' statistics alike.

    Every kind has its own range, so that an exchanged mean, variance, scale or bias shows. Kernels
    and variances keep the activations' magnitude about the same from layer to layer, so that
    nothing is hidden behind one huge term; an epsilon of 1e-5 is still far above the bound.
    """
    import jax

    model = _create_model(config, get_precision("fp32"))
    dtype = np.int32 if config.data.sequence_length else np.float32
    examples = jax.ShapeDtypeStruct(examples_Bx.shape, dtype)
    # Shapes only: compiling the initialisation would take longer than the comparison.
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), examples)

    def draw(path, shape):
        match path[-1].key:
            case "kernel":
                return rng.normal(size=shape) * math.sqrt(2 / math.prod(shape[:-1]))
            case "embedding":
                return rng.normal(size=shape) * shape[-1] ** -0.5
            case "scale":
                return rng.uniform(0.5, 1.5, shape)
            case "bias":
                return rng.normal(size=shape) * 0.2
            case "mean":
                return rng.normal(size=shape) * 0.5
            case "var":
                return rng.uniform(0.5, 2, shape)
        raise AssertionError(f"no range for {path}")

    return jax.tree_util.tree_map_with_path(lambda path, x: draw(path, x.shape), shapes)


def _convert(variables: Any, peer: Peer) -> Named:
    """Returns flax's params and batch_stats under PyTorch's names and in its layout."""
    import flax

    named = {}
    for collection in variables.values():
        flat = flax.traverse_util.flatten_dict(collection, sep="/")
        named |= peer.convert({path: np.asarray(array) for path, array in flat.items()})
    return named


def _run_flax(config, precision, variables, examples_Bx, labels_Bx) -> Callable:
    """Runs the flax network; returns outcome(peer), so that one run serves every peer."""
    import jax
    import jax.numpy as jnp

    model, task = _create_model(config, precision), get_task(config.task)
    params, batch_stats = variables["params"], variables["batch_stats"]

    def loss_fn(params):
        now = {"params": params, "batch_stats": batch_stats}
        keys_B = jax.random.split(jax.random.key(0), len(labels_Bx))
        logits_Bx, updated = model.apply(now, examples_Bx, train=True, keys_B=keys_B)
        return jnp.mean(task.losses(logits_Bx, labels_Bx, 0.0)), (logits_Bx, updated)

    # GPUs and TPUs would otherwise multiply fp32 in fewer bits.
    with jax.default_matmul_precision("highest"):
        eval_logits_Bx, _ = jax.jit(lambda v, x: model.apply(v, x, train=False))(
            variables, examples_Bx
        )
        (loss, (train_logits_Bx, statistics)), gradients = jax.jit(
            jax.value_and_grad(loss_fn, has_aux=True)
        )(params)
    arrays = (eval_logits_Bx, train_logits_Bx, loss, gradients, statistics)
    arrays = jax.device_get(arrays)
    for array in jax.tree.leaves(arrays):
        assert array.dtype == precision.param_dtype, "the comparison must run in one type"

    def outcome(peer):
        eval_logits_Bx, train_logits_Bx, loss, gradients, statistics = arrays
        return Outcome(
            eval_logits_Bx=eval_logits_Bx,
            train_logits_Bx=train_logits_Bx,
            loss=loss,
            gradients=_convert({"params": gradients}, peer),
            statistics=_convert({"batch_stats": statistics}, peer),
        )

    return outcome


def _run_torch(network, named: Named, examples_Bx, labels_Bx, dtype) -> tuple[Outcome, Counts]:
    """Runs the PyTorch network.

    Returns:
      What it made of the examples, and {name of a running variance: over how many values, B x H x
      W, its batch norm averaged}.
    """
    import torch
    import torch.nn.functional as F

    network = network.to(getattr(torch, dtype.name))
    loaded = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    # PyTorch counts its updates; flax has nothing like it. Tied arrays have one name here.
    missing, unexpected = network.load_state_dict(loaded, strict=False)
    learned = {name for name, _ in network.named_parameters()}
    assert not unexpected and not learned & {*missing}, (missing, unexpected)

    counts = {}

    def count(name):
        def hook(module, inputs):
            counts[f"{name}.running_var"] = inputs[0].numel() // inputs[0].shape[1]

        return hook

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(count(name))

    if examples_Bx.ndim == 4:
        examples_Bx = np.ascontiguousarray(examples_Bx.transpose(0, 3, 1, 2))
    else:  # tokens
        examples_Bx = examples_Bx.astype(np.int64)

    def logits():
        output = network(torch.from_numpy(examples_Bx))
        # transformers wraps its logits.
        return getattr(output, "logits", output)

    network.eval()
    with torch.no_grad():
        eval_logits_Bx = logits()
    network.train()
    train_logits_Bx = logits()
    labels = torch.from_numpy(labels_Bx.astype(np.int64)).flatten()
    loss = F.cross_entropy(train_logits_Bx.flatten(0, -2), labels)
    loss.backward()
    statistics = {name: x.numpy() for name, x in network.named_buffers() if name in named}
    outcome = Outcome(
        eval_logits_Bx=eval_logits_Bx.numpy(),
        train_logits_Bx=train_logits_Bx.detach().numpy(),
        loss=loss.detach().numpy(),
        gradients={name: x.grad.numpy() for name, x in network.named_parameters()},
        statistics=statistics,
    )
    return outcome, counts


def _compare(
    ours: Outcome, theirs: Outcome, before: Named, counts: Counts
) -> list[tuple[str, float, float]]:
    """Returns (what, largest absolute, largest relative difference) of each thing compared.

    Both normalise by the variance of the batch, the mean of the squared deviations over its n
    values. Into the running average flax puts the same, PyTorch n / (n - 1) times it. So PyTorch's
    averages are compared after this factor has been taken out of what the step added to them.
    """

    def kind(named: Named, ending: str) -> Named:
        return {name: array for name, array in named.items() if name.endswith(ending)}

    biased = {}
    for name, after in kind(theirs.statistics, "running_var").items():
        added = after - KEPT * before[name]
        biased[name] = KEPT * before[name] + added * (counts[name] - 1) / counts[name]
    pairs = {
        "logits, evaluation": ({"": ours.eval_logits_Bx}, {"": theirs.eval_logits_Bx}),
        "logits, training": ({"": ours.train_logits_Bx}, {"": theirs.train_logits_Bx}),
        "loss, training": ({"": ours.loss}, {"": theirs.loss}),
        f"gradients ({len(ours.gradients)} arrays)": (ours.gradients, theirs.gradients),
    }
    if counts:
        few, many = min(counts.values()), max(counts.values())
        means = (kind(own.statistics, "running_mean") for own in (ours, theirs))
        variances = kind(ours.statistics, "running_var")
        pairs["running means"] = tuple(means)
        pairs[f"running variances, n/(n-1) removed (n {few} to {many})"] = (variances, biased)
    return [(words, *_difference(mine, other)) for words, (mine, other) in pairs.items()]


def _difference(ours: Named, theirs: Named) -> tuple[float, float]:
    """Returns the largest absolute and the largest relative difference over the arrays."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    least = LEAST_SHARE * max(np.max(np.abs(array)) for array in theirs.values())
    differences = []
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        absolute = np.max(np.abs(array - theirs[name]))
        differences.append((absolute, absolute / max(np.max(np.abs(theirs[name])), least)))
    # numpy's maximum, unlike Python's, hands nan on.
    absolute, relative = np.max(differences, axis=0)
    return float(absolute), float(relative)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        raise BadInput(" ".join(str(error).split())) from None
    if len(rest) > 1:
        raise BadInput(f"{rest[1]!r}: flags begin with --")
    logging.set_verbosity(logging.WARNING)
    return rest


if __name__ == "__main__":
    # Not jaxbench.cli.entry_point, which asks for exactly one experiment.
    try:
        app.run(lambda _: main(), flags_parser=_parse_flags)
    except BadInput as error:
        print(f"jaxbench: {error}", file=sys.stderr)
        sys.exit(2)
