"""Figures counted a second time, by code that shares nothing with jaxbench.

The network, clocks and arithmetic are written out here once more. jaxbench is only run, as people
run it; what it recorded is compared.
"""

import json
import os
import re
import statistics
import subprocess
import time

import numpy as np
import pytest

from tests.integration.conftest import program

# Of the run that all tests look at: a WRN-10-2 on scikit-learn's digits, on two devices.
WIDTH, EPOCHS = 2, 8
TRAINED_ON, HELD_OUT, BATCH = 1437, 360, 128
IMAGES_PER_EPOCH = TRAINED_ON // BATCH * BATCH


class TrainedRun:
    """A run in a process of its own, and what a clock outside it saw.

    Attributes:
      arrivals: for each epoch, the last look at metrics.jsonl without its record and the first one
        with it, on the clock of `started_s` and `ended_s`.
    """

    def __init__(self, folder):
        self.folder = folder / "run"
        arguments = [
            "--experiment=quickstart",
            f"--experiment.model.width={WIDTH}",
            f"--experiment.epochs={EPOCHS}",
            "--compile_cache=off",
            "--checkpoint_epochs=3",
            "--workdir=run",
        ]
        with open(folder / "output", "w+") as output:
            self.started_s = time.monotonic()
            process = subprocess.Popen(
                program(*arguments),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            )
            try:
                self.arrivals = self._watch(process)
            finally:
                process.kill()
                process.wait()
            self.ended_s = time.monotonic()
            output.seek(0)
            assert process.returncode == 0, output.read()
        self.document = json.loads((self.folder / "run.json").read_text())
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        self.records = [json.loads(line) for line in lines]
        [self.summary] = self.of_kind("summary")

    def _watch(self, process) -> list[tuple[float, float]]:
        found, last_look_s = [], self.started_s
        while process.poll() is None:
            look_s = time.monotonic()
            try:
                text = (self.folder / "metrics.jsonl").read_text()
            except FileNotFoundError:
                text = ""
            there = len(re.findall(r'"kind": "epoch".*\n', text))
            found += [(last_look_s, time.monotonic())] * (there - len(found))
            last_look_s = look_s
            time.sleep(0.002)
        return found

    def of_kind(self, kind) -> list[dict]:
        return [record for record in self.records if record["kind"] == kind]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return TrainedRun(tmp_path_factory.mktemp("sanity"))


# 1. Accuracy, by a network in NumPy on the parameters of the checkpoints.


def digits():
    """Returns the normalised held-out digits and their labels."""
    from sklearn.datasets import load_digits

    levels_NxHxW, labels_N = load_digits().images, load_digits().target
    pixels_NxHxW = np.rint(levels_NxHxW * 255 / 16)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(TRAINED_ON + HELD_OUT)
    trained_on = pixels_NxHxW[order[HELD_OUT:]]
    held_out = (pixels_NxHxW[order[:HELD_OUT]] - trained_on.mean()) / trained_on.std()
    return held_out[..., None], labels_N[order[:HELD_OUT]]


