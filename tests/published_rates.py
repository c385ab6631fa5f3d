"""Published rates with the experiments that repeat them and the targets they were measured on."""

from typing import NamedTuple

from jaxbench.analysis import published
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.targets.target import parse_target

_EXPERIMENTS = {"wrn28_10": "wrn28_10_2019", "resnet50": "resnet50_synthetic"}
_MNIST = 200 * 60_000  # images of the article's total times


class PublishedRate(NamedTuple):
    """Images/s of a published row; `precision` is a config's."""

    experiment: str
    target: str
    batch_size: int
    precision: str
    images_per_s: float

    @property
    def peak_flops_per_s(self) -> float:
        """Return the peak of all devices together."""
        target = parse_target(self.target)
        return find_peak(target.kind, self.precision).flops_per_s * target.num_devices


def published_rates() -> list[PublishedRate]:
    """Return the rates of all articles, of a network on a machine that is a target."""
    found = [
        (
            row.network,
            row.device,
            row.num_devices,
            row.batch_size,
            row.precision,
            row.examples_per_s,
        )
        for row in published.published_rates()
        if row.dataset
    ]
    found += [
        (row["model"], row["device"], row["devices"], row["global_batch"], row["precision"], rate)
        for row in published.load_published("training_runs")
        if row["model"] == "mnist_cnn" and row["device"] and (rate := _MNIST / row["total_time_s"])
    ]
    return [
        PublishedRate(_EXPERIMENTS.get(network, network), _target(device, count), *others)
        for network, device, count, *others in found
    ]


def _target(device: str, count: int) -> str:
    return f"{device}:2x2" if (device, count) == ("tpu:v2", 4) else f"{device}:{count}"
