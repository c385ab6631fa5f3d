"""Do the networks compute what PyTorch computes? Outputs, gradients and running averages.

    pip install torch transformers
    python benchmarks/forward_vs_pytorch.py [--experiment=resnet50] [--image_size=64]

Gives the same random parameters, batch-norm statistics, images and labels to a network of
jaxbench/models and to its counterpart in pytorch_networks.py, in fp32 and in fp64. ResNets also
meet torchvision's, timm's and Hugging Face transformers' network, as far as they are installed.
Only random parameters, nothing is downloaded.

A relative difference is the largest difference divided by the largest magnitude in that array;
where several arrays are compared, the worst one's. Exit code 1 if one in fp64 is above 1e-9.
Rounding alone stays hundreds of times below that in networks this deep, and a wrong epsilon,
padding, stride or statistic shows a thousand times above. fp32 is printed to show what rounding
does there, and decides nothing: where a pre-activation lies within rounding of 0, the ReLU opens on
one side only and moves gradient elements whole. A batch norm over a handful of values magnifies
rounding: keep the printed n, the values that a batch norm averages, at 8 or more.
"""

import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags, logging
from pytorch_names import cnn10_name, convert, resnet_name, wide_resnet_name

from jaxbench.cli import registry
from jaxbench.errors import BadInput
from jaxbench.models.cnn10 import Cnn10Config
from jaxbench.models.resnet import ResNetConfig
from jaxbench.models.wide_resnet import WideResNetConfig

_EXPERIMENT = flags.DEFINE_list(
    "experiment",
    ["resnet50", "wrn28_10", "cnn10"],
    "Whose networks to compare, separated by commas; NAME:tiny is a small one of the same kind.",
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 2, "Images.", lower_bound=2)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size", 0, "Height and width of the images; 0 takes the experiment's.", lower_bound=0
)
_SEED = flags.DEFINE_integer("seed", 0, "Of parameters, images and labels.", lower_bound=0)

FP64_BOUND = 1e-9
# The share of the old running average that flax keeps; PyTorch's momentum is the other share.
KEPT = 0.9

# {PyTorch's name: array in PyTorch's layout}
Named = dict[str, np.ndarray]


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What one network made of the images."""

    eval_logits_BxK: np.ndarray
    train_logits_BxK: np.ndarray
    loss: np.ndarray
    gradients: Named
    statistics: Named  # running averages after one training step


@dataclasses.dataclass(kw_only=True)
class Peer:
    """A PyTorch network and how it names what flax names by a path."""

    words: str
    build: Callable[[], Any]
    name_of: Callable[[str], str]


def main() -> int:
    try:
        import torch
    except ImportError:
        raise BadInput("this check needs PyTorch: pip install torch") from None
    import jax

    from jaxbench.precision import get_precision

    configs = [registry.load(spec) for spec in _EXPERIMENT.value]
    # All of them before the first one runs: a wrong name is told at once.
    peers = [_peers(config) for config in configs]
    print(f"jax {jax.__version__} on {jax.default_backend()}, torch {torch.__version__} on cpu")
    worst = 0.0
    for config, (own_peers, note) in zip(configs, peers, strict=True):
        height, width, channels = config.data.image_shape
        if _IMAGE_SIZE.value:
            height = width = _IMAGE_SIZE.value
        rng = np.random.default_rng(_SEED.value)
        images_BxHxWxC = rng.normal(size=(_BATCH_SIZE.value, height, width, channels))
        labels_B = rng.integers(config.data.num_classes, size=_BATCH_SIZE.value, dtype=np.int32)
        variables = _random_variables(config, images_BxHxWxC.shape, rng)
        num_parameters = sum(x.size for x in jax.tree.leaves(variables["params"]))
        print(
            f"\n{config.name}: {num_parameters:,} parameters, "
            f"{_BATCH_SIZE.value} images of {height}x{width}, seed {_SEED.value}{note}"
        )
        for name in ("fp32", "fp64"):
            precision = get_precision(name)
            with precision.enabled():
                model = config.model.create(
                    num_classes=config.data.num_classes,
                    dtype=precision.compute_dtype,
                    param_dtype=precision.param_dtype,
                    norm_axis=None,
                )
                dtype = np.dtype(precision.param_dtype)
                cast = jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), variables)
                images = images_BxHxWxC.astype(dtype)
                flax_run = _run_flax(model, cast, images, labels_B)
            for peer in own_peers:
                torch_run, counts = _run_torch(
                    peer.build(), _convert(cast, peer.name_of), images, labels_B
                )
                ours = flax_run(peer.name_of)
                before = _convert({"batch_stats": cast["batch_stats"]}, peer.name_of)
                rows = _compare(ours, torch_run, before, counts)
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


def _random_variables(config, images_shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Returns flax's variables in float64, no two channels' statistics alike.

    Every kind has its own range, so that an exchanged mean, variance, scale or bias shows. Kernels
    and variances keep the activations' magnitude about the same from layer to layer, so that
    nothing is hidden behind one huge term; an epsilon of 1e-5 is still far above the bound.
    """
    import jax
    import jax.numpy as jnp

    model = config.model.create(
        num_classes=config.data.num_classes,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
        norm_axis=None,
    )
    images = jax.ShapeDtypeStruct(images_shape, jnp.float32)
    # Shapes only: compiling the initialisation would take longer than the comparison.
    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), images)

    def draw(path, shape):
        match path[-1].key:
            case "kernel":
                return rng.normal(size=shape) * math.sqrt(2 / math.prod(shape[:-1]))
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