def convolve(x_BxHxWxC, kernel_KxKxCxF, stride=1):
    """Pads by half the kernel, and sums over the kernel's places."""
    side = kernel_KxKxCxF.shape[0]
    edge = (side // 2, side // 2)
    x_BxHxWxC = np.pad(x_BxHxWxC, ((0, 0), edge, edge, (0, 0)))
    height, width = (size - side + 1 for size in x_BxHxWxC.shape[1:3])
    return sum(
        x_BxHxWxC[:, top : top + height : stride, left : left + width : stride]
        @ kernel_KxKxCxF[top, left]
        for top in range(side)
        for left in range(side)
    )


def wide_resnet_10(params, statistics, x_BxHxWxC):
    """Returns the logits of a network of three groups of one block."""

    def norm_relu(x, *path):
        own, seen = params, statistics
        for name in path:
            own, seen = own[name], seen[name]
        x = (x - seen["mean"]) / np.sqrt(seen["var"] + 1e-5) * own["scale"] + own["bias"]
        return np.maximum(x, 0)

    x = convolve(x_BxHxWxC, params["stem"]["kernel"])
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        name = f"group{group}_block1"
        kernels = {layer: own["kernel"] for layer, own in params[name].items() if "kernel" in own}
        y = norm_relu(x, name, "norm1")
        x = convolve(y, kernels["projection"], stride)
        y = norm_relu(convolve(y, kernels["conv1"], stride), name, "norm2")
        x = x + convolve(y, kernels["conv2"])
    features_BxF = norm_relu(x, "norm").mean((1, 2))
    return features_BxF @ params["head"]["kernel"] + params["head"]["bias"]


def as_float64(tree):
    return {
        name: as_float64(value) if isinstance(value, dict) else np.float64(value)
        for name, value in tree.items()
    }


def saved_states(run) -> dict[int, dict]:
    """Returns {epoch: state} of the checkpoints, read by Orbax alone."""
    import orbax.checkpoint as ocp

    return {
        int(folder.name.rpartition("-")[2]): ocp.PyTreeCheckpointer().restore(folder / "arrays")
        for folder in (run.folder / "checkpoints").iterdir()
    }


def test_accuracy_recounted_from_the_checkpoints(run):
    images_BxHxWxC, labels_B = digits()
    epochs = {record["epoch"]: record for record in run.of_kind("epoch")}
    states = saved_states(run)
    assert len(states) >= 2 and max(states) == EPOCHS
    for epoch, state in states.items():
        params, statistics = as_float64(state["params"]), as_float64(state["batch_stats"])
        logits_BxK = wide_resnet_10(params, statistics, images_BxHxWxC)
        own_B = logits_BxK[np.arange(HELD_OUT), labels_B]
        better_B = (logits_BxK > own_B[:, None]).sum(1)
        losses_B = np.log(np.exp(logits_BxK - own_B[:, None]).sum(1))
        record = epochs[epoch]
        assert record["eval_count"] == HELD_OUT
        assert record["eval_top1"] * HELD_OUT == pytest.approx((better_B < 1).sum(), abs=1e-6)
        assert record["eval_top5"] * HELD_OUT == pytest.approx((better_B < 5).sum(), abs=1e-6)
        assert record["eval_loss"] == pytest.approx(losses_B.mean(), abs=1e-4)
    for name in ("eval_top1", "eval_top5", "eval_loss"):
        assert run.summary[name] == epochs[EPOCHS][name]
    assert run.summary["best_eval_top1"] == max(record["eval_top1"] for record in epochs.values())
    assert run.summary["eval_top1"] > 0.9


# 2. Times and rates, by a clock outside the process.


def test_epochs_take_as_long_on_a_clock_outside_the_process(run):
    epochs = run.of_kind("epoch")
    assert len(run.arrivals) == len(epochs) == EPOCHS
    shares = []
    for before, after, record in zip(run.arrivals, run.arrivals[1:], epochs[1:], strict=False):
        at_least_s, at_most_s = after[0] - before[1], after[1] - before[0]
        # Exact, however busy the machine: what a process times lies between its two records.
        assert record["epoch_time_s"] < at_most_s
        train_time_s = IMAGES_PER_EPOCH / record["images_per_s"]
        assert train_time_s + record["eval_time_s"] == pytest.approx(record["epoch_time_s"])
        shares.append(record["epoch_time_s"] / at_least_s)
    # Most epochs are followed by their record alone.
    assert statistics.median(shares) > 0.6
    # Nothing but these is between the records of two epochs.
    own_s = sum(record["epoch_time_s"] for record in epochs[1:])
    beside_s = sum(run.summary["phases_s"][name] for name in ("records", "checkpoint", "other"))
    first, last = run.arrivals[0], run.arrivals[-1]
    at_least_s, at_most_s = last[0] - first[1], last[1] - first[0]
    assert at_least_s < 1.02 * (own_s + beside_s)
    elapsed_s = epochs[-1]["elapsed_s"] - epochs[0]["elapsed_s"]
    assert 0.9 * at_least_s < elapsed_s < 1.1 * at_most_s


def test_phases_are_the_whole_time_and_the_process_takes_no_less(run):
    summary, whole_s = run.summary, run.ended_s - run.started_s
    # Phases are read an instant before the whole.
    assert sum(summary["phases_s"].values()) == pytest.approx(summary["wall_s"], rel=0.01)
    # Linux counts a process's age in hundredths of a second.
    assert 0.75 * whole_s < summary["import_s"] + summary["wall_s"] < whole_s + 0.02
    epochs = run.of_kind("epoch")
    in_epochs_s = sum(record["epoch_time_s"] for record in epochs)
    phases_s = sum(summary["phases_s"][name] for name in ("train", "data_wait", "eval"))
    assert in_epochs_s == pytest.approx(phases_s, rel=0.05)
    assert summary["train_time_s"] + summary["eval_time_s"] == pytest.approx(in_epochs_s)
