"""A folder of images, one sub-folder a class: `train/<class>/*.JPEG`, `val/...`."""

import collections
import itertools
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxbench.config import DataConfig
from jaxbench.data.dataset import Dataset, Split, as_bad_input, check_fits_in_memory
from jaxbench.data.images.decode import SUFFIXES, describe_warnings
from jaxbench.data.images.encoded import EncodedSplit, Files
from jaxbench.errors import BadInput
from jaxbench.paths import user_path
from jaxbench.terminal import printable

# What systems leave beside files; nobody misses it.
_LITTER = re.compile(
    r"\._.*|\.DS_Store|Thumbs\.db|desktop\.ini|\.ipynb_checkpoints|@eaDir", re.IGNORECASE
)
_REPORT_EVERY = 256
# Kinds of files left out that a warning names.
_KINDS = 8


def load(data: DataConfig, *, progress: Callable[[str], None], **unused: Any) -> Dataset:
    """Decode every image below `data.path` and bring it to `data.image_shape` by `centre_crop`.

    For images decoded on the fly only the files' names are read. The classes are the training
    split's sub-folders by name; images in their sub-folders belong to them. What is left out is
    counted. Limited splits take images in turn from every class.

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
    warnings: list[str] = []
    train_files, eval_files = (_list_split(root, name, warnings) for name in splits)
    classes = sorted(train_files)
    if unknown := sorted(set(eval_files) - set(classes)):
        raise BadInput(f"{root / splits[1]}: class {unknown[0]} is not in {splits[0]}/")

    def read(name: str, files: dict[str, list[str]], limit: int) -> Split | EncodedSplit:
        # Of each class in turn, so that a limit keeps the classes balanced.
        by_class = ([(path, k) for path in files.get(n, ())] for k, n in enumerate(classes))
        pairs = [pair for row in itertools.zip_longest(*by_class) for pair in row if pair]
        paths, labels = zip(*pairs[: limit or None], strict=True)
        source = Files(paths, np.array(labels, np.int32))
        split = EncodedSplit(source, image_shape, len(paths))
        return split if data.decodes_on_the_fly else _decode(split, name, progress, warnings)

    return Dataset(
        description=f"folder {root.name}",
        train=read(splits[0], train_files, data.train_examples),
        eval=read(splits[1], eval_files, data.eval_examples),
        num_classes=len(classes),
        statistics="ImageNet's",
        warnings=[*dict.fromkeys(warnings)],
    )


def _list_split(root: pathlib.Path, name: str, warnings: list[str]) -> dict[str, list[str]]:
    """Return {class: paths}, both by name; paths as text, of which ImageNet has 1.28 million.

    What is left out is added to `warnings`.
    """
    folder = root / name
    if not folder.is_dir():
        names = sorted(path.name for path in root.iterdir() if path.is_dir())
        raise BadInput(f"{root} has no folder {name!r}; it has {', '.join(names[:10]) or 'none'}")
    left_out: collections.Counter[str] = collections.Counter()

    def leave_out(file: str, why: str = "") -> None:
        if not _LITTER.fullmatch(file):
            suffix = os.path.splitext(file)[1].lower() or "no ending"
            left_out["hidden" if file.startswith(".") else why or suffix] += 1

    def refuse(error: OSError) -> None:
        raise BadInput(f"{error.filename}: cannot be read: {error.strerror}") from error

    def list_class(directory: str) -> list[str]:
        paths = []
        for parent, folders, names in os.walk(directory, onerror=refuse):
            for sub in [*folders]:
                # Links may lead round in circles.
                is_link = os.path.islink(os.path.join(parent, sub))
                if sub.startswith(".") or is_link or _LITTER.fullmatch(sub):
                    folders.remove(sub)
                    leave_out(sub, "linked folders in a class")
            for file in names:
                if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                    paths.append(os.path.join(parent, file))
                else:
                    leave_out(file)
        return sorted(paths)

    files = {}
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            try:
                files[entry.name] = list_class(str(entry))
            except RecursionError:  # of Python 3.11's walk
                raise BadInput(f"{entry}: its folders lie too deep in one another") from None
        else:
            leave_out(entry.name, "beside the folders of classes")
    note = ""
    if left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in left_out.most_common(_KINDS))
        kinds += ", and others" if len(left_out) > _KINDS else ""
        note = printable(f"{sum(left_out.values()):,} files and folders are left out ({kinds})")
        warnings.append(f"{folder}: {note}; images end in {', '.join(SUFFIXES)}")
    empty = sorted(sub for sub, paths in files.items() if not paths)
    if empty or not files:
        directory = folder.joinpath(*empty[:1])
        raise BadInput(
            f"{directory}: no images in it"
            + f"; {note}" * bool(note)
            + f"; expected {name}/<class>/ "
            f"with names that end in {', '.join(SUFFIXES)}"
        )
    return files


def _decode(
    split: EncodedSplit, name: str, progress: Callable[[str], None], warnings: list[str]
) -> Split:
    shape = (len(split), *split.image_shape)
    check_fits_in_memory(f"{name}, {len(split):,} images", math.prod(shape))
    images_NxHxWxC = np.empty(shape, np.uint8)
    image_warnings = {}
    for row, out_HxWxC in enumerate(images_NxHxWxC):
        path = split.source.name(row)
        with as_bad_input(path, "cannot be decoded as an image"):
            _, warning = split.decode(row, None, out_HxWxC, random_crop=False, flip=False)
        if warning:
            image_warnings[path] = warning
        if (row + 1) % _REPORT_EVERY == 0:
            progress(f"{name}: {row + 1:,} of {len(split):,} images")
    warnings += describe_warnings(image_warnings)
    return Split(images_NxHxWxC, split.source.labels_N)
