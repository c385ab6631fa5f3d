"""A folder of small JPEGs, experiments that decode it on the fly, and their batches."""

import shutil

import cv2
import numpy as np

from jaxbench.cli import registry
from jaxbench.data.feeds.feed import create_feed
from jaxbench.data.sources.load import load_dataset
from jaxbench.parallel.mesh import create_training_mesh
from tests.conftest import MICRO
from tests.tfds_files import image_feature, label_feature, write_tfds

TRAIN, EVAL = 22, 13


def write_folder(root):
    """Writes two classes of images of random sizes; the first pixel's red tells them apart."""
    generator = np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("val", EVAL)):
        for number in range(count):
            path = root / split / ("ape", "bee")[number % 2]
            path.mkdir(parents=True, exist_ok=True)
            size = generator.integers(20, 60, 2)
            coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
            image = cv2.resize(coarse, tuple(int(side) for side in size))
            cv2.imwrite(str(path / f"{number:03}.jpg"), image)
    return root


def spoil(folder, target, names):
    """Copies the folder; of these files only the beginning."""
    shutil.copytree(folder, target)
    for name in names:
        file = target / name
        file.write_bytes(file.read_bytes()[:200])
    return target


def config_of(folder, **fields):
    config = registry.load("vgg_cifar10:tiny")
    config.model = registry.load(MICRO).model
    config.data.crop_padding = 0
    config.data.source, config.data.path, config.data.feed = "folder", str(folder), "stream"
    config.data.train_examples = config.data.eval_examples = 0
    config.data.num_classes, config.data.image_shape = 2, (24, 16, 3)
    config.data.random_resized_crop, config.data.eval_split = True, "val"
    config.batch_size, config.num_devices, config.seed = 8, 1, 3
    for name, value in fields.items():
        holder = config.data if hasattr(config.data, name) else config
        assert hasattr(holder, name), name
        setattr(holder, name, value)
    return config


def resized(folder, tmp_path, **fields):
    """An experiment that reads smaller copies of the folder."""
    defaults = {"cache": "resized", "cache_dir": str(tmp_path / "cache"), "cache_side": 24}
    return config_of(folder, **(defaults | fields))


def load(config):
    """Returns the data set and the lines of progress."""
    lines = []
    config.validate()
    dataset = load_dataset(config, lines.append)
    return dataset, lines


def feed_of(config):
    config.validate()
    return create_feed(config, load_dataset(config), *create_training_mesh(config))


def global_batches(batches):
    """Global batches in order, devices side by side."""
    names = ("images", "labels", "indices")
    return [{name: np.concatenate(np.asarray(of[name])) for name in names} for of in batches]


def psnr_db(one, other):
    return 10 * np.log10(255**2 / max(1e-9, np.mean((one.astype(float) - other) ** 2)))


def check_same(ones, others):
    assert len(ones) == len(others) > 0
    for one, other in zip(ones, others, strict=True):
        for name in one:
            assert np.array_equal(one[name], other[name]), name


def write_imagenet2012(root):
    """Writes a prepared set like imagenet2012: images of many sizes; the label is the colour."""
    generator = np.random.default_rng(0)

    def example(number):
        height, width = generator.integers(20, 50, 2)
        return {"image": np.full((height, width, 3), 20 * number, np.uint8), "label": number % 2}

    splits = {"train": [example(n) for n in range(10)], "validation": [example(n) for n in (4, 7)]}
    write_tfds(root, "imagenet2012", {"image": image_feature(3), "label": label_feature(2)}, splits)


def check_tfds_images(tmp_path, num_workers):
    """Images of a prepared set stay encoded until they are needed."""
    write_imagenet2012(tmp_path)
    config = config_of(
        tmp_path, source="tfds", eval_split="validation", batch_size=4, num_threads=2
    )
    config.data.name = "imagenet2012"
    config.data.num_workers = num_workers
    feed = feed_of(config)
    seen = {}
    for batch in global_batches(feed.train_batches(0, 2)):
        for image, label, index in zip(*batch.values(), strict=True):
            assert (image == 20 * index).all() and label == index % 2
            seen[int(index)] = label
    assert len(seen) == 8
    [batch] = global_batches(feed.eval_batches())
    assert batch["images"][:2, 0, 0, 0].tolist() == [80, 140]
    assert batch["indices"].tolist() == [0, 1, -1, -1]
    feed.close()
