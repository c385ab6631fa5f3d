"""Data sources: what is read, and one clear line for whatever cannot be."""

import functools
import hashlib
import os
import shutil

import cv2
import numpy as np
import pytest

from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, as_bad_input
from jaxbench.data.sources import cifar10, digits, npz, synthetic, tfds
from jaxbench.data.sources.load import _SOURCES, load_dataset
from jaxbench.errors import BadInput
from jaxbench.modes.runner import prepare_run
from jaxbench.records.writers.console import Console
from tests.conftest import refusal
from tests.data.cifar10_files import batches, npz_arrays, pickled, write_batches
from tests.data.encoded_images import EVAL, TRAIN, config_of
from tests.tfds_files import image_feature, label_feature, write_tfds


def test_the_configs_choices_are_the_sources():
    """And data.path is for all that read files."""
    fields = DataConfig.__dataclass_fields__
    assert set(fields["source"].metadata["choices"]) == set(_SOURCES)
    read_no_files = {"digits", "synthetic", "custom"}
    assert {*fields["path"].metadata["only_with"]["source"]} == set(_SOURCES) - read_no_files


def config_for(source, folder, experiment="wrn28_10:tiny", batch_size=16, **data):
    config = registry.load(experiment)
    config.batch_size = batch_size
    config.data.source, config.data.path = source, str(folder)
    config.data.train_examples = config.data.eval_examples = 0
    for name, value in data.items():
        setattr(config.data, name, value)
    return config


def test_digits_are_those_of_scikit_learn_and_the_split_is_fixed():
    from sklearn.datasets import load_digits

    loaded, dataset = load_digits(), digits.load(DataConfig())
    held_out, order = np.split(
        np.random.Generator(np.random.Philox(key=0)).permutation(1797), [360]
    )
    for split, of in ((dataset.train, order), (dataset.eval, held_out)):
        assert np.array_equal(split.inputs_Nx[..., 0], np.round(loaded.images[of] * (255 / 16)))
        assert np.array_equal(split.labels_Nx, loaded.target[of])


def test_synthetic_images_repeat_and_fit_in_memory():
    data = DataConfig(image_shape=(16, 8, 3), num_classes=5, train_examples=100, eval_examples=20)
    dataset, again = synthetic.load(data), synthetic.load(data)
    assert dataset.train.inputs_Nx.shape == (100, 16, 8, 3)
    assert np.array_equal(dataset.train.inputs_Nx, again.train.inputs_Nx)
    assert set(dataset.train.labels_Nx) == set(range(5))
    refusal(synthetic.load, DataConfig(image_shape=(8192, 8192, 3)), told="960.0 GiB, more than")


def save(folder, **changes):
    np.savez(folder / "changed.npz", **npz_arrays(**changes))
    return folder / "changed.npz"


def test_npz_is_read_as_it_is(tmp_path):
    made = npz_arrays(y_train=(np.arange(50) % 10)[:, None].astype(np.uint8))
    np.savez(tmp_path / "set.npz", **made)
    dataset = load_dataset(config_for("npz", tmp_path / "set.npz"))
    assert np.array_equal(dataset.train.inputs_Nx, made["x_train"])
    assert np.array_equal(dataset.eval.labels_Nx, made["y_test"])
    grey = {name: made[name][..., 0] for name in ("x_train", "x_test")}
    grey = npz.load(DataConfig(path=str(save(tmp_path, **grey))))
    assert grey.image_shape == (32, 32, 1)


SMALLER = {
    f"x_{split}": np.zeros((n, 28, 28, 3), np.uint8) for split, n in (("train", 50), ("test", 20))
}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"y_test": None}, "has no y_test; needed are x_train"),
        ({"y_train": np.arange(49) % 10}, "labels of shape (49,)"),
        ({"y_test": np.full(20, 10)}, "labels run from 10 to 10, expected 0 to 9"),
        ({"y_train": np.arange(50) % 10 - 1}, "y_train runs from -1 to 8"),
        ({"x_test": SMALLER["x_test"]}, "in training (32, 32, 3)"),
        ({"x_test": SMALLER["x_test"][:0], "y_test": np.zeros(0, int)}, "no examples"),
        ({"x_train": SMALLER["x_train"][:0], "y_train": np.zeros(0, int)}, "no examples"),
    ],
)
def test_an_npz_that_does_not_fit_is_refused(tmp_path, changes, told):
    refusal(load_dataset, config_for("npz", save(tmp_path, **changes)), told=told)


