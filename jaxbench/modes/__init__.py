"""The modes of `jaxbench.main`: one file each, and a line here. Importing this loads none of them.

The flag --mode, the functions of the Python API and their documentation follow from `MODES`.
`runner` prepares and records each of them; `options` are their options.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxbench.errors import BadInput, one_of

if TYPE_CHECKING:
    from jaxbench.config import Experiment


class Mode(NamedTuple):
    """The file and the function of a mode, what it does, and the experiments that it is for.

    The function takes the experiment, the workdir, the console, and a keyword for each of its
    options in options.csv.
    """

    module: str
    function: str
    help: str
    experiments: str = "train"  # by their `Experiment.default_mode`


MODES = {
    "train": Mode("train", "run_training", "train, and evaluate after every epoch"),
    "throughput": Mode(
        "throughput",
        "measure_throughput",
        "measure how fast the devices train and evaluate",
    ),
    "scaling": Mode(
        "scaling",
        "measure_scaling",
        "measure the training step on 1 to all devices",
    ),
    "input": Mode(
        "input_benchmark",
        "measure_input",
        "measure what the host can feed and what the devices can take",
    ),
    "memory": Mode("memory", "measure_memory", "find out whether the batch fits"),
    "conv2d": Mode("conv2d", "measure_conv2d", "measure single convolutions", experiments="conv2d"),
}


def find_mode(experiment: "Experiment", mode: str | None) -> str:
    """Return the mode to run: the given one, or the experiment's own if that is None.

    Raises:
      BadInput: there is no such mode, or it is not for the experiment.
    """
    mode = mode or experiment.default_mode
    if mode not in (*MODES, "describe"):
        raise BadInput(f"--mode={mode}: {one_of(mode, [*MODES, 'describe'])}")
    allowed = [name for name, each in MODES.items() if each.experiments == experiment.default_mode]
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
