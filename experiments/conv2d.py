"""One 3x3 convolution over 840 images on 1..N devices against SciPy on one CPU thread.

    python -m jaxbench.main --experiment=conv2d
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m jaxbench.main --experiment=conv2d

Recipe of: "tf.nn.conv2d with multiple GPUs" (Qiita): 840 images of 100x100, one channel, one wall
time of the first and only call on 1 to 8 V100 (14,898 ms to 722 ms) and K80 (3,248 ms to 647 ms),
against 222 ms for `scipy.signal.convolve2d`; it concludes that the CPU wins. Here compiling, host
to device, computing and device to host are told apart, and what the article wondered about is
measured: kernels of 3 to 10, 1 to 10 channels, data that stays on the device.
Only the problem of the article: `--experiment.kernels=3, --experiment.channels=1,`.
On simulated devices and other CPUs, moving data to the "device" may cost nothing: the memory is
the same.
Hardware: anything; about ten minutes on two CPU cores. XLA's CPU code for so few channels is slow:
there SciPy takes about as long.
"""

from jaxbench.models.convolution import Conv2dConfig


def get_config() -> Conv2dConfig:
    return Conv2dConfig(
        images=840,
        image_shape=(100, 100),
        kernels=tuple(range(3, 11)),
        channels=tuple(range(1, 11)),
    )


def tiny(config: Conv2dConfig) -> Conv2dConfig:
    """24 images of 16x16, two kernels, two numbers of channels, three rounds."""
    config.images = 24
    config.image_shape = (16, 16)
    config.kernels = (3, 4)
    config.channels = (1, 2)
    config.rounds = 3
    config.calls = 2
    config.scipy_rounds = 1
    return config
