"""--mode=throughput: how fast the devices train, and windows that are not closed."""

import dataclasses
import time
import types

import jax
import numpy as np
import pytest
from flax import linen as nn

from jaxbench import clock
from jaxbench.cli import registry
from jaxbench.clock import pause
from jaxbench.config import ModelConfig
from jaxbench.data.feeds.feed import create_feed
from jaxbench.data.feeds.stream import StreamFeed
from jaxbench.errors import BadInput, Diverged
from jaxbench.modes import throughput
from jaxbench.modes.throughput import ForwardStage, TrainStage
from jaxbench.modes.windows import Stepper
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.records.schema import ThroughputRecord
from jaxbench.records.writers.console import Console
from jaxbench.train import build_program
from jaxbench.xla.compile_cache import without_cache
from tests.conftest import MICRO, records, run_json


@pytest.fixture
def measure(tmp_path):
    def run(experiment=MICRO, num_devices=2, change=None, **options):
        config = registry.load(experiment)
        config.num_devices = num_devices
        if change:
            change(config)
        options = {"rounds": 6, "window_s": 0.02} | options
        # With a cache every step is compiled two or three times, see test_compile_cache.py.
        with without_cache():
            return throughput.measure_throughput(
                config, str(tmp_path / "run"), Console(), **options
            )

    return run


def test_the_devices_alone_need_no_data(measure, tmp_path):
    """A folder that is not there is never looked at."""

    def elsewhere(config):
        config.data.source, config.data.path, config.data.feed = "folder", "/nowhere", "stream"
        config.data.image_shape, config.batch_size = (8, 8, 3), 64

    result = measure(change=elsewhere, steps_per_call=3)
    step, repeated, forward = check_stages(tmp_path / "run", result)
    names = (step.stage, repeated.stage, forward.stage)
    assert names == ("train_step", "train_step_x3", "forward")
    compiled = {record["function"] for record in records(tmp_path / "run", "compile")}
    assert compiled == {"train_step", "train_step_x3", "eval_step"}
    assert step.latency_p50_s <= step.latency_p95_s <= step.latency_p99_s
    assert step.latency_steps >= 6
    summary = run_json(tmp_path / "run")["summary"]
    # The synthetic batch is learnt by heart: the steps that were timed do train.
    assert summary["last_loss"] < 0.9 * summary["first_loss"]
    assert summary["images_per_s"] == step.images_per_s
    assert sum(summary["phases_s"].values()) == pytest.approx(summary["wall_s"], abs=0.05)


def check_stages(folder, result):
    """Rates of 64 images a step on two devices. Returns the stages' records."""
    stages = result.of_kind(ThroughputRecord)
    assert records(folder, "throughput") == [stage.to_json() for stage in stages]
    for stage in stages:
        assert stage.feed == "synthetic" and len(stage.windows_s) == 6
        assert stage.images_per_s_low <= stage.images_per_s <= stage.images_per_s_high
        assert stage.images_per_s_per_device == pytest.approx(stage.images_per_s / 2)
        # What a window holds, by its own clock.
        fastest = 64 * stage.steps_per_window / min(stage.windows_s)
        slowest = 64 * stage.steps_per_window / max(stage.windows_s)
        assert slowest <= stage.images_per_s_mean <= fastest
        assert stage.warmup_steps > 0
    return stages


