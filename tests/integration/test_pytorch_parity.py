"""The networks compute what PyTorch's compute: outputs, loss, gradients and running averages.

The same random parameters, statistics, images (or tokens) and labels go through a network of
jaxbench/models and its counterparts in fp64: that of benchmarks/versus_pytorch and, as far as it
has one, that of Hugging Face transformers. Nothing is downloaded. Rounding stays hundreds of times
below the bound, and a wrong epsilon, padding, stride or statistic is a thousand times above it. A
batch norm over a handful of values magnifies rounding: images of 64 leave it 8 or more.
"""

import functools
import importlib
import inspect
import math
import re
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.models.adapter import NetworkAdapter
from jaxbench.models.transformer_block import block_options
from jaxbench.precision import get_precision
from jaxbench.tasks import get_task
from tests.conftest import ROOT
from tests.integration.conftest import run_program

BOUND, BATCH = 1e-9, 2
# An array smaller than this part of the largest counts as that large: the gradient of a key's bias
# is 0 but for rounding.
LEAST = 1e-3
# The fraction of the old running average that flax keeps; PyTorch's momentum is the rest.
KEPT = 0.9


@pytest.fixture
def torch(pytorch_python, monkeypatch):
    """PyTorch in this process, from the packages of the Python that has it."""
    if pytorch_python != sys.executable:
        code = "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])"
        done = run_program([pytorch_python, "-c", code])
        sys.path.append(done.stdout.strip())
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "versus_pytorch")
    return importlib.import_module("torch")


@pytest.mark.filterwarnings("ignore")  # what PyTorch and transformers warn of
@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("resnet50:tiny", "own"),
        ("resnet50:tiny", "transformers"),
        ("wrn28_10:tiny", "own"),
        ("cnn10:tiny", "own"),
        ("vit_cifar10:tiny", "own"),
        ("vit_cifar10:tiny", "transformers"),
        ("gpt_bytes:tiny", "own"),  # rotary positions
        ("gpt124m_synthetic:tiny", "own"),
        ("gpt124m_synthetic:tiny", "transformers"),
        *(
            pytest.param(name, peer, marks=pytest.mark.slow)
            for name in ("resnet50", "vit_s16_synthetic")
            for peer in ("own", "transformers")
        ),
        pytest.param("wrn28_10", "own", marks=pytest.mark.slow),
        pytest.param("cnn10", "own", marks=pytest.mark.slow),
    ],
)
def test_a_network_computes_what_pytorchs_does(torch, name, peer):
    config, variables, examples_Bx, labels_Bx, outcome = ours_of(name)
    ours = dict(outcome)
    network, convert = (own_network if peer == "own" else transformers_network)(config)

    def named(collection):
        flat = flax.traverse_util.flatten_dict(collection, sep="/")
        return convert({path: np.asarray(array) for path, array in flat.items()})

    before = named(variables["params"]) | named(variables["batch_stats"])
    theirs, counts = run_torch(torch, network.double(), before, examples_Bx, labels_Bx)
    # Both normalise by the variance of the batch. Into the running average flax puts the same,
    # PyTorch n / (n - 1) times it.
    for name, n in counts.items():
        added = theirs["averages"][name] - KEPT * before[name]
        theirs["averages"][name] = KEPT * before[name] + added * (n - 1) / n
    assert min(counts.values(), default=8) >= 8
    for what in ("gradients", "averages"):
        ours[what] = named(ours[what])
    assert ours["gradients"].keys() == theirs["gradients"].keys()
    assert ours["averages"].keys() == theirs["averages"].keys() and len(ours["gradients"]) > 4
    # Means and variances apart: the one's size says nothing about the other's.
    for own in (ours, theirs):
        averages = own.pop("averages")
        for kind in ("mean", "var"):
            own[kind] = {key: array for key, array in averages.items() if key.endswith(kind)}
    worst = {what: difference(ours[what], theirs[what]) for what in ours if ours[what]}
    assert max(worst.values()) <= BOUND, worst


@functools.cache
def ours_of(name):
    """Returns an experiment's config, random variables and batch, and what flax makes of them."""
    config, rng = registry.load(name), np.random.default_rng(0)
    if not config.data.sequence_length:
        config.data.image_shape = (64, 64, 3)
    precision = get_precision("fp64")
    with precision.enabled():
        module = config.model.create(
            num_classes=config.data.num_classes,
            dtype=precision.compute_dtype,
            param_dtype=precision.param_dtype,
            norm_axis=None,
            **block_options(config, None, precision.compute_dtype),
        )
        model = NetworkAdapter(module, precision.param_dtype)
        examples_Bx, labels_Bx = random_batch(config, rng)
        variables = random_variables(model, examples_Bx, rng)
        outcome = run_flax(config, model, variables, examples_Bx, labels_Bx)
    return config, variables, examples_Bx, labels_Bx, outcome


