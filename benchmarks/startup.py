"""How long it takes from the command to the end of the first training step, cold and warm.

    python benchmarks/startup.py --experiment=quickstart [--rounds=7] [--max_ratio=0.4]

Each round starts the entry point twice, for one step, as a user would: with an empty compilation
cache, then with the one that this has filled. The parts are those of the run's own record and add
up to the process, which is timed from outside; `interpreter` is a bare Python, measured in the same
round. Of a machine that others use the processor time tells more than the seconds.

Before the rounds a run that is not timed counts how often both steps are traced and compiled.
Exit code 1 if that is not once each, or if the ratio of warm to cold is above --max_ratio by more
than its interval.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from absl import flags

from jaxbench import cli
from jaxbench.clock import Stopwatch
from jaxbench.runs import load_run
from jaxbench.spread import FEWEST_FOR_INTERVAL, median_interval

_ROUNDS = flags.DEFINE_integer("rounds", 7, "Of one cold and one warm start.", lower_bound=1)
_MAX_RATIO = flags.DEFINE_float("max_ratio", 1.0, "What a warm start may take of a cold one.")
# What the record's phases are shown as; all others are `other`.
_PHASES = {
    "devices": ("devices",),
    "data": ("read_data", "place_data"),
    "build": ("build",),
    "init": ("init",),
    "lower": ("lower",),
    "compile": ("compile",),
    "first step": ("train", "data_wait"),
    "evaluation": ("eval",),
}
# The entry point with listeners: what is traced goes through the Python of a step.
_COUNTING = """
import collections, functools, json, sys
import jax
from jaxbench import cli, main, program

counts = collections.Counter()

def counted(make, name):
    def remade(*args, **kwargs):
        step = make(*args, **kwargs)
        @functools.wraps(step)
        def noted(*args):
            counts[name + " traced"] += 1
            return step(*args)
        return noted
    return remade

program.make_train_step = counted(program.make_train_step, "train_step")
program.make_eval_step = counted(program.make_eval_step, "eval_step")

def listen(event, duration_s, **details):
    # JAX calls everything under pmap `_fun`.
    name = details.get("fun_name", "")
    if event == "/jax/core/compile/backend_compile_duration" and ("_fun" in name or "step" in name):
        counts["compiled"] += 1

jax.monitoring.register_event_duration_secs_listener(listen)
try:
    cli.run(main.main)
finally:
    print(json.dumps(counts))
"""


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise cli.BadInput("give --experiment=NAME")
    experiment = cli.load_experiment(spec, overrides)
    if experiment.job != "train":
        raise cli.BadInput(f"--experiment={spec}: takes no training step")
    arguments = [f"--experiment={spec}", *overrides, "--experiment.max_steps=1"]
    is_once = _count(arguments)
    starts: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(_ROUNDS.value):
        with tempfile.TemporaryDirectory() as folder:
            interpreter_s, _ = _timed(["-c", "pass"])
            for how, outcome in (("cold", "miss"), ("warm", "hit")):
                starts[how].append(_start(arguments, folder, how, outcome, interpreter_s))
    _print_parts(starts)
    ratios = [
        warm["first step done"] / cold["first step done"]
        for cold, warm in zip(starts["cold"], starts["warm"], strict=True)
    ]
    ratio, low, high = median_interval(ratios)
    interval = "95 % interval" if len(ratios) >= FEWEST_FOR_INTERVAL else "range"
    print(
        f"warm / cold, to the end of the first step: {ratio:.3f} "
        f"(median of {len(ratios)} rounds, {interval} {low:.3f} to {high:.3f})"
    )
    if low > _MAX_RATIO.value:
        print(f"a warm start takes more than {_MAX_RATIO.value:.0%} of a cold one")
    return int(low > _MAX_RATIO.value or not is_once)


def _count(arguments: list[str]) -> bool:
    """Prints how often the steps are traced and compiled; returns whether it is once each."""
    with tempfile.TemporaryDirectory() as folder:
        done = _run(["-c", _COUNTING, *arguments], folder, "counted")
    counts = json.loads(done.splitlines()[-1])
    print(", ".join(f"{what} {count}" for what, count in sorted(counts.items())), flush=True)
    return counts == {"train_step traced": 1, "eval_step traced": 1, "compiled": 2}


def _run(command: list[str], folder: str, name: str) -> str:
    flags_ = [f"--workdir={folder}/{name}", f"--compile_cache={folder}/cache"]
    done = subprocess.run([sys.executable, *command, *flags_], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def _timed(command: list[str]) -> tuple[float, float]:
    """Returns the seconds that Python takes for this and the processor's, of all its threads."""
    watch = Stopwatch()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        whole_s = watch.elapsed_s()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(output.read().decode())
    return whole_s, usage.ru_utime + usage.ru_stime


def _start(
    arguments: list[str], folder: str, name: str, outcome: str, interpreter_s: float
) -> dict[str, float]:
    """Runs the experiment's first step; returns the seconds of every part."""
    path = pathlib.Path(folder, name)
    whole_s, processor_s = _timed(
        [
            *("-m", "jaxbench.main", *arguments),
            *(f"--workdir={path}", f"--compile_cache={folder}/cache"),
        ]
    )
    run = load_run(str(path))
    outcomes = {record["compile_cache"] for record in run.of_kind("compile")}
    if outcomes != {outcome}:
        sys.exit(f"the {name} start found {outcomes} in the compilation cache, not {outcome}")
    summary = run.document["summary"]
    if summary["startup_s"] is None:
        sys.exit("this system does not tell when a process was started")
    phases_s = dict(summary["phases_s"])
    parts = {"interpreter": interpreter_s, "imports": summary["before_s"] - interpreter_s}
    for part, phases in _PHASES.items():
        parts[part] = sum(phases_s.pop(phase, 0.0) for phase in phases)
    parts["other"] = sum(phases_s.values())
    total_s = sum(parts.values())
    return parts | {
        "sum": total_s,
        "whole process": whole_s,
        "first step done": summary["startup_s"],
        "processor": processor_s,
    }


def _print_parts(starts: dict[str, list[dict[str, float]]]) -> None:
    print(f"{'seconds':<16}" + "".join(f"{how + ': median':>14} {'range':>16}" for how in starts))
    for part in starts["cold"][0]:
        row = f"{part:<16}"
        for rounds in starts.values():
            values = [one[part] for one in rounds]
            middle = statistics.median(values)
            row += f"{middle:14.2f} {f'{min(values):.2f} to {max(values):.2f}':>16}"
        print(row)


if __name__ == "__main__":
    cli.run_over_experiments(main)
