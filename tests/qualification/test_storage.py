"""Storage: rates of real files, and nothing is left."""

import pytest

from jaxbench.qualification import storage


def test_rates_of_every_kind_and_an_empty_folder(bench, monkeypatch):
    monkeypatch.setattr(storage, "_LEAST_BYTES", 2**16)
    monkeypatch.setattr(storage, "_IMAGES", 2)
    storage.measure(bench, 0.0)
    assert [one.name for one in bench.figures] == [
        *("decode_images_per_s", "read_cold_gb_per_s", "read_warm_gb_per_s"),
        *("checkpoint_write_gb_per_s", "checkpoint_restore_gb_per_s"),
    ]
    assert all(one.value > 0 and len(one.interval) == 2 for one in bench.figures)
    assert [*bench.folder.iterdir()] == []


def test_a_disk_that_is_almost_full_is_left_alone(bench, monkeypatch):
    monkeypatch.setattr(storage, "_SHARE_OF_DISK", 0.0)
    with pytest.raises(OSError, match="MiB free"):
        storage.measure(bench, 0.0)
    assert [*bench.folder.iterdir()] == []
