"""Public networks that rates were published for, as shapes: their products and what they move.

The layers are those of the papers and of the reference code. MACs and weights are tested against
published counts. jaxbench trains few of them; those of its experiments are traced instead
(`tracing.read_network`), and tested to be the same.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from jaxbench.predict.layers import Layer, NetworkShape

_POOL, _AVERAGE = "pool", "average"  # 3x3 with stride 2, and with stride 1


@dataclasses.dataclass
class _Images:
    """Images of height x width and channels, and the layers that made them.

    `moved` is what elementwise kernels move, `pooled` what pooling does. `touches` is how often
    they move a layer's outputs: 3 times for batch norm and ReLU (once for the statistics, then read
    and written), twice for a ReLU, once more for a sum.
    """

    size: tuple[int, int]
    channels: int = 3
    layers: list[Layer] = dataclasses.field(default_factory=list)
    moved: list[float] = dataclasses.field(default_factory=list)
    pooled: list[float] = dataclasses.field(default_factory=list)

    def branch(self) -> "_Images":
        """Return the same images, whose further layers go to the same list."""
        return dataclasses.replace(self)

    def apply(self, *steps):
        """Apply convolutions, each given by its channels or by all arguments, and pooling."""
        for step in steps:
            if step in (_POOL, _AVERAGE):
                self.pool(3, 2 if step == _POOL else 1, valid=step == _POOL)
            else:
                self.conv(*(step if isinstance(step, tuple) else (step,)))
        return self

    def split(self, *branches: list) -> "_Images":
        """Return the outputs of branches, each a list of `apply`'s steps, side by side."""
        return _concat(*(self.branch().apply(*branch) for branch in branches))

    def shape(self) -> NetworkShape:
        return NetworkShape(tuple(self.layers), sum(self.moved), sum(self.pooled))

    def conv(self, channels, kernel=1, stride=1, valid=False, *, groups=1, touches=3.0, up=False):
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        h, w = self.size
        if up:
            oh, ow = h * stride, w * stride
        elif valid:
            oh, ow = (h - kh) // stride + 1, (w - kw) // stride + 1
        else:
            oh, ow = -(-h // stride), -(-w // stride)
        cin, taps = self.channels, kh * kw
        self.layers.append(
            Layer(
                rows=h * w if up else oh * ow,
                cols=channels * (taps if up else 1) // groups,
                depth=(1 if up else taps) * cin // groups,
                groups=groups,
                inputs=h * w * cin,
                outputs=oh * ow * channels,
                weights=taps * cin * channels // groups,
                channels=cin // groups,
                taps=taps if stride == 1 else 1,
                transposed=up,
            )
        )
        self.moved.append(touches * oh * ow * channels)
        self.size, self.channels = (oh, ow), channels
        return self

    def pool(self, kernel=2, stride=2, *, valid=True):
        before = math.prod(self.size)
        self.size = tuple(
            (n - kernel) // stride + 1 if valid else -(-n // stride) for n in self.size
        )
        self.pooled.append(self.channels * (before + math.prod(self.size)))
        return self

    def dense(self, units):
        """On all pixels and channels at once; `global_pool` first if they are averaged."""
        h, w = self.size
        layer, moved = _dense(1, h * w * self.channels, units, 2.0)
        self.layers.append(layer)
        self.moved.append(moved)
        self.size, self.channels = (1, 1), units
        return self

    def global_pool(self):
        self.size = (1, 1)
        return self


def _concat(*branches: _Images) -> _Images:
    joined = branches[0].branch()
    joined.channels = sum(branch.channels for branch in branches)
    # Copied side by side: read and written.
    height, width = joined.size
    joined.moved.append(2.0 * height * width * joined.channels)
    return joined


def _dense(rows: int, depth: int, cols: int, touches: float, times: int = 1) -> tuple[Layer, float]:
    """Return a product with weights, and what elementwise kernels move of its outputs."""
    sizes = (rows * depth, rows * cols, depth * cols)
    return Layer(rows, cols, depth, 1, *sizes, times=times), touches * rows * cols * times


def _bottlenecks(x, count, outer, inner, stride, *, groups=1, v1=False):
    """Append a stage of blocks of 1x1, 3x3 and 1x1; in v1 the first of them strides."""
    for block in range(count):
        step = 1 if block else stride
        if not block:
            x.branch().conv(outer, 1, step, touches=2.0)
        x.conv(inner, 1, step if v1 else 1)
        x.conv(inner, 3, 1 if v1 else step, groups=groups).conv(outer, 1, touches=4.0)


def _basic_blocks(x, count, channels, stride, *, projects, touches, last=4.0):
    """Append a stage of blocks of two 3x3.

    `touches` is that of the projection of its input, `last` that of the last convolution.
    """
    for block in range(count):
        step = 1 if block else stride
        if projects and not block:
            x.branch().conv(channels, 1, step, touches=touches)
        x.conv(channels, 3, step).conv(channels, 3, touches=last)


def resnet(blocks, *, bottleneck=True, width=64, groups=1, v1=False):
    x = _Images((224, 224)).conv(64, 7, 2).pool(3, 2, valid=False)
    for stage, count in enumerate(blocks):
        stride, scale = 2 if stage else 1, 2**stage
        if bottleneck:
            inner = width * groups * scale
            _bottlenecks(x, count, 256 * scale, inner, stride, groups=groups, v1=v1)
        else:
            _basic_blocks(x, count, 64 * scale, stride, projects=stage > 0, touches=2.0)
    return x.global_pool().dense(1000).shape()


def wrn28_10():
    x = _Images((32, 32)).conv(16, 3)
    for stage, channels in enumerate((160, 320, 640)):
        # The sum is written before the norm, which writes its own.
        _basic_blocks(x, 4, channels, 2 if stage else 1, projects=True, touches=1.0, last=6.0)
    return x.global_pool().dense(10).shape()


def cnn10():
    x = _Images((32, 32))
    for channels in (64, 128, 256):
        if channels > 64:
            x.pool(2, 2)
        x.conv(channels, 3).conv(channels, 3).conv(channels, 3)
    return x.global_pool().dense(10).shape()


def speed_net():
    x = _Images((32, 32)).conv(24, 2, 1, True, touches=2.0)
    for channels in (64, 256, 256):
        x.conv(channels, 3, touches=0.0).pool(2, 2)
        x.moved.append(3.0 * math.prod(x.size) * channels)  # norm and activation after pooling
        x.conv(channels, 3)
    return x.global_pool().dense(10).shape()


def vgg(plan, touches=2.0):
    x = _Images((224, 224))
    for step in plan:
        x = x.pool() if step == "M" else x.conv(step, 3, touches=touches)
    return x.dense(4096).dense(4096).dense(1000).shape()


VGG11 = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")
VGG16 = (64, 64, "M", 128, 128, "M", *[256] * 3, "M", *[512] * 3, "M", *[512] * 3, "M")


def alexnet():
    """The one-tower variant of tf_cnn_benchmarks, at 224."""
    x = _Images((224, 224)).conv(64, 11, 4, True, touches=2.0).pool(3, 2)
    x.conv(192, 5, touches=2.0).pool(3, 2)
    x.conv(384, 3, touches=2.0).conv(384, 3, touches=2.0).conv(256, 3, touches=2.0).pool(3, 2)
    return x.dense(4096).dense(4096).dense(1000).shape()


def _forked(x, first, forks, channels, last):
    """Return the module of Inception in which branches end in a row and a column side by side."""
    stems = [x.branch().apply(*fork) for fork in forks]
    kernels = ((1, 3), (3, 1))
    return _concat(
        x.branch().conv(first),
        *(stem.branch().conv(channels, kernel) for stem in stems for kernel in kernels),
        x.branch().apply(_AVERAGE, last),
    )


def inception_v3():
    row, column = (1, 7), (7, 1)
    x = _Images((299, 299)).conv(32, 3, 2, True).conv(32, 3, 1, True).conv(64, 3).pool(3, 2)
    x.conv(80).conv(192, 3, 1, True).pool(3, 2)
    for pooled in (32, 64, 64):
        x = x.split([64], [48, (64, 5)], [64, (96, 3), (96, 3)], [_AVERAGE, pooled])
    x = x.split([(384, 3, 2, True)], [64, (96, 3), (96, 3, 2, True)], [_POOL])
    for c in (128, 160, 160, 192):
        far = [c, (c, column), (c, row), (c, column), (192, row)]
        x = x.split([192], [c, (c, row), (192, column)], far, [_AVERAGE, 192])
    far = [192, (192, row), (192, column), (192, 3, 2, True)]
    x = x.split([192, (320, 3, 2, True)], far, [_POOL])
    for _ in range(2):
        x = _forked(x, 320, ([384], [448, (384, 3)]), 384, 192)
    return x.global_pool().dense(1000).shape()


def inception_v4():
    row, column = (1, 7), (7, 1)
    x = _Images((299, 299)).conv(32, 3, 2, True).conv(32, 3, 1, True).conv(64, 3)
    x = x.split([_POOL], [(96, 3, 2, True)])
    x = x.split([64, (96, 3, 1, True)], [64, (64, column), (64, row), (96, 3, 1, True)])
    x = x.split([(192, 3, 2, True)], [_POOL])
    for _ in range(4):
        x = x.split([96], [64, (96, 3)], [64, (96, 3), (96, 3)], [_AVERAGE, 96])
    x = x.split([(384, 3, 2, True)], [192, (224, 3), (256, 3, 2, True)], [_POOL])
    for _ in range(7):
        far = [192, (192, column), (224, row), (224, column), (256, row)]
        x = x.split([384], [192, (224, row), (256, column)], far, [_AVERAGE, 128])
    far = [256, (256, row), (320, column), (320, 3, 2, True)]
    x = x.split([192, (192, 3, 2, True)], far, [_POOL])
    for _ in range(3):
        x = _forked(x, 256, ([384], [384, (448, (3, 1)), (512, (1, 3))]), 256, 256)
    return x.global_pool().dense(1000).shape()


def unet572():
    x, widths = _Images((572, 572), 1), (64, 128, 256, 512)
    for channels in widths:
        x.conv(channels, 3, 1, True, touches=2.0).conv(channels, 3, 1, True, touches=2.0).pool()
    x.conv(1024, 3, 1, True, touches=2.0).conv(1024, 3, 1, True, touches=2.0)
    for channels in reversed(widths):
        x.conv(channels, 2, 2, up=True, touches=2.0)
        x.channels = 2 * channels
        x.conv(channels, 3, 1, True, touches=3.0).conv(channels, 3, 1, True, touches=2.0)
    return x.conv(2, 1, touches=3.0).shape()


def inverted_residuals(stages, squeeze):
    """MobileNetV2 and, with squeeze and excitation, EfficientNet-B0."""
    x = _Images((224, 224)).conv(32, 3, 2)
    for expand, channels, count, kernel, stride in stages:
        for block in range(count):
            cin, inner = x.channels, x.channels * expand
            if expand > 1:
                x.conv(inner)
            step = 1 if block else stride
            x.conv(inner, kernel, step, groups=inner, touches=5.0 if squeeze else 3.0)
            if squeeze:
                x.branch().global_pool().conv(max(1, cin // 4)).conv(inner)
            x.conv(channels)
    return x.conv(1280).global_pool().dense(1000).shape()


MOBILENET = ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 32, 3, 3, 2), (6, 64, 4, 3, 2))
MOBILENET += ((6, 96, 3, 3, 1), (6, 160, 3, 3, 2), (6, 320, 1, 3, 1))
EFFICIENTNET = ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2))
EFFICIENTNET += ((6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1))


