"""The networks in PyTorch that forward_vs_pytorch.py compares ours with."""

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pytorch_names import NAMES, convert, resnet_name

from jaxbench.config import Config
from jaxbench.errors import BadInput

# {PyTorch's name: array in PyTorch's layout}
Named = dict[str, np.ndarray]


@dataclasses.dataclass(kw_only=True)
class Peer:
    """A PyTorch network, and how it names and lays out {flax's path: array}."""

    words: str
    build: Callable[[], Any]
    convert: Callable[[Mapping[str, np.ndarray]], Named]


def named_by(name_of: Callable[[str], str]) -> Callable[[Mapping[str, np.ndarray]], Named]:
    """Returns the conversion of a network that differs from flax's by the names alone."""
    return functools.partial(convert, name_of=name_of)


def find_peers(config: Config) -> tuple[list[Peer], str]:
    """Returns the PyTorch networks that compute the same, and a line on those that are missing.

    Raises:
      BadInput: there is none.
    """
    kind = type(config.model).__name__.removesuffix("Config")
    if kind not in NAMES or (kind == "ResNet" and len(config.model.stages) != 4):
        raise BadInput(
            f"--experiment={config.name}: {kind} has no counterpart in pytorch_networks.py; "
            "resnet50, wrn28_10, cnn10, vit_s16 and gpt_bytes have"
        )
    own = Peer(
        words=f"pytorch_networks.{kind}",
        build=lambda: _own_network(kind, config),
        convert=named_by(NAMES[kind]),
    )
    libraries = {
        "ResNet": (
            ("torchvision", functools.partial(_resnet_of, "torchvision")),
            ("timm", functools.partial(_resnet_of, "timm")),
            ("transformers", _transformers_resnet),
        ),
        "ViT": (("transformers", _transformers_vit),),
        "Gpt": (("transformers", _transformers_gpt2),),
    }
    others, missing = [], []
    for library, peer in libraries.get(kind, ()):
        try:
            importlib.import_module(library)
        except Exception as error:
            # A torchvision built for another PyTorch fails with a RuntimeError of its own.
            absent = isinstance(error, ModuleNotFoundError) and error.name == library
            why = "not installed" if absent else f"its import fails with {type(error).__name__}"
            missing.append(f"{library} ({why})")
            continue
        others += [found for found in [peer(config)] if found]
    note = f"\n  not compared with {', '.join(missing)}" if missing else ""
    if missing and not others:
        note += "; no network but our own is left: pip install transformers"
    return [own, *others], note


def _resnet_of(library: str, config: Config) -> Peer | None:
    """Returns torchvision's or timm's ResNet, whose names and arguments are the same."""
    resnet = importlib.import_module(f"{library}.models.resnet")
    model, num_classes = config.model, config.data.num_classes
    if model.width != 64:
        return None  # its first stage always has 64 channels
    return Peer(
        words=f"{library}'s ResNet",
        build=lambda: resnet.ResNet(resnet.Bottleneck, list(model.stages), num_classes),
        convert=named_by(resnet_name),
    )


def _transformers_resnet(config: Config) -> Peer:
    import transformers

    model = config.model
    theirs = transformers.ResNetConfig(
        embedding_size=model.width,
        hidden_sizes=[4 * model.width * 2**stage for stage in range(4)],
        depths=list(model.stages),
        layer_type="bottleneck",
        hidden_act="relu",
        downsample_in_first_stage=False,
        # v1.5: the 3x3 convolution strides.
        downsample_in_bottleneck=False,
        num_labels=config.data.num_classes,
    )
    return Peer(
        words="transformers' ResNetForImageClassification",
        build=lambda: transformers.ResNetForImageClassification(theirs),
        convert=named_by(_transformers_resnet_name),
    )


def _transformers_resnet_name(path: str) -> str:
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


def _own_network(kind: str, config: Config) -> Any:
    """Builds the network of pytorch_networks.py; what it draws is overwritten at once."""
    import pytorch_networks

    create = getattr(pytorch_networks, kind)
    given = vars(config.model) | {
        "num_classes": config.data.num_classes,
        "sequence_length": config.data.sequence_length,
    }
    return create(**{k: given[k] for k in inspect.signature(create).parameters if k in given})


def _transformers_vit(config: Config) -> Peer:
    """Its patches and its layers; what stands around them there is a class token's."""
    import pytorch_networks
    import torch
    import transformers
    from transformers.models.vit import modeling_vit

    model, (height, width, _) = config.model, config.data.image_shape
    theirs = transformers.ViTConfig(
        hidden_size=model.width,
        num_hidden_layers=model.depth,
        num_attention_heads=model.heads,
        intermediate_size=model.mlp_ratio * model.width,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_eps=1e-6,
        image_size=(height, width),
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

    def name_of(path: str) -> str:
        """block1/query -> layers.0.attention.q_proj"""
        match = re.fullmatch(r"block(\d+)/(\w+)", path)
        if not match:
            return {"patches": "patches.projection"}.get(path, path)
        modules = {
            "norm1": "layernorm_before",
            "query": "attention.q_proj",
            "key": "attention.k_proj",
            "value": "attention.v_proj",
            "out": "attention.o_proj",
            "norm2": "layernorm_after",
            "mlp1": "mlp.fc1",
            "mlp2": "mlp.fc2",
        }
        return f"layers.{int(match[1]) - 1}.{modules[match[2]]}"

    return Peer(words="transformers' ViT layers", build=MeanOfTokens, convert=named_by(name_of))


def _transformers_gpt2(config: Config) -> Peer | None:
    import transformers

    model = config.model
    if model.positions != "learned":
        return None
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

    def name_of(path: str) -> str:
        """block1/query -> transformer.h.0.attn.c_attn:0"""
        match = re.fullmatch(r"block(\d+)/(\w+)", path)
        if not match:
            tops = {"tokens": "wte", "positions": "wpe", "norm": "ln_f"}
            return f"transformer.{tops[path]}"
        modules = {
            "norm1": "ln_1",
            "query": "attn.c_attn:0",
            "key": "attn.c_attn:1",
            "value": "attn.c_attn:2",
            "out": "attn.c_proj",
            "norm2": "ln_2",
            "mlp1": "mlp.c_fc",
            "mlp2": "mlp.c_proj",
        }
        return f"transformer.h.{int(match[1]) - 1}.{modules[match[2]]}"

    def to_gpt2(arrays: Mapping[str, np.ndarray]) -> Named:
        # Its Conv1D keeps kernels as inputs x outputs.
        return {
            name: np.ascontiguousarray(array.T if re.search(r"c_\w+\.weight", name) else array)
            for name, array in convert(arrays, name_of).items()
        }

    return Peer(
        words="transformers' GPT2LMHeadModel",
        build=lambda: transformers.GPT2LMHeadModel(theirs),
        convert=to_gpt2,
    )
