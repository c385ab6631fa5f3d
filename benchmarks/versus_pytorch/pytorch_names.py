"""What PyTorch calls the arrays of jaxbench/models, and how it lays them out; needs neither."""

import re
from collections.abc import Callable, Mapping

import numpy as np

_LEAVES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def convert(
    arrays: Mapping[str, np.ndarray], name_of: Callable[[str], str]
) -> dict[str, np.ndarray]:
    """Return flax's arrays under PyTorch's names and in its layout.

    Args:
      arrays: {path of the module/leaf: array}, kernels HWIO or IO.
      name_of: flax's path of a module -> PyTorch's. NAME:0, NAME:1 ... are parts of one module of
        PyTorch, whose outputs stand one after the other.
    """
    parts: dict[str, dict[str, np.ndarray]] = {}
    for path, array in arrays.items():
        module, _, leaf = path.rpartition("/")
        if leaf == "kernel":
            # Convolutions HWIO -> OIHW, dense layers IO -> OI.
            array = array.transpose((3, 2, 0, 1) if array.ndim == 4 else (1, 0))
        name, _, place = name_of(module).partition(":")
        parts.setdefault(f"{name}.{_LEAVES[leaf]}", {})[place] = array
    return {
        name: np.concatenate([by_place[place] for place in sorted(by_place)])
        for name, by_place in parts.items()
    }


def resnet_name(path: str) -> str:
    """stage1_block2/norm3 -> layer1.1.bn3, as torchvision and timm name them."""
    tops = {"stem": "conv1", "stem_norm": "bn1", "head": "fc"}
    if path in tops:
        return tops[path]
    stage, block, module = re.fullmatch(r"stage(\d+)_block(\d+)/(\w+)", path).groups()
    projections = {"projection": "downsample.0", "projection_norm": "downsample.1"}
    module = projections.get(module) or module.replace("norm", "bn")
    return f"layer{stage}.{int(block) - 1}.{module}"


def wide_resnet_name(path: str) -> str:
    """group1_block2/norm1 -> groups.0.1.norm1"""
    match = re.fullmatch(r"group(\d+)_block(\d+)/(\w+)", path)
    if not match:
        return path
    return f"groups.{int(match[1]) - 1}.{int(match[2]) - 1}.{match[3]}"


def cnn10_name(path: str) -> str:
    """conv2_3 -> stages.2.2.conv; between two stages stands a pooling layer."""
    match = re.fullmatch(r"(conv|norm)(\d+)_(\d+)", path)
    if not match:
        return path
    return f"stages.{2 * (int(match[2]) - 1)}.{int(match[3]) - 1}.{match[1]}"


def block_name(path: str, blocks: str, modules: Mapping[str, str], tops: Mapping[str, str]) -> str:
    """block1/query -> BLOCKS.0.MODULE; what is in no block as `tops` has it, if it does."""
    match = re.fullmatch(r"block(\d+)/(\w+)", path)
    if not match:
        return tops.get(path, path)
    return f"{blocks}.{int(match[1]) - 1}.{modules.get(match[2], match[2])}"


def transformer_name(path: str) -> str:
    """block1/query -> blocks.0.qkv:0"""
    return block_name(path, "blocks", {"query": "qkv:0", "key": "qkv:1", "value": "qkv:2"}, {})


# By the class in pytorch_networks.py, which is called as in jaxbench/models.
NAMES = {
    "ResNet": resnet_name,
    "WideResNet": wide_resnet_name,
    "Cnn10": cnn10_name,
    "ViT": transformer_name,
    "Gpt": transformer_name,
}
