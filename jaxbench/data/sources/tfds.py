"""TensorFlow Datasets in ArrayRecord form, read without TensorFlow.

Only preparing a data set needs TensorFlow, and that happens in a child process
(`jaxbench.data.sources.prepare`), so that TensorFlow never enters the training process.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, as_bad_input, check_fits_in_memory
from jaxbench.data.images.decode import MAX_PIXELS
from jaxbench.data.images.encoded import EncodedSplit, TfdsExamples
from jaxbench.data.sources import cifar10, download
from jaxbench.data.sources.download import Bar
from jaxbench.errors import BadInput
from jaxbench.files import read_text
from jaxbench.hardware.system import import_tfds
from jaxbench.paths import user_path
from jaxbench.terminal import printable

# Examples that are decoded at once, and those between two reports of progress.
_CHUNK, _REPORT_EVERY = 256, 4096
# The mask's value that is background, 0 unless named here. oxford_iiit_pet: 1 pet, 2 background,
# 3 the border between them, which counts as pet.
_BACKGROUND = {"oxford_iiit_pet": 2}
# TFDS makes nothing of a module of its package but its feature classes.
_FEATURE_CLASSES = "tensorflow_datasets.core.features."


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
    variable = os.environ.get("TFDS_DATA_DIR")
    try:
        data_dir = user_path(data.path or variable or "~/tensorflow_datasets", "give data.path")
    except BadInput as error:
        name = "data.path=" if data.path else "TFDS_DATA_DIR=" if variable else ""
        raise BadInput(f"{name}{error}") from error
    if data.path and not data_dir.is_dir():
        raise BadInput(f"data.path={data.path!r}: no such folder of data.source=tfds")
    folder = _find(data.name, data_dir)
    is_official = data.name in cifar10.READERS and not masks and not data.decodes_on_the_fly
    if folder is None and is_official:
        return cifar10.load_official(data, progress, bar)
    folder = folder or _prepare(data, data_dir)
    # Read by OpenCV while it is imported. TFDS decodes with it whatever a header claims.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    tfds = import_tfds()
    with as_bad_input(folder):
        check_feature_classes(folder)
        # It prints at length that it lacks TensorFlow for some features.
        with contextlib.redirect_stdout(io.StringIO()):
            builder = tfds.builder_from_directory(folder)
        features, names = builder.info.features, list(builder.info.splits)
    needed = ("image", "segmentation_mask" if masks else "label")
    if not set(needed) <= set(features):
        raise BadInput(
            f"data.name={data.name!r}: its features are {printable(', '.join(features))}; "
            f"image {'segmentation' if masks else 'classification'} needs {' and '.join(needed)}"
        )
    num_classes = 2 if masks else getattr(features["label"], "num_classes", None) or 0
    if num_classes < 2:
        raise BadInput(f"data.name={data.name!r}: its label is none of two or more classes")
    shards = {name: _shards(builder, name, folder) for name in names}
    warnings = []
    if others := {*folder.glob("*.array_record*")}.difference(*shards.values()):
        first = printable(min(others).name)[:200]
        warnings.append(f"{folder}: {len(others):,} of its files belong to no split, first {first}")

    def read(split: str, limit: int) -> Split | EncodedSplit:
        if split not in names:
            has = printable(", ".join(names))
            raise BadInput(f"data.name={data.name!r} has no split {split!r}; it has {has}")
        for shard in shards[split]:
            if not os.path.isfile(shard):  # also of a name that no file can have
                raise BadInput(
                    f"{printable(str(shard))[:300]}: no such file, of the split {split!r}"
                )
        with as_bad_input(folder):
            if not data.decodes_on_the_fly:
                mask_shape = data.image_shape[:2] if masks else None
                return _read_split(builder, split, limit, mask_shape, progress)
            decoders = {"image": tfds.decode.SkipDecoding()}
            records = builder.as_data_source(split=split, decoders=decoders)
            files = [*map(str, shards[split])]
            examples = TfdsExamples(records, f"{builder.info.full_name} {split}", files)
            return EncodedSplit(examples, data.image_shape, len(records))

    return Dataset(
        description=f"tfds {builder.info.full_name}",
        train=read(data.train_split, data.train_examples),
        eval=read(data.eval_split, data.eval_examples),
        num_classes=num_classes,
        statistics="ImageNet's" if data.decodes_on_the_fly else "the training split's",
        warnings=warnings,
    )


def _shards(builder, split: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a split; raise BadInput for one elsewhere, which a name may lead to."""
    with as_bad_input(folder):
        paths = [pathlib.Path(path) for path in builder.info.splits[split].filepaths]
    if outside := [
        str(path) for path in paths if os.path.abspath(path.parent) != os.path.abspath(folder)
    ]:
        raise BadInput(f"{folder}: names {printable(outside[0])[:200]}, which is not in it")
    return paths


