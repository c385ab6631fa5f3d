"""The part networks: training steps of the preset's networks, each a run directory.

Each network runs in each precision with a stated batch, in the first one also with half of it: two
batches tell what part of a step's time does not depend on the batch. On accelerators a run mostly
compiles, for a time that is known only afterwards. So after the first precision the time that each
network took tells what does not fit: it is named, and comes last. Half batches are the first that
are left out; a card without them is complete.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbench.cards.figures import PresetNetwork
from jaxbench.cards.from_runs import network_figures, step_time_figures
from jaxbench.cli import registry
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import OUT_OF_MEMORY, first_line
from jaxbench.modes.runner import with_feed
from jaxbench.modes.throughput import measure_steps
from jaxbench.qualification.plan import minutes_for
from jaxbench.qualification.session import RUNS, InnerConsole, PartFailed, QualifySession
from jaxbench.records.run_dir import folder_name

# Of fewer nobody can tell whether they are independent.
_ROUNDS = 8
# What runs take of each further second of the part, in which windows are longer.
_LONGER_WINDOWS = 0.2


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
    first, *others = (
        [make_config(one, precision, session.mesh.num_devices) for one in session.preset.networks]
        for precision in session.preset.precisions
    )
    measured = [config for config in first if networks.measure(config)]
    networks.halves = [dataclasses.replace(c, batch_size=c.batch_size // 2) for c in measured]
    rest = [*networks.too_late, *itertools.chain(*others), *networks.halves]
    networks.too_late.clear()
    for config in networks.plan(rest):
        networks.measure(config)
    session.figures += step_time_figures(session.figures)
    for note in networks.notes(networks.too_late, networks.elapsed_s()):
        session.note(*note)
    if networks.failed:
        raise PartFailed("; ".join(networks.failed))


def pace_of(run_s: float) -> dict[str, Any]:
    """Return the keywords of a throughput run of `run_s` seconds, compilation excluded."""
    window_s = min(0.5, max(0.05, run_s / (8 * _ROUNDS)))
    # Energy needs readings that are close together, see hardware/telemetry/summary.py.
    telemetry_s = max(0.1, window_s * _ROUNDS / 12)
    return {"rounds": _ROUNDS, "window_s": window_s, "telemetry_s": telemetry_s}


class Networks:
    """Runs networks until the time is over.

    Attributes:
      halves: the runs with half batches.
      failed: what failed, and why.
      too_late: the runs that there was no time for.
    """

    def __init__(self, session: QualifySession, time_s: float):
        self._session, self._time_s = session, time_s
        self.elapsed_s = Stopwatch().elapsed_s
        self._longest_s: dict[str, float] = {}  # of each network's runs
        self.halves: list[Config] = []
        self.failed: list[str] = []
        self.too_late: list[Config] = []
        # Half of the time is for compilation. Half of the batch is one precision more.
        runs = 2 * len(session.preset.networks) * (1 + len(session.preset.precisions))
        self._pace = pace_of(time_s / runs)

    def measure(self, config: Config) -> bool:
        """Run a network and add its figures; return whether it has any."""
        name = name_of(config)
        # The first run of all begins in any case.
        if self._longest_s and self.elapsed_s() + self._expected_s(config) > self._time_s:
            self.too_late.append(config)
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

    def plan(self, configs: Sequence[Config]) -> list[Config]:
        """Return the runs in their order, those for which there is no time last; say which."""
        planned_s, fitting, others = self.elapsed_s(), [], []
        for config in configs:
            fits = planned_s + self._expected_s(config) <= self._time_s
            (fitting if fits else others).append(config)
            planned_s += fits * self._expected_s(config)
        for name, _, text in self.notes(others, planned_s):
            self._session.console.say(f"networks: {name}: {text}")
        return [*fitting, *others]

    def notes(self, left_out: Sequence[Config], needed_s: float) -> Iterator[tuple[str, str, str]]:
        """Yield the name, status and text of a note for each kind of runs that are left out.

        Args:
          needed_s: for the other runs.
        """
        session = self._session
        for kind, status in (("stated", "warning"), ("half", "ok")):
            configs = [one for one in left_out if (one in self.halves) is (kind == "half")]
            needed_s += sum(map(self._expected_s, configs))
            if configs:
                time_s = needed_s + _LONGER_WINDOWS * (needed_s - self._time_s)
                devices = session.mesh.num_devices
                minutes = minutes_for(session.plan, time_s, devices, session.on_cpu)
                names = ", ".join(map(name_of, configs))
                todo = f"give --minutes={minutes} for" if minutes else "no card has it for"
                yield f"no time for {kind} batches", status, f"{todo} {names}"

    def _expected_s(self, config: Config) -> float:
        """Return how long a run takes, by its network's longest one, else by the longest of all."""
        known_s = self._longest_s
        return known_s.get(config.name, max(known_s.values(), default=0.0))

    def _run(self, config: Config, name: str) -> None:
        session, watch = self._session, Stopwatch()
        run = f"{RUNS}/{folder_name(name.replace(' ', '-'))}"
        session.show(name)
        try:
            workdir, console = str(session.folder / run), InnerConsole(session, name)
            config = with_feed(config, "synthetic")
            result = measure_steps(config, workdir, console, only_training=True, **self._pace)
        finally:
            longest_s = self._longest_s.get(config.name, 0.0)
            self._longest_s[config.name] = max(longest_s, watch.elapsed_s())
        if result.summary["status"] == "invalid":
            raise PartFailed("; ".join(result.summary["invalid"]))
        telemetry, backend = result.summary.get("telemetry"), session.mesh.devices[0].platform
        ceilings = session.figures
        session.figures += network_figures(result, telemetry, config.name, run, ceilings, backend)
