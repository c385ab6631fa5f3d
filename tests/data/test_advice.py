"""What a refused data set's message advises is done to it, until it is read: as what it was."""

import re
import shlex

import numpy as np
import pytest

from jaxbench.cli.entry_point import load_experiment
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput
from tests.conftest import refusal
from tests.data.encoded_images import TRAIN

FLAGS = ["--experiment.data.image_shape=(16,18,3)", "--experiment.data.num_classes=3"]


def arrays_of(shape=(16, 18, 3)):
    generator = np.random.default_rng(0)
    sizes = {"train": 64, "test": 32}
    images = {f"x_{s}": generator.integers(0, 256, (n, *shape), np.uint8) for s, n in sizes.items()}
    return images | {f"y_{split}": np.arange(count) % 3 for split, count in sizes.items()}


def changed(arrays, prefix, change):
    return arrays | {k: change(v) for k, v in arrays.items() if k.startswith(prefix)}


def follow(load, flags, convert=None):
    """Does what each message advises; returns the data set and how many messages there were.

    A line of Python is given to `convert`, if there is one; else only flags are followed.
    """
    flags = [*flags]
    for count in range(10):
        try:
            return load(flags), count
        except BadInput as error:
            line = str(error)
        assert "\n" not in line
        statement = re.search(r"; convert: (.+)$", line)
        if statement and convert:
            convert(statement[1])
        else:
            named = re.findall(r"--experiment\.[\w.]+=(?:'[^']*'|\w+)", line)
            assert named, line
            flags += [shlex.split(flag)[0] for flag in named]
    raise AssertionError(line)


def on(arrays):
    """Runs a line of Python on arrays."""

    def convert(statement):
        exec(statement, {"np": np}, variables := {**arrays})
        arrays.update({name: variables[name] for name in arrays})

    return convert


def load_npz(tmp_path, arrays):
    def load(flags):
        np.savez(tmp_path / "set.npz", **arrays)
        source = ["--experiment.data.source=npz", f"--experiment.data.path={tmp_path / 'set.npz'}"]
        return load_dataset(load_experiment("cnn10", [*flags, *source]))

    return load


LABELS = {
    "from 1 on": lambda y: y + 1,
    "with gaps": lambda y: np.array([0, 5, 769])[y],
    "huge": lambda y: y + 2**40,
    "one-hot": lambda y: np.eye(3)[y],
    "one-hot of bool": lambda y: np.eye(3, dtype=bool)[y],
    "whole floats": lambda y: y.astype(np.float32),
    "text": lambda y: np.array(["ant", "bee", "cow"])[y],
    "text from Keras": lambda y: np.array([b"ant", b"bee", b"cow"])[y],
    "objects": lambda y: y.astype(object),
    "objects of text": lambda y: np.array(["ant", "bee", "cow"], object)[y],
    "a column": lambda y: y[:, None].astype(np.uint8),
}
IMAGES = {
    "floats to 1": lambda x: x / 255,
    "halves to 1": lambda x: (x / 255).astype(np.float16),
    "floats to 255": lambda x: x.astype(np.float32),
    "whole numbers": lambda x: x.astype(np.int64),
    "16 bits": lambda x: x.astype(np.uint16) * 257,
    "channels first": lambda x: np.moveaxis(x, -1, 1),
    "all of it": lambda x: np.moveaxis(x, -1, 1).astype(np.float32) / 255,
    "objects": lambda x: x.astype(object),
}


@pytest.mark.parametrize(
    ("prefix", "change"),
    [*(("y", change) for change in LABELS.values()), *(("x", c) for c in IMAGES.values())],
    ids=[*(f"labels: {name}" for name in LABELS), *(f"images: {name}" for name in IMAGES)],
)
def test_arrays_become_what_they_were(tmp_path, prefix, change):
    arrays = arrays_of()
    variables = changed(arrays, prefix, change)
    flags = [*FLAGS, "--experiment.batch_size=64"]
    dataset, _ = follow(load_npz(tmp_path, variables), flags, on(variables))
    for split, of in (("train", dataset.train), ("test", dataset.eval)):
        assert np.array_equal(of.inputs_Nx, arrays[f"x_{split}"])
        assert np.array_equal(of.labels_Nx, arrays[f"y_{split}"])
    assert not dataset.warnings


def test_sets_of_another_size_become_the_experiments(tmp_path):
    """All flags at once, but for the batch, of which whole parts must fit."""
    arrays = arrays_of()
    dataset, count = follow(load_npz(tmp_path, arrays), ["--experiment.batch_size=100"])
    assert (dataset.image_shape, dataset.num_classes, count) == ((16, 18, 3), 3, 2)
    devices = ["--experiment.batch_size=1000", "--experiment.gradient_accumulation_steps=3"]
    assert follow(load_npz(tmp_path, arrays), [*FLAGS, *devices])[1] == 1
    # Fewer examples than devices.
    few = {name: array[:7] for name, array in arrays.items()}
    line = refusal(load_npz(tmp_path, few), FLAGS, told="7 training examples, fewer than")
    assert "--experiment" not in line
    grey = arrays_of((28, 28))
    flat = changed(grey, "x", lambda x: x.reshape(len(x), -1))
    flags = ["--experiment.data.image_shape=(28,28,1)", "--experiment.data.num_classes=3"]
    follow(load_npz(tmp_path, flat), [*flags, "--experiment.batch_size=8"], on(flat))
    assert np.array_equal(flat["x_test"], grey["x_test"])


