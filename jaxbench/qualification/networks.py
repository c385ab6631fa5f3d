"""The part networks: training steps of the preset's networks, each a run directory.

Each network runs in each precision with a stated batch, in the first one also with half of it: two
batches tell what part of a step's time does not depend on the batch. Then come the largest batches
that fit. If the time ends, what is left is noted and not run.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxbench.analysis.largest_batch import estimate_largest
from jaxbench.cards.figures import PresetNetwork
from jaxbench.cards.from_runs import network_figures, step_time_figures, train_step_of
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import OUT_OF_MEMORY, first_line
from jaxbench.modes.runner import RunResult, prepare_run, with_feed
from jaxbench.modes.throughput import measure_throughput
from jaxbench.qualification.session import RUNS, InnerConsole, PartFailed, QualifySession
from jaxbench.records.run_dir import folder_name

# Of fewer nobody can tell whether they are independent.
_ROUNDS = 8
# The largest batch is a multiple of this number of images on each device.
_MULTIPLE = 8
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


def measure(session: QualifySession, time_s: float) -> None:
    """Measure as many networks as the time allows, stated batches first.

    Raises:
      PartFailed: some of them failed; the others have been measured.
    """
    networks = Networks(session, time_s)
    stated = [
        make_config(network, precision, session.mesh.num_devices)
        for precision in session.preset.precisions
        for network in session.preset.networks
    ]
    done = [(config, networks.measure(config)) for config in stated]
    for config, result in done[: len(session.preset.networks)]:
        if result is not None:
            networks.measure(dataclasses.replace(config, batch_size=config.batch_size // 2))
    session.figures += step_time_figures(session.figures)
    if session.preset.largest:
        for config, result in done:
            if result is not None:
                networks.measure_largest(config, result)
    else:
        session.note("largest batches", "ok", "not measured: CPU devices share the host's memory")
    if networks.too_late:
        session.note("no time was left for", "warning", ", ".join(networks.too_late))
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

    def __init__(self, session: QualifySession, time_s: float):
        self._session, self._time_s = session, time_s
        self._watch = Stopwatch()
        self._longest_s: dict[str, float] = {}  # of each network's runs
        self.failed: list[str] = []
        self.too_late: list[str] = []
        # A run has two stages; each has windows to warm up and to measure. Half of the batch is
        # one precision more.
        runs = 2 * len(session.preset.networks) * (1 + len(session.preset.precisions))
        self._pace = pace_of(time_s / runs)

    def measure(self, config: Config) -> RunResult | None:
        """Run a network and add its figures; return None if it was not run, or failed."""
        result = self._attempt(name_of(config), config, lambda: self._run(config) or False)
        if result is False:
            self._session.note(name_of(config), "warning", "does not fit in the memory")
        return result or None

    def measure_largest(self, config: Config, result: RunResult) -> None:
        """Do the same with the largest batch that fits, half of it if memory runs out."""
        name = f"{config.name} {config.precision} largest batch"
        unit = _MULTIPLE * self._session.mesh.num_devices

        def run() -> bool:
            batch = self._estimate(config, result, unit) or 0
            for _ in range(_MOST_HALVINGS):
                if batch <= config.batch_size:
                    break
                if self._run(dataclasses.replace(config, batch_size=batch)):
                    return True
                batch = batch // 2 // unit * unit
            return False

        if self._attempt(name, config, run) is False:
            text = "not measured: no larger batch than the stated one is known"
            self._session.note(name, "ok", text)

    def _attempt(self, name: str, config: Config, run: Callable[[], Any]) -> Any:
        """Return what a run returns; None if there is no time for it, or it failed."""
        known_s = self._longest_s
        # The first run of all begins in any case.
        next_s = known_s.get(config.name, max(known_s.values(), default=0.0))
        if known_s and self._watch.elapsed_s() + next_s > self._time_s:
            self.too_late.append(name)
            return None
        try:
            return run()
        except Exception as error:
            self.failed.append(f"{name}: {first_line(error)}")
            return None

    def _run(self, config: Config) -> RunResult | None:
        """Run a network and add its figures; return None if memory runs out."""
        session, watch, name = self._session, Stopwatch(), name_of(config)
        run = f"{RUNS}/{folder_name(name.replace(' ', '-'))}"
        session.show(name)
        try:
            result = measure_throughput(
                config, str(session.folder / run), InnerConsole(session, name), **self._pace
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
        telemetry, backend = result.summary.get("telemetry"), session.mesh.devices[0].platform
        ceilings = session.figures
        session.figures += network_figures(result, telemetry, config.name, run, ceilings, backend)
        return result

    def _estimate(self, config: Config, result: RunResult, unit: int) -> int | None:
        """Return the largest batch by two compiled ones, the config's and twice as large a one."""
        _, first = train_step_of(result)
        double = dataclasses.replace(config, batch_size=2 * config.batch_size)
        double = with_feed(double, "synthetic")
        self._session.show(f"{name_of(double)}: compiling, to estimate the largest batch")
        console = InnerConsole(self._session, name_of(double))
        with prepare_run(double, None, console, checked=True) as setup:
            program, feed = setup.program, setup.feed
            batch = next(feed.train_batches(0, 1))
            state = program.abstract_placed_state()
            second = setup.compile("train_step", program.train_step, state, feed.train_data, batch)
        if not (first.memory and second.memory and first.device_memory_bytes):
            return None
        records = {config.batch_size: first, double.batch_size: second}
        needed_bytes = {batch: record.memory["total_bytes"] for batch, record in records.items()}
        return estimate_largest(needed_bytes, _SHARE_OF_MEMORY * first.device_memory_bytes, unit)
