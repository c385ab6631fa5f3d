"""What a training run loses to kills: its goodput, and its badput by cause.

    python benchmarks/goodput.py --experiment=quickstart --inject_kills=5 [--seed=0]

First the run is trained without a kill. Then it is trained again, killed with SIGKILL and resumed
--inject_kills times. Each process is killed at a moment drawn from --seed, between its launch and
the end of its equal part of the steps; the first one not before it has its run directory. What is
started ends with this program (on Linux, however that ends).

The figures are those of the runs' own summaries (jaxbench/records/goodput.py says what they mean).
The last lines compare them with this program's clock: the steps and all causes must add up to the
time from the first launch to the last end, and `down` to the time between an end and the next
launch. A run does not see the last moments of a killed process, nor one that was killed before it
opened the run directory, and counts both as down. Exit code 1 where the sum is off by more than
--max_error, or where the run was done before all kills.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from absl import flags

from jaxbench.checkpoints.checkpoint import list_checkpoints
from jaxbench.checkpoints.resume import CHECKPOINTS
from jaxbench.cli import entry_point
from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput
from jaxbench.parallel.child import LAUNCHER
from jaxbench.records.reader import load_run, read_document
from jaxbench.records.writers.console import Console, create_console

_KILLS = flags.DEFINE_integer("inject_kills", 3, "How often the run is killed.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments of the kills.")
_MINUTES = flags.DEFINE_float(
    "checkpoint_minutes", 0.05, "Between two checkpoints.", lower_bound=0.001
)
_DOWN_S = flags.DEFINE_float("down_s", 0.0, "From a kill to the next launch.", lower_bound=0)
_MAX_ERROR = flags.DEFINE_float(
    "max_error", 0.05, "What share of the wall time the sum may be off.", lower_bound=0
)
_POLL_S = 0.02


class Kill(NamedTuple):
    """When a process is killed: whichever of both comes first."""

    moment_s: float  # since its launch
    step: int  # in the run's records


class Process(NamedTuple):
    """When a process was launched and had ended, on this program's clock."""

    launched_s: float
    ended_s: float
    exit_code: int  # -9 where it was killed


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise BadInput("give --experiment=NAME")
    if entry_point.load_experiment(spec, overrides).job != "train":
        raise BadInput(f"--experiment={spec}: takes no training step")
    with contextlib.closing(create_console()) as console, tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        command = [
            *(sys.executable, "-m", "jaxbench.main", f"--experiment={spec}", *overrides),
            *(f"--checkpoint_minutes={_MINUTES.value}", f"--compile_cache={folder}/cache"),
        ]
        # It fills the compilation cache, as a run does that will be killed.
        clock = Stopwatch()
        [whole] = processes = [_run(command, base / "whole", clock, console, "undisturbed")]
        undisturbed = _summary(base / "whole", processes)
        summary = load_run(str(base / "whole")).document.summary
        # With a program in the cache a process is sooner at its first step.
        startup_s = undisturbed["badput_s"]["startup"]
        work_s = whole.ended_s - whole.launched_s - startup_s - undisturbed["badput_s"]["compile"]
        kills = _draw_kills(startup_s, work_s, summary["steps"])
        killed = _kill(command, base / "killed", console, kills, summary["steps"])
        found = _summary(base / "killed", killed)
    _print_causes({"undisturbed": undisturbed, f"{len(killed) - 1} kills": found})
    return int(not _check(found, killed) or len(killed) <= _KILLS.value)


def _draw_kills(startup_s: float, work_s: float, steps: int) -> list[Kill]:
    """Draw the kills of a run that takes `startup_s` to start and `work_s` for its steps."""
    draw, parts = random.Random(_SEED.value), _KILLS.value + 1
    longest_s = startup_s + work_s / parts
    return [Kill(draw.random() * longest_s, steps * number // parts) for number in range(1, parts)]


def _kill(
    command: list[str], run: pathlib.Path, console: Console, kills: list[Kill], steps: int
) -> list[Process]:
    """Train a run to its end with the kills; return its processes."""
    clock, processes = Stopwatch(), []
    for kill in (*kills, None):
        title = f"process {len(processes) + 1} of {len(kills) + 1}"
        one = _run(command, run, clock, console, title, steps, kill)
        processes.append(one)
        names = list_checkpoints(run / CHECKPOINTS)
        left = f"killed; its newest checkpoint: {names[-1] if names else 'none'}"
        how = left if one.exit_code else "done"
        console.say(f"{title}: {how}, after {one.ended_s - one.launched_s:.1f} s")
        if not one.exit_code:
            break
        pause(_DOWN_S.value)
    return processes


def _run(
    command: list[str],
    run: pathlib.Path,
    clock: Stopwatch,
    console: Console,
    title: str,
    steps: int | None = None,
    kill: Kill | None = None,
) -> Process:
    """Start or resume a run of `steps` steps; kill it, or wait for its end."""
    with tempfile.TemporaryFile() as output:
        launched_s = clock.elapsed_s()
        process = subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), "0", *command, f"--workdir={run}", "--resume=auto"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for this program, which ends that one.
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                own_s, step = clock.elapsed_s() - launched_s, _step(run)
                is_due = kill and (own_s >= kill.moment_s or step >= kill.step)
                if is_due and (run / "run.json").exists():
                    break
                console.progress(title, step, steps or step, f"steps  {own_s:.0f} s")
                pause(_POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        ended_s = clock.elapsed_s()
        if code not in (0, -signal.SIGKILL):
            output.seek(0)
            sys.exit(f"{title} ended with {code}:\n{output.read().decode(errors='replace')}")
    return Process(launched_s, ended_s, code)


def _step(run: pathlib.Path) -> int:
    """Return the step that a run's records have come to."""
    try:
        found = re.findall(rb'"step": (\d+)', (run / "metrics.jsonl").read_bytes()[-4096:])
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def _summary(run: pathlib.Path, processes: list[Process]) -> dict[str, Any]:
    """Return the goodput that a run has recorded."""
    summary = read_document(run).summary or {}
    if "goodput" not in summary:
        sys.exit(f"the run has recorded no goodput; it had {len(processes)} processes")
    return {name: summary[name] for name in ("goodput", "badput_s", "total_wall_s", "num_resumes")}


def _print_causes(runs: dict[str, dict[str, Any]]) -> None:
    print(f"{'seconds':<14}" + "".join(f"{how:>14} {'share':>8}" for how in runs))
    steps_s = {how: own["goodput"] * own["total_wall_s"] for how, own in runs.items()}
    rows = {"goodput": steps_s}
    for cause in next(iter(runs.values()))["badput_s"]:
        rows[cause] = {how: own["badput_s"][cause] for how, own in runs.items()}
    rows["total wall"] = {how: own["total_wall_s"] for how, own in runs.items()}
    for name, values_s in rows.items():
        cells = (
            f"{spent_s:14.2f} {spent_s / runs[how]['total_wall_s']:8.1%}"
            for how, spent_s in values_s.items()
        )
        print(f"{name:<14}" + "".join(cells))


def _check(found: dict[str, Any], processes: list[Process]) -> bool:
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
