"""Published rates with the experiments that repeat them and the targets they were measured on."""

from typing import NamedTuple

from jaxbench.analysis.published import load_published
from jaxbench.hardware.peak_table import find_peak
from jaxbench.hardware.targets.target import parse_target

# By how a published row begins to name its hardware, and how many of it. The 2016 article's log
# says which TITAN X: compute capability 5.2. A pair of different GPUs is no target.
_TARGETS = {
    ("NVIDIA GeForce RTX 2080 Ti 11GB", 1): "gpu:rtx2080ti",
    ("NVIDIA GeForce RTX 2080 Ti 11GB", 2): "gpu:rtx2080ti:2",
    ("RTX 2080 Ti", 1): "gpu:rtx2080ti",
    ("Google Colab TPU v2 (8 cores)", 8): "tpu:v2:2x2",
    ("4x TPU v2 (Cloud TPU v2-8)", 4): "tpu:v2:2x2",
    ("4x V100 16GB (AWS p3.8xlarge)", 4): "gpu:v100:4",
    ("4x V100 16GB", 4): "gpu:v100:4",
    ("TITAN X", 1): "gpu:titanx",
    ("4x TITAN X", 4): "gpu:titanx:4",
}
_EXPERIMENTS = {"wrn28_10": "wrn28_10_2019", "resnet50": "resnet50_synthetic"}
_EXAMPLES = {"cifar10": 50_000, "mnist": 60_000}
_MNIST_EPOCHS = 200  # of the article's total times


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
    """Return the rates of all published rows of a network on a machine that is a target."""
    found = []
    for row in [*load_published("training_runs"), *load_published("throughput")]:
        target = _TARGETS.get((row["hardware"], row["devices"]))
        if target and (rate := _images_per_s(row)):
            experiment = _EXPERIMENTS.get(row["model"], row["model"])
            precision = row["precision"].split()[0]
            found.append(PublishedRate(experiment, target, row["global_batch"], precision, rate))
    return found


def _images_per_s(row: dict) -> float | None:
    if row.get("images_per_s"):
        return row["images_per_s"]
    if row["median_epoch_s"]:
        return _EXAMPLES[row["dataset"]] / row["median_epoch_s"]
    if row["model"] == "mnist_cnn":
        return _MNIST_EPOCHS * _EXAMPLES["mnist"] / row["total_time_s"]
    return None
