"""The last lines of a command: where its results are, and the commands to go on with."""

import re
import shlex
import sys

from jaxbench import terminal
from jaxbench.parallel import processes
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers.console import Console

# Ends after which --resume=auto may come further.
_RESUMABLE = ("interrupted", "preempted", "failed")


def say_next_steps(console: Console, run_dir: RunDir) -> None:
    """Say where the results of a run that has ended are, and what can be done with them."""
    path, status = run_dir.path, run_dir.document["status"]
    if status not in ("done", "invalid"):  # the commands below name it
        console.say(f"run directory: {path}")
    if status in ("done", "invalid"):
        say_command(console, "report", "jaxbench", "report", str(path))
        # What was compiled for a machine that is not here has no rates.
        if run_dir.document["mode"] != "compile":
            say_command(console, "compare", "jaxbench", "compare", str(path), "OTHER")
        return
    if status not in ("interrupted", "preempted"):
        console.say(f"why it ended: the field reason in {path / 'run.json'}")
    if run_dir.document["mode"] == "train" and status in _RESUMABLE:
        if any(path.glob("checkpoints/*")):
            say_resume(console, workdir=str(path), resume="auto")
        else:
            console.say("no checkpoint was written: a new run begins from the start")


def say_resume(console: Console, **flags: str) -> None:
    """Print this process's command with these flags; of flags given twice the last one counts.

    If the command line is not that of the run (in a notebook, or in one process of several), print
    only the flags.
    """
    words, changed = sys.orig_argv, [f"--{flag}={value}" for flag, value in flags.items()]
    is_command = any(re.fullmatch(r"(.*/)?jaxbench(\.main|\.sweep)?", word) for word in words)
    if is_command and processes.count() == 1:
        say_command(console, "resume", *words, *changed)
    else:
        console.say(f"resume: the same command with {' '.join(changed)}")


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
