"""A sweep's trials: every combination of a grid's values, each a run of its own.

A trial is known by its key, a hash of all that decides its result. So a sweep that was interrupted
finds the results that it has, whatever was added to its grid since.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from jaxbench.cli.entry_point import load_experiment
from jaxbench.config import Experiment
from jaxbench.errors import BadInput
from jaxbench.xla.variables import decisive_variables

_LONGEST_NAME = 100
# Flags that do not change a result: prices, and where records go.
_NOT_DECISIVE = ("usd_per_hour", "offer", "prices", "wandb")


@dataclasses.dataclass(frozen=True)
class Axis:
    """A field and the values that it takes, as given on the command line.

    Attributes:
      field: dotted, as in `--experiment.FIELD=`; or `experiment` itself.
      values: as text.
    """

    field: str
    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
      spec: what follows `--experiment=`.
      overrides: arguments of the form `--experiment.FIELD=VALUE`, those of the grid last.
      place: {field: value} by the grid's fields, as text.
      config: the experiment with its overrides.
      flags: other arguments of jaxbench.main, such as its mode.
      limits: whatever else decides its result, such as a limit of memory.
    """

    spec: str
    overrides: tuple[str, ...]
    place: dict[str, str]
    config: Experiment
    flags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return a hash of experiment, flags and limits."""
        decisive = {
            "experiment": self.spec,
            "config": dataclasses.asdict(self.config),
            "flags": sorted(f for f in self.flags if _flag_name(f) not in _NOT_DECISIVE),
            "limits": sorted(self.limits),
            "variables": decisive_variables(),
        }
        text = json.dumps(decisive, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """Return the values by which it differs from the others, for people."""
        return " ".join(f"{field}={value}" for field, value in self.place.items()) or self.spec

    @property
    def folder(self) -> str:
        """Return a folder's name: those values, and a part of the key."""
        readable = re.sub(r"[^\w.=,+-]+", "-", self.title.replace(" ", ","))
        return f"{readable[:_LONGEST_NAME]}-{self.key[:8]}"

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of jaxbench.main."""
        return [f"--experiment={self.spec}", *self.overrides, *self.flags]

    def with_field(self, field: str, value: Any) -> "Trial":
        """Return the same trial with one more field set."""
        overrides = (*self.overrides, f"--experiment.{field}={value}")
        return dataclasses.replace(
            self,
            overrides=overrides,
            place=self.place | {field: str(value)},
            config=load_experiment(self.spec, overrides),
        )


def _flag_name(argument: str) -> str:
    return argument.removeprefix("--").partition("=")[0]


def parse_axis(text: str) -> Axis:
    """Parse `FIELD=VALUE,VALUE,...`; a comma inside parentheses or brackets parts no values.

    Raises:
      BadInput: another form, or a value given twice.
    """
    field, equals, listed = text.partition("=")
    # Split at commas that no closing parenthesis follows before an opening one.
    values = [value.strip() for value in re.split(r",(?![^(\[]*[)\]])", listed)]
    field = field.strip()
    if not equals or not field or not all(values):
        raise BadInput(
            f"--grid={text}: must be FIELD=VALUE,VALUE,... such as --grid=batch_size=128,256"
        )
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise BadInput(f"--grid={text}: {twice} is given twice")
    return Axis(field, tuple(values))


def make_trials(
    spec: str | None,
    overrides: Sequence[str],
    grid: Sequence[str],
    flags: Sequence[str] = (),
    limits: Sequence[str] = (),
) -> list[Trial]:
    """Return every combination of the grid's values; the last field changes fastest.

    Args:
      spec: the experiment, None where the grid names them.
      overrides: for all trials, `--experiment.FIELD=VALUE`.
      grid: `FIELD=VALUE,VALUE,...`.
      flags: of jaxbench.main, for all trials.
      limits: of all trials.

    Raises:
      BadInput: a field or value that one of the experiments does not allow.
    """
    axes = [parse_axis(text) for text in grid]
    fields = [axis.field for axis in axes]
    twice = next((field for field in fields if fields.count(field) > 1), None)
    if twice is not None:
        raise BadInput(f"--grid={twice}=...: is given {fields.count(twice)} times; give it once")
    for override in overrides:
        field = override.lstrip("-").removeprefix("no").removeprefix("experiment.")
        field = field.partition("=")[0]
        if field in fields:
            raise BadInput(f"--experiment.{field} and --grid={field}=...: give one of them")
    if (spec is None) == ("experiment" not in fields):
        raise BadInput(
            "give --experiment=NAME or --grid=experiment=NAME,NAME,..."
            + (", not both" if spec is not None else "")
        )
    trials: list[Trial] = []
    for values in itertools.product(*(axis.values for axis in axes)):
        place = dict(zip(fields, values, strict=True))
        own = [f"--experiment.{f}={v}" for f, v in place.items() if f != "experiment"]
        own_spec = place.get("experiment", spec)
        all_overrides = (*overrides, *own)
        config = load_experiment(own_spec, all_overrides)
        trials.append(Trial(own_spec, all_overrides, place, config, tuple(flags), tuple(limits)))
    by_key: dict[str, Trial] = {}
    for trial in trials:
        if trial.key in by_key:
            raise BadInput(f"{by_key[trial.key].title} and {trial.title} are the same run")
        by_key[trial.key] = trial
    return trials
