"""Published rates beside what their machines' peak rates allow; this needs no compiler."""

import jax
import pytest

from jaxbench.analysis.ceiling import ceiling
from jaxbench.cli import entry_point
from jaxbench.distributed.mesh import DataMesh
from jaxbench.geometry import BatchGeometry
from jaxbench.hardware.targets.target import parse_target
from jaxbench.training.program import build_program
from tests.published_rates import published_rates

# Above their ceiling, and by how much: docs/decisions/published.md says why.
_ABOVE = {("wrn28_10_2019", "gpu:rtx2080ti", 128): 1.029}


def training_flops(experiment: str) -> int:
    config = entry_point.load_experiment(experiment, ["--experiment.num_devices=1"])
    mesh = DataMesh(tuple(jax.devices()[:1]), "shard_map")
    geometry = BatchGeometry.create(config, 1)
    return build_program(config, mesh, geometry, steps_per_epoch=1).training_flops


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
    flops_per_image = training_flops(experiment)
    rates = [rate for rate in published_rates() if rate.experiment == experiment]
    assert len(rates) == rows
    above = {}
    for rate in rates:
        devices = parse_target(rate.target).num_devices
        found = ceiling(
            images_per_step=rate.batch_size,
            flops_per_device=flops_per_image * rate.batch_size / devices,
            bytes_per_device=0,
            exchanged_bytes=0,
            num_devices=devices,
            peak_flops_per_s=rate.peak_flops_per_s / devices,
            memory_bytes_per_s=None,
            link_bytes_per_s=None,
        )
        share = rate.images_per_s / found["images_per_s"]
        # Nothing published is so slow that a factor of 1000 would hide in it.
        assert share > 0.01, rate
        if share > 1:
            above[rate.experiment, rate.target, rate.batch_size] = round(share, 3)
    assert above == {row: share for row, share in _ABOVE.items() if row[0] == experiment}
