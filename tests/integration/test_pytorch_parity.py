"""The networks compute what PyTorch's compute: outputs, loss, gradients and running averages.

The same random parameters, statistics, images (or tokens) and labels go through a network of
jaxbench/models and its counterpart of benchmarks/versus_pytorch in fp64. Rounding stays hundreds of
times below the bound, and a wrong epsilon, padding, stride or statistic is a thousand times above
it. A batch norm over a handful of values magnifies rounding: images of 64 leave it 8 or more.
"""

import dataclasses
import functools
import importlib
import inspect
import math
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


@pytest.mark.filterwarnings("ignore")  # what PyTorch warns of
@pytest.mark.parametrize(
    "name",
    [
        *("resnet50:tiny", "wrn28_10:tiny", "cnn10:tiny", "vit_cifar10:tiny"),
        "gpt_bytes:tiny",  # rotary positions
        "gpt124m_synthetic:tiny",
    ],
)
def test_a_network_computes_what_pytorchs_does(torch, name):
    config, variables, examples_Bx, labels_Bx, ours = ours_of(name)
    network, convert = pytorch_network(config)

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


def ours_of(name, **model_fields):
    """Returns an experiment's config, random variables and batch, and what flax makes of them."""
    config, rng = registry.load(name), np.random.default_rng(0)
    config.model = dataclasses.replace(config.model, **model_fields)
    if config.task == "classification":
        config.data.image_shape = (64, 64, 3)
    precision = get_precision("fp64")
    with precision.enabled():
        module = config.model.create(
            num_classes=config.data.num_classes,
            dtype=precision.compute_dtype,
            param_dtype=precision.param_dtype,
            norm_axis=None,
            **block_options(config),
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
            case "kernel" | "lora_a" | "lora_b":
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
    keys_B = jax.random.split(jax.random.key(0), len(labels_Bx))
    apply = functools.partial(model.apply, keys_B=keys_B, labels_B=labels_Bx)

    def loss_fn(params):
        now = {"params": params, "batch_stats": batch_stats}
        logits_Bx, updated = apply(now, examples_Bx, train=True)
        return jnp.mean(task.losses(logits_Bx, labels_Bx, 0.0)), (logits_Bx, updated)

    eval_logits_Bx, _ = jax.jit(lambda v, x: apply(v, x, train=False))(variables, examples_Bx)
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

    with torch.no_grad():
        evaluated = network.eval()(examples)
    trained = network.train()(examples)
    labels = torch.from_numpy(labels_Bx.astype(np.int64)).flatten()
    loss = torch.nn.functional.cross_entropy(trained.flatten(0, -2), labels)
    loss.backward()
    return {
        "logits": {"evaluation": evaluated.numpy(), "training": trained.detach().numpy()},
        "loss": {"": loss.detach().numpy()},
        "gradients": {name: x.grad.numpy() for name, x in network.named_parameters()},
        "averages": {name: x.numpy() for name, x in network.named_buffers() if name in named},
    }, counts


def pytorch_network(config):
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
