"""scikit-learn's handwritten digits: 1,797 real 8x8 images that ship inside the library.

They are the test part of UCI's "Optical recognition of handwritten digits", CC BY 4.0.
"""

import numpy as np

from jaxbench.data.dataset import Dataset, Split

_NUM_EVAL = 360


def load() -> Dataset:
    """Returns 1,437 digits to train on and 360 held out; the split is fixed, whatever the seed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 17 grey levels, 0 to 16, spread over a byte.
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int32)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(labels))
    held_out, training = order[:_NUM_EVAL], order[_NUM_EVAL:]
    return Dataset(
        description="scikit-learn digits",
        train=Split(images[training], labels[training]),
        eval=Split(images[held_out], labels[held_out]),
        num_classes=10,
    )
