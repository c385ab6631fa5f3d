"""--mode=input on files that the system has forgotten."""

import os
import shutil
import statistics

import pytest

from jaxbench.hardware.system import storage_read_bytes
from jaxbench.modes import input_benchmark
from jaxbench.records.schema import InputRecord
from jaxbench.records.writers.console import Console
from tests.conftest import run_json
from tests.data.encoded_images import config_of, write_folder


def read_from_storage(path):
    """Bytes that the system counts where one file is forgotten and read again."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = storage_read_bytes()
        file.read()
    return storage_read_bytes() - before


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files cannot be forgotten here")
def test_storage_is_measured_and_can_be_cold(tmp_path, monkeypatch):
    monkeypatch.setattr(input_benchmark, "_WINDOW_S", 0.05)
    monkeypatch.setattr(input_benchmark, "_ROUNDS", 3)
    images = write_folder(tmp_path / "images")
    for path in [*images.glob("train/*/*")]:
        for copy in range(20):
            shutil.copy(path, path.with_name(f"{copy}-{path.name}"))
    os.sync()  # what is not on the disk yet cannot be forgotten
    read_bytes = {}
    for page_cache in ("as_is", "cold"):
        workdir = str(tmp_path / page_cache)
        result = input_benchmark.measure_input(
            config_of(images), workdir, Console(), page_cache=page_cache
        )
        read_bytes[page_cache] = result.of_kind(InputRecord)[0].windows_storage_read_bytes
        assert run_json(workdir)["page_cache"] == page_cache
    if not read_from_storage(next(images.rglob("*.jpg"))):
        pytest.skip("this file system is not counted, or is memory itself")
    # Of three windows: this process may load code of its own meanwhile.
    as_is, cold = (statistics.median(read_bytes[name]) for name in ("as_is", "cold"))
    assert as_is < 0.1 * cold
