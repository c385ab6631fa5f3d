"""The part networks: training steps of the preset's networks, each a run directory.

Each network runs in each precision with a stated batch, in the first one also with half of it: two
batches tell what part of a step's time does not depend on the batch. If the time ends, what is left
is noted and not run.
"""

import dataclasses
from typing import Any

from jaxbench.cards.figures import PresetNetwork
from jaxbench.cards.from_runs import network_figures, step_time_figures
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import OUT_OF_MEMORY, first_line
from jaxbench.modes.throughput import measure_throughput
from jaxbench.qualification.session import RUNS, InnerConsole, PartFailed, QualifySession
from jaxbench.records.run_dir import folder_name

# Of fewer nobody can tell whether they are independent.
_ROUNDS = 8


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
    for config in [config for config in stated if networks.measure(config)]:
        if config.precision == session.preset.precisions[0]:
            networks.measure(dataclasses.replace(config, batch_size=config.batch_size // 2))
    session.figures += step_time_figures(session.figures)
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

    def measure(self, config: Config) -> bool:
        """Run a network and add its figures; return whether it has any."""
        name, known_s = name_of(config), self._longest_s
        # The first run of all begins in any case.
        next_s = known_s.get(config.name, max(known_s.values(), default=0.0))
        if known_s and self._watch.elapsed_s() + next_s > self._time_s:
            self.too_late.append(name)
            return False
        try:
            self._run(config, name)
            return True
        except Exception as error:
            if OUT_OF_MEMORY.search(repr(error)):
                self._session.note(name, "warning", "does not fit in the memory")
            else:
                self.failed.append(f"{name}: {first_line(error)}")
            return False

    def _run(self, config: Config, name: str) -> None:
        session, watch = self._session, Stopwatch()
        run = f"{RUNS}/{folder_name(name.replace(' ', '-'))}"
        session.show(name)
        try:
            result = measure_throughput(
                config, str(session.folder / run), InnerConsole(session, name), **self._pace
            )
        finally:
            longest_s = self._longest_s.get(config.name, 0.0)
            self._longest_s[config.name] = max(longest_s, watch.elapsed_s())
        if result.summary["status"] == "invalid":
            raise PartFailed("; ".join(result.summary["invalid"]))
        telemetry, backend = result.summary.get("telemetry"), session.mesh.devices[0].platform
        ceilings = session.figures
        session.figures += network_figures(result, telemetry, config.name, run, ceilings, backend)