def test_what_is_no_npz_is_refused(tmp_path):
    """Damaged archives are in tests/integration/test_fuzz.py."""
    np.save(tmp_path / "array.npy", 0)
    (tmp_path / "empty.npz").touch()
    for file in tmp_path.iterdir():
        refusal(npz.load, DataConfig(path=str(file)), told="cannot be read as .npz")


@pytest.mark.parametrize("version", ["bin", "py"])
def test_cifar10_batches_are_read_as_they_are(tmp_path, monkeypatch, version):
    folder = tmp_path / f"cifar-10-batches-{version}"
    made = batches()
    if version == "bin":
        write_batches(folder)
    else:
        folder.mkdir()
        for name, records_NxR in made.items():
            written = pickled(records_NxR)
            (folder / name).write_bytes(written)
            md5 = hashlib.md5(written).hexdigest()
            monkeypatch.setitem(cifar10._PICKLES_MD5, name, md5)
    # The folder itself, or the one that the archive was unpacked in.
    for path in (folder, tmp_path):
        dataset = load_dataset(config_for("cifar10_batches", path))
        assert dataset.train.inputs_Nx.shape == (50, 32, 32, 3)
        assert dataset.eval.labels_Nx.tolist() == list(range(10))
    # Stored as all reds, then greens, then blues, row by row.
    for images, name, row in ((dataset.eval, "test_batch", 3), (dataset.train, "data_batch_2", 13)):
        stored = made[name][row % 10, 1 + 2 * 1024 + 5 * 32 + 7]
        assert images.inputs_Nx[row, 5, 7, 2] == stored


def pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("corrupt", "told"),
    [
        (
            lambda folder: (folder / "data_batch_4.bin").unlink(),
            "data_batch_4.bin: cannot be read: No such file",
        ),
        (lambda folder: (folder / "test_batch.bin").write_bytes(b"x" * 99), "whole records"),
        (lambda folder: os.truncate(folder / "data_batch_2.bin", 2**33), "has more than"),
        (lambda folder: pipe(folder / "data_batch_2.bin"), "is no regular file"),
        (lambda folder: (folder / "data_batch_1.bin").unlink(), "needs the folder"),
    ],
)
def test_corrupt_cifar10_batches_are_refused(tmp_path, no_waiting, corrupt, told):
    folder = write_batches(tmp_path / "batches")
    corrupt(folder)
    refusal(cifar10.load, DataConfig(path=str(folder)), told=told)


def test_anything_that_reading_raises_is_one_line_that_names_the_file():
    for error, told in (
        (
            OSError(5, "Input/output error", "/sets/a"),
            "/sets/a: cannot be read: Input/output error",
        ),
        (OSError(13, "Permission denied", "/b"), "/sets/a: cannot be read: Permission denied: /b"),
        (IndexError(), "/sets/a: cannot be read: IndexError()"),
        (KeyError("label"), "/sets/a: cannot be read: it has no 'label'"),
        (RuntimeError("two\n  lines\x1b"), "/sets/a: cannot be read: two lines?"),
        (BadInput("as it is"), "as it is"),
    ):
        with pytest.raises(BadInput) as refused, as_bad_input("/sets/a"):
            raise error
        assert str(refused.value) == told


