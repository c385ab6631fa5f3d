"""One 2-D convolution, the work of the conv2d experiment.

Letters: N images, C channels, F filters, K the kernel's side.
"""

import dataclasses
import typing

import jax
import numpy as np

from jaxbench.aliases import DType
from jaxbench.config import Experiment
from jaxbench.config.fields import choice, number
from jaxbench.errors import BadInput


class Problem(typing.NamedTuple):
    """The shapes of one convolution: images_NxHxWxC with kernel_KxKxCxF."""

    images: int
    height: int
    width: int
    channels: int
    filters: int
    kernel: int

    @property
    def macs(self) -> int:
        """Return the number of multiply-accumulates; padding counts like pixels."""
        pixels = self.images * self.height * self.width
        return pixels * self.kernel**2 * self.channels * self.filters

    @property
    def input_bytes(self) -> int:
        return 4 * self.images * self.height * self.width * self.channels

    @property
    def output_bytes(self) -> int:
        return 4 * self.images * self.height * self.width * self.filters


@dataclasses.dataclass(kw_only=True)
class Conv2dConfig(Experiment):
    """A convolution over many images, split over 1..N devices.

    Attributes:
      images: Number of images.
      image_shape: Height and width of an image, in pixels.
      kernels: Sides of the square kernels to measure, in pixels. Kernel, channels and devices vary
        one at a time; the others keep their first value (devices: the fewest and the most).
      channels: Numbers of input channels to measure.
      filters: Number of output channels.
      device_counts: Numbers of devices that share the images; () takes every number, 1 to all, that
        divides `images`.
      precision: What the convolution computes in.
      rounds: Rounds; everything is measured once in each.
      calls: Calls that one window of computing holds, fewer if a call takes long.
      scipy_rounds: Rounds in which SciPy does the same on one CPU thread; 0 leaves it out.
    """

    default_mode: typing.ClassVar[str] = "conv2d"

    images: int = number(840, low=1)
    image_shape: tuple[int, ...] = number((100, 100), low=1)
    kernels: tuple[int, ...] = number((3,), low=1)
    channels: tuple[int, ...] = number((1,), low=1)
    filters: int = number(1, low=1)
    device_counts: tuple[int, ...] = number((), low=1)
    precision: str = choice("fp32", "bf16", "fp16")
    rounds: int = number(5, low=3)
    calls: int = number(10, low=1)
    scipy_rounds: int = number(3)

    def validate(self) -> None:
        super().validate()
        if len(self.image_shape) != 2:
            raise BadInput(f"image_shape={self.image_shape}: must be (height, width)")
        if self.parallelism == "fsdp":
            raise BadInput("parallelism='fsdp': a convolution has no state to split")
        height, width = self.image_shape
        if max(self.kernels) > min(height, width):
            raise BadInput(f"kernels={self.kernels}: images are only {height}x{width}")
        if self.scipy_rounds > self.rounds:
            raise BadInput(f"scipy_rounds={self.scipy_rounds}: at most rounds={self.rounds}")
        for count in self.device_counts:
            if self.images % count:
                raise BadInput(f"device_counts: {count} must divide images={self.images}")

    def problems(self) -> list[Problem]:
        """Return the convolutions to measure, in order."""
        pairs = [(kernel, self.channels[0]) for kernel in self.kernels]
        pairs += [(self.kernels[0], channels) for channels in self.channels[1:]]
        height, width = self.image_shape
        return [
            Problem(self.images, height, width, channels, self.filters, kernel)
            for kernel, channels in dict.fromkeys(pairs)
        ]


def make_inputs(problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images_NxHxWxC and kernel_KxKxCxF, float32, between 0 and 1."""
    images, height, width, channels, filters, side = problem
    generator = np.random.Generator(np.random.Philox(key=seed))
    images_NxHxWxC = generator.random((images, height, width, channels), dtype=np.float32)
    return images_NxHxWxC, generator.random((side, side, channels, filters), dtype=np.float32)


def convolve(kernel_KxKxCxF: jax.Array, images_BxHxWxC: jax.Array, dtype: DType) -> jax.Array:
    """Return float32 outputs_BxHxWxF: a cross-correlation, as in networks.

    Padding is 0. An even kernel reaches one pixel further to the top and left.
    """
    side = kernel_KxKxCxF.shape[0]
    outputs = jax.lax.conv_general_dilated(
        images_BxHxWxC.astype(dtype),
        kernel_KxKxCxF.astype(dtype),
        window_strides=(1, 1),
        padding=[(side // 2, (side - 1) // 2)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return outputs.astype(np.float32)


def convolve_with_scipy(kernel_KxKxCxF: np.ndarray, images_NxHxWxC: np.ndarray) -> np.ndarray:
    """Return the same outputs by `scipy.signal.convolve2d`, image by image, on one CPU thread."""
    from scipy.signal import convolve2d

    flipped = kernel_KxKxCxF[::-1, ::-1]  # SciPy flips it back
    channels, filters = kernel_KxKxCxF.shape[2:]
    outputs = np.empty((*images_NxHxWxC.shape[:3], filters), np.float32)
    for image, output in zip(images_NxHxWxC, outputs, strict=True):
        for f in range(filters):
            output[..., f] = sum(
                convolve2d(image[..., c], flipped[..., c, f], mode="same") for c in range(channels)
            )
    return outputs