def densenet121():
    x = _Images((224, 224)).conv(64, 7, 2).pool(3, 2, valid=False)
    for number, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            # Norm and ReLU of all that was concatenated come before the convolution.
            y = x.branch().conv(128, 1, touches=3.0 + 3.0 * x.channels / 128)
            y.conv(32, 3, touches=1.0)
            x.channels += 32
        if number < 3:
            x.conv(x.channels // 2, 1, touches=1.0).pool(2, 2)
    return x.global_pool().dense(1000).shape()


def convnext_tiny():
    x = _Images((224, 224)).conv(96, 4, 4)
    for stage, (count, width) in enumerate(((3, 96), (3, 192), (9, 384), (3, 768))):
        if stage:
            x.conv(width, 2, 2)
        for _ in range(count):
            x.conv(width, 7, groups=width, touches=4.0)
            x.conv(4 * width, 1, touches=2.0).conv(width, 1, touches=4.0)
    return x.global_pool().dense(1000).shape()


def ssd300():
    x = _Images((300, 300)).conv(64, 7, 2).pool(3, 2, valid=False)
    for stage, count in enumerate((3, 4, 6)):
        _bottlenecks(x, count, 256 * 2**stage, 64 * 2**stage, 2 if stage == 1 else 1)
    maps = [x.branch()]
    for inner, *options in ((256, 2), (256, 2), (128, 2), (128, 1, True), (128, 1, True)):
        maps.append(x.conv(inner).conv(2 * inner, 3, *options).branch())
    for images, boxes in zip(maps, (4, 6, 6, 6, 4, 4), strict=True):
        for per_box in (4, 81):
            images.branch().conv(boxes * per_box, 3, touches=2.0)
    return x.shape()


def transformer(
    count: int,
    width: int,
    heads: int,
    tokens: int,
    *,
    hidden: int | None = None,
    vocabulary: int = 0,
    patch: int = 0,
    kv_heads: int | None = None,
    head: int | None = None,
    gated: bool = False,
    fused: bool = False,
) -> NetworkShape:
    """Return the shape of a transformer of `count` blocks.

    Args:
      count, width, heads, tokens: as the papers name them.
      hidden: width of the hidden layer, 4 times `width` if None; two such if `gated`.
      vocabulary: words predicted for each token; without, 1,000 classes of the whole.
      patch: values of a patch of an image, 0 for words.
      kv_heads: heads of keys and values if there are fewer.
      head: channels of a head, `width / heads` if None.
      fused: whether the weights of attention stay on the chip.
    """
    hidden, kv_heads, head = hidden or 4 * width, kv_heads or heads, head or width // heads
    weights, size = 0 if fused else tokens * tokens * heads, tokens * heads * head
    parts = [
        _dense(tokens, width, (heads + 2 * kv_heads) * head, 2.0, count),
        (Layer(tokens, tokens, head, heads, 2 * size, weights, 0, times=count), 0.0),
        (Layer(tokens, head, tokens, heads, weights + size, size, 0, times=count), 0.0),
        _dense(tokens, heads * head, width, 6.0, count),
        _dense(tokens, width, hidden * (2 if gated else 1), 1.5 if gated else 2.0, count),
        _dense(tokens, hidden, width, 6.0, count),
        _dense(tokens if vocabulary else 1, width, vocabulary or 1000, 3.0),
    ]
    if patch:  # a convolution of the images
        layer, touched = _dense(tokens, patch, width, 3.0)
        parts.insert(0, (layer._replace(channels=3), touched))
    layers, moved = zip(*parts, strict=True)
    return NetworkShape(layers, sum(moved) + 3.0 * weights * count)


def mixer_b16() -> NetworkShape:
    """Return MLP-Mixer B/16: 12 blocks of products over 196 tokens and over 768 channels."""
    parts = (
        _dense(768, 196, 384, 3.0, 12),
        _dense(768, 384, 196, 5.0, 12),
        _dense(196, 768, 3072, 3.0, 12),
        _dense(196, 3072, 768, 5.0, 12),
        _dense(196, 768, 768, 3.0),
        _dense(1, 768, 1000, 2.0),
    )
    layers, moved = zip(*parts, strict=True)
    return NetworkShape(layers, sum(moved))


def dit_xl2(fused: bool = False) -> NetworkShape:
    """Return DiT-XL/2 on latents of 32x32x4: patches of 2x2, and outputs for noise and variance."""
    tokens = transformer(28, 1152, 16, 256, patch=16, vocabulary=32, fused=fused)
    # The noise level's vector, and what it and the class make of it for each block and the outputs.
    conditions = [
        _dense(1, 256, 1152, 2.0),
        _dense(1, 1152, 1152, 2.0),
        _dense(1, 1152, 6 * 1152, 2.0, 28),
        _dense(1, 1152, 2 * 1152, 2.0),
    ]
    layers, moved = zip(*conditions, strict=True)
    return NetworkShape((*tokens.layers, *layers), tokens.touched + sum(moved))


# Each is called with `fused`, or without it for its usual form.
_plain = functools.partial(functools.partial, transformer)
_fused = functools.partial(_plain, fused=True)
_maxtext = functools.partial(_fused, head=256, vocabulary=32768)
_llama = functools.partial(_fused, gated=True)
_mpt = functools.partial(_fused, tokens=2048, vocabulary=50368)
_TRANSFORMERS: dict[str, Callable[..., NetworkShape]] = {
    "vit_tiny": _plain(12, 192, 3, 197, patch=768),
    "vit_s16": _plain(12, 384, 6, 197, patch=768),
    "vit_b16": _plain(12, 768, 12, 197, patch=768),
    "vit_b16_384": _plain(12, 768, 12, 577, patch=768),
    "vit_l16": _plain(24, 1024, 16, 197, patch=768),
    "vit_h14": _plain(32, 1280, 16, 257, patch=588),
    "vit_g14": _plain(40, 1408, 16, 257, hidden=6144, patch=588),
    "vit_gigantic14": _plain(48, 1664, 16, 257, hidden=8192, patch=588),
    "bert_base_384": _plain(12, 768, 12, 384, vocabulary=2),
    "bert_base_512": _plain(12, 768, 12, 512, vocabulary=2),
    "bert_large_384": _plain(24, 1024, 16, 384, vocabulary=2),
    "bert_large_512": _plain(24, 1024, 16, 512, vocabulary=30522),
    "gpt2": _plain(12, 768, 12, 1024, vocabulary=50257),
    "gpt2_large": _plain(36, 1280, 20, 1024, vocabulary=50257),
    "opt_13": _plain(24, 2048, 32, 2048, vocabulary=50272),
    "gpt_2b9": _plain(24, 3072, 24, 2048, vocabulary=50257),
    "gpt3_175b": _fused(96, 12288, 96, 2048, vocabulary=50304),
    # MaxText's own, by billions of weights.
    "maxtext_16b": _maxtext(32, 5120, 32, 2048, hidden=32768),
    "maxtext_22b": _maxtext(48, 6144, 24, 1024, hidden=24576),
    "maxtext_32b": _maxtext(32, 10240, 32, 2048, hidden=32768),
    "maxtext_52b": _maxtext(32, 12288, 32, 1024, hidden=49152),
    "maxtext_64b": _maxtext(64, 10240, 32, 2048, hidden=32768),
    "maxtext_128b": _maxtext(64, 10240, 64, 2048, hidden=65536),
    "maxtext_256b": _maxtext(64, 20480, 64, 2048, hidden=65536),
    "maxtext_512b": _maxtext(128, 20480, 64, 2048, hidden=65536),
    "mpt_125m": _mpt(12, 768, 12),
    "mpt_350m": _mpt(24, 1024, 16),
    "mpt_760m": _mpt(24, 1536, 12),
    "mpt_1b": _mpt(24, 2048, 16),
    "mpt_3b": _mpt(32, 2560, 20),
    "mpt_7b": _mpt(32, 4096, 32),
    "mpt_13b": _mpt(40, 5120, 40),
    "mpt_30b": _mpt(48, 7168, 56),
    "tinyllama_1b": _llama(22, 2048, 32, 2048, hidden=5632, kv_heads=4, vocabulary=32000),
    "llama1_7b": _llama(32, 4096, 32, 2048, hidden=11008, vocabulary=32000),
    "llama2_7b": _llama(32, 4096, 32, 4096, hidden=11008, vocabulary=32000),
    "llama2_70b": _llama(80, 8192, 64, 4096, hidden=28672, kv_heads=8, vocabulary=32000),
    # Llama 3.2, on half of the tokens that the others of Llama 3 are on.
    "llama3_3b": _llama(28, 3072, 24, 4096, hidden=8192, kv_heads=8, vocabulary=128256),
    "llama3_8b": _llama(32, 4096, 32, 8192, hidden=14336, kv_heads=8, vocabulary=128256),
    "llama3_70b": _llama(80, 8192, 64, 8192, hidden=28672, kv_heads=8, vocabulary=128256),
    "llama3_405b": _llama(126, 16384, 128, 8192, hidden=53248, kv_heads=8, vocabulary=128256),
    "mistral_7b": _llama(32, 4096, 32, 8192, hidden=14336, kv_heads=8, vocabulary=32000),
    "dit_xl2": dit_xl2,
}
# All are built at once, in some milliseconds: `identify` compares with each of them.
NETWORKS = {
    "resnet18": resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": resnet((3, 4, 6, 3)),
    "resnet50v1": resnet((3, 4, 6, 3), v1=True),
    "resnet101": resnet((3, 4, 23, 3)),
    "resnet152": resnet((3, 8, 36, 3)),
    "resnet152v1": resnet((3, 8, 36, 3), v1=True),
    "wide_resnet50_2": resnet((3, 4, 6, 3), width=128),
    "wide_resnet101_2": resnet((3, 4, 23, 3), width=128),
    "resnext50_32x4d": resnet((3, 4, 6, 3), width=4, groups=32),
    "resnext101_32x4d": resnet((3, 4, 23, 3), width=4, groups=32),
    "wrn28_10": wrn28_10(),
    "cnn10": cnn10(),
    "speed_net": speed_net(),
    "vgg11": vgg(VGG11),
    "vgg16": vgg(VGG16),
    "vgg16_bn": vgg(VGG16, 3.0),
    "alexnet": alexnet(),
    "inception_v3": inception_v3(),
    "inception_v4": inception_v4(),
    "unet572": unet572(),
    "efficientnet_b0": inverted_residuals(EFFICIENTNET, squeeze=True),
    "mobilenet_v2": inverted_residuals(MOBILENET, squeeze=False),
    "densenet121": densenet121(),
    "convnext_tiny": convnext_tiny(),
    "ssd300": ssd300(),
    "mixer_b16": mixer_b16(),
    **{name: make() for name, make in _TRANSFORMERS.items()},
}


@functools.cache
def network_shape(name: str, fused: bool | None = None) -> NetworkShape:
    """Return a public network; a transformer with `fused` attention or not, if that is known."""
    if fused is None or name not in _TRANSFORMERS:
        return NETWORKS[name]
    return _TRANSFORMERS[name](fused=fused)


def identify(macs: float, weights: float) -> str | None:
    """Return the public network with as many multiply-accumulates and weights, within 2 %."""
    for name, public in NETWORKS.items():
        if abs(macs / public.macs - 1) < 0.02 > abs(weights / public.weights - 1):
            return name
    return None
