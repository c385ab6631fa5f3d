"""The modes of `jaxbench.main`: one file each, and a line here. Importing this loads none of them.

`setup` is how each of them begins, `runner` is what they share.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxbench.config import Experiment
from jaxbench.errors import BadInput, nearest

# What some options may be.
FEEDS = ("synthetic", "resident", "stream")
SCALINGS = ("both", "weak", "strong")
FEWEST_ROUNDS = 6

_CHECKPOINTS = ("checkpoint_minutes", "checkpoint_epochs", "keep_checkpoints")
_PRICE = ("usd_per_hour", "offer", "prices")
# How processes join: each is given its own.
COORDINATOR_FLAGS = ("distributed", "coordinator_address", "num_processes", "process_id")
_PROCESSES = (
    *(*COORDINATOR_FLAGS, "local_processes"),
    *("initialization_timeout_s", "heartbeat_timeout_s"),
)


class Mode(NamedTuple):
    """The function of a mode, its flags, and the experiments that it is for.

    Attributes:
      module: its file in this folder.
      function: what runs it, called with the experiment, the workdir, and its keywords' flags.
      flags: those that it has besides `workdir` and `telemetry_s`, which all have.
      job: the kind of experiment that it is for, see `Experiment.job`.
    """

    module: str
    function: str
    flags: tuple[str, ...]
    job: str = "train"


MODES = {
    "train": Mode(
        "train",
        "train_and_evaluate",
        ("profile", "target_accuracy", "resume", "wandb", *_CHECKPOINTS, *_PRICE, *_PROCESSES),
    ),
    "throughput": Mode(
        "throughput",
        "measure_throughput",
        ("feed", "steps_per_call", "rounds", "window_s", "profile", *_PRICE, *_PROCESSES),
    ),
    "scaling": Mode(
        "scaling",
        "measure_scaling",
        ("scaling", "device_counts", "link_gb_per_s", "rounds", "window_s"),
    ),
    "input": Mode("input_benchmark", "measure_input", ("page_cache",)),
    "memory": Mode("memory", "measure_memory", ("feed",)),
    "conv2d": Mode("conv2d", "measure_conv2d", (), job="conv2d"),
}


def find_mode(experiment: Experiment, mode: str | None) -> str:
    """Return the mode to run: the given one, or the experiment's own where that is None.

    Raises:
      BadInput: there is no such mode, or it is not for the experiment.
    """
    mode = mode or experiment.job
    if mode not in (*MODES, "describe"):
        modes = [*MODES, "describe"]
        raise BadInput(f"--mode={mode}: must be one of {', '.join(modes)}{nearest(mode, modes)}")
    allowed = [name for name, each in MODES.items() if each.job == experiment.job]
    if mode not in (*allowed, "describe"):
        raise BadInput(
            f"--mode={mode}: {experiment.name} is an experiment for --mode="
            f"{' or '.join(allowed)}; --mode=describe is for any experiment"
        )
    return mode


def import_mode(mode: str) -> Callable[..., Any]:
    """Return the function that runs a mode; this imports JAX."""
    module = importlib.import_module(f"jaxbench.modes.{MODES[mode].module}")
    return getattr(module, MODES[mode].function)