def difference(ours, theirs):
    """Returns the largest difference, relative to the largest magnitude in its array."""
    least = LEAST * max(np.max(np.abs(array)) for array in theirs.values())
    return max(
        np.max(np.abs(array - theirs[name])) / max(np.max(np.abs(theirs[name])), least)
        for name, array in ours.items()
    )


def random_batch(config, rng):
    classes, shape = config.data.num_classes, (BATCH, *config.data.example_shape)
    if config.data.sequence_length:
        return rng.integers(classes, size=(2, *shape), dtype=np.int32)
    return rng.normal(size=shape), rng.integers(classes, size=BATCH, dtype=np.int32)


def random_variables(model, examples_Bx, rng):
    """Returns flax's variables, no two channels' statistics alike.

    Every kind has a range of its own, so that an exchanged mean, variance, scale or bias shows.
    Kernels and variances keep activations at about the same magnitude from layer to layer.
    """

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

    shapes = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), examples_Bx)
    return jax.tree_util.tree_map_with_path(lambda path, x: draw(path, x.shape), shapes)


def run_flax(config, model, variables, examples_Bx, labels_Bx):
    task, batch_stats = get_task(config.task), variables["batch_stats"]

    def loss_fn(params):
        now = {"params": params, "batch_stats": batch_stats}
        keys_B = jax.random.split(jax.random.key(0), len(labels_Bx))
        logits_Bx, updated = model.apply(now, examples_Bx, train=True, keys_B=keys_B)
        return jnp.mean(task.losses(logits_Bx, labels_Bx, 0.0)), (logits_Bx, updated)

    eval_logits_Bx, _ = jax.jit(lambda v, x: model.apply(v, x, train=False))(variables, examples_Bx)
    step = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
    (loss, (train_logits_Bx, averages)), gradients = step(variables["params"])
    logits = {"evaluation": eval_logits_Bx, "training": train_logits_Bx}
    outcome = {"logits": logits, "loss": {"": loss}, "gradients": gradients, "averages": averages}
    assert all(x.dtype == np.float64 for x in jax.tree.leaves(outcome))
    return jax.device_get(outcome)


