"""Figures counted a second time, by code that shares nothing with jaxbench.

Networks, parsers, clocks and arithmetic are written out here once more. jaxbench is only run, as
people run it; what it recorded is compared.
"""

import json
import math
import os
import re
import statistics
import subprocess
import time

import jax
import numpy as np
import pytest

from tests.in_process import run_command
from tests.integration.conftest import program

# Of the run that most tests look at: a WRN-10-2 on scikit-learn's digits, on two devices.
WIDTH, EPOCHS = 2, 8
TRAINED_ON, HELD_OUT, BATCH = 1437, 360, 128
IMAGES_PER_EPOCH = TRAINED_ON // BATCH * BATCH
ONE = "--experiment.num_devices=1"


class TrainedRun:
    """A run in a process of its own, and what a clock outside it saw.

    Attributes:
      arrivals: for each epoch, the last look at metrics.jsonl without its record and the first one
        with it, on the clock of `started_s` and `ended_s`.
    """

    def __init__(self, folder):
        self.folder, self.dump = folder / "run", folder / "dump"
        flags = f"--xla_force_host_platform_device_count=2 --xla_dump_to={self.dump}"
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
                env=os.environ | {"XLA_FLAGS": f"{flags} --xla_dump_hlo_as_text"},
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


# 1. Multiply-accumulates, from the text of the lowered program.

_TENSOR = r"tensor<([\dx]+)x\w+>"
_CONV = re.compile(
    r"stablehlo\.convolution\(.*dim_numbers = \[(.*?)\]x\[(.*?)\]->\[(.*?)\].*?stride = \[(.*?)\], "
    r"pad = \[(.*?\])\], lhs_dilate = \[(.*?)\].*feature_group_count = 1 .*: "
    rf"\({_TENSOR}, {_TENSOR}\) -> {_TENSOR}"
)
_DOT = re.compile(
    r"stablehlo\.dot_general .*contracting_dims = \[(.*?)\] x .*: "
    rf"\({_TENSOR}, {_TENSOR}\) -> {_TENSOR}"
)


