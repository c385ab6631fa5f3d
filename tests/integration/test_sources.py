"""A real data set in a process of its own."""

import subprocess
import sys


def test_real_cifar10_is_read_without_tensorflow(test_data):
    """In a process of its own, to see what it imports."""
    code = f"""
import sys
from jaxbench.config import DataConfig
from jaxbench.data.sources import tfds
path = {str(test_data / "tfds")!r}
dataset = tfds.load(DataConfig(name="cifar10", path=path, train_examples=3000))
assert len(dataset.train) == 3000 and len(dataset.eval) == 10000, dataset
assert dataset.image_shape == (32, 32, 3) and dataset.num_classes == 10
assert "tfds cifar10/3.0.2" == dataset.description
# Red, green and blue in this order: the published means are 125.3, 123.0 and 113.9.
means = dataset.eval.inputs_Nx.mean((0, 1, 2))
assert abs(means - [126.0, 123.7, 114.9]).max() < 0.2, means
assert (dataset.eval.labels_Nx == 3).sum() == 1000
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
