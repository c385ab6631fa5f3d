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
_FILE = "datasets/data/digits.csv.gz"


def load(*_: Any, **unused: Any) -> Dataset:
    """Return 1,437 digits for training and 360 held out; no seed changes the split."""
    # Only the file is read: importing scikit-learn takes longer than importing JAX.
    spec: Any = importlib.util.find_spec("sklearn")
    with gzip.open(pathlib.Path(spec.origin).parent / _FILE, "rt") as file:
        rows_Nx65 = np.loadtxt(file, delimiter=",")
    # 17 grey levels, 0 to 16, spread over a byte.
    images = np.round(rows_Nx65[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = rows_Nx65[:, -1].astype(np.int32)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    held_out, training = order[:_NUM_EVAL], order[_NUM_EVAL:]
    return Dataset(
        description="scikit-learn digits",
        train=Split(images[training], labels[training]),
        eval=Split(images[held_out], labels[held_out]),
        num_classes=10,
    )