def test_tfds_names_and_formats_that_cannot_be_are_refused(tmp_path):
    example = {"image": np.zeros((8, 8, 3), np.uint8), "label": 1}
    features = {"image": image_feature(3), "label": label_feature(2)}
    number = {
        "tensor": {"shape": {}, "dtype": "int64", "encoding": "none"},
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
    }
    for name in ("small", "other", "gone", "number"):
        labels = {"label": number} if name == "number" else {}
        write_tfds(tmp_path, name, features | labels, {"test": [example]})
    # No number, though Python's isdigit() takes it for one.
    shutil.copytree(tmp_path / "small/1.0.0", tmp_path / "small/1.0.²")
    info = tmp_path / "other/1.0.0/dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    next(tmp_path.glob("gone/*/*array_record*")).unlink()
    for name, path, split, told in (
        ("", tmp_path, "test", "needs a builder's name"),
        ("small", tmp_path / "nowhere", "test", "no such folder"),
        ("small", tmp_path, "tset", "has no split 'tset'; it has test"),
        ("small:9.9.9", tmp_path, "test", "(it has "),
        ("smal", tmp_path, "test", "small:1.0.0"),
        ("other", tmp_path, "test", "prepared as tfrecord, which only TensorFlow reads"),
        ("gone", tmp_path, "test", "00000-of-00001: no such file, of the split 'test'"),
        ("number", tmp_path, "test", "its label is none of two or more classes"),
        ("x" * 5000, tmp_path, "test", "File name too long"),
    ):
        for crop in (False, True):  # read whole, or on the fly
            where = {"name": name, "path": str(path), "train_split": split, "source": "tfds"}
            where |= {"random_resized_crop": crop, "feed": "stream" if crop else "resident"}
            refusal(tfds.load, DataConfig(**where), told=told)
    shard = next(tmp_path.glob("small/*/*array_record*"))
    shutil.copy(shard, f"{shard}-of-another")
    fields = {"name": "small", "path": str(tmp_path), "train_split": "test"}
    assert "1 of its files belong to no split" in tfds.load(DataConfig(**fields)).warnings[0]


def folder_config(root):
    fields = {"image_shape": (16, 16, 3), "num_classes": 2, "eval_split": "val"}
    return config_for("folder", root, batch_size=2, **fields)


def test_images_of_any_size_are_resized_and_cropped_and_stay_rgb(writable):
    red = np.zeros((50, 40, 3), np.uint8)
    red[..., 2] = 255  # OpenCV writes blue, green, red
    for name, image in (("000", red), ("002", np.full((9, 9), 77, np.uint8))):
        png = cv2.imencode(".png", image)[1]
        (writable / "train" / "ape" / f"{name}.jpg").write_bytes(png)
    config = folder_config(writable)
    dataset = load_dataset(config)
    images = dataset.train.inputs_Nx
    assert (len(images), len(dataset.eval), dataset.num_classes) == (TRAIN, EVAL, 2)
    # A limit keeps the classes balanced.
    config.data.train_examples = 4
    assert np.bincount(load_dataset(config).train.labels_Nx).tolist() == [2, 2]
    # Read in turn: ape 0, bee 0, ape 1, ...
    assert (images[0] == [255, 0, 0]).all()
    assert (images[2] == 77).all()


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_what_lies_in_an_image_folder_is_read_or_counted(writable, feed):
    """Whatever its name; what systems leave there is nothing to speak of."""
    ape = writable / "train" / "ape"
    names = ("0.JPG", "1.jfif", "2.png", "3.webp", "4.BMP", "deeper/5.jpg", "deeper/a.jpg/6.jpg")
    for name in names:
        (ape / name).parent.mkdir(parents=True, exist_ok=True)
        kind = "." + name.rpartition(".")[2].replace("jfif", "jpg")
        (ape / name).write_bytes(cv2.imencode(kind, np.full((9, 9), 7, np.uint8))[1].tobytes())
    (ape / "8.jpg").symlink_to(ape / "0.JPG")
    (writable / "cats").mkdir()
    shutil.copy(ape / "0.JPG", writable / "cats")
    (writable / "train" / "cat").symlink_to(writable / "cats")
    config = config_of(writable, feed=feed, random_resized_crop=False, num_classes=3)
    for litter in (".DS_Store", "._000.jpg", "Thumbs.db", "desktop.ini"):
        (ape / litter).touch()
        (writable / "train" / litter).touch()
    for litter in (".ipynb_checkpoints", "@eaDir"):
        (ape / litter).mkdir()
        shutil.copy(ape / "0.JPG", ape / litter)
    dataset = load_dataset(config)
    assert len(dataset.train) == TRAIN + len(names) + 2 and not dataset.warnings
    for name in ("9.gif", "a.GIF", "b.tar", "n01_c", ".d.jpg", "deeper/e.gif"):
        (ape / name).touch()
    (ape / "round").symlink_to(writable / "train")
    (ape / ".hidden").mkdir()
    (writable / "train" / "f.jpg").touch()
    dataset = load_dataset(config)
    [warning] = dataset.warnings
    assert len(dataset.train) == TRAIN + len(names) + 2
    assert f"{writable / 'train'}: 9 files and folders are left out" in warning
    for counted in ("3 .gif", "1 .tar", "1 no ending", "2 hidden", "1 linked folders", "1 beside"):
        assert counted in warning
    with prepare_run(config, None, Console()) as setup:
        assert warning in setup.warnings_at_start()


