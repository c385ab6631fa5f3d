"""Damaged data sets and records: a reading or one line, never a traceback, crash or hang."""

import dataclasses
import functools
import pathlib
import resource
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest

from jaxbench.analysis.pricing import COLUMNS, load_prices
from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.resume import find_resume
from jaxbench.cli import registry
from jaxbench.config import DataConfig
from jaxbench.data.sources.load import load_dataset
from jaxbench.errors import BadInput
from jaxbench.records.reader import load_run, missing_records, read_document, read_results
from jaxbench.schema import TrialFigures
from tests.data.cifar10_files import write_batches
from tests.recorded import attempts, on_the_way, write_results
from tests.strategies import damaged, damaged_json
from tests.tfds_files import image_feature, label_feature, write_tfds

# More than any of these small files needs; less than what a few bytes can claim.
_MAX_GROWTH_BYTES = 2**31


def read_set(source, **fields):
    data = DataConfig(source=source, **fields)
    return lambda: load_dataset(
        dataclasses.replace(registry.load("cnn10"), data=data, batch_size=1)
    )


def npz(save, folder):
    arrays, path = {}, folder / "set.npz"
    for split in ("train", "test"):
        arrays[f"x_{split}"] = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3), np.uint8)
        arrays[f"y_{split}"] = np.arange(5)
    save(path, **arrays)
    return path, read_set("npz", path=str(path), image_shape=(8, 8, 3), num_classes=5), damaged


def batches(folder):
    folder = write_batches(folder / "batches")
    return folder / "data_batch_1.bin", read_set("cifar10_batches", path=str(folder)), damaged


def prepared(name, folder):
    example = {"image": np.zeros((8, 8, 3), np.uint8), "label": 1}
    splits = {"train": [example] * 3, "test": [example]}
    write_tfds(folder, "small", {"image": image_feature(3), "label": label_feature(2)}, splits)
    fields = {"name": "small", "path": str(folder), "image_shape": (8, 8, 3), "num_classes": 2}
    change = damaged_json if name.endswith(".json") else damaged
    return folder / "small" / "1.0.0" / name, read_set("tfds", **fields), change


def run(name, folder):
    how = {"status": "preempted", "experiment": "some", "attempts": attempts()}
    run = on_the_way(folder / "run", (0.5, 0.9), **how)

    def read():
        read_document(run)
        find_resume(None, str(run), "some").close()
        missing_records(load_run(str(run)))

    return run / name, read, damaged_json


def results(folder):
    trial = {"figures": TrialFigures(usd=1.5), "place": {"b": "2"}, "run": "trials/1/run1"}
    path = write_results(folder, trial, trial | {"key": "k"}, trial) / "results.jsonl"
    return path, lambda: read_results(path), damaged_json


def prices(folder):
    path, row = folder / "prices.csv", "my offer,A100,8,12.5,2026-01-02,https://example.org\n"
    path.write_text(",".join(COLUMNS) + "\n" + row + row.replace("my", "his"))
    return path, lambda: load_prices(str(path)), damaged


def manifest(folder):
    name, state = "step-000000001.epoch-00001", {"a": np.arange(3), "b": np.ones((2, 2))}
    orbax = checkpoint.create_orbax()
    checkpoint.write_checkpoint(orbax, folder, name, state, {"step": 1, "records": {}}, 0.5)

    read = functools.partial(checkpoint.read_checkpoint, folder, name, state)
    return folder / name / "manifest.json", read, damaged_json


# What makes a valid file in a folder; returns it, what reads it, and a strategy that damages it.
FILES: dict[str, Callable[[pathlib.Path], tuple]] = {
    "npz": functools.partial(npz, np.savez),
    "small.npz": functools.partial(npz, np.savez_compressed),
    "batches": batches,
    **{
        f"tfds {name}": functools.partial(prepared, name)
        for name in (
            *("dataset_info.json", "features.json"),
            "small-train.array_record-00000-of-00001",
        )
    },
    **{name: functools.partial(run, name) for name in ("run.json", "metrics.jsonl")},
    "results.jsonl": results,
    "prices": prices,
    "manifest.json": manifest,
}


@pytest.fixture
def little_memory():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + _MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, little_memory, make):
    path, read, change = make(tmp_path)
    whole, refusals = path.read_bytes(), []
    read()

    @hypothesis.settings(max_examples=150)
    @hypothesis.given(change(whole))
    def check(content):
        path.write_bytes(content)
        try:
            read()
        except (BadInput, checkpoint.DamagedCheckpointError) as error:
            refusals.append(str(error))
            assert str(error) and "\n" not in str(error)

    check()
    assert refusals
