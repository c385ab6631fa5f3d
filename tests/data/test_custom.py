"""Data sets from custom code: the sources of other libraries, and what does not match."""

import numpy as np
import PIL.Image
import pytest

from jaxbench.config import DataConfig
from jaxbench.data.sources import custom
from tests.conftest import refusal

IMAGES = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)


class Source:
    """Random access, as grain and PyTorch have it: nothing but these two methods."""

    def __init__(self, *examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


class Tensor:
    """What NumPy can read, as PyTorch's tensors."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def read(*examples, progress=lambda text: None, masks=False, **fields):
    fields = {"image_shape": (4, 4, 3), "num_classes": 3} | fields
    data = DataConfig(
        load=lambda: {"train": Source(*examples), "test": Source(*examples)}, **fields
    )
    return custom.load(data, masks=masks, progress=progress)


@pytest.mark.parametrize(
    "make",
    [
        lambda image, label: (image, label),
        lambda image, label: {"image": PIL.Image.fromarray(image), "label": label, "id": 3},
        lambda image, label: (Tensor(image / np.float32(255)), Tensor(np.array(label))),
        lambda image, label: [image, np.eye(3)[label]],
    ],
    ids=["grain", "hugging_face", "torch", "one_hot"],
)
def test_sources_of_other_libraries(make):
    dataset = read(*(make(image, label) for image, label in zip(IMAGES, (0, 2, 1), strict=True)))
    np.testing.assert_array_equal(dataset.train.inputs_Nx, IMAGES)
    np.testing.assert_array_equal(dataset.eval.labels_Nx, [0, 2, 1])


def test_grey_images_get_a_channel_and_a_range_is_kept():
    grey = np.linspace(-1, 1, 16).reshape(4, 4)
    dataset = read((grey, 0), image_shape=(4, 4, 1), value_range=(-1.0, 1.0))
    np.testing.assert_array_equal(dataset.train.inputs_Nx[0, ..., 0], np.rint((grey + 1) * 127.5))


def test_masks():
    mask = np.arange(16).reshape(4, 4, 1) > 7
    dataset = read((IMAGES[0], mask), masks=True)
    assert dataset.train.labels_Nx.dtype == np.uint8
    np.testing.assert_array_equal(dataset.train.labels_Nx[0], mask[..., 0])


@pytest.mark.parametrize(
    ("example", "told"),
    [
        ((IMAGES[0][:3], 0), "shape (3, 4, 3), expected (height, width, channels) (4"),
        ((np.moveaxis(IMAGES[0], -1, 0), 0), "shape (3, 4, 4), expected"),
        ((IMAGES[0].astype(np.int64), 0), "the image is int64, expected uint8 or float"),
        ((np.full((4, 4, 3), 2.0), 0), "leaves data.value_range=(0.0, 1.0): it has 2 to 2"),
        ((np.full((4, 4, 3), np.nan), 0), "it has nan to nan"),
        ((PIL.Image.fromarray(IMAGES[0]).convert("P"), 0), "the image is PIL's of a palette"),
        ((IMAGES[0], 3), "the label 3 is int64 of shape (), expected a whole number from"),
        ((IMAGES[0], -1), "the label -1 is int64"),
        ((IMAGES[0], "cat"), "the label 'cat' is <U3 of shape ()"),
        ((IMAGES[0], 0.5), "float64 of shape (), expected a whole number from 0"),
        ((IMAGES[0], np.ones(3)), "or one-hot of data.num_classes=3"),
        ({"img": IMAGES[0], "label": 0}, "KeyError: 'image'"),
        (IMAGES[0], "ValueError: too many values to unpack"),
    ],
)
def test_the_first_mismatch_is_told(example, told):
    assert "train[1]: " in refusal(read, (IMAGES[0], 0), example, told=told)


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (lambda: [1], "returned a list, expected a dict with 'train' and 'test'"),
        (lambda: {"train": []}, "returned a dict, expected a dict with 'train' and 'test'"),
        (lambda: {"train": 3, "test": []}, "sources with __len__"),
        (lambda: {}["x"], ": data.load (<lambda>) fails: KeyError: 'x'"),
    ],
)
def test_what_load_returns_is_checked(load, told):
    refusal(custom.load, DataConfig(load=load), progress=print, told=told)