def test_folders_that_lie_too_deep_are_no_classes_images(writable, monkeypatch):
    def walk(*_, **__):
        raise RecursionError
        yield

    monkeypatch.setattr(os, "walk", walk)
    refusal(load_dataset, config_of(writable), told="its folders lie too deep in one another")


def test_a_folder_that_cannot_be_listed_is_no_empty_one(writable, monkeypatch):
    """As root may list all, the error is one of a disk."""
    genuine = os.scandir

    def scandir(path):
        if str(path).endswith("deeper"):
            raise OSError(5, "Input/output error", path)
        return genuine(path)

    (writable / "train" / "ape" / "deeper").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    refusal(load_dataset, folder_config(writable), told="deeper: cannot be read: Input/output")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda root: (root / "val").rename(root / "vall"), "no folder 'val'; it has train, vall"),
        (lambda root: (root / "val/bee").rename(root / "val/cat"), "class cat is not in"),
        (lambda root: (root / "train/ape/002.jpg").write_bytes(b"x" * 99), "002.jpg: cannot"),
        (lambda root: (root / "train/ape/002.jpg").write_bytes(b""), "002.jpg: cannot be"),
        (lambda root: [file.unlink() for file in root.glob("train/*/*")], "no images in it"),
        (
            lambda root: [file.rename(f"{file}.gz") for file in root.glob("train/*/*")],
            "no images in it; 22 files and folders are left out (22 .gz); expected",
        ),
    ],
)
def test_a_spoilt_image_folder_is_refused(writable, spoil, told):
    spoil(writable)
    refusal(load_dataset, folder_config(writable), told=told)


segmentation_config = functools.partial(config_for, experiment="unet256:tiny", batch_size=4)


def test_images_and_masks_of_an_npz(tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (21, 32, 32, 3), dtype=np.uint8)
    masks = generator.integers(0, 3, (21, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "alone.npz", image=images, mask=masks, id=np.arange(21))
    dataset = load_dataset(segmentation_config("npz", tmp_path / "alone.npz"))
    assert (len(dataset.train), len(dataset.eval), dataset.num_classes) == (17, 4, 2)
    # Every image once, with its own mask; the same ones held out each time.
    both = np.concatenate([dataset.train.inputs_Nx, dataset.eval.inputs_Nx])
    labels = np.concatenate([dataset.train.labels_Nx, dataset.eval.labels_Nx])
    places = [int(np.flatnonzero((images == image).all((1, 2, 3)))[0]) for image in both]
    assert sorted(places) == list(range(21))
    assert np.array_equal(labels, (masks[places] != 0).astype(np.uint8))
    again = load_dataset(segmentation_config("npz", tmp_path / "alone.npz"))
    assert np.array_equal(again.eval.inputs_Nx, dataset.eval.inputs_Nx)

    np.savez(
        tmp_path / "split.npz",
        x_train=images[:15, ..., 0],
        y_train=masks[:15, ..., None] > 0,
        x_test=images[15:, ..., 0],
        y_test=masks[15:, ..., None] > 0,
    )
    dataset = load_dataset(
        segmentation_config("npz", tmp_path / "split.npz", image_shape=(32, 32, 1))
    )
    assert np.array_equal(dataset.eval.labels_Nx, (masks[15:] > 0).astype(np.uint8))


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"image": (9, 32, 32, 3)}, "needed are x_train, y_train, x_test, y_test (or image, mask)"),
        ({"image": (9, 32, 32, 3), "mask": (8, 32, 32)}, "masks of shape (8, 32, 32), expected"),
        ({"image": (), "mask": (8, 32, 32)}, "image: images of shape ()"),
        ({"image": (9, 32, 32, 3), "mask": ()}, "masks of shape ()"),
        (dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), ()), "x_train: images of shape"),
        ({"image": (9, 32, 32, 3), "mask": (9, 32, 30)}, "expected (8, 32, 32)"),
        ({"image": (9, 48, 48, 3), "mask": (9, 48, 48)}, "--experiment.data.image_shape="),
    ],
)
def test_masks_that_do_not_fit_are_refused(tmp_path, arrays, told):
    np.savez(tmp_path / "set.npz", **{name: np.zeros(s, np.uint8) for name, s in arrays.items()})
    refusal(load_dataset, segmentation_config("npz", tmp_path / "set.npz"), told=told)


