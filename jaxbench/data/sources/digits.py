"""scikit-learn's handwritten digits: 1,797 real 8x8 images that ship inside the library.

They are the test part of UCI's "Optical recognition of handwritten digits", CC BY 4.0.
"""

import gzip
import importlib.util
import pathlib
from typing import Any

import numpy as np

from jaxbench.data.dataset import Dataset, Split

_NUM_EVAL = 360
# A row for each image: its 64 grey levels and the digit.
_FILE = "data/digits.csv.gz"


def load(*_: Any, **unused: Any) -> Dataset:
    """Return 1,437 digits for training and 360 held out; no seed changes the split."""
    levels_NxHxW, labels = _read()
    # 17 grey levels, 0 to 16, spread over a byte.
    images = np.round(levels_NxHxW * (255 / 16)).astype(np.uint8)[..., None]
    labels = labels.astype(np.int32)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    held_out, training = order[:_NUM_EVAL], order[_NUM_EVAL:]
    return Dataset(
        description="scikit-learn digits",
        train=Split(images[training], labels[training]),
        eval=Split(images[held_out], labels[held_out]),
        num_classes=10,
    )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return what scikit-learn's `load_digits` does: the images' grey levels, and the digits."""
    # Only the file is read: importing scikit-learn takes longer than importing JAX.
    package = importlib.util.find_spec("sklearn")
    if package and (path := pathlib.Path(package.origin).with_name("datasets") / _FILE).is_file():
        with gzip.open(path, "rt") as file:
            rows_Nx65 = np.loadtxt(file, delimiter=",")
        return rows_Nx65[:, :-1].reshape(-1, 8, 8), rows_Nx65[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target