def _convert(variables: Any, name_of: Callable[[str], str]) -> Named:
    """Returns flax's params and batch_stats under PyTorch's names and in its layout."""
    import flax

    named = {}
    for collection in variables.values():
        flat = flax.traverse_util.flatten_dict(collection, sep="/")
        named |= convert({path: np.asarray(array) for path, array in flat.items()}, name_of)
    return named


def _run_flax(model, variables, images_BxHxWxC, labels_B) -> Callable:
    """Runs the flax network; returns outcome(name_of), so that one run serves every peer."""
    import jax
    import jax.numpy as jnp

    from jaxbench.tasks import get_task

    params, batch_stats = variables["params"], variables["batch_stats"]

    def loss_fn(params):
        logits_BxK, updated = model.apply(
            {"params": params, "batch_stats": batch_stats},
            images_BxHxWxC,
            train=True,
            mutable=["batch_stats"],
        )
        loss = jnp.mean(get_task("classification").losses(logits_BxK, labels_B, 0.0))
        return loss, (logits_BxK, updated["batch_stats"])

    # GPUs and TPUs would otherwise multiply fp32 in fewer bits.
    with jax.default_matmul_precision("highest"):
        eval_logits_BxK = jax.jit(lambda v, x: model.apply(v, x, train=False))(
            variables, images_BxHxWxC
        )
        (loss, (train_logits_BxK, statistics)), gradients = jax.jit(
            jax.value_and_grad(loss_fn, has_aux=True)
        )(params)
    arrays = (eval_logits_BxK, train_logits_BxK, loss, gradients, statistics)
    arrays = jax.device_get(arrays)
    for array in jax.tree.leaves(arrays):
        assert array.dtype == images_BxHxWxC.dtype, "the comparison must run in one type"

    def outcome(name_of):
        eval_logits_BxK, train_logits_BxK, loss, gradients, statistics = arrays
        return Outcome(
            eval_logits_BxK=eval_logits_BxK,
            train_logits_BxK=train_logits_BxK,
            loss=loss,
            gradients=_convert({"params": gradients}, name_of),
            statistics=_convert({"batch_stats": statistics}, name_of),
        )

    return outcome


def _run_torch(network, named: Named, images_BxHxWxC, labels_B) -> tuple[Outcome, dict[str, int]]:
    """Runs the PyTorch network.

    Returns:
      What it made of the images, and {name of a running variance: over how many values, B x H x W,
      its batch norm averaged}.
    """
    import torch
    import torch.nn.functional as F

    images_BxCxHxW = torch.from_numpy(np.ascontiguousarray(images_BxHxWxC.transpose(0, 3, 1, 2)))
    labels_B = torch.from_numpy(labels_B.astype(np.int64))
    network = network.to(images_BxCxHxW.dtype)
    # PyTorch counts its updates; flax has nothing like it to load.
    counters = {k: v for k, v in network.state_dict().items() if k.endswith("num_batches_tracked")}
    loaded = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    network.load_state_dict(loaded | counters, strict=True)

    counts = {}

    def count(name):
        def hook(module, inputs):
            counts[f"{name}.running_var"] = inputs[0].numel() // inputs[0].shape[1]

        return hook

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(count(name))

    def logits(images):
        output = network(images)
        # transformers wraps its logits.
        return getattr(output, "logits", output)

    network.eval()
    with torch.no_grad():
        eval_logits_BxK = logits(images_BxCxHxW)
    network.train()
    train_logits_BxK = logits(images_BxCxHxW)
    loss = F.cross_entropy(train_logits_BxK, labels_B)
    loss.backward()
    statistics = {name: x.numpy() for name, x in network.named_buffers() if name not in counters}
    outcome = Outcome(
        eval_logits_BxK=eval_logits_BxK.numpy(),
        train_logits_BxK=train_logits_BxK.detach().numpy(),
        loss=loss.detach().numpy(),
        gradients={name: x.grad.numpy() for name, x in network.named_parameters()},
        statistics=statistics,
    )
    return outcome, counts


