"""The XLA flags that were measured to make training steps quicker: backend_flags.csv."""

import csv
import importlib.metadata
import importlib.resources
import os
from typing import NamedTuple

from jaxbench.hardware.accelerators import installed_plugin
from jaxbench.xla.variables import added_flags


class BackendFlag(NamedTuple):
    """A line of backend_flags.csv.

    Attributes:
      platform: JAX's name of the devices.
      flag: as XLA_FLAGS takes it.
      jaxlib: releases that it was measured with, such as `0.10`, apart by spaces.
      why: what it changes.
      measured: the command, when, and what it brought.
    """

    platform: str
    flag: str
    jaxlib: str
    why: str
    measured: str


def load_backend_flags() -> list[BackendFlag]:
    """Return the lines of backend_flags.csv."""
    text = importlib.resources.files(__package__).joinpath("backend_flags.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [BackendFlag(**row) for row in rows]


def add_backend_flags() -> list[str]:
    """Add the flags for this jaxlib's CPU devices to XLA_FLAGS; return those that were added.

    The user's own value of a flag stays. Nothing is added where JAX has its devices already: XLA
    has read XLA_FLAGS by then. Nor where a plugin for accelerators is installed, for it reads
    XLA_FLAGS too, and aborts at a flag that it does not know.
    """
    from jax._src import xla_bridge  # the question has no public name

    if xla_bridge.backends_are_initialized() or any(map(installed_plugin, ("tpu", "cuda", "rocm"))):
        return []
    release = ".".join(importlib.metadata.version("jaxlib").split(".")[:2])
    given = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in given}
    added = [
        one.flag
        for one in load_backend_flags()
        if one.platform == "cpu"
        and release in one.jaxlib.split()
        and one.flag.partition("=")[0] not in names
    ]
    if added:
        os.environ["XLA_FLAGS"] = " ".join([*added, *given])
        added_flags.update(added)
    return added
