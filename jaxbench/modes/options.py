"""The options of the modes, beside the experiment's fields: each is described here, once.

The flags of `jaxbench.main`, the keywords of the Python API and the reference pages are made from
`OPTIONS`. Importing this does not import JAX.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.config import Experiment
from jaxbench.errors import BadInput, nearest
from jaxbench.fields import check_fraction
from jaxbench.modes import CHECKPOINTS, MODES
from jaxbench.parallel.signals import GRACE_PERIOD_S

RUNS = tuple(MODES)
PRICED = ("train", "throughput")
# The flags of cli/price_flags.py and cli/process_flags.py; they are for the modes in `PRICED`.
PRICE = ("usd_per_hour", "offer", "prices")
# How processes join: each has other values.
COORDINATOR_FLAGS = ("distributed", "coordinator_address", "num_processes", "process_id")
_PROCESSES = (
    *COORDINATOR_FLAGS,
    *("local_processes", "initialization_timeout_s", "heartbeat_timeout_s"),
)


class Option(NamedTuple):
    """An option: a flag, and a keyword of the functions of the modes that take it.

    Attributes:
      type: bool, int, float, str, or the words that it may be.
      low, high: the bounds of a number.
      same: whether it decides which steps the devices take, so that all processes must agree.
    """

    type: Any
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    same: bool = False


OPTIONS = {
    "mode": Option(
        (*MODES, "describe"),
        None,
        "What to do; the default is the experiment's own mode. "
        + "".join(f"{name}: {mode.help}. " for name, mode in MODES.items())
        + "describe: show the experiment, run nothing.",
    ),
    "workdir": Option(
        str, None, "A new or empty folder for the records; default runs/EXPERIMENT/TIME."
    ),
    "target": Option(
        str,
        None,
        "Compile for a machine that is not here, such as tpu:v5e:2x4 or gpu:h100:8; list shows "
        "all. With --mode=describe several, with commas between them; with memory: whether the "
        "batch fits; with scaling: on 1, 2, 4 ... devices.",
    ),
    "json": Option(bool, False, "Print one JSON object."),
    "compile_cache": Option(
        str,
        "",
        "The folder in which compiled programs are kept for the next run, or off; default "
        "$JAX_COMPILATION_CACHE_DIR, else ~/.cache/jaxbench/xla.",
    ),
    "xla_flags": Option(
        str,
        None,
        "Flags for XLA's compiler, --xla_NAME=VALUE separated by spaces, appended to $XLA_FLAGS; "
        "flags that this XLA does not have are ignored, with a line.",
        same=True,
    ),
    "backend_flags": Option(
        bool,
        True,
        "On CPU devices, add the flags to $XLA_FLAGS that keep sums right and make steps quicker "
        "(jaxbench/hardware/backend_flags.csv).",
        same=True,
    ),
    "feed": Option(
        ("synthetic", "resident", "stream"),
        "synthetic",
        "synthetic, one constant batch on the devices, measures only them; resident and stream "
        "take the experiment's data.",
        same=True,
    ),
    "steps_per_call": Option(
        int,
        1,
        "If more than 1, also measure this many steps in one call.",
        low=1,
        same=True,
    ),
    "rounds": Option(int, 11, "Measurements of each stage.", low=6, same=True),
    "window_s": Option(
        float,
        1.0,
        "Seconds that a measurement should take.",
        low=0.001,
        same=True,
    ),
    "scaling": Option(
        ("both", "weak", "strong"),
        "both",
        "weak keeps each device's batch, batch_size / the most devices; strong the global one.",
    ),
    "device_counts": Option(
        str, "", "How many devices, such as 1,2,4; default 1, 2, 4 ... and all."
    ),
    "link_gb_per_s": Option(
        float,
        None,
        "The links' bandwidth for predictions, in 1e9 bytes a second; default what an all-reduce "
        "was measured to use.",
    ),
    "page_cache": Option(
        ("as_is", "cold"),
        "as_is",
        "cold has the system forget the training images before every window, so that storage is "
        "measured too.",
    ),
    "telemetry_s": Option(
        float,
        1.0,
        "Seconds between readings of the devices and the host, in telemetry.csv; 0 takes none.",
    ),
    "profile": Option(
        str,
        None,
        "START:STOP: JAX's profiler traces steps START to STOP - 1 (the first is 1) into the "
        "folder profile of the run, outside every timed window. With --mode=throughput: steps "
        "that follow the measurement.",
        same=True,
    ),
    "target_accuracy": Option(
        float,
        None,
        "End with the first evaluation at or above this top-1 or Dice (0.94).",
        same=True,
    ),
    "resume": Option(
        str,
        "none",
        "auto resumes the run in workdir, or begins it; PATH resumes a run directory, or one of "
        "its checkpoints in a new workdir; none begins a new run.",
    ),
    "checkpoint_minutes": Option(
        float,
        10.0,
        "Minutes between checkpoints, written beside the training; 0: none. The final state is "
        "also written, unless this and checkpoint_epochs are both 0.",
    ),
    "checkpoint_epochs": Option(int, 0, "Epochs between checkpoints; 0: none.", low=0),
    "keep_checkpoints": Option(
        int,
        2,
        "How many of the newest checkpoints are kept, beside the best one.",
        low=1,
    ),
    "grace_period_s": Option(
        int,
        GRACE_PERIOD_S,
        "Seconds from Ctrl-C, SIGTERM or SIGHUP to a forced exit. A checkpoint that is not "
        "complete by then is lost, so give as many as the scheduler does.",
        low=1,
        high=86_400,
    ),
    "wandb": Option(
        str,
        None,
        "The Weights & Biases project that gets the curves, the fields, sample images and the "
        "summary; WANDB_MODE=offline keeps them for `wandb sync`.",
    ),
}


def modes_of_flags() -> dict[str, tuple[str, ...]]:
    """Return {flag: the modes that it is for}, without the flags that every mode takes."""
    limited = {"workdir": RUNS, "telemetry_s": RUNS, "json": ("describe",)}
    limited["target"] = ("describe", "memory", "scaling")
    for mode, each in MODES.items():
        limited |= {name: (*limited.get(name, ()), mode) for name in each.options}
    return limited | dict.fromkeys((*PRICE, *_PROCESSES), PRICED)


def options_of(mode: str) -> dict[str, Option]:
    """Return the options that are keywords of a mode."""
    names = ("telemetry_s", *MODES[mode].options) if mode in MODES else ()
    return {name: option for name, option in OPTIONS.items() if name in names}


def mode_keywords(mode: str, experiment: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a mode's function for {option: value}; None stands for the default.

    Raises:
      BadInput: a value that is not allowed, or not with this experiment; no device is needed.
    """
    from jaxbench.checkpoints.checkpoint import Policy, check_minutes
    from jaxbench.hardware.telemetry.sampler import check_interval
    from jaxbench.microbench.interleaved import check_window_s
    from jaxbench.records.writers.wandb import check_wandb
    from jaxbench.training.profiler import parse_steps

    checks = {
        "telemetry_s": check_interval,
        "checkpoint_minutes": check_minutes,
        "window_s": check_window_s,
        "profile": parse_steps,
        "target_accuracy": lambda value: check_fraction("target_accuracy", value),
        "wandb": check_wandb,
        "link_gb_per_s": lambda value: _check_positive("link_gb_per_s", value),
    }
    keywords = {}
    for name, option in options_of(mode).items():
        value = values.get(name)
        value = option.default if value is None else value
        if isinstance(option.type, tuple):
            check_choice(name, value, option.type)
        low = option.low if option.type is int else None
        if low is not None and not (isinstance(value, int) and value >= low):
            raise BadInput(f"--{name}={value}: must be a whole number, at least {low}")
        if name in checks and value is not None:
            checks[name](value)
        keywords[name] = value
    if "resume" in keywords:
        keywords["resume"] = os.fspath(keywords["resume"])
    if "checkpoint_minutes" in keywords:
        keywords["checkpoints"] = Policy(*map(keywords.pop, CHECKPOINTS))
    if "device_counts" in keywords:
        keywords["device_counts"] = _parse_counts(keywords["device_counts"])
    accuracy = keywords.get("target_accuracy")
    if accuracy is not None and getattr(experiment, "replicas", "") == "independent":
        raise BadInput(
            f"--target_accuracy={accuracy:g} with replicas='independent': its models reach "
            "it at different times; give each seed a run "
            "(python -m jaxbench.sweep --grid=seed=0,1,2,3,4)"
        )
    return keywords


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise BadInput if an option has none of the values that it may have."""
    if value not in choices:
        allowed = ", ".join(choices) + nearest(str(value), choices)
        raise BadInput(f"--{name}={value}: must be one of {allowed}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):  # written so that nan fails it too
        raise BadInput(f"--{name}={value:g}: must be more than 0")


def _parse_counts(counts: str | Sequence[int]) -> list[int]:
    try:
        return [int(part) for part in (counts.split(",") if isinstance(counts, str) else counts)]
    except ValueError:
        if not counts:
            return []
        raise BadInput(f"--device_counts={counts}: must be whole numbers, such as 1,2,4") from None