def _compare(
    ours: Outcome, theirs: Outcome, before: Named, counts: dict[str, int]
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
    few, many = min(counts.values()), max(counts.values())
    pairs = {
        "logits, evaluation": ({"": ours.eval_logits_BxK}, {"": theirs.eval_logits_BxK}),
        "logits, training": ({"": ours.train_logits_BxK}, {"": theirs.train_logits_BxK}),
        "loss, training": ({"": ours.loss}, {"": theirs.loss}),
        f"gradients ({len(ours.gradients)} arrays)": (ours.gradients, theirs.gradients),
        "running means": (
            kind(ours.statistics, "running_mean"),
            kind(theirs.statistics, "running_mean"),
        ),
        f"running variances, n/(n-1) removed (n {few} to {many})": (
            kind(ours.statistics, "running_var"),
            biased,
        ),
    }
    return [(words, *_difference(mine, other)) for words, (mine, other) in pairs.items()]


def _difference(ours: Named, theirs: Named) -> tuple[float, float]:
    """Returns the largest absolute and the largest relative difference over the arrays."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    differences = []
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        absolute = np.max(np.abs(array - theirs[name]))
        differences.append((absolute, absolute / np.max(np.abs(theirs[name]))))
    # numpy's maximum, unlike Python's, hands nan on.
    absolute, relative = np.max(differences, axis=0)
    return float(absolute), float(relative)


def _peers(config) -> tuple[list[Peer], str]:
    """Returns the PyTorch networks that compute the same, and a line on those that are missing."""
    import pytorch_networks as networks

    model, num_classes = config.model, config.data.num_classes
    # torch's constructors draw parameters that are overwritten at once: cheap, and simple.
    if isinstance(model, Cnn10Config):
        own = Peer(
            words="pytorch_networks.Cnn10",
            build=lambda: networks.Cnn10(model.channels, num_classes),
            name_of=cnn10_name,
        )
        return [own], ""
    if isinstance(model, WideResNetConfig):
        own = Peer(
            words="pytorch_networks.WideResNet",
            build=lambda: networks.WideResNet(model.depth, model.width, num_classes),
            name_of=wide_resnet_name,
        )
        return [own], ""
    if not isinstance(model, ResNetConfig) or len(model.stages) != 4:
        raise BadInput(
            f"--experiment={config.name}: {type(model).__name__} has no counterpart in "
            "pytorch_networks.py; resnet50, wrn28_10 and cnn10 have"
        )
    own = Peer(
        words="pytorch_networks.ResNet",
        build=lambda: networks.ResNet(model.stages, model.width, num_classes=num_classes),
        name_of=resnet_name,
    )
    others, missing = [], []
    for library, peer in (
        ("torchvision", _torchvision_peer),
        ("timm", _timm_peer),
        ("transformers", _transformers_peer),
    ):
        try:
            importlib.import_module(library)
        except Exception as error:
            # A torchvision built for another PyTorch fails with a RuntimeError of its own.
            absent = isinstance(error, ModuleNotFoundError) and error.name == library
            why = "not installed" if absent else f"its import fails with {type(error).__name__}"
            missing.append(f"{library} ({why})")
            continue
        others += [found for found in [peer(model, num_classes)] if found]
    note = f"\n  not compared with {', '.join(missing)}" if missing else ""
    if not others:
        note += "; no network but our own is left: pip install transformers"
    return [own, *others], note


def _torchvision_peer(model: ResNetConfig, num_classes: int) -> Peer | None:
    from torchvision.models import resnet

    if model.width != 64:
        return None  # its first convolution always has 64 channels
    return Peer(
        words="torchvision's ResNet",
        build=lambda: resnet.ResNet(resnet.Bottleneck, list(model.stages), num_classes),
        name_of=resnet_name,
    )


def _timm_peer(model: ResNetConfig, num_classes: int) -> Peer | None:
    from timm.models import resnet

    if model.width != 64:
        return None  # its stages always begin with 64 channels
    return Peer(
        words="timm's ResNet",
        build=lambda: resnet.ResNet(resnet.Bottleneck, model.stages, num_classes),
        name_of=resnet_name,
    )


def _transformers_peer(model: ResNetConfig, num_classes: int) -> Peer:
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=model.width,
        hidden_sizes=[4 * model.width * 2**stage for stage in range(4)],
        depths=list(model.stages),
        layer_type="bottleneck",
        hidden_act="relu",
        downsample_in_first_stage=False,
        # v1.5: the 3x3 convolution strides.
        downsample_in_bottleneck=False,
        num_labels=num_classes,
    )
    return Peer(
        words="transformers' ResNetForImageClassification",
        build=lambda: transformers.ResNetForImageClassification(config),
        name_of=_transformers_name,
    )


def _transformers_name(path: str) -> str:
    """stage1_block2/norm3 -> resnet.encoder.stages.0.layers.1.layer.2.normalization"""
    tops = {
        "stem": "resnet.embedder.embedder.convolution",
        "stem_norm": "resnet.embedder.embedder.normalization",
        "head": "classifier.1",
    }
    if path in tops:
        return tops[path]
    stage, block, module = re.fullmatch(r"stage(\d+)_block(\d+)/(\w+)", path).groups()
    block_name = f"resnet.encoder.stages.{int(stage) - 1}.layers.{int(block) - 1}"
    kind = "normalization" if "norm" in module else "convolution"
    if module.startswith("projection"):
        return f"{block_name}.shortcut.{kind}"
    return f"{block_name}.layer.{int(module[-1]) - 1}.{kind}"


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
