"""The commands of `jaxbench`, and which of them a flag belongs to."""

import pathlib
import re

from jaxbench.modes.options import OPTIONS

# The module of a command is jaxbench/NAME.py.
COMMANDS = {
    "main": "Run one experiment: train it, or measure how fast the devices are.",
    "sweep": "Run an experiment over a grid of settings.",
    "qualify": "Measure what a machine can do in ten minutes: one card, a verdict.",
    "compare": "Compare the rates of runs, or cards, with intervals.",
    "report": "Make a report of runs, sweeps and cards, one HTML page.",
    "cost": "Show what runs cost: time, money, electricity.",
    "offers": "Write tasks that rent machines for an experiment (SkyPilot, dstack).",
    "new": "Write a template for your own network, optimizer, data or task.",
    "doctor": "Check this machine: versions, devices, driver, disk, host.",
}
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
_DEFINITION = re.compile(r'flags\.DEFINE_\w+\(\s*"(\w+)"')
_FLAG_MODULE = re.compile(r"\b\w+_flags\b")
# Defined when the experiment is known.
_EXPERIMENT = ("main", "sweep")


def commands_with(flag: str) -> list[str]:
    """Return the commands that have a flag; none of them is imported."""
    if flag.partition(".")[0] == "experiment":
        return [*_EXPERIMENT]
    return [name for name in COMMANDS if flag in _flags_in(f"{name}.py", set())]


def _flags_in(path: str, read: set[str]) -> set[str]:
    """Return the flags that a file defines, and the flag modules of cli/ that it names."""
    if path in read or not (_PACKAGE / path).is_file():
        return set()
    read.add(path)
    text = (_PACKAGE / path).read_text()
    found = set(_DEFINITION.findall(text)) | ({*OPTIONS} if "main_flags" in path else set())
    for module in set(_FLAG_MODULE.findall(text)):
        found |= _flags_in(f"cli/{module}.py", read)
    return found
