"""Parts that are asked for: storage."""

import pytest

from jaxbench.qualification import storage


def test_rates_of_every_kind_and_an_empty_folder(session, monkeypatch):
    monkeypatch.setattr(storage, "_LEAST_BYTES", 2**16)
    storage.measure(session, 0.0)
    assert [one.name for one in session.figures] == [
        *("read_cold_gb_per_s", "read_warm_gb_per_s"),
        *("checkpoint_write_gb_per_s", "checkpoint_restore_gb_per_s"),
    ]
    # Of three rounds there is no interval.
    assert all(one.value > 0 and one.value_low is None for one in session.figures)
    assert [*session.folder.iterdir()] == []


def test_a_disk_that_is_almost_full_is_left_alone(session, monkeypatch):
    monkeypatch.setattr(storage, "_SHARE_OF_DISK", 0.0)
    with pytest.raises(OSError, match="MiB free"):
        storage.measure(session, 0.0)
    assert [*session.folder.iterdir()] == []