@pytest.mark.parametrize(("name", "background"), [("oxford_iiit_pet", 2), ("blobs", 0)])
def test_tfds_images_and_masks_are_resized_alike(tmp_path, name, background):
    """Left half foreground; oxford_iiit_pet marks pet 1, background 2 and their border 3."""

    def example(height, width):
        image = np.full((height, width, 3), (10, 20, 30), np.uint8)
        image[:, : width // 2] = (200, 100, 50)
        mask = np.full((height, width), background, np.uint8)
        mask[:, : width // 2] = 1
        mask[:, width // 2 - width // 8 : width // 2] = 3
        return {"image": image, "segmentation_mask": mask}

    features = {"image": image_feature(3), "segmentation_mask": image_feature(1)}
    splits = {
        "train": [example(80, 64), example(48, 96), example(16, 16), example(64, 64)],
        "test": [example(100, 200), example(32, 32)],
    }
    write_tfds(tmp_path, name, features, splits)
    config = segmentation_config("tfds", tmp_path, name=name)
    dataset = load_dataset(config)
    assert (len(dataset.train), len(dataset.eval)) == (4, 2)
    for split in (dataset.train, dataset.eval):
        for image, mask in zip(split.inputs_Nx, split.labels_Nx, strict=True):
            assert (mask[:, :16] == 1).all() and (mask[:, 16:] == 0).all()
            assert (image[:, :15] == (200, 100, 50)).all()
            assert (image[:, 17:] == (10, 20, 30)).all()
    with pytest.raises(BadInput, match="image classification needs image and label"):
        tfds.load(DataConfig(name=name, path=str(tmp_path)))


def test_an_evaluation_split_that_is_small_is_doubtful():
    images = np.random.default_rng(0).integers(0, 256, (300, 4, 5, 3), np.uint8)
    for held_out, told in (
        (images[200:], []),
        (images[:1], ["split has 1 images: an accuracy on fewer than 50"]),
        (images[[7] * 300], ["split has 300 images, 1 different"]),
    ):
        splits = [Split(of, np.zeros(len(of), np.int32)) for of in (images, held_out)]
        warnings = Dataset("x", *splits, 10).eval_split_warnings()
        assert len(warnings) == len(told) and all(map(str.__contains__, warnings, told))


def test_tfds_that_cannot_be_imported_is_a_refusal(monkeypatch, tmp_path):
    def broken():
        raise BadInput("tensorflow_datasets cannot be imported")

    monkeypatch.setattr(tfds, "import_tfds", broken)
    monkeypatch.setattr(tfds, "_find", lambda *_: tmp_path)
    with pytest.raises(BadInput, match="cannot be imported"):
        tfds.load(DataConfig(name="cifar10", path=str(tmp_path)))