def test_labels_with_gaps_may_be_kept_and_are_doubtful_then(tmp_path):
    arrays = changed(arrays_of(), "y", LABELS["with gaps"])
    flags = [*FLAGS, "--experiment.batch_size=8"]
    dataset, count = follow(load_npz(tmp_path, arrays), flags)
    assert (dataset.num_classes, count) == (770, 1)
    assert "no training images" in dataset.warnings[0]
    unknown = arrays_of()
    unknown["y_test"] = np.where(unknown["y_test"] == 2, -1, unknown["y_test"])
    dataset, _ = follow(load_npz(tmp_path, unknown), flags, on(unknown))
    assert len(dataset.eval) == 22 and set(dataset.eval.labels_Nx) == {0, 1}


def test_two_labels_of_which_one_is_negative_are_two_classes(tmp_path):
    signs = changed(arrays_of(), "y", lambda y: np.where(y > 0, 1, -1))
    dataset, _ = follow(
        load_npz(tmp_path, signs), [*FLAGS[:1], "--experiment.data.num_classes=2"], on(signs)
    )
    assert len(dataset.train) == len(signs["y_train"]) and dataset.num_classes == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"y_train": np.zeros(64, int)}, "all training examples are of one class"),
        ({"y_train": np.full(64, 5)}, "all training examples are of one class"),
        ({"y_train": np.linspace(0, 2, 64)}, "expected whole numbers"),
        ({"y_train": np.full(64, np.nan)}, "expected whole numbers"),
        ({"y_train": np.ones((64, 3), int)}, "labels of shape (64, 3)"),
        ({"x_train": np.full((64, 16, 18, 3), np.nan)}, "expected uint8"),
        ({"x_train": np.full((64, 16, 18, 3), -1)}, "expected uint8"),
        ({"x_train": np.full((64, 16, 18, 3), 4000, np.uint16)}, "expected uint8"),
        ({"x_train": np.full((64, 16, 18, 3), "a")}, "expected uint8"),
        ({"x_train": np.zeros((64, 864), np.uint8)}, "images of shape (64, 864)"),
        ({"x_train": None}, "it has z"),
    ],
)
def test_where_nothing_helps_nothing_is_advised(tmp_path, change, told):
    arrays = {k: v for k, v in ({"z": np.zeros(1)} | arrays_of() | change).items() if v is not None}
    flags = [*FLAGS, "--experiment.batch_size=8"]
    line = refusal(load_npz(tmp_path, arrays), flags, told=told)
    assert not re.search("convert|--exp", line)


def test_channels_in_front_are_no_shape_of_images(tmp_path):
    flags = ["--experiment.data.image_shape=(3,16,18)", FLAGS[1]]
    refusal(load_experiment, "cnn10", flags, told="must be (height, width, channels)")


def test_further_arrays_are_told(tmp_path):
    further = {"x_val": np.zeros(1), "y_val": np.zeros(1, object), "\33[2J": np.zeros(1)}
    load = load_npz(tmp_path, arrays_of() | further)
    [warning] = load([*FLAGS, "--experiment.batch_size=8"]).warnings
    assert "not read: ?[2J, x_val, y_val" in warning


def test_a_folder_of_other_classes_and_size_becomes_the_experiments(folder):
    where = ["source=folder", f"path={folder}", "eval_split=val", "image_shape=(24,16,3)"]
    flags = [f"--experiment.data.{flag}" for flag in where]
    dataset, count = follow(lambda flags: load_dataset(load_experiment("cnn10", flags)), flags)
    assert (dataset.num_classes, len(dataset.train), count) == (2, TRAIN, 2)


@pytest.mark.parametrize("change", [IMAGES["channels first"], IMAGES["whole numbers"]])
@pytest.mark.parametrize("shape", ["(16,18,3)", "(32,32,3)"])
def test_a_custom_set_becomes_what_it_was(shape, change):
    """The line of Python is for its `__getitem__`."""
    images_NxHxWxC = arrays_of()["x_test"]
    flags = [f"--experiment.data.image_shape={shape}", FLAGS[1], "--experiment.batch_size=8"]

    def load(flags):
        source = [*zip(images, arrays_of()["y_test"], strict=True)]
        config = load_experiment("cnn10", flags)
        config.data.source, config.data.load = "custom", lambda: {"train": source, "test": source}
        return load_dataset(config)

    def convert(statement):
        for index, image in enumerate(images):
            exec(statement, {"np": np}, variables := {"image": image})
            images[index] = variables["image"]

    images = [*change(images_NxHxWxC)]
    dataset, _ = follow(load, flags, convert)
    assert np.array_equal(dataset.train.inputs_Nx, images_NxHxWxC)
