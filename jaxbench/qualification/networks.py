"""The part networks: training steps of the preset's networks, each a run directory.

Each network runs in each precision with a stated batch, and with the largest that fits. Where the
time ends, what is left is noted and not run.
"""

import contextlib
import dataclasses

from jaxbench.cards.card import Figure, measured
from jaxbench.cards.measured_peak import share_of_measured
from jaxbench.cards.preset import MULTIPLE, PresetNetwork
from jaxbench.cards.run_figures import network_figures
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import OUT_OF_MEMORY, first_line
from jaxbench.modes.runner import RunResult
from jaxbench.modes.setup import prepare_run, with_feed
from jaxbench.modes.throughput import measure_throughput
from jaxbench.qualification.bench import Bench, InnerConsole, PartFailed
from jaxbench.records.run_dir import folder_name
from jaxbench.records.schema import CompileRecord, ThroughputRecord

# Of fewer nobody can tell whether they are independent.
_ROUNDS = 8
# Of the memory that a program may use, what the compiler may plan: the rest is for what it does not
# count, and for fragments.
_SHARE_OF_MEMORY = 0.92
_MOST_HALVINGS = 3
_RUNS = "runs"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One network in one precision, with a batch over all devices."""

    config: Config

    @property
    def name(self) -> str:
        return f"{self.config.name} {self.config.precision} {self.config.batch_size}"

    @property
    def labels(self) -> dict[str, str | int]:
        config = self.config
        return {
            "network": config.name,
            "precision": config.precision,
            "batch": config.batch_size,
        }

    def with_batch(self, batch_size: int) -> "Trial":
        return Trial(dataclasses.replace(self.config, batch_size=batch_size))


def make_trial(network: PresetNetwork, precision: str, num_devices: int) -> Trial:
    """Return a network of the preset over all devices, with its stated batch."""
    config = registry.load(network.spec)
    config.precision, config.num_devices = precision, 0
    config.batch_size = network.batch_per_device * num_devices
    return Trial(config)


def measure_networks(bench: Bench, time_s: float) -> None:
    """Measure as many trials as the time allows, stated batches first.

    Raises:
      PartFailed: some of them failed; the others have been measured.
    """
    networks = Networks(bench, time_s)
    stated = [
        make_trial(network, precision, bench.mesh.num_devices)
        for precision in bench.preset.precisions
        for network in bench.preset.networks
    ]
    done = [(trial, networks.measure(trial)) for trial in stated]
    if bench.preset.largest:
        for trial, result in done:
            if result is not None:
                networks.measure_largest(trial, result)
    else:
        bench.note("largest batches", "ok", "not measured: CPU devices have no memory of their own")
    if networks.too_late:
        bench.note("no time was left for", "warning", ", ".join(networks.too_late))
    if networks.failed:
        raise PartFailed("; ".join(networks.failed))


def pace_of(run_s: float) -> dict[str, float]:
    """Return the keywords of a throughput run of `run_s` seconds, compilation excluded."""
    window_s = min(0.5, max(0.05, run_s / (8 * _ROUNDS)))
    # Energy needs readings that are close together, see hardware/telemetry/summary.py.
    telemetry_s = max(0.1, window_s * _ROUNDS / 12)
    return {"rounds": _ROUNDS, "window_s": window_s, "telemetry_s": telemetry_s}


class Networks:
    """Runs trials until the time is over."""

    def __init__(self, bench: Bench, time_s: float):
        self._bench, self._time_s = bench, time_s
        self._watch = Stopwatch()
        self._longest_s: dict[str, float] = {}  # of each network's runs
        self.failed: list[str] = []
        self.too_late: list[str] = []
        # A run has two stages; each has windows to warm up and to measure.
        runs = 2 * len(bench.preset.networks) * len(bench.preset.precisions)
        self._pace = pace_of(time_s / runs)

    def measure(self, trial: Trial) -> RunResult | None:
        """Run a trial and add its figures; None where it was not run, or failed."""
        if not self._has_time(trial, trial.name):
            return None
        try:
            return self._run(trial)
        except _OutOfMemory:
            self._bench.note(trial.name, "warning", "does not fit in the device's memory")
            return None
        except Exception as error:
            self.failed.append(f"{trial.name}: {first_line(error)}")
            return None

    def measure_largest(self, trial: Trial, result: RunResult) -> None:
        """Do the same with the largest batch that fits, half of it where memory runs out."""
        name = f"{trial.config.name} {trial.config.precision} largest batch"
        if not self._has_time(trial, name):
            return
        try:
            batch = self._estimate(trial, result)
            for _ in range(_MOST_HALVINGS):
                if batch is None or batch <= trial.config.batch_size:
                    break
                with contextlib.suppress(_OutOfMemory):
                    self._run(trial.with_batch(batch))
                    return
                batch = _rounded_down(batch // 2, self._multiple())
        except Exception as error:
            self.failed.append(f"{name}: {first_line(error)}")
            return
        self._bench.note(name, "ok", "not measured: no larger batch than the stated one is known")

    def _has_time(self, trial: Trial, what: str) -> bool:
        known = self._longest_s
        # The first run of all begins in any case.
        next_s = known.get(trial.config.name, max(known.values(), default=0.0))
        if not known or self._watch.elapsed_s() + next_s <= self._time_s:
            return True
        self.too_late.append(what)
        return False

    def _run(self, trial: Trial) -> RunResult:
        bench, watch = self._bench, Stopwatch()
        run = f"{_RUNS}/{folder_name(trial.name.replace(' ', '-'))}"
        bench.show(trial.name)
        try:
            result = measure_throughput(
                trial.config,
                str(bench.folder / run),
                InnerConsole(bench, trial.name),
                **self._pace,
            )
        except Exception as error:
            if OUT_OF_MEMORY.search(repr(error)):
                raise _OutOfMemory(first_line(error)) from None  # or it would hold the arrays
            raise
        finally:
            name = trial.config.name
            self._longest_s[name] = max(self._longest_s.get(name, 0.0), watch.elapsed_s())
        if result.summary["status"] == "invalid":
            raise PartFailed("; ".join(result.summary["invalid"]))
        bench.figures += figures_of(result, trial, run, bench)
        return result

    def _multiple(self) -> int:
        return MULTIPLE * self._bench.mesh.num_devices

    def _estimate(self, trial: Trial, result: RunResult) -> int | None:
        """Return the largest batch by two compiled ones, the trial's and twice as large a one."""
        first, double = _compile_of(result), trial.with_batch(2 * trial.config.batch_size)
        self._bench.show(f"{double.name}: compiling, to estimate the largest batch")
        config = with_feed(double.config, "synthetic")
        with prepare_run(
            config, None, InnerConsole(self._bench, double.name), checked=True
        ) as setup:
            program, feed = setup.program, setup.feed
            batch = next(feed.train_batches(0, 1))
            state = program.abstract_placed_state()
            second = setup.compile("train_step", program.train_step, state, feed.train_data, batch)
        if not (first.memory and second.memory and first.device_memory_bytes):
            return None
        needs_bytes = {
            trial.config.batch_size: first.memory["total_bytes"],
            config.batch_size: second.memory["total_bytes"],
        }
        return estimate_largest(needs_bytes, first.device_memory_bytes, self._multiple())


