"""What a checkpoint keeps of a run."""

import json

import numpy as np

from jaxbench.training.run import EpochMetrics, RunProgress

NAMES = ("loss", "count")


def progress():
    epoch = EpochMetrics(2, *(dict.fromkeys(NAMES, [0.0, 0.0]) for _ in range(2)))
    for loss in (0.1, 0.2, 0.3):
        epoch.add({"loss": np.float32([loss, 3 * loss]), "count": np.float32([4, 4])})
    epoch.begin_interval()
    epoch.add({"loss": np.float32([0.7, 0.8]), "count": np.float32([4, 4])})
    return RunProgress(step=26, epoch_metrics=epoch, compile_cache=["hit"], import_s=1.0)


def read(metadata):
    return RunProgress.from_json(json.loads(dumped(metadata)) | {"epochs": []})


def dumped(metadata):
    return json.dumps(metadata, default=np.ndarray.tolist)


def test_it_comes_back_as_it_was_but_for_the_times_of_a_process():
    saved = progress()
    found = read(saved.to_json())
    assert dumped(found.to_json()) == dumped(saved.to_json()) and found.epoch_metrics.steps == 4
    assert saved.import_s == 1.0 and found.import_s is None
    # What is added later is in the same sums, in the same order.
    for run in (saved, found):
        run.epoch_metrics.add({"loss": np.float32([1 / 3, 0]), "count": np.float32([4, 4])})
    assert dumped(found.to_json()) == dumped(saved.to_json())


def test_a_checkpoint_keeps_what_was_there_when_it_was_written():
    saved = progress()
    metadata = saved.to_json()
    before = dumped(metadata)
    saved.invalid.append("later")
    saved.epoch_metrics.add({"loss": np.ones(2), "count": np.ones(2)})
    assert dumped(metadata) == before
