"""--mode=input on files that the system has forgotten."""

import os
import shutil

import pytest

from jaxbench.cli import registry
from jaxbench.hardware.system import storage_read_bytes
from jaxbench.modes import input_benchmark
from jaxbench.records.schema import InputRecord
from jaxbench.records.writers.console import Console
from tests.conftest import MICRO, run_json


def folder_config(test_data):
    config = registry.load(MICRO)
    config.data.image_shape = (32, 32, 3)
    config.data.source, config.data.feed, config.data.crop_padding = "folder", "stream", 0
    config.data.path = str(test_data / "imagenet_sample" / "imagenette_tiny")
    config.data.eval_split, config.data.random_resized_crop = "val", True
    config.data.train_examples = config.data.eval_examples = 0
    config.num_devices, config.batch_size = 1, 16
    return config


def read_from_storage(path):
    """Bytes that the system counts where one file is forgotten and read again."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = storage_read_bytes()
        file.read()
    return storage_read_bytes() - before


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files cannot be forgotten here")
def test_storage_is_measured_and_can_be_cold(tmp_path, monkeypatch, test_data):
    """A copy of real images on this machine's disk; the system counts what that gives."""
    monkeypatch.setattr(input_benchmark, "_WINDOW_S", 0.05)
    monkeypatch.setattr(input_benchmark, "_ROUNDS", 3)
    config = folder_config(test_data)
    config.data.path = str(shutil.copytree(config.data.path, tmp_path / "images"))
    os.sync()  # what is not on the disk yet cannot be forgotten
    read_bytes = {}
    for page_cache in ("as_is", "cold"):
        with open(os.devnull, "w") as quiet:
            result = input_benchmark.measure_input(
                config, str(tmp_path / page_cache), Console(quiet), page_cache=page_cache
            )
        read_bytes[page_cache] = result.of_kind(InputRecord)[0].windows_storage_read_bytes
        assert run_json(tmp_path / page_cache)["page_cache"] == page_cache
    if not read_from_storage(next((tmp_path / "images").rglob("*.JPEG"))):
        pytest.skip("this file system is not counted, or is memory itself")
    assert sum(read_bytes["cold"]) > 0
    assert sum(read_bytes["as_is"]) < 0.1 * sum(read_bytes["cold"])
