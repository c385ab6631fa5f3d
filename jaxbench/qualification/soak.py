"""The parts soak and corruption: one network's training step for minutes, and bursts of checks.

The soak is a run directory of its own, with the telemetry of the whole time. Its windows stop for
each burst.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, held_up
from jaxbench.cards.card import measured
from jaxbench.cards.from_runs import SOAK, device_id, soak_figures
from jaxbench.clock import Stopwatch
from jaxbench.errors import first_line
from jaxbench.hardware.telemetry.nvml import cuda_ordinals, read_error_counters
from jaxbench.modes.runner import prepare_run, record_run, with_feed
from jaxbench.modes.throughput import TrainStage, rate_and_losses
from jaxbench.qualification.corruption import CorruptionCheck
from jaxbench.qualification.networks import make_config, name_of
from jaxbench.qualification.session import InnerConsole, QualifySession
from jaxbench.records.recorder import Recorder
from jaxbench.schema import Record, ThroughputSummary

_WINDOWS, _SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 60, 0.05, 5.0
_WARM_UP_ROUNDS = 6
# However late it is: of fewer the drift is not known.
_FEWEST_WINDOWS = 3 * FEWEST_FOR_INTERVAL
# Bursts of the search for corruption: one at each end, the others between.
_BURSTS = 10
# Of the time between one burst and the next, what a burst may take at most.
_SHARE_OF_BURSTS = 0.1


def measure(session: QualifySession, time_s: float) -> None:
    """Train one network for a time, and search for silent corruption meanwhile."""
    watch, ordinals = Stopwatch(), cuda_ordinals(session.mesh.devices)
    check = CorruptionCheck(session)
    before = _counters(session, ordinals)
    try:
        check.burst()
        run = _train(session, lambda: time_s - watch.elapsed_s(), check.burst)
        check.burst()
    finally:
        check.report()
    for when, counters in (("before", before), ("after", _counters(session, ordinals))):
        session.figures += [
            measured(f"errors_{when}", count, device=device_id(device), counter=name)
            for device, counts in counters.items()
            for name, count in counts.items()
        ]
    figures = [*soak_figures(run, run.summary.get("telemetry"))]
    session.figures += figures
    for one in figures:
        if one.labels.get("reason") == "sw_power_cap" and one.value:
            text = f"device {one.device} was at its power limit in {one.value:.0%} of the readings"
            session.note("power", "ok", text)


def _train(
    session: QualifySession, left_s: Callable[[], float], between: Callable[[], None]
) -> Recorder:
    """Record windows of the training step while `left_s()` > 0; now and then call `between`."""
    network, precision = session.preset.networks[0], session.preset.precisions[0]
    config = with_feed(make_config(network, precision, session.mesh.num_devices), "synthetic")
    console, workdir = InnerConsole(session, name_of(config)), str(session.folder / SOAK)
    train: TrainStage | None = None

    def summarize(status: str, records: Sequence[Record]) -> ThroughputSummary:
        warnings = held_up("soak: window", dict(enumerate(train.windows_s if train else [], 1)))
        fields = rate_and_losses(records, train)
        return ThroughputSummary(status=status, **fields, warnings=warnings)

    with (
        prepare_run(config, workdir, console) as setup,
        record_run(setup, "throughput", workdir, summarize=summarize) as recorder,
    ):
        program, feed = setup.program, setup.feed
        state, batch = setup.place_train_state(), next(feed.train_batches(0, 1))
        compiled = setup.compile("train_step", program.train_step, state, feed.train_data, batch)
        recorder.write(compiled)
        window_s = max(_SHORTEST_WINDOW_S, min(_LONGEST_WINDOW_S, left_s() / _WINDOWS))
        train = TrainStage(setup, state, window_s, recorder.telemetry)
        with setup.clock.phase("warm_up"):
            train.warm_up(_WARM_UP_ROUNDS)
        with setup.clock.phase("measure"):
            watch, every_s = Stopwatch(), left_s() / _BURSTS
            # No burst between where the set-up has used up the time.
            next_s = every_s if every_s > 0 else math.inf
            while len(train.windows_s) < _FEWEST_WINDOWS or left_s() > window_s:
                train.measure()
                console.progress("training", 0, 0, "")
                if watch.elapsed_s() >= next_s:
                    burst = Stopwatch()
                    between()
                    wait_s = max(every_s, burst.elapsed_s() / _SHARE_OF_BURSTS)
                    next_s = watch.elapsed_s() + wait_s
            train.measure_latencies()
        recorder.write(train.describe(compiled))
    return recorder


def _counters(session: QualifySession, ordinals: Mapping[str, int]) -> dict[str, dict[str, int]]:
    try:
        return read_error_counters(ordinals)
    except Exception as error:  # of NVML or the CUDA driver
        session.note("error counters", "warning", f"cannot be read: {first_line(error)}")
        return {}
