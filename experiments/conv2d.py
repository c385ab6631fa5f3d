"""One 3x3 convolution over 840 images on 1..N devices against SciPy on one CPU thread.

    python -m jaxbench.main --experiment=conv2d
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m jaxbench.main --experiment=conv2d

Recipe of: "tf.nn.conv2d with multiple GPUs" (Qiita): 840 images of 100x100, one channel, one wall
time of the first and only call on 1 to 8 V100 (14,898 ms to 722 ms) and K80 (3,248 ms to 647 ms),
against 222 ms for `scipy.signal.convolve2d`; it concludes that the CPU wins. Here compiling, both
transfers and computing are timed apart, for kernels of 3 to 10, 1 to 10 channels, and data that
stays on the device. Only the article's problem: `--experiment.kernels=3, --experiment.channels=1,`.
On two CPU cores SciPy takes about as long as XLA, and transfers to a simulated device may be free.
Hardware: anything; about ten minutes on two CPU cores.
"""

from jaxbench.models.convolution import Conv2dConfig


def get_config() -> Conv2dConfig:
    kernels, channels = tuple(range(3, 11)), tuple(range(1, 11))
    return Conv2dConfig(images=840, image_shape=(100, 100), kernels=kernels, channels=channels)


def tiny(config: Conv2dConfig) -> Conv2dConfig:
    """24 images of 16x16, two kernels, two numbers of channels, three rounds."""
    config.images, config.image_shape = 24, (16, 16)
    config.kernels, config.channels = (3, 4), (1, 2)
    config.rounds, config.calls, config.scipy_rounds = 3, 2, 1
    return config
