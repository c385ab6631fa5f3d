"""Published rates beside what their machines' peak rates allow; this needs no compiler."""

import jax
import pytest

from jaxbench.analysis.ceiling import ceiling
from jaxbench.batch_layout import BatchLayout
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.targets.target import parse_target
from jaxbench.models.vgg import VggConfig
from jaxbench.modes.targets import fast_convolution_rate
from jaxbench.parallel.mesh import DataMesh
from jaxbench.train import build_program
from jaxbench.training.program import Program
from tests.conftest import config_of
from tests.published_rates import published_rates

# VGG-16 at 224x224 in fp32 without TF32, whose convolutions cuDNN computes by Winograd's
# algorithm: images/s of one GPU, the batch, and the fraction of the peak that they seem to reach.
_WINOGRAD = {
    "gpu:v100": (249, 192, 1.47),  # Lambda, TensorFlow 1.15
    "gpu:rtx2080ti": (190, 56, 1.32),  # the same
}


def create_program(experiment: str, **fields) -> Program:
    config = config_of(experiment, num_devices=1, **fields)
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    return build_program(config, mesh, BatchLayout.create(config, 1), steps_per_epoch=1)


def ceiling_of(
    program: Program, target_name: str, precision: str, peak_flops_per_s: float, batch: int
) -> float:
    """Images/s that the arithmetic allows; the peak is that of all devices."""
    target = parse_target(target_name)
    fast_rate = fast_convolution_rate(target, precision)
    return ceiling(
        images_per_step=batch,
        flops_per_device=program.least_training_flops(fast_rate) * batch / target.num_devices,
        bytes_per_device=0,
        exchanged_bytes=0,
        num_devices=target.num_devices,
        peak_flops_per_s=peak_flops_per_s / target.num_devices,
        memory_bytes_per_s=None,
        link_bytes_per_s=None,
    )["images_per_s"]


@pytest.mark.parametrize(
    ("experiment", "rows"),
    [
        ("cnn10", 14),
        ("wrn28_10_2019", 8),
        ("mnist_cnn", 1),
        ("vgg_cifar10", 2),
        ("resnet50_synthetic", 5),
    ],
)
def test_published_rates_lie_below_their_machines_arithmetic(experiment, rows):
    program = create_program(experiment)
    rates = [rate for rate in published_rates() if rate.experiment == experiment]
    assert len(rates) == rows
    for rate in rates:
        allowed = ceiling_of(
            program, rate.target, rate.precision, rate.peak_flops_per_s, rate.batch_size
        )
        # Nothing published is so slow that a factor of 1000 would hide in it.
        assert 0.01 < rate.images_per_s / allowed < 1, rate


def test_winograds_convolutions_lie_between_the_peak_and_the_ceiling():
    model = VggConfig(width=64, hidden=4096, norm="none")
    program = create_program("resnet50_synthetic", model=model, precision="fp32")
    for target, (images_per_s, batch, peaks) in _WINOGRAD.items():
        peak = find_peak(parse_target(target).kind, "fp32").flops_per_s
        reached = images_per_s * program.training_flops / peak
        assert reached == pytest.approx(peaks, abs=0.01) and peaks > 1
        assert images_per_s < ceiling_of(program, target, "fp32", peak, batch)
    # TF32 is faster than Winograd's algorithm in fp32 where its peak is several times that of fp32.
    rates = {
        name: fast_convolution_rate(parse_target(name), "fp32")
        for name in ("gpu:a100", "tpu:v3:2x2")
    }
    assert rates == {"gpu:a100": 19.5 / 156, "tpu:v3:2x2": 0.0}
    assert fast_convolution_rate(parse_target("gpu:v100"), "fp16") == 0.0
