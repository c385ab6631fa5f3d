"""The options of the modes, beside the experiment's fields: options.csv has a line for each.

The flags of `jaxbench.main`, the keywords of the Python API and the reference pages are made from
`OPTIONS`. Importing this does not import JAX.
"""

import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.config import Experiment
from jaxbench.config.fields import check_fraction, describe_type
from jaxbench.errors import BadInput, one_of
from jaxbench.files import read_table
from jaxbench.modes import MODES

# The modes that record a run, and all modes.
RUNS, ALL = tuple(MODES), (*MODES, "describe")
# How processes join: each has other values.
COORDINATOR_FLAGS = ("distributed", "coordinator_address", "num_processes", "process_id")
_CHECKPOINTS = ("checkpoint_minutes", "checkpoint_epochs", "keep_checkpoints")
# The values that the Python API takes; a path is text.
_VALUES: dict[Any, Any] = {bool: bool, int: int, float: (int, float), str: (str, os.PathLike)}
# {option: whether it may be this number, and what it must be}; written so that nan may not be.
_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "telemetry_s": (
        lambda time_s: time_s == 0 or 0.1 <= time_s <= 3600,
        "seconds from 0.1 to 3600, or 0 for no telemetry",
    ),
    "checkpoint_minutes": (lambda minutes: 0 <= minutes < math.inf, "0 (never) or more"),
    "link_gb_per_s": (lambda rate: 0 < rate < math.inf, "more than 0"),
}


class Option(NamedTuple):
    """A line of options.csv, or of cli/flags.csv: a flag, and perhaps a keyword of functions."""

    type: Any  # bool, int, float, str, or the words that it may be
    default: Any
    help: str
    low: float | None = None  # of a number
    high: float | None = None
    same: bool = False  # it decides which steps the devices take, so that all processes must agree
    kind: str = "main"  # `run` if it is a keyword of the functions of its modes; else who has it
    modes: tuple[str, ...] = ()  # that take it without --target
    target_modes: tuple[str, ...] = ()  # that take it with --target

    @property
    def any_modes(self) -> tuple[str, ...]:
        """Return the modes that take it at all."""
        return tuple(dict.fromkeys(self.modes + self.target_modes))


def read_option(row: dict[str, str]) -> Option:
    """Return the option that a line of a table describes."""
    kinds = {"bool": bool, "int": int, "float": float, "str": str}
    kind = kinds.get(row["type"], str)
    names = {"runs": RUNS, "all": ALL}
    modes, target_modes = (
        names.get(text) or tuple(text.split())
        for text in (row.get("modes", ""), row.get("target_modes", ""))
    )
    default, low, high = (
        kind(row[name]) if row[name] else None for name in ("default", "low", "high")
    )
    return Option(
        type=kind if row["type"] in kinds else tuple(row["type"].split()),
        default=bool(default) if kind is bool else default,
        low=low,
        high=high,
        same=bool(row.get("same")),
        kind=row["kind"],
        modes=modes,
        target_modes=target_modes,
        help=row["help"],
    )


OPTIONS = {
    "mode": Option(
        type=ALL,
        modes=ALL,
        target_modes=ALL,
        default=None,
        help="What to do; the default is the experiment's own mode. "
        + "".join(f"{name}: {mode.help}. " for name, mode in MODES.items())
        + "describe: show the experiment, run nothing.",
    ),
    **{row["name"]: read_option(row) for row in read_table(__file__, "options.csv")},
}


def options_of(mode: str) -> dict[str, Option]:
    """Return the options that are keywords of a mode."""
    return {name: one for name, one in OPTIONS.items() if one.kind == "run" and mode in one.modes}


def mode_keywords(mode: str, experiment: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a mode's function for {option: value}; None stands for the default.

    Raises:
      BadInput: a value that is not allowed, or not with this experiment; no device is needed.
    """
    from jaxbench.checkpoints.checkpoint import Policy
    from jaxbench.microbench.interleaved import check_window_s
    from jaxbench.records.writers.wandb import check_wandb
    from jaxbench.training.profiler import parse_steps

    checks: dict[str, Any] = {
        "window_s": check_window_s,
        "profile": parse_steps,
        "target_accuracy": lambda value: check_fraction("target_accuracy", value),
        "wandb": check_wandb,
    }
    keywords: dict[str, Any] = {}
    for name, option in options_of(mode).items():
        value: Any = values.get(name)
        value = option.default if value is None else value
        if name == "device_counts":
            value = _parse_counts(value)
        elif isinstance(option.type, tuple):
            check_choice(name, value, option.type)
        elif value is None:
            pass
        elif not isinstance(value, _VALUES[option.type]) or (
            isinstance(value, bool) and option.type is not bool
        ):
            raise BadInput(f"--{name}={value!r}: must be {describe_type(option.type)}")
        elif option.type is int and option.low is not None and value < option.low:
            raise BadInput(f"--{name}={value}: must be a whole number, at least {option.low}")
        if name in checks and value is not None:
            checks[name](value)
        if name in _NUMBERS and value is not None:
            is_allowed, words = _NUMBERS[name]
            if not is_allowed(value):
                raise BadInput(f"--{name}={value:g}: must be {words}")
        keywords[name] = value
    if "resume" in keywords:
        keywords["resume"] = check_path("resume", keywords["resume"])
    if "checkpoint_minutes" in keywords:
        keywords["checkpoints"] = Policy(*map(keywords.pop, _CHECKPOINTS))
    accuracy = keywords.get("target_accuracy")
    if accuracy is not None and getattr(experiment, "replicas", "") == "independent":
        raise BadInput(
            f"--target_accuracy={accuracy:g} with replicas='independent': its models reach "
            "it at different times; give each seed a run "
            "(jaxbench sweep --grid=seed=0,1,2,3,4)"
        )
    return keywords


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise BadInput if an option has none of the values that it may have."""
    if value not in choices:
        raise BadInput(f"--{name}={value}: {one_of(str(value), choices)}")


def check_path(name: str, value: Any) -> str:
    """Return a path as text; raise BadInput if it is none."""
    if not isinstance(value, (str, os.PathLike)):
        raise BadInput(f"--{name}={value!r}: must be a path")
    return os.fspath(value)


def _parse_counts(counts: str | Sequence[int] | None) -> list[int]:
    try:
        counts = counts or ()
        if isinstance(counts, str):
            return [int(part) for part in counts.split(",")]
        return [operator.index(count) for count in counts]
    except (TypeError, ValueError):
        raise BadInput(f"--device_counts={counts}: must be whole numbers, such as 1,2,4") from None
