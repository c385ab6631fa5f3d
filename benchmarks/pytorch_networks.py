"""The networks of jaxbench/models in PyTorch, to check against and to compare speed with.

ResNet-50 v1.5 (He et al. 2016, the 3x3 convolution strides), WRN-depth-width (Zagoruyko and
Komodakis 2016) and cnn10 (see jaxbench/models/cnn10.py), written from those descriptions.
Images come as usual in PyTorch, BxCxHxW. Batch norm has flax's epsilon 1e-5 and, in PyTorch's
words, momentum 0.1: flax counts the share that is kept, 0.9.
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
      zero_init: begin with every block as the identity (Goyal et al. 2017).
      num_classes: K, the width of the logits.
    """

    def __init__(
        self,
        stages: tuple[int, int, int, int] = (3, 4, 6, 3),
        width: int = 64,
        zero_init: bool = True,
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
        _initialise(self)
        if zero_init:
            for module in self.modules():
                if isinstance(module, Bottleneck):
                    nn.init.zeros_(module.bn3.weight)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Returns logits_BxK."""
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
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth={depth}: a wide ResNet's depth is 6n+4")
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
        _initialise(self)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Returns logits_BxK."""
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
        _initialise(self)

    def forward(self, images_BxCxHxW: torch.Tensor) -> torch.Tensor:
        """Returns logits_BxK."""
        return self.head(self.stages(images_BxCxHxW).mean(dim=(2, 3)))


def _stage(num_blocks: int, in_channels: int, channels: int, stride: int) -> nn.Sequential:
    blocks = [Bottleneck(in_channels, channels, stride)]
    blocks += [Bottleneck(4 * channels, channels, 1) for _ in range(num_blocks - 1)]
    return nn.Sequential(*blocks)


def _conv(in_channels: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (batch norm follows and has one), padded alike on all sides."""
    return nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)


def _initialise(network: nn.Module) -> None:
    """Draws parameters with the variances of jaxbench/models/layers.py."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