def test_under_fp16_the_summary_has_the_loss_scale(measure, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxbench.training.loss_scale.FIRST_SCALE", 2.0**22)

    def in_fp16(config):
        config.precision, config.model.hidden = "fp16", (8,)

    step, _ = measure(change=in_fp16).of_kind(ThroughputRecord)
    assert step.precision == "fp16"
    summary = run_json(tmp_path / "run")["summary"]
    assert 0 < summary["skipped_steps"] < step.warmup_steps
    assert summary["loss_scale"] == 2.0 ** (22 - summary["skipped_steps"])
    # Steps that overflow have a loss, and those that follow train.
    assert summary["last_loss"] < 0.9 * summary["first_loss"]


def check_data(folder, result, feed):
    assert {stage.feed for stage in result.of_kind(ThroughputRecord)} == {feed}
    data = run_json(folder)["data"]
    assert data["feed"] == feed and data["train_examples"] > 0
    assert data["statistics"] == "the training split's"
    assert len(data["mean"]) == len(data["std"]) and min(data["mean"] + data["std"]) > 0


def test_a_resident_data_set_can_be_fed(measure, tmp_path):
    check_data(tmp_path / "run", measure(feed="resident"), "resident")


class Pixels(nn.Module):
    """A dense layer for each pixel."""

    @nn.compact
    def __call__(self, images_BxHxWxC, *, train, keys_B=None):
        return nn.Dense(1)(images_BxHxWxC)[..., 0]


@dataclasses.dataclass(kw_only=True)
class PixelsConfig(ModelConfig):
    def create(self, *, num_classes, dtype, param_dtype, norm_axis):
        return Pixels()


def test_independent_models_and_masks(measure):
    def independent(config):
        config.model, config.task, config.replicas = PixelsConfig(), "segmentation", "independent"
        config.data.source, config.data.num_classes = "synthetic", 2
        config.data.train_examples, config.data.eval_examples = 256, 50

    result = measure(change=independent)
    # Each device has a whole batch of its own: twice the images a step.
    step = result.of_kind(ThroughputRecord)[0]
    assert step.step_s * step.images_per_s == pytest.approx(2 * step.batch_size)


def test_a_loss_that_is_no_number_ends_it(measure, tmp_path):
    def wild(config):
        config.optimizer.learning_rate = 1e30

    with pytest.raises(Diverged, match="rates of such steps mean nothing"):
        measure(change=wild)
    assert run_json(tmp_path / "run")["status"] == "diverged"


def test_several_steps_a_call_need_no_batch_from_the_host(measure, tmp_path):
    with pytest.raises(BadInput, match="--steps_per_call=2 with --feed=stream"):
        measure(feed="stream", steps_per_call=2)
    assert not (tmp_path / "run").exists()


def test_several_steps_a_call_are_the_same_steps():
    config = registry.load(MICRO)
    # What is dropped follows the number of the step.
    config.model.dropout, config.data.feed = 0.5, "synthetic"
    mesh, layout = create_training_mesh(config)
    feed = create_feed(config, None, mesh, layout, np.float32)
    program = build_program(config, mesh, layout, feed.steps_per_epoch)
    row = next(feed.train_batches(0, 1))
    one, three = program.place_train_state(), program.place_train_state()
    for _ in range(3):
        one, metrics = program.train_step(one, feed.train_data, row)
    three, last = throughput.repeat_train_step(program, 3)(three, feed.train_data, row)
    assert int(three.step) == 3
    np.testing.assert_allclose(metrics, last, rtol=1e-4)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(three), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)


class Unfinished:
    """A result that is ready only 20 ms after it is asked for."""

    def block_until_ready(self):
        pause(0.02)
        return self


def test_windows_that_are_not_closed_are_caught(measure, tmp_path, monkeypatch):
    """Steps are queued and the clock is read: a rate of dispatching, not of training."""

    def leave_open(self):
        self.metrics = Unfinished()

    monkeypatch.setattr(Stepper, "wait", leave_open)
    measure(num_devices=1, window_s=0.002, rounds=4)
    document = run_json(tmp_path / "run")
    assert document["status"] == "invalid"
    assert "train_step: its work went on for" in document["reason"]


def test_forward_passes_are_waited_for(measure, monkeypatch):
    genuine, ready = ForwardStage.run, []

    def forward(self, calls):
        genuine(self, calls)
        ready.append(self._metrics.is_ready())

    def heavy(config):  # so that a pass takes much longer than queueing it
        config.model.hidden, config.batch_size = (64,), 128

    monkeypatch.setattr(ForwardStage, "run", forward)
    measure(change=heavy, window_s=0.001, rounds=4)
    assert ready and all(ready)


def test_a_clock_that_does_not_wait_is_caught(measure, tmp_path, monkeypatch):
    """Latencies timed without a barrier are those of dispatch, and cannot be true."""
    genuine = TrainStage.run

    def forgetful(self, calls):
        if calls > 1 or not self.warmup:
            return genuine(self, calls)
        return None  # the step is on its way, for all that this clock knows

    def small(config):  # so that a window holds many steps
        config.batch_size = 4

    monkeypatch.setattr(TrainStage, "run", forgetful)
    result = measure(num_devices=1, change=small)
    document = run_json(tmp_path / "run")
    assert document["status"] == "invalid" and "a step closed alone takes" in document["reason"]
    assert result.summary["status"] == "invalid"


