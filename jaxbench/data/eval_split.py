"""Warn of an evaluation split of few examples, or of images that were trained on."""

import hashlib

import numpy as np

from jaxbench.data.dataset import Dataset

# With fewer different examples, one more right answer moves the accuracy by 2 points.
_FEWEST = 50
# Larger training splits are not searched: the search must not hold up the end of a run.
_LARGEST_BYTES = 2**30


def eval_split_warnings(dataset: Dataset) -> list[str]:
    """Return why accuracies on the evaluation split of a data set are doubtful.

    Images are compared byte by byte if both splits are held in memory.
    """
    count, noun, warnings = len(dataset.eval), dataset.noun, []
    digests = [] if dataset.encoded else _digests(dataset.eval.inputs_Nx)
    different = count if dataset.encoded else len(set(digests))
    if different < _FEWEST:
        warnings.append(
            f"the evaluation split has {count:,} {noun}"
            + ("" if different == count else f", {different} different")
            + f": an accuracy on fewer than {_FEWEST} means little"
        )
    if digests and dataset.train.inputs_Nx.nbytes <= _LARGEST_BYTES:
        trained_on = set(_digests(dataset.train.inputs_Nx))
        if shared := sum(digest in trained_on for digest in digests):
            warnings.append(
                f"{shared:,} of the {count:,} {noun} of the evaluation split are also in the "
                "training split"
            )
    return warnings


def _digests(inputs_Nx: np.ndarray) -> list[bytes]:
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in inputs_Nx]
