"""The networks of jaxbench/models in PyTorch, to check against and to compare speed with.

ResNet-50 v1.5 (He et al. 2016, the 3x3 convolution strides), WRN-depth-width (Zagoruyko and
Komodakis 2016) and cnn10 (see jaxbench/models/cnn10.py), written from those descriptions.
Images come as usual in PyTorch, BxCxHxW. Batch norm has flax's epsilon 1e-5 and, in PyTorch's
words, momentum 0.1: flax counts the share that is kept, 0.9.

Parameters are PyTorch's own draws; whoever compares replaces them by jaxbench's.

The plain vision transformer of Beyer et al. 2022 and a language model of GPT-2's form (see
jaxbench/models/vit.py and gpt.py) have pre-norm blocks, whose norms have flax's epsilon 1e-6.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, each with batch norm, plus the input, projected where its shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        out_channels = 4 * channels
        self.conv1 = _conv(in_channels, channels, 1)
        self.bn1 = _norm(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.bn2 = _norm(channels)
        self.conv3 = _conv(channels, out_channels, 1)
        self.bn3 = _norm(out_channels)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                _conv(in_channels, out_channels, 1, stride), _norm(out_channels)
            )

    def forward(self, x_BxCxHxW: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x_BxCxHxW)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        shortcut = x_BxCxHxW if self.downsample is None else self.downsample(x_BxCxHxW)
        return F.relu(y + shortcut, inplace=True)


class ResNet(nn.Module):
    """ResNet v1.5; its parameters are named as torchvision's, so that those weights load.

    Args:
      stages: bottleneck blocks in each of the four stages; (3, 4, 6, 3) is ResNet-50.
      width: channels inside the first stage's blocks; each stage doubles them.
      num_classes: K, the width of the logits.
    """

    def __init__(
        self,
        stages: tuple[int, int, int, int] = (3, 4, 6, 3),
        width: int = 64,
        num_classes: int = 1000,
    ):
        super().__init__()
        self.conv1 = _conv(3, width, 7, 2)
        self.bn1 = _norm(width)
        channels = [width * 2**stage for stage in range(4)]
        self.layer1 = _stage(stages[0], width, channels[0], stride=1)
        self.layer2 = _stage(stages[1], 4 * channels[0], channels[1], stride=2)
        self.layer3 = _stage(stages[2], 4 * channels[1], channels[2], stride=2)
        self.layer4 = _stage(stages[3], 4 * channels[2], channels[3], stride=2)
        self.fc = nn.Linear(4 * channels[3], num_classes)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Return logits_BxK."""
        x = F.relu(self.bn1(self.conv1(images_BxCxHxW)), inplace=True)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


class WideBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv plus the input, projected by a 1x1 where its shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.norm1 = _norm(in_channels)
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.norm2 = _norm(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.projection = None
        if stride != 1 or in_channels != channels:
            self.projection = _conv(in_channels, channels, 1, stride)

    def forward(self, x_BxCxHxW: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(x_BxCxHxW), inplace=True)
        # The projection reads the activated input, as in the paper's code.
        shortcut = x_BxCxHxW if self.projection is None else self.projection(y)
        y = F.relu(self.norm2(self.conv1(y)), inplace=True)
        return self.conv2(y) + shortcut


class WideResNet(nn.Module):
    """WRN-depth-width for small images.

    Args:
      depth: 6n+4.
      width: times 16, 32 and 64 channels.
      num_classes: K, the width of the logits.
    """

    def __init__(self, depth: int = 28, width: int = 10, num_classes: int = 10):
        super().__init__()
        self.stem = _conv(3, 16, 3)
        groups, in_channels = [], 16
        for group, channels in enumerate((16 * width, 32 * width, 64 * width)):
            blocks = []
            for block in range((depth - 4) // 6):
                stride = 2 if group > 0 and block == 0 else 1
                blocks.append(WideBlock(in_channels, channels, stride))
                in_channels = channels
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)
        self.norm = _norm(in_channels)
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Return logits_BxK."""
        x = self.groups(self.stem(images_BxCxHxW))
        x = F.relu(self.norm(x), inplace=True)
        return self.head(x.mean(dim=(2, 3)))


class ConvNormReLU(nn.Module):
    """A 3x3 convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, channels: int):
        super().__init__()
        self.conv = _conv(in_channels, channels, 3)
        self.norm = _norm(channels)

    def forward(self, x_BxCxHxW: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x_BxCxHxW)), inplace=True)


