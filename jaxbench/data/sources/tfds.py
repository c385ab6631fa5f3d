"""TensorFlow Datasets in ArrayRecord form, read without TensorFlow.

Only preparing a data set needs TensorFlow, and that happens in a child process
(`jaxbench.data.sources.prepare`), so that TensorFlow never enters the training process.
"""

import contextlib
import importlib.util
import io
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.data.images.decode import MAX_PIXELS
from jaxbench.data.images.encoded import EncodedSplit, TfdsExamples
from jaxbench.data.sources import download, official
from jaxbench.data.sources.download import Bar
from jaxbench.data.sources.feature_classes import (
    check_folders_below,
    check_prepared_folder,
    read_json,
)
from jaxbench.errors import BadInput, nearest
from jaxbench.paths import user_path
from jaxbench.terminal import printable

# Examples that are decoded at once.
_CHUNK = 2048
_MASKED_CHUNK = 256
# The mask's value that is background, 0 unless named here. oxford_iiit_pet: 1 pet, 2 background,
# 3 the border between them, which counts as pet.
_BACKGROUND = {"oxford_iiit_pet": 2}


def load(
    data: DataConfig,
    *,
    masks: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    bar: Bar = lambda *_: None,
) -> Dataset:
    """Read a data set of images with labels, or with masks, whole; or open it for streaming.

    Args:
      data: `name` is the builder's, `cifar10`, `cifar10:3.0.2` or `name/config`; `path` the folder
        that holds `cifar10/3.0.2/`, by default `$TFDS_DATA_DIR` or `~/tensorflow_datasets`. Images
        decoded on the fly stay encoded. CIFAR-10 and MNIST are read from their official files if
        they are not prepared.
      masks: read images with masks, both resized to `data.image_shape`.

    Raises:
      BadInput: not prepared and cannot be prepared here, not ArrayRecord, corrupt, no such split,
        or not images with labels.
    """
    if not data.name:
        raise BadInput("data.name='': data.source=tfds needs a builder's name, such as cifar10")
    data_dir = _data_dir(data.path)
    folder = _find(data.name, data_dir)
    if folder is None:
        _check_near_misses(data.name, data_dir)
        if official.has(data, masks):
            return official.load(data, progress, bar)
        folder = _prepare(data, data_dir)
    # Read by OpenCV while it is imported. TFDS decodes with it whatever a header claims.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    import tensorflow_datasets as tfds

    with _corrupt_is_bad_input(folder):
        check_prepared_folder(folder)
        # It prints at length that it lacks TensorFlow for some features.
        with contextlib.redirect_stdout(io.StringIO()):
            builder = tfds.builder_from_directory(folder)
        features = builder.info.features
    _check_contents(builder, data, masks)

    def read(split: str, limit: int) -> Split | EncodedSplit:
        with _corrupt_is_bad_input(folder):
            if data.decodes_on_the_fly:
                return _open_split(builder, split, data.image_shape)
            if masks:
                return _read_masked_split(builder, split, limit, data.image_shape[:2], progress)
            return _read_split(builder, split, limit, progress)

    return Dataset(
        description=f"tfds {builder.info.full_name}",
        train=read(data.train_split, data.train_examples),
        eval=read(data.eval_split, data.eval_examples),
        num_classes=2 if masks else features["label"].num_classes,
        statistics="ImageNet's" if data.decodes_on_the_fly else "the training split's",
    )


def _check_contents(builder, data: DataConfig, masks: bool) -> None:
    """Raise BadInput where the data set lacks the features or the splits."""
    features, splits = builder.info.features, list(builder.info.splits)
    needed = ("image", "segmentation_mask" if masks else "label")
    if not set(needed) <= set(features):
        raise BadInput(
            f"data.name={data.name!r}: its features are {printable(', '.join(features))}; "
            f"image {'segmentation' if masks else 'classification'} needs {' and '.join(needed)}"
        )
    for split in (data.train_split, data.eval_split):
        if split not in splits:
            raise BadInput(
                f"data.name={data.name!r} has no split {split!r}; it has "
                f"{printable(', '.join(splits))}{printable(nearest(split, splits))}"
            )


def _read_split(builder, split: str, limit: int, progress: Callable[[str], None]) -> Split:
    source = builder.as_data_source(split=split)
    count = min(limit or len(source), len(source))
    shape = source[0]["image"].shape if count else ()
    check_fits_in_memory(
        f"{builder.info.full_name}, split {split}, {count:,} images of {shape}",
        count * math.prod(shape),
    )
    images = np.empty((count, *shape), np.uint8)
    labels = np.empty(count, np.int32)
    for place, example in _examples(source, split, count, _CHUNK, progress):
        if example["image"].shape != shape:
            raise BadInput(
                f"{builder.info.full_name}, split {split}: images differ in size "
                f"({example['image'].shape} and {shape}); a set that is read whole needs one size"
            )
        images[place], labels[place] = example["image"], example["label"]
    return Split(images, labels)


