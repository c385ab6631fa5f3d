"""What a command tells besides its results: how long it takes, where they are, what to do next."""

import math
import re
import shlex
import sys

from jaxbench import terminal
from jaxbench.clock import duration
from jaxbench.parallel import processes
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers.console import Console

# Ends after which --resume=auto may come further.
_RESUMABLE = ("interrupted", "preempted", "failed")
# A run that takes longer announces how long.
LONG_S = 600.0


def say_time_left(console: Console, seconds: float, why: str) -> None:
    """Say how long a run still takes if that is long."""
    if seconds >= LONG_S:
        console.say(f"this takes about {duration(seconds)}: {why}")


def say_next_steps(console: Console, run_dir: RunDir) -> None:
    """Say where the results of a run that has ended are, and what can be done with them."""
    path, status = run_dir.path, run_dir.document["status"]
    if status in ("done", "invalid"):  # the commands name the run directory
        say_command(console, "report", "jaxbench", "report", str(path))
        # A flag and its value may be two words.
        line = re.sub(r"\0(--experiment[^\0=]*)\0(?!-)", r"\0\1=", "\0".join(sys.orig_argv))
        experiment = re.findall(r"(?<=\0)--(?:no)?experiment[^\0]*", line)
        size = run_dir.document["config"].get("batch_size", 0)
        # A batch is no larger than the training split.
        most = (run_dir.document.get("data") or {}).get("train_examples", math.inf)
        is_trained = run_dir.document["mode"] == "train" and 2 * size <= most
        if is_trained and experiment and _started_this_command():
            experiment = [word for word in experiment if ".batch_size=" not in word]
            grid = f"--grid=batch_size={size},{2 * size}"
            say_command(console, "next", "jaxbench", "sweep", *experiment, grid)
        elif run_dir.document["mode"] in ("train", "throughput"):
            say_command(console, "compare", "jaxbench", "compare", str(path), "OTHER")
        return
    console.say(f"run directory: {path}")
    if status not in ("interrupted", "preempted"):
        console.say(f"why it ended: the field reason in {path / 'run.json'}")
    if run_dir.document["mode"] == "train" and status in _RESUMABLE:
        if any(path.glob("checkpoints/*")):
            say_resume(console, workdir=str(path), resume="auto")
        else:
            console.say("no checkpoint was written: a new run begins from the start")


def say_resume(console: Console, **flags: str) -> None:
    """Print this process's command with these flags; of two values of a flag the last one counts.

    If the command line is not that of the run (in a notebook, or in one process of several), print
    only the flags.
    """
    changed = [f"--{flag}={value}" for flag, value in flags.items()]
    if _started_this_command():
        words = [word for word in sys.orig_argv if word not in changed]
        say_command(console, "resume", *words, *changed)
    else:
        console.say(f"resume: the same command with {shlex.join(changed)}")


def _started_this_command() -> bool:
    """Return whether this process's command line is that of the whole run."""
    words = sys.orig_argv
    is_command = any(re.fullmatch(r"(.*/)?jaxbench(\.main|\.sweep)?", word) for word in words)
    return is_command and processes.count() == 1


def say_command(console: Console, title: str, *command: str) -> None:
    """Print a command to copy; one that is too long for a line is several, by backslashes."""
    lines = [f"{title}:"]
    for word in map(shlex.quote, command):
        if len(lines[-1]) + len(word) + 1 <= terminal.width() - len(" \\"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    for line in " \\\n".join(lines).splitlines():
        console.print(line)
