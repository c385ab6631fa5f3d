"""A folder of images, one sub-folder a class: `train/<class>/*.JPEG`, `val/...`."""

import itertools
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, check_fits_in_memory
from jaxbench.data.images.decode import CorruptImageError
from jaxbench.data.images.encoded import EncodedSplit, Files
from jaxbench.errors import BadInput
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
    train_files, eval_files = (_list_split(root, name) for name in splits)
    classes = sorted(train_files)
    if unknown := sorted(set(eval_files) - set(classes)):
        raise BadInput(f"{root / splits[1]}: class {unknown[0]} is not in {splits[0]}/")

    def read(name: str, files: dict[str, list[str]], limit: int) -> Split | EncodedSplit:
        paths, labels = zip(*_interleave(classes, files)[: limit or None], strict=True)
        source = Files(paths, np.array(labels, np.int32))
        split = EncodedSplit(source, image_shape, len(paths))
        return split if data.decodes_on_the_fly else _decode(split, name, progress)

    return Dataset(
        description=f"folder {root.name}",
        train=read(splits[0], train_files, data.train_examples),
        eval=read(splits[1], eval_files, data.eval_examples),
        num_classes=len(classes),
        statistics="ImageNet's",
    )


def _list_split(root: pathlib.Path, name: str) -> dict[str, list[str]]:
    """Return {class: paths}, both by name; paths as text, of which ImageNet has 1.28 million."""
    folder = root / name
    if not folder.is_dir():
        names = sorted(path.name for path in root.iterdir() if path.is_dir())
        raise BadInput(f"{root} has no folder {name!r}; it has {', '.join(names[:10]) or 'none'}")
    files = {
        sub.name: sorted(
            entry.path
            for entry in os.scandir(sub)
            if os.path.splitext(entry.name)[1].lower() in _SUFFIXES
        )
        for sub in folder.iterdir()
        if sub.is_dir() and not sub.name.startswith(".")
    }
    empty = sorted(sub for sub, paths in files.items() if not paths)
    if empty or not files:
        directory = folder.joinpath(*empty[:1])
        raise BadInput(f"{directory}: no images in it; expected {name}/<class>/*.JPEG")
    return files


def _interleave(classes: list[str], files: dict[str, list[str]]) -> list[tuple[str, int]]:
    """Return (path, label) of each class in turn, so that a limit keeps the classes balanced."""
    by_class = ([(path, label) for path in files.get(n, ())] for label, n in enumerate(classes))
    return [pair for row in itertools.zip_longest(*by_class) for pair in row if pair]


def _decode(split: EncodedSplit, name: str, progress: Callable[[str], None]) -> Split:
    shape = (len(split), *split.image_shape)
    check_fits_in_memory(f"{name}, {len(split):,} images", math.prod(shape))
    images_NxHxWxC = np.empty(shape, np.uint8)
    for row, out_HxWxC in enumerate(images_NxHxWxC):
        try:
            split.decode(row, None, out_HxWxC, random_crop=False, flip=False)
        except CorruptImageError as error:
            path = split.source.name(row)
            raise BadInput(f"{path}: cannot be decoded as an image: {error}") from error
        if (row + 1) % _REPORT_EVERY == 0:
            progress(f"{name}: {row + 1:,} of {len(split):,} images")
    return Split(images_NxHxWxC, split.source.labels_N)
