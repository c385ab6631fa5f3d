"""Whether the same measurement, repeated, says the same: --mode=throughput ten times.

    python benchmarks/repeatability.py --experiment=quickstart [--repetitions=10] [--rounds=11]

Each repetition is a process of its own, as a user would start it. Prints every 95 % interval of
the training step's rate, and which do not overlap; exit code 1 if there are any. Of eleven rounds
each, intervals lie apart in about one pair of two thousand, if nothing but noise differs.

With --interleaved all repetitions are one process, and its windows are dealt out to them in turn,
so that what drifts hits all alike: on a machine that others use, that tells noise from drift.
"""

import math
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from absl import flags

from jaxbench.analysis.statistics import disjoint_pairs, median_interval
from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.records.reader import RunRecords, load_run
from jaxbench.records.schema import ThroughputRecord

_REPETITIONS = flags.DEFINE_integer("repetitions", 10, "Of the measurement.", lower_bound=2)
_ROUNDS = flags.DEFINE_integer("rounds", 11, "Of each, see jaxbench.main.", lower_bound=6)
_INTERLEAVED = flags.DEFINE_bool("interleaved", False, "Deal one process's windows out.")
_WINDOW_S = flags.DEFINE_float("window_s", 1.0, "Of each, see jaxbench.main.", lower_bound=0.001)


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise BadInput("give --experiment=NAME")
    entry_point.load_experiment(spec, overrides)
    measure = _interleaved if _INTERLEAVED.value else _one_after_the_other
    intervals = []
    for number, (rate, low, high) in enumerate(measure(spec, overrides), 1):
        intervals.append((rate, low, high))
        print(
            f"{number:>3}  {rate:>10,.1f} images/s  (95 % interval {low:,.1f} to {high:,.1f})",
            flush=True,
        )
    apart, pairs = disjoint_pairs(intervals), math.comb(len(intervals), 2)
    shared_low, shared_high = max(i[1] for i in intervals), min(i[2] for i in intervals)
    print(f"{pairs - len(apart)} of {pairs} pairs of intervals overlap")
    for one, other in apart:
        print(f"apart: {one + 1} and {other + 1}")
    if shared_low <= shared_high:
        print(f"all of them hold {shared_low:,.1f} to {shared_high:,.1f} images/s")
    return int(bool(apart))


def _one_after_the_other(spec: str, overrides: list[str]) -> Iterator[tuple[float, float, float]]:
    for _ in range(_REPETITIONS.value):
        yield _measure(spec, overrides, _ROUNDS.value).rates()["train_step"]


def _interleaved(spec: str, overrides: list[str]) -> Iterator[tuple[float, float, float]]:
    run = _measure(spec, overrides, _ROUNDS.value * _REPETITIONS.value)
    [stage] = [one for one in run.of_kind(ThroughputRecord) if one.stage == "train_step"]
    images = stage.images_per_step * stage.steps_per_window
    rates = [images / window_s for window_s in stage.windows_s]
    for number in range(_REPETITIONS.value):
        yield median_interval(rates[number :: _REPETITIONS.value])


def _measure(spec: str, overrides: list[str], rounds: int) -> RunRecords:
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        command = [
            *(sys.executable, "-m", "jaxbench.main", f"--experiment={spec}", *overrides),
            *("--mode=throughput", f"--rounds={rounds}"),
            *(f"--window_s={_WINDOW_S.value}", f"--workdir={run}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return load_run(str(run))


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