class Sleeping(nn.Module):
    """A network that sleeps for a known time in every pass."""

    num_classes: int

    @nn.compact
    def __call__(self, images_BxHxWxC, *, train, keys_B=None):
        def sleep(pixel):
            pause(SLEEP_S)
            return pixel

        pixel = images_BxHxWxC[0, 0, 0, 0]
        woken = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), pixel.dtype), pixel)
        mean_BxC = images_BxHxWxC.mean((1, 2)).at[0, 0].add(0 * woken)
        return nn.Dense(self.num_classes)(mean_BxC)


SLEEP_S = 0.15


@dataclasses.dataclass(kw_only=True)
class SleepingConfig(ModelConfig):
    def create(self, *, num_classes, dtype, param_dtype, norm_axis):
        return Sleeping(num_classes)


@pytest.fixture
def short_sleep(monkeypatch):
    """Pauses end after a tenth of their time; the clock is then moved on by the rest."""
    skipped_s = 0.0

    def sleep(time_s):
        nonlocal skipped_s
        time.sleep(time_s / 10)
        skipped_s += 0.9 * time_s

    names = vars(time) | {"sleep": sleep, "perf_counter": lambda: time.perf_counter() + skipped_s}
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(**names))


def test_a_kernel_of_known_cost_costs_as_much(measure, tmp_path, short_sleep):
    """What sleeps 0.15 s a step takes that long, whichever way it is measured."""

    def sleep(config):
        config.model, config.batch_size = SleepingConfig(), 4

    # Without telemetry, whose thread would move the clock on as well.
    result = measure(num_devices=1, change=sleep, steps_per_call=2, telemetry_s=0)
    assert run_json(tmp_path / "run")["status"] == "done"
    stages = result.of_kind(ThroughputRecord)
    assert [stage.stage for stage in stages] == ["train_step", "train_step_x2", "forward"]
    for stage in stages:
        # Never less, and most of it is that.
        assert SLEEP_S <= stage.step_s < 1.5 * SLEEP_S, stage.stage
        assert stage.images_per_s_high <= 4 / SLEEP_S
        assert stage.images_per_s == pytest.approx(4 / stage.step_s)
    assert SLEEP_S <= stages[0].latency_p50_s < 1.5 * SLEEP_S
    assert result.summary["first_step_s"] >= SLEEP_S


def test_a_streams_buffers_do_not_flatter_it(measure, tmp_path, monkeypatch):
    """A host of 100 batches a second; 8 of them could be made ready in the other stages' time."""
    genuine = StreamFeed.assemble

    def slow(self, *args):
        pause(0.01)
        return genuine(self, *args)

    monkeypatch.setattr(StreamFeed, "assemble", slow)

    def deep(config):
        config.data.prefetch_batches, config.data.num_threads = 8, 1
        config.data.feed, config.batch_size = "stream", 16

    result = measure(change=deep, feed="stream", num_devices=1, rounds=4, window_s=0.05)
    assert result.of_kind(ThroughputRecord)[0].images_per_s < 1.1 * 16 / 0.01
    check_data(tmp_path / "run", result, "stream")


def test_the_command_and_its_flags(run_cli, tmp_path):
    done = run_cli(
        f"--experiment={MICRO}",
        "--mode=throughput",
        "--rounds=6",
        "--window_s=0.02",
        "--telemetry_s=0",
        "--compile_cache=off",  # else every step is compiled twice
        "--workdir=run",
    )
    assert done.returncode == 0, done.stderr
    assert "train_step" in done.stdout and "images/s" in done.stdout and "p95" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not (tmp_path / "run" / "telemetry.csv").exists()
    assert run_json(tmp_path / "run")["summary"].get("telemetry") is None
    done = run_cli(f"--experiment={MICRO}", "--mode=train", "--rounds=6")
    assert done.returncode == 2
    assert "--rounds with --mode=train: it needs --mode=throughput" in done.stderr
