"""The last lines of a command: where its results are, and the commands to go on with."""

import pathlib
import shlex
import sys
from collections.abc import Collection, Sequence

from jaxbench import terminal
from jaxbench.parallel import processes
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers.console import Console

# Ends after which --resume=auto may come further.
_RESUMABLE = ("interrupted", "preempted", "failed")


def say_next_steps(console: Console, run_dir: RunDir) -> None:
    """Say where the results of a run that has ended are, and what can be done with them."""
    path, status = run_dir.path, run_dir.document["status"]
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
            say_resume(console, "main", {"workdir": str(path), "resume": "auto"})
        else:
            console.say("no checkpoint was written: a new run begins from the start")


def say_resume(console: Console, name: str, flags: dict[str, str]) -> None:
    """Print this process's own command, `jaxbench NAME`, with these flags.

    Where the command line is not that of the run (of a notebook, or of one process of several),
    only the flags are said.
    """
    own = [f"--{flag}={value}" for flag, value in flags.items()]
    words = sys.orig_argv if processes.count() == 1 else []
    for place, word in enumerate(words):
        if word == f"jaxbench.{name}":
            end, front = place + 1, words[: place + 1]
        elif pathlib.Path(word).name == "jaxbench" and words[place + 1 : place + 2] == [name]:
            end, front = place + 2, ["jaxbench", name]
        else:
            continue
        return say_command(console, "resume", *front, *_without(words[end:], flags), *own)
    console.say(f"resume: the same command with {' '.join(own)}")


def _without(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    kept, is_value = [], False
    for argument in arguments:
        flag, equals, _ = argument.lstrip("-").partition("=")
        is_flag = argument.startswith("-") and flag in flags
        if not is_flag and not is_value:
            kept.append(argument)
        is_value = is_flag and not equals
    return kept


def say_command(console: Console, what: str, *command: str) -> None:
    """Print a command to copy; one that is too long for a line is several, by backslashes."""
    lines = [f"{what}:"]
    for word in map(shlex.quote, command):
        if len(lines[-1]) + len(word) + 1 <= terminal.width() - len(" \\"):
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    for line in " \\\n".join(lines).splitlines():
        console.print(line)
