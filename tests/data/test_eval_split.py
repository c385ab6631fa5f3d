"""What is doubtful about an evaluation split."""

import numpy as np
import pytest

from jaxbench.data.dataset import Dataset, Split
from jaxbench.data.eval_split import eval_split_warnings


def split(images_NxHxWxC):
    return Split(images_NxHxWxC, np.zeros(len(images_NxHxWxC), np.int32))


@pytest.fixture
def images_NxHxWxC():
    return np.random.default_rng(0).integers(0, 256, (300, 4, 5, 3), np.uint8)


def warnings_of(train_NxHxWxC, eval_NxHxWxC):
    return eval_split_warnings(Dataset("x", split(train_NxHxWxC), split(eval_NxHxWxC), 10))


def test_images_that_are_new_are_not_doubtful(images_NxHxWxC):
    assert warnings_of(images_NxHxWxC[:200], images_NxHxWxC[200:]) == []
    # Nor such that are like another in their middle row only.
    alike = images_NxHxWxC[:100].copy()
    alike[:, 0] += 1
    assert warnings_of(images_NxHxWxC[:200], alike) == []


def test_one_image(images_NxHxWxC):
    [few] = warnings_of(images_NxHxWxC[1:], images_NxHxWxC[:1])
    assert few.startswith("the evaluation split has 1 images: an accuracy on fewer than 50")


def test_copies_of_a_training_image(images_NxHxWxC):
    few, shared = warnings_of(images_NxHxWxC, images_NxHxWxC[[7] * 300])
    assert few.startswith("the evaluation split has 300 images, 1 different")
    assert shared.startswith("300 of the 300 images of the evaluation split are in the training")


def test_some_images_that_were_trained_on(images_NxHxWxC):
    [shared] = warnings_of(images_NxHxWxC[:203], images_NxHxWxC[200:])
    assert shared.startswith("3 of the 100 images")