class Cnn10(nn.Module):
    """Three convolutions at each resolution, average pooling between, one dense layer.

    Args:
      channels: at full, half and quarter resolution.
      num_classes: K, the width of the logits.
    """

    def __init__(self, channels: tuple[int, ...] = (64, 128, 256), num_classes: int = 10):
        super().__init__()
        stages, in_channels = [], 3
        for stage, width in enumerate(channels):
            layers = [ConvNormReLU(in_channels if i == 0 else width, width) for i in range(3)]
            stages.append(nn.Sequential(*layers))
            if stage < len(channels) - 1:
                stages.append(nn.AvgPool2d(2))
            in_channels = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Return logits_BxK."""
        return self.head(self.stages(images_BxCxHxW).mean(dim=(2, 3)))


class Block(nn.Module):
    """Attention, then an MLP, each after a layer norm and added to its input."""

    def __init__(self, width: int, heads: int, mlp_ratio: int, causal: bool, rotary: bool):
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp1 = nn.Linear(width, mlp_ratio * width)
        self.mlp2 = nn.Linear(mlp_ratio * width, width)

    def forward(self, x_BxTxD: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BxTxD.shape
        qkv = self.qkv(self.norm1(x_BxTxD)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        y_BxNxTxF = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x_BxTxD = x_BxTxD + self.out(y_BxNxTxF.transpose(1, 2).reshape(batch, length, width))
        hidden = F.gelu(self.mlp1(self.norm2(x_BxTxD)), approximate="tanh")
        return x_BxTxD + self.mlp2(hidden)


class ViT(nn.Module):
    """Patches to tokens, fixed positions, blocks, and the mean of the tokens to logits.

    Args:
      patch: side of a patch in pixels.
      width, depth, heads, mlp_ratio: of the blocks.
      pre_logits: whether a tanh layer stands before the logits.
      num_classes: K, the width of the logits.
    """

    def __init__(
        self,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int,
        pre_logits: bool,
        num_classes: int,
    ):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(
            *[Block(width, heads, mlp_ratio, causal=False, rotary=False) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pre_logits = nn.Linear(width, width) if pre_logits else None
        self.head = nn.Linear(width, num_classes)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Return logits_BxK."""
        x_BxDxHxW = self.patches(images_BxCxHxW)
        x_BxTxD = x_BxDxHxW.flatten(2).transpose(1, 2)
        x_BxTxD = self.norm(self.blocks(x_BxTxD + grid_positions(x_BxDxHxW)))
        x_BxD = x_BxTxD.mean(dim=1)
        if self.pre_logits is not None:
            x_BxD = torch.tanh(self.pre_logits(x_BxD))
        return self.head(x_BxD)


class Gpt(nn.Module):
    """Tokens to the logits of the next ones, by the embedding of the tokens itself.

    Args:
      width, depth, heads, mlp_ratio: of the blocks.
      positions: learned or rotary.
      num_classes: K, the size of the vocabulary.
      sequence_length: T, the number of learned positions.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int,
        positions: str,
        num_classes: int,
        sequence_length: int,
    ):
        super().__init__()
        self.tokens = nn.Embedding(num_classes, width)
        rotary = positions == "rotary"
        self.positions = None if rotary else nn.Embedding(sequence_length, width)
        self.blocks = nn.Sequential(
            *[Block(width, heads, mlp_ratio, causal=True, rotary=rotary) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens_BxT: torch.Tensor) -> torch.Tensor:
        """Return logits_BxTxK."""
        x_BxTxD = self.tokens(tokens_BxT)
        if self.positions is not None:
            x_BxTxD = x_BxTxD + self.positions.weight
        return F.linear(self.norm(self.blocks(x_BxTxD)), self.tokens.weight)


def grid_positions(x_BxDxHxW: torch.Tensor) -> torch.Tensor:
    """Return positions_TxD: sines and cosines of the column, then of the row, D / 4 of each."""
    width, rows, columns = x_BxDxHxW.shape[1:]
    options = {"dtype": x_BxDxHxW.dtype, "device": x_BxDxHxW.device}
    waves = torch.pow(10_000.0, -torch.linspace(0, 1, width // 4, **options))
    row_T = torch.arange(rows, **options).repeat_interleave(columns)
    column_T = torch.arange(columns, **options).repeat(rows)
    turns = [torch.outer(place_T, waves) for place_T in (column_T, row_T)]
    return torch.cat([part for turn in turns for part in (turn.sin(), turn.cos())], dim=1)


def _rotated(x_BxNxTxF: torch.Tensor) -> torch.Tensor:
    """Turn the planes of (first half, second half) of each vector by angles of its place."""
    length, half = x_BxNxTxF.shape[2], x_BxNxTxF.shape[3] // 2
    dtype = torch.promote_types(x_BxNxTxF.dtype, torch.float32)
    options = {"dtype": dtype, "device": x_BxNxTxF.device}
    waves = torch.pow(10_000.0, -torch.arange(half, **options) / half)
    angles_TxF = torch.outer(torch.arange(length, **options), waves)
    turns_TxF = torch.polar(torch.ones_like(angles_TxF), angles_TxF)
    planes = torch.complex(*x_BxNxTxF.to(dtype).split(half, dim=-1)) * turns_TxF
    return torch.cat([planes.real, planes.imag], dim=-1).to(x_BxNxTxF.dtype)


def _stage(num_blocks: int, in_channels: int, channels: int, stride: int) -> nn.Sequential:
    blocks = [Bottleneck(in_channels, channels, stride)]
    blocks += [Bottleneck(4 * channels, channels, 1) for _ in range(num_blocks - 1)]
    return nn.Sequential(*blocks)


def _conv(in_channels: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias (batch norm has one), padded alike on all sides."""
    return nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)