def run_torch(torch, network, named, examples_Bx, labels_Bx):
    """Returns what a PyTorch network makes of the examples.

    Beside it, over how many values, B x H x W, each batch norm averages its variance.
    """
    loaded = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    # PyTorch counts its updates; flax has nothing like it. Tied arrays have one name here.
    missing, unexpected = network.load_state_dict(loaded, strict=False)
    assert not unexpected and not {*missing} & {name for name, _ in network.named_parameters()}
    counts = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(
                lambda _, inputs, key=f"{name}.running_var": counts.update(
                    {key: inputs[0].numel() // inputs[0].shape[1]}
                )
            )
    axes = (0, 3, 1, 2) if examples_Bx.ndim == 4 else (0, 1)
    examples = torch.from_numpy(np.ascontiguousarray(examples_Bx.transpose(axes)))
    examples = examples if examples_Bx.ndim == 4 else examples.long()

    def logits():
        output = network(examples)
        return getattr(output, "logits", output)  # transformers wraps its logits

    with torch.no_grad():
        evaluated = network.eval() and logits()
    trained = network.train() and logits()
    labels = torch.from_numpy(labels_Bx.astype(np.int64)).flatten()
    loss = torch.nn.functional.cross_entropy(trained.flatten(0, -2), labels)
    loss.backward()
    return {
        "logits": {"evaluation": evaluated.numpy(), "training": trained.detach().numpy()},
        "loss": {"": loss.detach().numpy()},
        "gradients": {name: x.grad.numpy() for name, x in network.named_parameters()},
        "averages": {name: x.numpy() for name, x in network.named_buffers() if name in named},
    }, counts


def own_network(config):
    """Returns the network of benchmarks/versus_pytorch, and what makes its arrays of flax's."""
    import pytorch_names
    import pytorch_networks

    kind = type(config.model).__name__.removesuffix("Config")
    create = getattr(pytorch_networks, kind)
    given = vars(config.model) | {
        "num_classes": config.data.num_classes,
        "sequence_length": config.data.sequence_length,
    }
    network = create(**{k: given[k] for k in inspect.signature(create).parameters if k in given})
    return network, lambda arrays: pytorch_names.convert(arrays, pytorch_names.NAMES[kind])


def transformers_network(config):
    """Returns Hugging Face's network, and what makes its arrays of flax's."""
    pytest.importorskip("transformers")
    import pytorch_names

    kind = type(config.model).__name__.removesuffix("Config")
    build = {"ResNet": transformers_resnet, "ViT": transformers_vit, "Gpt": transformers_gpt2}
    network, name_of = build[kind](config)

    def convert(arrays):
        named = pytorch_names.convert(arrays, name_of)
        # GPT-2's Conv1D keeps kernels as inputs x outputs.
        return {
            name: np.ascontiguousarray(array.T if re.search(r"c_\w+\.weight", name) else array)
            for name, array in named.items()
        }

    return network, convert


def transformers_resnet(config):
    import transformers

    model = config.model
    theirs = transformers.ResNetConfig(
        embedding_size=model.width,
        hidden_sizes=[4 * model.width * 2**stage for stage in range(4)],
        depths=list(model.stages),
        layer_type="bottleneck",
        hidden_act="relu",
        downsample_in_first_stage=False,
        downsample_in_bottleneck=False,  # v1.5: the 3x3 convolution strides
        num_labels=config.data.num_classes,
    )

    def name_of(path):
        """stage1_block2/norm3 -> resnet.encoder.stages.0.layers.1.layer.2.normalization"""
        kind = "normalization" if "norm" in path else "convolution"
        match = re.fullmatch(r"stage(\d+)_block(\d+)/(\w+)", path)
        if not match:
            return "classifier.1" if path == "head" else f"resnet.embedder.embedder.{kind}"
        block = f"resnet.encoder.stages.{int(match[1]) - 1}.layers.{int(match[2]) - 1}"
        if match[3].startswith("projection"):
            return f"{block}.shortcut.{kind}"
        return f"{block}.layer.{int(match[3][-1]) - 1}.{kind}"

    return transformers.ResNetForImageClassification(theirs), name_of


def transformers_vit(config):
    """Its patches and its layers; around them it has a class token."""
    import pytorch_names
    import pytorch_networks
    import torch
    import transformers
    from transformers.models.vit import modeling_vit

    model = config.model
    theirs = transformers.ViTConfig(
        hidden_size=model.width,
        num_hidden_layers=model.depth,
        num_attention_heads=model.heads,
        intermediate_size=model.mlp_ratio * model.width,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        image_size=config.data.image_shape[:2],
        patch_size=model.patch,
        attn_implementation="sdpa",
    )

    class MeanOfTokens(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = modeling_vit.ViTPatchEmbeddings(theirs)
            self.layers = torch.nn.ModuleList(
                modeling_vit.ViTLayer(theirs) for _ in range(model.depth)
            )
            self.norm = torch.nn.LayerNorm(model.width, eps=1e-6)
            if model.pre_logits:
                self.pre_logits = torch.nn.Linear(model.width, model.width)
            self.head = torch.nn.Linear(model.width, config.data.num_classes)

        def forward(self, images_BxCxHxW):
            grid = self.patches.projection(images_BxCxHxW)
            x_BxTxD = self.patches(images_BxCxHxW) + pytorch_networks.grid_positions(grid)
            for layer in self.layers:
                x_BxTxD = layer(x_BxTxD)
            x_BxD = self.norm(x_BxTxD).mean(dim=1)
            return self.head(self.pre_logits(x_BxD).tanh() if model.pre_logits else x_BxD)

    attention = {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "out": "attention.o_proj",
    }
    modules = attention | {"norm1": "layernorm_before", "norm2": "layernorm_after"}
    modules |= {"mlp1": "mlp.fc1", "mlp2": "mlp.fc2"}
    tops = {"patches": "patches.projection"}
    return MeanOfTokens(), lambda path: pytorch_names.block_name(path, "layers", modules, tops)


def transformers_gpt2(config):
    import pytorch_names
    import transformers

    model = config.model
    theirs = transformers.GPT2Config(
        vocab_size=config.data.num_classes,
        n_positions=config.data.sequence_length,
        n_embd=model.width,
        n_layer=model.depth,
        n_head=model.heads,
        n_inner=model.mlp_ratio * model.width,
        activation_function="gelu_new",
        layer_norm_epsilon=1e-6,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
        use_cache=False,
    )
    parts = {name: f"attn.c_attn:{at}" for at, name in enumerate(("query", "key", "value"))}
    modules = parts | {"out": "attn.c_proj", "norm1": "ln_1", "norm2": "ln_2"}
    modules |= {"mlp1": "mlp.c_fc", "mlp2": "mlp.c_proj"}
    tops = {"tokens": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f"}
    network = transformers.GPT2LMHeadModel(theirs)
    return network, lambda path: pytorch_names.block_name(path, "transformer.h", modules, tops)
