"""Llama, LoRA and DiT compute what the packages that people train them with compute.

Those are transformers, peft and diffusers of Hugging Face. The same random parameters and batch go
through both networks in fp64, as in test_pytorch_parity.py: outputs, loss and gradients are equal.
Where those packages compute in float32 by name, they compute in float64 here.
"""

import re

import flax
import jax
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.models import dit
from tests.integration.test_pytorch_parity import BATCH, BOUND, difference, ours_of
from tests.integration.test_pytorch_parity import torch as torch  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyTorch warns of

_LLAMA = {
    **{"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    **{name: f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "out")},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{"tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
}
_LEAVES = dict.fromkeys(("kernel", "embedding", "scale"), "weight") | {
    "lora_a": "lora_A.default.weight",
    "lora_b": "lora_B.default.weight",
}
_DIT = {
    **{"query": "attn1.to_q", "key": "attn1.to_k", "value": "attn1.to_v", "out": "attn1.to_out.0"},
    **{"mlp1": "ff.net.0.proj", "mlp2": "ff.net.2", "modulation": "norm1.linear"},
    "patches": "pos_embed.proj",
}
_DIT_CONDITIONS = {
    **{f"level{n}": f"norm1.emb.timestep_embedder.linear_{n}" for n in (1, 2)},
    "classes": "norm1.emb.class_embedder.embedding_table",
}


@pytest.fixture
def package(torch, monkeypatch):
    """Imports a package beside PyTorch, in which float32 means float64."""

    def load(name):
        module = pytest.importorskip(name)
        for name in ("float32", "float"):
            monkeypatch.setattr(torch, name, torch.float64)
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
        return module

    return load


def arranged(path, array):
    """Returns an array of ours in PyTorch's layout."""
    axes = {2: (1, 0), 4: (3, 2, 0, 1)}
    array = np.asarray(array)
    if path.endswith("embedding") or array.ndim < 2:
        return array
    return array.transpose(axes[array.ndim])


def flatten(params):
    """Returns {path: array in PyTorch's layout} of nested parameters."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    return {path: arranged(path, array) for path, array in flat.items()}


def load(torch, network, params, names_of):
    """Gives a network of PyTorch these parameters, all that it has."""
    network.double()
    loaded = {
        name: torch.from_numpy(x.copy()) for path, x in params.items() for name in names_of(path)
    }
    missing, unexpected = network.load_state_dict(loaded, strict=False)
    assert not unexpected and not {*missing} & {name for name, _ in network.named_parameters()}


def compare(network, ours, names_of, loss, outputs):
    """Compares everything; where the other has several arrays for ours, with their sum."""
    loss.backward()
    theirs = {name: x.grad.numpy() for name, x in network.named_parameters() if x.grad is not None}
    gradients = flatten(ours["gradients"])
    gradients = {path: x for path, x in gradients.items() if {*names_of(path)} & {*theirs}}
    assert {name for path in gradients for name in names_of(path)} == theirs.keys()
    summed = {path: sum(theirs[name] for name in names_of(path)) for path in gradients}
    outputs = {"": outputs.detach().numpy()}
    worst = {
        "outputs": difference({"": ours["logits"]["training"]}, outputs),
        "loss": difference(ours["loss"], {"": loss.detach().numpy()}),
        "gradients": difference(gradients, summed),
    }
    assert max(worst.values()) <= BOUND, worst
    return gradients


def llama_name(path, adapted=False):
    module, _, leaf = path.rpartition("/")
    block = re.fullmatch(r"block(\d+)/(\w+)", module)
    name = f"model.layers.{int(block[1]) - 1}.{_LLAMA[block[2]]}" if block else _LLAMA[module]
    if adapted:
        is_kernel = leaf == "kernel"
        return [f"base_model.model.{name}{'.base_layer' * is_kernel}.{_LEAVES[leaf]}"]
    return [f"{name}.{_LEAVES[leaf]}"]


@pytest.mark.parametrize("name", ["llama:tiny", "llama:8b:tiny", "llama:lora:tiny"])
def test_llama_computes_what_transformers_and_peft_compute(torch, package, name):
    transformers = package("transformers")
    config, variables, tokens_BxT, labels_BxT, ours = ours_of(name)
    model, adapted = config.model, bool(config.model.lora_rank)
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.data.num_classes,
            hidden_size=model.width,
            intermediate_size=model.mlp_width,
            num_hidden_layers=model.depth,
            num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": model.rope_base},
            tie_word_embeddings=False,
        )
    )
    if adapted:
        peft = package("peft")
        adapters = peft.LoraConfig(
            r=model.lora_rank, lora_alpha=model.lora_alpha, target_modules="all-linear"
        )
        network = peft.get_peft_model(network, adapters)

    def names_of(path):
        return llama_name(path, adapted)

    load(torch, network, flatten(variables["params"]), names_of)
    logits = network(input_ids=torch.from_numpy(tokens_BxT).long()).logits
    labels = torch.from_numpy(labels_BxT).long()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    compared = compare(network, ours, names_of, loss, logits)
    assert {*compared} == {*flatten(variables["params"])} - {*model.trainable_epochs()}


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_dit_computes_what_diffusers_computes(torch, package, monkeypatch, schedule):
    diffusers = package("diffusers")
    # float32 draws may differ in their last bit from one program to the next.
    keys_B, of = jax.random.split(jax.random.key(0), BATCH), registry.load("dit:tiny")
    draws = jax.device_get(dit.draw(keys_B, of.data.image_shape, of.model))
    draws = draws._replace(dropped_B=np.array([True, False]))
    monkeypatch.setattr(dit, "draw", lambda *_: draws)
    changes = {"noise_schedule": schedule}
    config, variables, latents_BxHxWxC, labels_B, ours = ours_of("dit:tiny", **changes)
    model, size = config.model, config.data.image_shape
    network = diffusers.DiTTransformer2DModel(
        num_attention_heads=model.heads,
        attention_head_dim=model.width // model.heads,
        in_channels=model.latent_channels,
        out_channels=model.latent_channels,
        num_layers=model.depth,
        sample_size=size[0],
        patch_size=model.patch,
        num_embeds_ada_norm=config.data.num_classes,
        norm_eps=1e-6,
    )
    blocks = [f"transformer_blocks.{index}" for index in range(model.depth)]
    for module in network.modules():
        # The published network divides by the number of speeds, diffusers by one less.
        if type(module).__name__ == "Timesteps":
            module.downscale_freq_shift = 0

    def names_of(path):
        module, _, leaf = path.rpartition("/")
        leaf = "bias" if leaf == "bias" else "weight"
        if block := re.fullmatch(r"block(\d+)/(\w+)", module):
            return [f"{blocks[int(block[1]) - 1]}.{_DIT[block[2]]}.{leaf}"]
        if module in _DIT_CONDITIONS:  # each block of diffusers has its own
            return [f"{block}.{_DIT_CONDITIONS[module]}.{leaf}" for block in blocks]
        tops = {"modulation": "proj_out_1", "head": "proj_out_2", "patches": "pos_embed.proj"}
        return [f"{tops[module]}.{leaf}"]

    load(torch, network, flatten(variables["params"]), names_of)
    classes_B = np.where(draws.dropped_B, config.data.num_classes, labels_B)

    def as_torch(x_BxHxWxC):
        return torch.from_numpy(np.asarray(x_BxHxWxC, np.float64).transpose(0, 3, 1, 2))

    kinds = {"linear": "linear", "cosine": "squaredcos_cap_v2"}
    scheduler = diffusers.DDPMScheduler(model.noise_levels, 1e-4, 0.02, kinds[schedule])
    levels, noise = torch.from_numpy(draws.levels_B).long(), as_torch(draws.noise_BxHxWxC)
    noisy = scheduler.add_noise(as_torch(latents_BxHxWxC), noise, levels)
    network.eval()  # classes are dropped already
    predicted = network(noisy, timestep=levels, class_labels=torch.from_numpy(classes_B)).sample
    errors = (predicted - noise).permute(0, 2, 3, 1)
    compare(network, ours, names_of, (errors**2).mean(), errors)
