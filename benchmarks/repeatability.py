"""Whether the same measurement, repeated, says the same: --mode=throughput ten times.

    python benchmarks/repeatability.py --experiment=quickstart [--repetitions=10] [--rounds=11]

Each repetition is a process of its own, as a user would start it. Prints every 95 % interval of
the training step's rate, and which do not overlap; exit code 1 if there are any. Of eleven rounds
each, intervals lie apart in about one pair of two thousand, if nothing but noise differs.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

from absl import flags

from jaxbench import cli
from jaxbench.runs import load_run

_REPETITIONS = flags.DEFINE_integer("repetitions", 10, "Of the measurement.", lower_bound=2)
_ROUNDS = flags.DEFINE_integer("rounds", 11, "Of each, see jaxbench.main.", lower_bound=6)
_WINDOW_S = flags.DEFINE_float("window_s", 1.0, "Of each, see jaxbench.main.", lower_bound=0.001)


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise cli.BadInput("give --experiment=NAME")
    cli.load_experiment(spec, overrides)
    intervals = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_REPETITIONS.value):
            run = pathlib.Path(folder, str(number))
            command = [
                *(sys.executable, "-m", "jaxbench.main", f"--experiment={spec}", *overrides),
                *("--mode=throughput", f"--rounds={_ROUNDS.value}"),
                *(f"--window_s={_WINDOW_S.value}", f"--workdir={run}"),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stdout + done.stderr, file=sys.stderr)
                return 1
            rate, low, high = load_run(str(run)).rates()["train_step"]
            intervals.append((low, high))
            print(
                f"{number + 1:>3}  {rate:>10,.1f} images/s  (95 % interval {low:,.1f} to "
                f"{high:,.1f})",
                flush=True,
            )
    apart = [
        (one + 1, other + 1)
        for one, other in itertools.combinations(range(len(intervals)), 2)
        if intervals[one][1] < intervals[other][0] or intervals[other][1] < intervals[one][0]
    ]
    pairs = len(intervals) * (len(intervals) - 1) // 2
    shared_low, shared_high = max(i[0] for i in intervals), min(i[1] for i in intervals)
    print(f"{pairs - len(apart)} of {pairs} pairs of intervals overlap")
    for one, other in apart:
        print(f"apart: {one} and {other}")
    if shared_low <= shared_high:
        print(f"all of them hold {shared_low:,.1f} to {shared_high:,.1f} images/s")
    return int(bool(apart))


if __name__ == "__main__":
    cli.run_over_experiments(main)