def _read_split(
    builder,
    split: str,
    limit: int,
    mask_shape: tuple[int, ...] | None,
    progress: Callable[[str], None],
) -> Split:
    """Read a split whole; with `mask_shape` images and masks, resized to that (height, width)."""
    source = builder.as_data_source(split=split)
    count = min(limit or len(source), len(source))
    shape = source[0]["image"].shape if count else ()
    shape = (*mask_shape, *shape[2:]) if mask_shape else shape
    subject = f"{builder.info.full_name}, split {split}"
    needed_bytes = count * (math.prod(shape) + math.prod(mask_shape or ()))
    check_fits_in_memory(f"{subject}, {count:,} images of {shape}", needed_bytes)
    images = np.empty((count, *shape), np.uint8)
    labels = np.empty((count, *(mask_shape or ())), np.uint8 if mask_shape else np.int32)
    for start in range(0, count, _CHUNK):
        rows = range(start, min(start + _CHUNK, count))
        for row, example in zip(rows, source.__getitems__(rows), strict=True):
            if mask_shape:
                images[row], labels[row] = _resize_masked(builder.info.name, example, shape)
            elif example["image"].shape == shape:
                images[row], labels[row] = example["image"], example["label"]
            else:
                raise BadInput(
                    f"{subject}: images differ in size ({example['image'].shape} and {shape}); a "
                    "set that is read whole needs one size"
                )
        if start % _REPORT_EVERY == 0:
            progress(f"{split}: {rows.stop:,} of {count:,} images")
    return Split(images, labels)


def _resize_masked(
    name: str, example: dict[str, Any], shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    import cv2

    (height, width), image = shape[:2], example["image"]
    mask_HxW = example["segmentation_mask"].reshape(image.shape[:2]) != _BACKGROUND.get(name, 0)
    shrinks = image.shape[0] > height or image.shape[1] > width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return (
        cv2.resize(image, (width, height), interpolation=method).reshape(shape),
        cv2.resize(mask_HxW.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST),
    )


def check_feature_classes(folder: pathlib.Path) -> None:
    """Raise BadInput if a prepared folder names classes that are not TFDS's.

    features.json names Python classes, and TFDS imports the modules that it names, from the working
    directory too: a data folder could run code.
    """
    file = folder / "features.json"

    def check(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if not isinstance(value, str):
                continue
            # As JSON has it, as protobuf has it, and before TFDS 4.6.
            names_class = key in ("pythonClassName", "python_class_name", "type")
            if names_class and not value.startswith(_FEATURE_CLASSES):
                raise BadInput(
                    f"{file}: names the class {value[:200]!r}, which TFDS would import; only those "
                    f"of {_FEATURE_CLASSES}* are read"
                )
            if "{" in value:  # older features are JSON in a text, which TFDS reads in turn
                with contextlib.suppress(ValueError):
                    json.loads(value, object_pairs_hook=check)

    if file.exists():
        json.loads(read_text(file), object_pairs_hook=check)


def _find(name: str, data_dir: pathlib.Path) -> pathlib.Path | None:
    """Return the folder of a prepared data set, the newest version if none is named."""
    path, _, version = name.partition(":")
    with as_bad_input(f"data.name={name[:100]!r}"):
        folders = [
            info.parent
            for info in (data_dir / path).glob("*/dataset_info.json")
            if version in ("", info.parent.name)
            and re.fullmatch(r"\d+(\.\d+)*", info.parent.name, re.ASCII)
        ]
    if not folders:
        return None
    folder = max(folders, key=lambda folder: tuple(map(int, folder.name.split("."))))
    with as_bad_input(folder):
        information = json.loads(read_text(folder / "dataset_info.json"))
        file_format = information.get("fileFormat", "tfrecord")
    if file_format != "array_record":
        raise BadInput(
            f"{folder} is prepared as {printable(str(file_format)[:100])}, which only TensorFlow "
            "reads; prepare it once more as ArrayRecord: pip install 'jaxbench[prepare]', then "
            f"tfds build {path} --file_format=array_record --data_dir=ANOTHER_FOLDER"
        )
    return folder


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
        with as_bad_input(root):
            for features in root.rglob("features.json"):
                check_feature_classes(features.parent)
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
    infos = data_dir.glob("*/*/dataset_info.json")
    prepared = sorted(f"{info.parts[-3]}:{info.parts[-2]}" for info in infos)
    raise BadInput(
        f"data.name={name!r} is not prepared in {data_dir} (it has "
        f"{printable(', '.join(prepared)) or 'nothing'}): {reason}{download.WAYS}"
    )
