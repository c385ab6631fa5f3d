"""Say what is doubtful about an evaluation split: few examples, or images that were trained on."""

import hashlib
from collections.abc import Iterable

import numpy as np

from jaxbench.data.dataset import Dataset

# Of fewer different examples, one more right answer moves the accuracy by 2 points.
_FEWEST = 50
# Larger training splits are not searched: the search comes at the end of a run, which it may not
# hold up.
_LARGEST_BYTES = 2**32
_CHUNK = 4096


def eval_split_warnings(dataset: Dataset) -> list[str]:
    """Return what is doubtful about accuracies on the evaluation split of a data set.

    Images are compared byte by byte where both splits are held in memory.
    """
    count, noun = len(dataset.eval), dataset.noun
    if dataset.encoded:
        return _few(noun, count, count)
    images_NxHxWxC = dataset.eval.inputs_Nx
    digests = _digests(images_NxHxWxC)
    warnings = _few(noun, count, len(set(digests)))
    train_NxHxWxC = dataset.train.inputs_Nx
    if train_NxHxWxC.nbytes <= _LARGEST_BYTES:
        # Most images differ in the middle row already.
        rows = set(_middle_rows(images_NxHxWxC))
        same_row = [i for i, row in enumerate(_middle_rows(train_NxHxWxC)) if row in rows]
        trained_on = set(_digests(train_NxHxWxC[i] for i in same_row))
        if shared := sum(digest in trained_on for digest in digests):
            warnings.append(
                f"{shared:,} of the {count:,} {noun} of the evaluation split are in the training "
                f"split, too: its figures say that much less about {noun} that are new"
            )
    return warnings


def _few(noun: str, count: int, different: int) -> list[str]:
    if different >= _FEWEST:
        return []
    told = f"{count:,} {noun}" + ("" if different == count else f", {different} different")
    return [
        f"the evaluation split has {told}: an accuracy on fewer than {_FEWEST} says next to nothing"
    ]


def _digests(images: Iterable[np.ndarray]) -> list[bytes]:
    return [
        hashlib.blake2b(np.ascontiguousarray(image), digest_size=16).digest() for image in images
    ]


def _middle_rows(images_NxHxWxC: np.ndarray) -> Iterable[bytes]:
    """Yield the bytes of each image's middle row."""
    middle = images_NxHxWxC.shape[1] // 2
    for first in range(0, len(images_NxHxWxC), _CHUNK):
        rows_NxWxC = np.ascontiguousarray(images_NxHxWxC[first : first + _CHUNK, middle])
        yield from (row.tobytes() for row in rows_NxWxC)
