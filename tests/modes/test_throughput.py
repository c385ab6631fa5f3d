"""--mode=throughput: how fast the devices train, and windows that are not closed."""

import math
import time
import types

import jax
import numpy as np
import pytest
from flax import linen as nn

from jaxbench import clock
from jaxbench.clock import pause
from jaxbench.errors import Diverged
from jaxbench.modes import throughput
from jaxbench.modes.runner import with_feed
from jaxbench.modes.throughput import ForwardStage, TrainStage
from jaxbench.modes.windows import describe_windows, falling_loss_warnings, wait_for_steps
from jaxbench.records import next_steps
from jaxbench.records.writers.console import Console
from jaxbench.schema import CompileRecord, ThroughputRecord
from jaxbench.training.loss_scale import LOWEST_SCALE
from jaxbench.xla.compile_cache import without_cache
from tests.conftest import MICRO, config_of, records, run_json
from tests.micro import MasksConfig, config_for
from tests.recorded import filled

QUICK = {"rounds": 6, "window_s": 0.02}


@pytest.fixture
def measure(tmp_path):
    def run(how=(), **fields):
        config = config_of(MICRO, **fields)
        how = QUICK | dict(how)
        # With a cache every step is compiled two or three times, see test_compile_cache.py.
        with without_cache():
            return throughput.measure_throughput(config, str(tmp_path / "run"), Console(), **how)

    return run


@pytest.mark.device
def test_the_devices_alone_need_no_data(measure, tmp_path):
    """A folder that is not there is never looked at. Rates of 64 images a step."""
    fields = {"data__source": "folder", "data__path": "/nowhere", "data__feed": "stream"}
    fields |= {"data__image_shape": (8, 8, 3), "batch_size": 64}
    stages, devices = measure(**fields).of_kind(ThroughputRecord), config_of(MICRO).num_devices
    assert records(tmp_path / "run", "throughput") == [stage.to_json() for stage in stages]
    for stage in stages:
        assert stage.feed == "synthetic" and len(stage.windows_s) == 6
        assert stage.images_per_s_low <= stage.images_per_s <= stage.images_per_s_high
        assert stage.images_per_s_per_device == pytest.approx(stage.images_per_s / devices)
        # What a window holds, by its own clock.
        fastest = 64 * stage.steps_per_window / min(stage.windows_s)
        slowest = 64 * stage.steps_per_window / max(stage.windows_s)
        assert slowest <= stage.images_per_s_mean <= fastest
        assert stage.warmup_steps > 0
    assert [stage.stage for stage in stages] == ["train_step", "forward"]
    compiled = {record["function"] for record in records(tmp_path / "run", "compile")}
    assert compiled == {"train_step", "eval_step"}
    step = stages[0]
    assert step.latency_p50_s <= step.latency_p95_s <= step.latency_p99_s
    assert step.latency_steps >= 6
    summary = run_json(tmp_path / "run")["summary"]
    # The synthetic batch is learnt by heart: the steps that were timed do train.
    assert summary["last_loss"] < 0.9 * summary["first_loss"]
    assert summary["images_per_s"] == step.images_per_s
    assert sum(summary["phases_s"].values()) == pytest.approx(summary["wall_s"], abs=0.05)


@pytest.mark.device
def test_a_card_measures_only_the_training_step(tmp_path):
    with without_cache():
        config, how = with_feed(config_of(MICRO), "synthetic"), QUICK | {"telemetry_s": 0}
        result = throughput.measure_steps(
            config, str(tmp_path), Console(), **how, only_training=True
        )
    [stage] = result.of_kind(ThroughputRecord)
    assert [one["function"] for one in records(tmp_path, "compile")] == ["train_step"]
    # Not that its times are valid: a busy machine can hold up most of these short windows.
    assert stage.stage == "train_step" and result.summary["images_per_s"] == stage.images_per_s


@pytest.mark.parametrize(
    ("outcome", "cold_s", "warm_s"), [("hit", None, 2.0), ("miss", 2.0, None), ("off", 2.0, None)]
)
def test_what_is_compiled_once_is_cold_unless_it_was_cached(outcome, cold_s, warm_s):
    calls = []

    def compile_step(name, *_):
        calls.append(name)
        return filled(CompileRecord, function=name, compile_s=2.0, compile_cache=outcome)

    steps, setup = {"train_step": (None, None, None)}, types.SimpleNamespace(compile=compile_step)
    compiled = throughput._compile_cold_and_warm(setup, steps, None, once=True)["train_step"]
    assert (compiled.cold_compile_s, compiled.warm_compile_s) == (cold_s, warm_s)
    assert calls == ["train_step"]