class _OutOfMemory(Exception):
    """A run did not fit."""


def _compile_of(result: RunResult) -> CompileRecord:
    [record] = [one for one in result.of_kind(CompileRecord) if one.function == "train_step"]
    return record


def estimate_largest(needs_bytes: dict[int, int], limit_bytes: int, multiple: int) -> int | None:
    """Return the largest batch that the line through two batches' memory allows.

    None where memory does not grow with the batch.

    Args:
      needs_bytes: {batch: bytes on each device} of two batches.
      limit_bytes: that a program may use on each device.
      multiple: the result is one of it.
    """
    (small, small_bytes), (large, large_bytes) = sorted(needs_bytes.items())
    per_image = (large_bytes - small_bytes) / (large - small)
    if per_image <= 0:
        return None
    spare_bytes = _SHARE_OF_MEMORY * limit_bytes - small_bytes
    return _rounded_down(int(small + spare_bytes / per_image), multiple)


def _rounded_down(batch: int, multiple: int) -> int:
    return batch // multiple * multiple


def figures_of(result: RunResult, trial: Trial, run: str, bench: Bench) -> list[Figure]:
    """Return the figures of a throughput run; those that are not known are left out."""
    [step] = [one for one in result.of_kind(ThroughputRecord) if one.stage == "train_step"]
    share = share_of_measured(
        bench.figures,
        step.peak and step.peak["arithmetic"],
        trial.config.precision,
        step.flops_per_s_per_device,
        bench.mesh.num_devices,
        bench.mesh.devices[0].platform,
    )
    compiled = vars(_compile_of(result))
    figures = [*network_figures(vars(step), compiled, result.summary, run, trial.labels)]
    if share is not None:
        figures.append(measured("measured_peak_share", share, run=run, **trial.labels))
    return figures
