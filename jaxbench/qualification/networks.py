"""The part networks: training steps of the preset's networks, each a run directory.

Each network runs in each precision with a stated batch, in the first one also with half of it: two
batches tell what part of a step's time does not depend on the batch. Then come the largest batches
that fit. If the time ends, what is left is noted and not run.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from jaxbench.analysis.largest_batch import estimate_largest
from jaxbench.cards.from_runs import network_figures, step_time_figures, train_step_of
from jaxbench.cards.preset import MULTIPLE, PresetNetwork
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import OUT_OF_MEMORY, first_line
from jaxbench.modes.runner import RunResult, prepare_run, with_feed
from jaxbench.modes.throughput import measure_throughput
from jaxbench.qualification.bench import RUNS, Bench, InnerConsole, PartFailed
from jaxbench.records.run_dir import folder_name

# Of fewer nobody can tell whether they are independent.
_ROUNDS = 8
# Of the memory that a program may use, what the compiler may plan: the rest is for what it does not
# count, and for fragments.
_SHARE_OF_MEMORY = 0.92
_MOST_HALVINGS = 3


def name_of(config: Config) -> str:
    """Name a measurement by its network, precision and global batch size."""
    return f"{config.name} {config.precision} {config.batch_size}"


def make_config(network: PresetNetwork, precision: str, num_devices: int) -> Config:
    """Return a network of the preset over all devices, with its stated batch."""
    config: Any = registry.load(network.spec)
    config.precision, config.num_devices = precision, 0
    config.batch_size = network.batch_per_device * num_devices
    return config


def measure(bench: Bench, time_s: float) -> None:
    """Measure as many networks as the time allows, stated batches first.

    Raises:
      PartFailed: some of them failed; the others have been measured.
    """
    networks = Networks(bench, time_s)
    stated = [
        make_config(network, precision, bench.mesh.num_devices)
        for precision in bench.preset.precisions
        for network in bench.preset.networks
    ]
    done = [(config, networks.measure(config)) for config in stated]
    for config, result in done[: len(bench.preset.networks)]:
        if result is not None:
            networks.measure(dataclasses.replace(config, batch_size=config.batch_size // 2))
    bench.figures += step_time_figures(bench.figures)
    if bench.preset.largest:
        for config, result in done:
            if result is not None:
                networks.measure_largest(config, result)
    else:
        bench.note("largest batches", "ok", "not measured: CPU devices have no memory of their own")
    if networks.too_late:
        bench.note("no time was left for", "warning", ", ".join(networks.too_late))
    if networks.failed:
        raise PartFailed("; ".join(networks.failed))


def pace_of(run_s: float) -> dict[str, Any]:
    """Return the keywords of a throughput run of `run_s` seconds, compilation excluded."""
    window_s = min(0.5, max(0.05, run_s / (8 * _ROUNDS)))
    # Energy needs readings that are close together, see hardware/telemetry/summary.py.
    telemetry_s = max(0.1, window_s * _ROUNDS / 12)
    return {"rounds": _ROUNDS, "window_s": window_s, "telemetry_s": telemetry_s}


class Networks:
    """Runs networks until the time is over."""

    def __init__(self, bench: Bench, time_s: float):
        self._bench, self._time_s = bench, time_s
        self._watch = Stopwatch()
        self._longest_s: dict[str, float] = {}  # of each network's runs
        self._unit = MULTIPLE * bench.mesh.num_devices
        self.failed: list[str] = []
        self.too_late: list[str] = []
        # A run has two stages; each has windows to warm up and to measure. Half of the batch is
        # one precision more.
        runs = 2 * len(bench.preset.networks) * (1 + len(bench.preset.precisions))
        self._pace = pace_of(time_s / runs)

    def measure(self, config: Config) -> RunResult | None:
        """Run a network and add its figures; return None if it was not run, or failed."""
        with self._attempt(config, name_of(config)) as has_time:
            if has_time:
                if result := self._run(config):
                    return result
                self._bench.note(name_of(config), "warning", "does not fit in the device's memory")
        return None

    def measure_largest(self, config: Config, result: RunResult) -> None:
        """Do the same with the largest batch that fits, half of it if memory runs out."""
        name = f"{config.name} {config.precision} largest batch"
        with self._attempt(config, name) as has_time:
            if not has_time:
                return
            batch = self._estimate(config, result) or 0
            for _ in range(_MOST_HALVINGS):
                if batch <= config.batch_size:
                    break
                if self._run(dataclasses.replace(config, batch_size=batch)):
                    return
                batch = batch // 2 // self._unit * self._unit
            text = "not measured: no larger batch than the stated one is known"
            self._bench.note(name, "ok", text)

    @contextlib.contextmanager
    def _attempt(self, config: Config, name: str) -> Iterator[bool]:
        """Return whether there is time for a run; an error inside the `with` is noted."""
        known_s = self._longest_s
        # The first run of all begins in any case.
        next_s = known_s.get(config.name, max(known_s.values(), default=0.0))
        has_time = not known_s or self._watch.elapsed_s() + next_s <= self._time_s
        if not has_time:
            self.too_late.append(name)
        try:
            yield has_time
        except Exception as error:
            self.failed.append(f"{name}: {first_line(error)}")

    def _run(self, config: Config) -> RunResult | None:
        """Run a network and add its figures; return None if memory runs out."""
        bench, watch, name = self._bench, Stopwatch(), name_of(config)
        run = f"{RUNS}/{folder_name(name.replace(' ', '-'))}"
        bench.show(name)
        try:
            result = measure_throughput(
                config, str(bench.folder / run), InnerConsole(bench, name), **self._pace
            )
        except Exception as error:
            if OUT_OF_MEMORY.search(repr(error)):
                return None
            raise
        finally:
            longest_s = self._longest_s.get(config.name, 0.0)
            self._longest_s[config.name] = max(longest_s, watch.elapsed_s())
        if result.summary["status"] == "invalid":
            raise PartFailed("; ".join(result.summary["invalid"]))
        bench.figures += network_figures(
            *train_step_of(result),
            result.summary.get("telemetry"),
            config.name,
            run,
            bench.figures,
            bench.mesh.devices[0].platform,
        )
        return result

    def _estimate(self, config: Config, result: RunResult) -> int | None:
        """Return the largest batch by two compiled ones, the config's and twice as large a one."""
        _, first = train_step_of(result)
        double = dataclasses.replace(config, batch_size=2 * config.batch_size)
        double = with_feed(double, "synthetic")
        self._bench.show(f"{name_of(double)}: compiling, to estimate the largest batch")
        console = InnerConsole(self._bench, name_of(double))
        with prepare_run(double, None, console, checked=True) as setup:
            program, feed = setup.program, setup.feed
            batch = next(feed.train_batches(0, 1))
            state = program.abstract_placed_state()
            second = setup.compile("train_step", program.train_step, state, feed.train_data, batch)
        if not (first.memory and second.memory and first.device_memory_bytes):
            return None
        records = {config.batch_size: first, double.batch_size: second}
        needed_bytes = {batch: record.memory["total_bytes"] for batch, record in records.items()}
        limit_bytes = _SHARE_OF_MEMORY * first.device_memory_bytes
        return estimate_largest(needed_bytes, limit_bytes, self._unit)
