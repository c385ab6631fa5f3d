"""The modes of `jaxbench.main`: one file each, and a line here. Importing this loads none of them.

`setup` is how each of them begins, `runner` is what they share, `options` are their options.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxbench.config import Experiment
from jaxbench.errors import BadInput, nearest


class Mode(NamedTuple):
    """The file and the function of a mode, and the kind of experiment that it is for.

    The function takes the experiment, the workdir, the console, and a keyword for each option.
    """

    module: str
    function: str
    job: str = "train"  # see `Experiment.job`


MODES = {
    "train": Mode("train", "run_training"),
    "throughput": Mode("throughput", "measure_throughput"),
    "scaling": Mode("scaling", "measure_scaling"),
    "input": Mode("input_benchmark", "measure_input"),
    "memory": Mode("memory", "measure_memory"),
    "conv2d": Mode("conv2d", "measure_conv2d", job="conv2d"),
}


def find_mode(experiment: Experiment, mode: str | None) -> str:
    """Return the mode to run: the given one, or the experiment's own if that is None.

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
