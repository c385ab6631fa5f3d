"""--mode=input: what the host can feed and what the devices can take."""

import itertools

import pytest

from jaxbench.modes import input_benchmark
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.rows import record_row
from jaxbench.schema import InputRecord
from jaxbench.training.run import DispatchLimiter
from tests.conftest import MICRO, config_of, records, refusal, run_json
from tests.recorded import filled


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr(input_benchmark, "_WINDOW_S", 0.05)
    monkeypatch.setattr(input_benchmark, "_ROUNDS", 6)

    def run(**fields):
        config = config_of(MICRO, **{"data__feed": "stream", "batch_size": 64} | fields)
        return input_benchmark.measure_input(config, str(tmp_path / "run"), Console())

    return run


def test_a_slow_host_is_named_as_the_bottleneck(measure, tmp_path, slow_feed):
    result = measure(**slow_feed(0.03))
    stages = records(tmp_path / "run", "input")
    assert stages == [record.to_json() for record in result.of_kind(InputRecord)]
    assert [record["stage"] for record in stages] == ["prepare", "prepare_and_send", "train_step"]
    for record in stages:
        assert len(record["windows_images_per_s"]) == 6
        assert record["images_per_s_low"] <= record["images_per_s"] <= record["images_per_s_high"]
    # 64 images in 0.03 s, by one thread, in windows that may begin a little late.
    for record in stages[:2]:
        assert record["images_per_s"] < 1.2 * 64 / 0.03
    assert stages[0]["images_per_s_per_core"] == pytest.approx(
        stages[0]["images_per_s"] / stages[0]["cores"]
    )
    assert result.summary["verdict"].endswith("the host is the bottleneck")
    document = run_json(tmp_path / "run")
    assert document["status"] == "done" and document["data"]["num_threads"] == 1
    [compiled] = records(tmp_path / "run", "compile")
    assert result.summary["compile_s"] == compiled["lower_s"] + compiled["compile_s"] > 0


@pytest.mark.parametrize("read_bytes", [4096, None])
def test_windows_say_what_storage_delivered_and_queue_few_steps(measure, monkeypatch, read_bytes):
    """None on a system that does not count. Simulated devices that wait for one another end XLA."""
    count, queued = itertools.count(step=4096), []

    class Limiter(DispatchLimiter):
        def add(self, result):
            super().add(result)
            queued.append(len(self._results))

    monkeypatch.setattr("jaxbench.modes.windows.DispatchLimiter", Limiter)
    reading = lambda: read_bytes and next(count)  # noqa: E731
    monkeypatch.setattr(input_benchmark, "storage_read_bytes", reading)
    *on_host, step = measure().of_kind(InputRecord)
    assert [stage.windows_storage_read_bytes for stage in on_host] == [[read_bytes] * 6] * 2
    assert step.windows_storage_read_bytes is None
    # Six windows and the first round, each of them at least this many.
    assert len(queued) >= 7 * 3 and max(queued) <= 5


def record(stage, low, high, **fields):
    rates = {"images_per_s_low": low, "images_per_s_high": high}
    rates["windows_images_per_s"] = [(low + high) / 2] * 6
    return filled(
        InputRecord, stage=stage, images_per_s=(low + high) / 2, batch_size=64, **rates, **fields
    )


@pytest.mark.parametrize(
    ("host", "device", "told"),
    [
        ((90, 110), (200, 220), "the host is the bottleneck"),
        ((90, 110), (20, 80), "the device(s) are the bottleneck"),
        ((90, 110), (105, 300), "no significant difference"),
    ],
)
def test_the_verdict_needs_intervals_that_do_not_overlap(host, device, told):
    stages = [
        record("prepare", 1, 2),
        record("prepare_and_send", *host),
        record("train_step", *device),
    ]
    assert input_benchmark.verdict(stages).endswith(told)
    assert input_benchmark.verdict(stages[:2]) is None


def test_a_language_models_rates_are_of_sequences_and_tokens():
    stages = [record(name, 1, 2, tokens_per_s=96.0) for name in ("prepare", "send", "train_step")]
    assert "can feed 1.500 sequences/s" in input_benchmark.verdict(stages)
    assert [cell.title for cell in record_row(stages[0])][-1] == "tokens/s"


def test_an_input_that_cannot_be_measured_is_refused(measure, tmp_path):
    refusal(measure, data__feed="resident", told="it needs data.feed=stream")
    assert not (tmp_path / "run").exists()