def numbers(text) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def macs_of_products(text: str, num_images: int) -> list[float]:
    """Returns the multiply-accumulates of each product of a program, for one of its images.

    Of a convolution's taps those count that meet a pixel or the padding, not those that meet a zero
    between two pixels of a dilated image.
    """
    found = []
    for line in text.splitlines():
        if match := _CONV.search(line):
            image_axes, kernel_axes, _, strides, pads, dilations, *shapes = match.groups()
            image, kernel, output = map(numbers, shapes)
            image_axes, kernel_axes = image_axes.split(", "), kernel_axes.split(", ")
            macs = output[-1] * kernel[kernel_axes.index("i")]
            for axis in "01":
                size, side = output[1 + int(axis)], kernel[kernel_axes.index(axis)]
                stride, dilation = numbers(strides)[int(axis)], numbers(dilations)[int(axis)]
                before = numbers(pads)[2 * int(axis)]
                places = (
                    place * stride + tap - before for place in range(size) for tap in range(side)
                )
                macs *= sum(place % dilation == 0 for place in places)
            found.append(macs)
        elif match := _DOT.search(line):
            contracted, left, _, output = map(numbers, match.groups())
            # A 1x1 convolution on a CPU is a product whose rows are the pixels of all images.
            macs = math.prod(output) * math.prod(left[axis] for axis in contracted)
            found.append(macs // num_images)
        else:
            # Whatever the patterns above do not fit must not go uncounted.
            assert not re.search(r"stablehlo\.(convolution|dot)", line), line
    return found


# Strides, dilated images, tokens; the sizes of others are published (tests/models/test_models.py).
@pytest.mark.parametrize("name", ["resnet50", "unet256", "gpt_bytes", "cifar10_speedrun94"])
def test_macs_by_a_parser_of_the_lowered_program(tmp_path, monkeypatch, name):
    experiment = (f"--experiment={name}:tiny", ONE)
    described = json.loads(run_command(tmp_path, *experiment, "--mode=describe", "--json").stdout)
    # Other views of an image would be other networks' work.
    views = "--experiment.test_time_augmentation"
    flags = (f"{views}=none", f"{views}_fraction=1", "--workdir=run")
    texts = []

    def stop(lowered, *args, **how):
        """Ends the run in place of compiling: what was lowered is all that counts here."""
        texts.append(lowered.as_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(jax.stages.Lowered, "compile", stop)
    assert run_command(tmp_path, *experiment, *flags).returncode == 130
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    config = document["config"]
    assert config["eval_batch_size"] in (0, config["batch_size"])
    # Beside the training step the evaluation, which is the forward pass alone.
    counts = [macs_of_products(text, config["batch_size"]) for text in texts]
    *_, forward_macs, train_macs = sorted(counts, key=sum)
    rows = [row["forward_macs_per_image"] for row in described["layers"]]
    assert document["forward_macs_per_image"] == sum(forward_macs) == sum(rows) > 0
    if not document.get("attention"):  # whose row has two products
        assert sorted(filter(None, rows)) == sorted(forward_macs)
    # The backward pass is more than once as much again, whatever it leaves out.
    assert sum(train_macs) > 2 * sum(forward_macs)


# 2. Accuracy, by a network in NumPy on the parameters of the checkpoints.


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


# 3. Times and rates, by a clock outside the process.


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


# 4. Bytes, by a parser of the compiled program and by hand.


def sizes_of_wide_resnet_10(width) -> tuple[int, int]:
    """Returns the numbers of parameters and of batch norm's channels, for 8x8x1 and 10 classes."""
    parameters, channels, before = 9 * 16, 0, 16
    for own in (16 * width, 32 * width, 64 * width):
        projection = before * own if own != before else 0
        parameters += 9 * before * own + 9 * own * own + projection
        channels += before + own
        before = own
    channels += before
    return parameters + 2 * channels + before * 10 + 10, channels


def all_reduced_bytes(hlo) -> int:
    """Returns the bytes of the results of all sums over devices."""
    total = 0
    for results in re.findall(r"= (.*?) all-reduce(?:-start)?\(", hlo):
        results = re.sub(r"/\*.*?\*/", "", results)
        arrays = re.findall(r"f32\[([\d,]*)\]", results)
        assert len(arrays) == results.count("[") > 0, results
        total += sum(4 * math.prod(numbers(shape)) for shape in arrays)
    return total


def test_bytes_that_devices_exchange_and_that_the_state_takes(run):
    parameters, channels = sizes_of_wide_resnet_10(WIDTH)
    assert run.document["parameters"] == parameters
    metrics_bytes = 4 * len(("loss", "count", "top1", "top5"))
    compiled = run.of_kind("compile")
    assert [record["function"] for record in compiled] == ["train_step", "eval_step"]
    # Averages of the gradients, and of batch norm's running means and variances.
    by_hand = [4 * parameters + 2 * 4 * channels + metrics_bytes, metrics_bytes]
    recorded = [record["collectives"]["all-reduce"]["bytes"] for record in compiled]
    texts = sorted(run.dump.glob("*after_optimizations.txt"))
    parsed = [all_reduced_bytes(path.read_text()) for path in texts]
    assert recorded == by_hand == [found for found in parsed if found]
    assert all(list(record["collectives"]) == ["all-reduce"] for record in compiled)
    # Parameters and their momentum, the running averages, the steps done and the updates done.
    state_bytes = 2 * 4 * parameters + 2 * 4 * channels + 2 * 4
    assert compiled[0]["memory"]["alias_bytes"] == state_bytes
    leaves = jax.tree.leaves(saved_states(run)[EPOCHS])
    assert sum(np.asarray(leaf).nbytes for leaf in leaves) == state_bytes
