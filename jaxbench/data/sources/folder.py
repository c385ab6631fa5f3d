"""A folder of images, one sub-folder a class: `train/<class>/*.JPEG`, `val/...`."""

import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.data.images.decode import CorruptImageError, Image
from jaxbench.data.images.encoded import EncodedSplit, Files, read_image_file
from jaxbench.data.images.resize import centre_crop
from jaxbench.errors import BadInput, nearest
from jaxbench.paths import user_path

_SUFFIXES = {".jpeg", ".jpg", ".png"}
_REPORT_EVERY = 256


def load(data: DataConfig, *, progress: Callable[[str], None], **unused: Any) -> Dataset:
    """Decode every image and bring it to `data.image_shape`, as `centre_crop` says.

    For images decoded on the fly only the files' names are read. The classes are the training
    split's sub-folders by name. Limited splits take images in turn from every class.

    Args:
      data: `path` is the folder that holds the splits' folders.

    Raises:
      BadInput: no such folder, no images, a corrupt file, or too many to hold in memory.
    """
    root, image_shape = user_path(data.path), data.image_shape
    splits = (data.train_split, data.eval_split)
    if not data.path or not root.is_dir():
        raise BadInput(
            f"data.path={data.path!r}: data.source=folder needs a folder with {splits[0]}/"
        )
    if image_shape[-1] != 3:
        raise BadInput(f"data.image_shape={image_shape}: images of a folder have 3 channels")
    listed = [_list_split(root, name) for name in splits]
    classes = sorted(listed[0])
    for name, files in zip(splits, listed, strict=True):
        unknown = sorted(set(files) - set(classes))
        if unknown:
            raise BadInput(f"{root / name}: class {unknown[0]} is not in {splits[0]}/")
    read = []
    limits = (data.train_examples, data.eval_examples)
    for name, files, limit in zip(splits, listed, limits, strict=True):
        examples = _in_turn(classes, files)[: limit or None]
        if data.decodes_on_the_fly:
            paths, labels = zip(*examples, strict=True)
            source = Files(paths, np.array(labels, np.int32))
            read.append(EncodedSplit(source, image_shape, len(examples)))
        else:
            read.append(_read_split(root / name, examples, image_shape, progress))
    return Dataset(
        description=f"folder {root.name}",
        train=read[0],
        eval=read[1],
        num_classes=len(classes),
        statistics="ImageNet's",
    )


def _list_split(root: pathlib.Path, name: str) -> dict[str, list[str]]:
    """Return {class: paths}, both by name; paths as text, of which ImageNet has 1.28 million."""
    folder = root / name
    if not folder.is_dir():
        there = sorted(path.name for path in root.iterdir() if path.is_dir())
        raise BadInput(
            f"{root} has no folder {name!r}; it has {', '.join(there[:10]) or 'none'}"
            + nearest(name, there)
        )
    files = {
        sub.name: sorted(
            entry.path
            for entry in os.scandir(sub)
            if os.path.splitext(entry.name)[1].lower() in _SUFFIXES
        )
        for sub in folder.iterdir()
        if sub.is_dir() and not sub.name.startswith(".")
    }
    if not any(files.values()):
        raise BadInput(f"{folder}: no images in it; expected {name}/<class>/*.JPEG")
    empty = sorted(sub for sub, paths in files.items() if not paths)
    if empty:
        raise BadInput(
            f"{folder / empty[0]}: no images in it; those of a class lie directly in its folder"
        )
    return files


def _in_turn(classes, files) -> list[tuple[str, int]]:
    """Return (path, label) of each class in turn, so that a limit keeps the classes balanced."""
    deepest = max(map(len, files.values()))
    return [
        (files[name][row], label)
        for row in range(deepest)
        for label, name in enumerate(classes)
        if row < len(files.get(name, ()))
    ]


def _read_split(folder, examples, image_shape, progress) -> Split:
    needed_bytes = len(examples) * math.prod(image_shape)
    check_fits_in_memory(f"{folder}, {len(examples):,} images", needed_bytes)
    images = np.empty((len(examples), *image_shape), np.uint8)
    labels = np.array([label for _, label in examples], np.int32)
    for place, (file, _) in enumerate(examples):
        images[place] = _decode(file, image_shape)
        if (place + 1) % _REPORT_EVERY == 0:
            progress(f"{folder.name}: {place + 1:,} of {len(examples):,} images")
    return Split(images, labels)


def _decode(file: str, image_shape: tuple[int, int, int]) -> np.ndarray:
    try:
        return centre_crop(Image(read_image_file(file)).whole(), *image_shape[:2])
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    except CorruptImageError as error:
        raise BadInput(f"{file}: cannot be decoded as an image: {error}") from error
