"""The options of the modes beside the experiment's fields, checked before anything is done."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxbench.checkpoints.checkpoint import check_policy
from jaxbench.config import Experiment
from jaxbench.errors import BadInput, nearest
from jaxbench.fields import check_fraction
from jaxbench.hardware.telemetry.sampler import check_interval
from jaxbench.microbench.interleaved import check_window_s
from jaxbench.modes import FEEDS, FEWEST_ROUNDS, SCALINGS
from jaxbench.records.writers.wandb import check_wandb
from jaxbench.training.profiler import parse_steps


def check_options(experiment: Experiment, options: Mapping[str, Any]) -> None:
    """Check {option: value}, as far as no device is needed; None is an option not given.

    Raises:
      BadInput: a value that is not allowed, or not with this experiment.
    """
    for name, check in _CHECKS.items():
        if options.get(name) is not None:
            check(options[name])
    target_accuracy = options.get("target_accuracy")
    if target_accuracy is not None and getattr(experiment, "replicas", "") == "independent":
        raise BadInput(
            f"--target_accuracy={target_accuracy:g} with replicas='independent': its models reach "
            "it at different times; give each seed a run "
            "(python -m jaxbench.sweep --grid=seed=0,1,2,3,4)"
        )


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise BadInput where an option has none of the values that it may have."""
    if value not in choices:
        allowed = ", ".join(choices) + nearest(str(value), choices)
        raise BadInput(f"--{name}={value}: must be one of {allowed}")


def _choice(name: str, choices: Sequence[str]) -> Callable[[Any], None]:
    return lambda value: check_choice(name, value, choices)


def _at_least(name: str, low: int) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not isinstance(value, int) or value < low:
            raise BadInput(f"--{name}={value}: must be a whole number, at least {low}")

    return check


_CHECKS = {
    "telemetry_s": check_interval,
    "rounds": _at_least("rounds", FEWEST_ROUNDS),
    "window_s": check_window_s,
    "steps_per_call": _at_least("steps_per_call", 1),
    "feed": _choice("feed", FEEDS),
    "scaling": _choice("scaling", SCALINGS),
    "profile": parse_steps,
    "target_accuracy": functools.partial(check_fraction, "target_accuracy"),
    "checkpoints": check_policy,
    "wandb": check_wandb,
}
