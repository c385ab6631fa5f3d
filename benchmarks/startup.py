"""Measure the time from the command to the end of the first training step, cold and warm.

    python benchmarks/startup.py --experiment=quickstart [--rounds=7] [--against=CHECKOUT]

Each round starts the entry point twice, for one step, as a user would: with an empty compilation
cache, then with the one that this has filled. The parts are those of the run's own record and add
up to the process, which is timed from outside; `interpreter` is a bare Python, measured in the same
round. On a machine that others use, the processor time tells more than the seconds. What is started
ends with this program (on Linux, however that ends); the time of the launcher that sees to it is
subtracted.

With --against each round starts another checkout of jaxbench too, and every second round starts it
first. The ratios to it, of the time to the end of the first step and of the processor time, follow.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from typing import BinaryIO, NamedTuple

from absl import flags

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval
from jaxbench.cli import entry_point
from jaxbench.clock import Stopwatch
from jaxbench.errors import BadInput
from jaxbench.parallel.child import LAUNCHER
from jaxbench.records.reader import load_run
from jaxbench.schema import CompileRecord

_ROUNDS = flags.DEFINE_integer("rounds", 7, "Of one cold and one warm start.", lower_bound=1)
_AGAINST = flags.DEFINE_string("against", None, "A checkout of jaxbench to compare with.")
_HERE = pathlib.Path(__file__).resolve().parent.parent
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
# The seconds of every part of a start; those of cold and warm starts.
Parts = dict[str, float]
Starts = dict[str, list[Parts]]


class Ended(NamedTuple):
    """What a program printed, the seconds that it took, and the processor's of all its threads."""

    output: str
    whole_s: float
    processor_s: float


def main(spec: str | None, overrides: list[str]) -> int:
    if spec is None:
        raise BadInput("give --experiment=NAME")
    experiment = entry_point.load_experiment(spec, overrides)
    if experiment.default_mode != "train":
        raise BadInput(f"--experiment={spec}: takes no training step")
    checkouts = [_HERE]
    if _AGAINST.value is not None:
        checkouts.append(pathlib.Path(_AGAINST.value).resolve())
        if not (checkouts[-1] / "jaxbench" / "main.py").is_file():
            raise BadInput(f"--against={_AGAINST.value}: must be a checkout of jaxbench")
    arguments = [f"--experiment={spec}", *overrides, "--experiment.max_steps=1"]
    starts: list[Starts] = [{"cold": [], "warm": []} for _ in checkouts]
    for index in range(_ROUNDS.value):
        for which in range(len(checkouts)) if index % 2 else reversed(range(len(checkouts))):
            _start_both(arguments, checkouts[which], starts[which])
    for checkout, own in zip(checkouts, starts, strict=True):
        if len(checkouts) > 1:
            print(checkout)
        _print_parts(own)
    for how in starts[0] if len(checkouts) > 1 else ():
        for part in ("first step done", "processor"):
            _print_ratio(f"{how}, {part}: here / there", starts[0][how], starts[1][how], part)
    _print_ratio("warm / cold, to the end of the first step", starts[0]["warm"], starts[0]["cold"])
    return 0


def _start_both(arguments: list[str], checkout: pathlib.Path, starts: Starts) -> None:
    """Start a checkout cold, then warm, and add the seconds of the parts."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = _run([shutil.which("true")])
        interpreter_s = _run([sys.executable, "-c", "pass"]).whole_s - launcher.whole_s
        for how, outcome in (("cold", "miss"), ("warm", "hit")):
            starts[how].append(
                _start(arguments, folder, how, outcome, launcher, interpreter_s, checkout)
            )


def _print_ratio(
    what: str, these: list[Parts], those: list[Parts], part: str = "first step done"
) -> None:
    """Print the median ratio of a part over the rounds."""
    ratios = [this[part] / that[part] for this, that in zip(these, those, strict=True)]
    ratio, low, high = median_interval(ratios)
    interval = "95 % interval" if len(ratios) >= FEWEST_FOR_INTERVAL else "range"
    print(
        f"{what}: {ratio:.3f} (median of {len(ratios)} rounds, {interval} {low:.3f} to {high:.3f})"
    )


def _folders(folder: str, name: str) -> list[str]:
    return [f"--workdir={folder}/{name}", f"--compile_cache={folder}/cache"]


def _run(command: list[str], checkout: pathlib.Path = _HERE) -> Ended:
    """Run a program, by its whole path, with a checkout's jaxbench, to its end.

    It ends with this one.

    Raises:
      BadInput: it says so of what it was given.
    """
    path = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        watch = Stopwatch()
        process = subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), "0", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            # The folder that this is called in may be another checkout.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"},
            # Ctrl-C in the terminal is for this program, which ends that one.
            start_new_session=True,
        )
        try:
            # Not `process.wait`: this says what the processor did for this program alone.
            _, status, usage = os.wait4(process.pid, 0)
            whole_s = watch.elapsed_s()
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said, complaints = (_read(file) for file in (output, errors))
    if process.returncode == 2 and complaints.strip():
        raise BadInput(complaints.strip().splitlines()[-1].removeprefix("jaxbench: "))
    if process.returncode:
        sys.exit(said + complaints)
    return Ended(said, whole_s, usage.ru_utime + usage.ru_stime)


def _read(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _start(
    arguments: list[str],
    folder: str,
    name: str,
    outcome: str,
    launcher: Ended,
    interpreter_s: float,
    checkout: pathlib.Path,
) -> Parts:
    """Run the experiment's first step; return the seconds of every part."""
    path = pathlib.Path(folder, name)
    command = [sys.executable, "-m", "jaxbench.main", *arguments, *_folders(folder, name)]
    done = _run(command, checkout)
    run = load_run(str(path))
    outcomes = {record.compile_cache for record in run.of_kind(CompileRecord)}
    if outcomes != {outcome}:
        sys.exit(f"the {name} start found {outcomes} in the compilation cache, not {outcome}")
    summary = run.document.summary
    if "startup_s" not in summary:
        sys.exit("this system does not tell when a process was started")
    phases_s = dict(summary["phases_s"])
    import_s = summary["import_s"] - launcher.whole_s
    parts = {"interpreter": interpreter_s, "imports": import_s - interpreter_s}
    for part, phases in _PHASES.items():
        parts[part] = sum(phases_s.pop(phase, 0.0) for phase in phases)
    parts["other"] = sum(phases_s.values())
    total_s = sum(parts.values())
    return parts | {
        "sum": total_s,
        "whole process": done.whole_s - launcher.whole_s,
        "first step done": summary["startup_s"] - launcher.whole_s,
        "processor": done.processor_s - launcher.processor_s,
    }


def _print_parts(starts: Starts) -> None:
    print(f"{'seconds':<16}" + "".join(f"{how + ': median':>14} {'range':>16}" for how in starts))
    for part in starts["cold"][0]:
        row = f"{part:<16}"
        for rounds in starts.values():
            values = [one[part] for one in rounds]
            middle = statistics.median(values)
            row += f"{middle:14.2f} {f'{min(values):.2f} to {max(values):.2f}':>16}"
        print(row)


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
