"""Measure what a training run loses to kills: its goodput, and its badput by cause.

    python benchmarks/goodput.py --experiment=quickstart --inject_kills=5 [--seed=0]

First the run is trained without a kill. Then it is trained again, killed with SIGKILL and resumed
--inject_kills times. Each process is killed at a moment drawn from --seed, between its launch and
the end of its equal part of the steps; the first one not before it has its run directory. What is
started ends with this program (on Linux, however that ends).

The table is that of the runs' own summaries (jaxbench/records/goodput.py explains it). The last
lines compare it with this program's clock: the steps and all causes must add up to the time from
the first launch to the last end, and `down` to the time between an end and the next launch. A run
does not see the last moments of a killed process, nor a process that was killed before it opened
the run directory, and counts both as down. Exit code 1 if the sum is off by more than --max_error,
or if the run was done before all kills.
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput
from jaxbench.parallel.child import LAUNCHER
from jaxbench.records.reader import read_document

_KILLS = flags.DEFINE_integer("inject_kills", 3, "How often the run is killed.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments of the kills.")
_MAX_ERROR = flags.DEFINE_float(
    "max_error", 0.05, "By what fraction of the wall time the sum may be off.", lower_bound=0
)
_POLL_S = 0.02


class Process(NamedTuple):
    """When a process was launched and had ended, on this program's clock."""

    launched_s: float
    ended_s: float
    exit_code: int  # -9 if it was killed


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise BadInput("give --experiment=NAME")
    if entry_point.load_experiment(spec, overrides).default_mode != "train":
        raise BadInput(f"--experiment={spec}: takes no training step")
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        command = [
            *(sys.executable, "-m", "jaxbench.main", f"--experiment={spec}", *overrides),
            *("--checkpoint_minutes=0.05", f"--compile_cache={folder}/cache", "--resume=auto"),
        ]
        # It fills the compilation cache, as a run does that will be killed.
        [whole] = processes = [_run(command, base / "whole", Stopwatch())]
        undisturbed = _summary(base / "whole", processes)
        badput_s, steps = undisturbed["badput_s"], undisturbed["steps"]
        # With a program in the cache a process is sooner at its first step.
        work_s = whole.ended_s - whole.launched_s - badput_s["startup"] - badput_s["compile"]
        draw, parts = random.Random(_SEED.value), _KILLS.value + 1
        clock, processes = Stopwatch(), []
        for number in range(1, parts + 1):
            kill_s = draw.random() * (badput_s["startup"] + work_s / parts)
            kill = (kill_s, steps * number // parts) if number < parts else None
            processes.append(one := _run(command, base / "killed", clock, kill))
            how = "killed" if one.exit_code else "done"
            print(
                f"process {number} of {parts}: {how} after {one.ended_s - one.launched_s:.1f} s",
                flush=True,
            )
            if not one.exit_code:
                break
        killed = _summary(base / "killed", processes)
    _print_causes({"undisturbed": undisturbed, f"{len(processes) - 1} kills": killed})
    return int(not _agrees(killed, processes) or len(processes) < parts)


def _run(
    command: list[str],
    run: pathlib.Path,
    clock: Stopwatch,
    kill: tuple[float, int] | None = None,
) -> Process:
    """Start or resume a run; kill it so long after its launch or at that step, or let it end."""
    with tempfile.TemporaryFile() as output:
        launched_s = clock.elapsed_s()
        process = subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), "0", *command, f"--workdir={run}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for this program, which ends that one.
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                is_due = kill and (
                    clock.elapsed_s() - launched_s >= kill[0] or _step(run) >= kill[1]
                )
                if is_due and (run / "run.json").exists():
                    break
                pause(_POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        ended_s = clock.elapsed_s()
        if code not in (0, -signal.SIGKILL):
            output.seek(0)
            sys.exit(f"a process ended with {code}:\n{output.read().decode(errors='replace')}")
    return Process(launched_s, ended_s, code)


def _step(run: pathlib.Path) -> int:
    """Return the step that a run's records have come to."""
    try:
        found = re.findall(rb'"step": (\d+)', (run / "metrics.jsonl").read_bytes()[-4096:])
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def _summary(run: pathlib.Path, processes: list[Process]) -> dict:
    """Return a run's summary, which has its goodput."""
    summary = read_document(run).summary or {}
    if "goodput" not in summary:
        sys.exit(f"the run has recorded no goodput; it had {len(processes)} processes")
    return summary


def _print_causes(runs: dict[str, dict]) -> None:
    print(f"{'seconds':<14}" + "".join(f"{how:>14} {'fraction':>8}" for how in runs))
    columns = [
        {"goodput": own["goodput"] * own["total_wall_s"], **own["badput_s"]}
        | {"total wall": own["total_wall_s"]}
        for own in runs.values()
    ]
    for name in columns[0]:
        cells = (f"{one[name]:14.2f} {one[name] / one['total wall']:8.1%}" for one in columns)
        print(f"{name:<14}" + "".join(cells))


def _agrees(found: dict, processes: list[Process]) -> bool:
    """Print how the record compares with this program's clock; return whether it agrees."""
    wall_s = processes[-1].ended_s - processes[0].launched_s
    down_s = sum(b.launched_s - a.ended_s for a, b in zip(processes, processes[1:], strict=False))
    sum_s = found["goodput"] * found["total_wall_s"] + sum(found["badput_s"].values())
    error = sum_s / wall_s - 1
    agrees = abs(error) <= _MAX_ERROR.value
    print(f"processes: {len(processes)}, of which the record knows {found['num_resumes'] + 1}")
    print(f"goodput and badput add up to {sum_s:.2f} s, by this program's clock {wall_s:.2f} s")
    print(f"down: {found['badput_s']['down']:.2f} s, by this program's clock {down_s:.2f} s")
    print(f"--max_error={_MAX_ERROR.value:g}: {error:+.1%}, {'within' if agrees else 'above'}")
    return agrees


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