@pytest.mark.device
def test_under_fp16_the_summary_has_the_loss_scale(measure, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxbench.training.loss_scale.FIRST_SCALE", 2.0**22)
    step, _ = measure(precision="fp16", model__hidden=(8,)).of_kind(ThroughputRecord)
    assert step.precision == "fp16"
    summary = run_json(tmp_path / "run")["summary"]
    assert 0 < summary["skipped_steps"] < step.warmup_steps
    assert summary["loss_scale"] == 2.0 ** (22 - summary["skipped_steps"])
    # Steps that overflow have a loss, and those that follow train.
    assert summary["last_loss"] < 0.9 * summary["first_loss"]


def test_independent_models_and_masks(measure):
    fields = {"model": MasksConfig(), "task": "segmentation", "replicas": "independent"}
    fields |= {"data__source": "synthetic", "data__num_classes": 2}
    result = measure(**fields, data__train_examples=256, data__eval_examples=50)
    # Each device has a whole batch of its own: twice the images a step.
    step = result.of_kind(ThroughputRecord)[0]
    assert step.step_s * step.images_per_s == pytest.approx(2 * step.batch_size)


@pytest.mark.device
def test_a_loss_that_is_no_number_ends_it(measure, tmp_path):
    with pytest.raises(Diverged, match="rates of such steps mean nothing"):
        measure(optimizer__learning_rate=1e30)
    assert run_json(tmp_path / "run")["status"] == "diverged"


class Unfinished:
    """A result that is ready only 20 ms after it is asked for."""

    def block_until_ready(self):
        pause(0.02)
        return self


@pytest.mark.device
def test_windows_that_are_not_closed_are_caught(measure, tmp_path, monkeypatch):
    """Steps are queued and the clock is read: a rate of dispatching, not of training."""

    def leave_open(self):
        self.metrics = Unfinished()

    monkeypatch.setattr(TrainStage, "wait", leave_open)
    measure({"window_s": 0.002, "rounds": 4}, num_devices=1)
    document = run_json(tmp_path / "run")
    assert document["status"] == "invalid"
    assert "train_step: its work went on for" in document["reason"]


@pytest.mark.device
def test_forward_passes_are_waited_for(measure, monkeypatch):
    genuine, ready = ForwardStage.run, []

    def forward(self, calls):
        genuine(self, calls)
        ready.append(self.metrics.is_ready())

    monkeypatch.setattr(ForwardStage, "run", forward)
    # A pass takes much longer than queueing it.
    measure({"window_s": 0.001, "rounds": 4}, model__hidden=(64,), batch_size=128)
    assert ready and all(ready)


@pytest.mark.device
def test_a_clock_that_does_not_wait_is_caught(measure, tmp_path, monkeypatch):
    """Latencies timed without a barrier are those of dispatch, and cannot be true."""
    genuine = TrainStage.measure_latencies

    def forgetful(self):
        with monkeypatch.context() as patch:
            patch.setattr(self, "run", lambda calls: None)
            genuine(self)

    monkeypatch.setattr(TrainStage, "measure_latencies", forgetful)
    result = measure(num_devices=1, batch_size=4)
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


@pytest.mark.device
def test_a_kernel_of_known_cost_costs_as_much(measure, tmp_path, short_sleep):
    """What sleeps 0.15 s a step takes that long, whichever way it is measured."""
    # Without telemetry, whose thread would move the clock on as well.
    model = config_for(lambda num_classes, **_: Sleeping(num_classes))
    result = measure({"telemetry_s": 0}, num_devices=1, model=model, batch_size=4)
    assert run_json(tmp_path / "run")["status"] == "done"
    stages = result.of_kind(ThroughputRecord)
    assert [stage.stage for stage in stages] == ["train_step", "forward"]
    for stage in stages:
        # Never less, and most of it is that.
        assert SLEEP_S <= stage.step_s < 1.5 * SLEEP_S, stage.stage
        assert stage.images_per_s_high <= 4 / SLEEP_S
        assert stage.images_per_s == pytest.approx(4 / stage.step_s)
    assert SLEEP_S <= stages[0].latency_p50_s < 1.5 * SLEEP_S
    assert result.summary["first_step_s"] >= SLEEP_S


@pytest.mark.device
def test_a_streams_buffers_do_not_flatter_it(measure, tmp_path, slow_feed):
    """A host of 100 batches a second; 8 of them could be made ready in the other stages' time."""
    fields = slow_feed(0.01) | {"data__prefetch_batches": 8, "batch_size": 16, "num_devices": 1}
    result = measure({"feed": "stream", "rounds": 4, "window_s": 0.05}, **fields)
    stages = result.of_kind(ThroughputRecord)
    assert stages[0].images_per_s < 1.1 * 16 / 0.01
    assert {stage.feed for stage in stages} == {"stream"}
    data = run_json(tmp_path / "run")["data"]
    assert data["feed"] == "stream" and data["train_examples"] > 0
    assert data["statistics"] == "the training split's"
    assert len(data["mean"]) == len(data["std"]) and min(data["mean"] + data["std"]) > 0


@pytest.mark.device
def test_the_command_throughput_and_its_flags(run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(next_steps, "LONG_S", 0.0)
    # With a cache every step is compiled twice.
    flags = ("--rounds=6", "--window_s=0.02", "--telemetry_s=0", "--compile_cache=off")
    flags += ("--feed=resident",)
    done = run_cli(f"--experiment={MICRO}", "--mode=throughput", *flags, "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert "train_step" in done.stdout and "images/s" in done.stdout and "p95" in done.stdout
    assert done.stdout.count("this takes about") == 1
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not (tmp_path / "run" / "telemetry.csv").exists()
    document = run_json(tmp_path / "run")
    assert document["data"]["feed"] == "resident" and "telemetry" not in document["summary"]
    compiled = records(tmp_path / "run", "compile")
    assert document["environment"]["compile_cache"] is None
    assert {record["compile_cache"] for record in compiled} == {"off"}


def test_under_fp16_a_step_that_is_skipped_ends_nothing():
    """Of two models: one overflows, and still has scales to try; the other has none left."""
    unscaled = {"loss": np.array([8.0, np.inf]), "count": np.array([4, 4])}

    def metrics(scale):
        return unscaled | {"loss_scale": np.array([2.0**16, scale])}

    loss, images = wait_for_steps((), metrics(1.0))
    assert not np.isfinite(loss) and images == 8
    with pytest.raises(Diverged, match="every loss scale"):
        wait_for_steps((), metrics(LOWEST_SCALE))
    with pytest.raises(Diverged, match="loss is inf: rates"):
        wait_for_steps((), unscaled)


@pytest.mark.parametrize(
    ("losses", "parts"),
    [
        ([2.0, 3.0, 1.0], []),
        ([math.nan, 2.0, 1.0], []),
        ([2.0, 3.0], ["2.0000 to 3.0000"]),
        ([2.0, math.nan], ["2.0000 to nan"]),
        ([math.nan, math.inf], ["nan to inf"]),
        ([2.0], []),
    ],
)
def test_windows_losses_that_do_not_fall_are_warned_of(losses, parts):
    warnings = falling_loss_warnings(losses)
    assert len(warnings) == len(parts) and all(map(str.__contains__, warnings, parts))


def test_the_mean_of_rates_over_equal_work_is_the_work_over_the_time():
    said = describe_windows(100, [1.0, 4.0, 1.0, 2.0, 2.0, 2.0])
    assert said["images_per_s_mean"] == pytest.approx(600 / 12)
    assert said["images_per_s"] == pytest.approx(50)
    assert said["jitter"] == pytest.approx(1.4826 * 12.5 / 50)


def test_windows_that_resemble_one_another_say_less():
    slow_then_fast = describe_windows(100, [2.0, 2.1, 2.0, 2.1, 2.0, 1.0, 1.1, 1.0, 1.1, 1.0])
    by_turns = describe_windows(100, [2.0, 1.0, 2.1, 1.1, 2.0, 1.0, 2.1, 1.1, 2.0, 1.0])
    assert slow_then_fast["autocorrelation"] > 0.7 > 0 > by_turns["autocorrelation"]
    spread, little = (one["images_per_s_standard_error"] for one in (slow_then_fast, by_turns))
    assert spread > 2 * little