def _read_masked_split(
    builder, split: str, limit: int, shape: tuple[int, int], progress: Callable[[str], None]
) -> Split:
    import cv2

    source = builder.as_data_source(split=split)
    count = min(limit or len(source), len(source))
    channels = builder.info.features["image"].shape[-1] or 3
    check_fits_in_memory(
        f"{builder.info.full_name}, split {split}, {count:,} images of {shape[0]}x{shape[1]}",
        count * math.prod(shape) * (channels + 1),
    )
    background = _BACKGROUND.get(builder.info.name, 0)
    images = np.empty((count, *shape, channels), np.uint8)
    masks = np.empty((count, *shape), np.uint8)
    size = shape[::-1]  # OpenCV's (width, height)
    for place, example in _examples(source, split, count, _MASKED_CHUNK, progress):
        image, mask = example["image"], example["segmentation_mask"]
        shrinks = image.shape[0] > shape[0] or image.shape[1] > shape[1]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        images[place] = cv2.resize(image, size, interpolation=how).reshape(images.shape[1:])
        mask = (mask.reshape(mask.shape[:2]) != background).astype(np.uint8)
        masks[place] = cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST)
    return Split(images, masks)


def _examples(
    source: Any, split: str, count: int, chunk: int, progress: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first `count` examples with their places, read `chunk` at a time."""
    for start in range(0, count, chunk):
        done = min(start + chunk, count)
        yield from enumerate(source.__getitems__(range(start, done)), start)
        if done == count or done % (5 * chunk) == 0:
            progress(f"{split}: {done:,} of {count:,} images")


def _open_split(builder, split: str, shape: tuple[int, int, int]) -> EncodedSplit:
    from tensorflow_datasets import decode

    records = builder.as_data_source(split=split, decoders={"image": decode.SkipDecoding()})
    name = f"{builder.info.full_name} {split}"
    files = [str(path) for path in builder.info.splits[split].filepaths]
    return EncodedSplit(TfdsExamples(records, name, files), shape, len(records))


@contextlib.contextmanager
def _corrupt_is_bad_input(folder: pathlib.Path):
    """Raise BadInput for anything that TFDS and the readers below it raise for corrupt files."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise BadInput(f"{folder}: corrupt or unreadable: {message}") from error


def _data_dir(given: str) -> pathlib.Path:
    """Return the folder of all prepared data sets."""
    default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    data_dir = user_path(given or default, "give data.path")
    if given and not data_dir.is_dir():
        hint = "; for an .npz file add data.source=npz" if given.endswith(".npz") else ""
        raise BadInput(f"data.path={given!r}: no such folder{hint}")
    if any((data_dir / f"data_batch_1{suffix}").is_file() for suffix in ("", ".bin")):
        raise BadInput(
            f"data.path={given!r} holds CIFAR-10 batches: add data.source=cifar10_batches"
        )
    return data_dir


def _check_near_misses(name: str, data_dir: pathlib.Path) -> None:
    """Raise BadInput where a prepared data set is so near that this one is a misspelling."""
    path, _, version = name.partition(":")
    versions = sorted(info.parent.name for info in (data_dir / path).glob("*/dataset_info.json"))
    if version and versions:
        raise BadInput(f"data.name={name!r}: {data_dir} has version {', '.join(versions)} of it")
    above = data_dir
    for _ in range(2):
        if above.name == path.split("/")[0] and _find(path, above.parent):
            raise BadInput(f"data.path={str(data_dir)!r}: name its parent, {above.parent}")
        above = above.parent
    there = sorted({info.parent.parent.name for info in data_dir.glob("*/*/dataset_info.json")})
    close = nearest(path, there)
    if close:
        raise BadInput(f"data.name={name!r}: {data_dir} has {', '.join(there)}{close}")


def _find(name: str, data_dir: pathlib.Path) -> pathlib.Path | None:
    path, _, version = name.partition(":")
    folders = []
    for info in (data_dir / path).glob("*/dataset_info.json"):
        number = info.parent.name
        if version in ("", number) and all(part.isdigit() for part in number.split(".")):
            folders.append((tuple(map(int, number.split("."))), info))
    if not folders:
        return None
    info = max(folders)[1]
    with _corrupt_is_bad_input(info.parent):
        file_format = read_json(info).get("fileFormat", "tfrecord")
    if file_format != "array_record":
        found = printable(str(file_format)[:100])
        raise BadInput(
            f"{info.parent} is prepared as {found}, which only TensorFlow reads; prepare it "
            f"once more as ArrayRecord: pip install 'jaxbench[prepare]', then tfds build {path} "
            "--file_format=array_record --data_dir=ANOTHER_FOLDER"
        )
    return info.parent


def _prepare(data: DataConfig, data_dir: pathlib.Path) -> pathlib.Path:
    """Prepare a data set, and return its folder."""
    name = data.name
    root = data_dir / name.partition(":")[0].partition("/")[0]
    if not download.may_download(data.download):
        reason = download.FORBIDDEN
    # Only searched for, never imported here.
    elif importlib.util.find_spec("tensorflow") is None:
        reason = "TensorFlow, which prepares it, is not installed: pip install 'jaxbench[prepare]'"
    else:
        with _corrupt_is_bad_input(root):
            check_folders_below(root)
        child = subprocess.run(
            [sys.executable, "-m", "jaxbench.data.sources.prepare", name, str(data_dir)],
            # The accelerator belongs to the training process.
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        folder = None if child.returncode else _find(name, data_dir)
        if folder is not None:
            return folder
        reason = (child.stdout.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    raise BadInput(f"data.name={name!r} is not prepared in {data_dir}: {reason}{download.WAYS}")
