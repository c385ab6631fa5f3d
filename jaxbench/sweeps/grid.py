"""A sweep's trials: every combination of a grid's values, each a run of its own.

A trial is known by its key, a hash of all that decides its result. So a sweep that was interrupted
finds the results that it has, whatever was added to its grid since.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.cli.entry_point import load_experiment
from jaxbench.config.custom import config_record
from jaxbench.errors import BadInput
from jaxbench.records.reader import flat
from jaxbench.xla.variables import decisive_variables

_LONGEST_NAME = 100
# Flags that do not change a result: prices, and where records go.
_NOT_DECISIVE = re.compile("(--)?(usd_per_hour|offer|prices|wandb)(=|$)")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
      spec: what follows `--experiment=`.
      overrides: arguments of the form `--experiment.FIELD=VALUE`, those of the grid last.
      place: {field: value} by the grid's fields, as text.
      flags: other arguments of jaxbench.main, such as its mode.
      limits: whatever else decides its result, such as a limit of memory or the hardware.
    """

    spec: str
    overrides: tuple[str, ...]
    place: dict[str, str]
    config: Any  # an Experiment
    flags: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A hash of experiment, flags and limits."""
        decisive = {
            "experiment": self.spec,
            "config": config_record(self.config),
            "flags": sorted(f for f in self.flags if not _NOT_DECISIVE.match(f)),
            "limits": sorted(self.limits),
            "variables": decisive_variables(),
        }
        text = json.dumps(decisive, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The values by which it differs from the others, for people."""
        return " ".join(f"{field}={value}" for field, value in self.place.items()) or self.spec

    @property
    def values(self) -> dict[str, Any]:
        """Those values, as the experiment's fields hold them."""
        fields = dict(flat(config_record(self.config)))
        return {name: fields.get(name, text) for name, text in self.place.items()}

    @property
    def folder(self) -> str:
        """A folder's name: those values, and a part of the key."""
        readable = re.sub(r"[^\w.=,+-]+", "-", self.title.replace(" ", ","))
        return f"{readable[:_LONGEST_NAME]}-{self.key[:8]}"

    @property
    def arguments(self) -> list[str]:
        """The arguments of jaxbench.main."""
        return [f"--experiment={self.spec}", *self.overrides, *self.flags]

    def on(self, limits: Sequence[str]) -> "Trial":
        """Return the same trial with these limits."""
        return dataclasses.replace(self, limits=tuple(limits))

    def with_field(self, field: str, value: Any) -> "Trial":
        """Return the same trial with one more field set."""
        overrides = (*self.overrides, f"--experiment.{field}={value}")
        return dataclasses.replace(
            self,
            overrides=overrides,
            place=self.place | {field: str(value)},
            config=load_experiment(self.spec, overrides),
        )


def parse_grid(axes: Sequence[str]) -> dict[str, list[str]]:
    """Return {field: values} of several `FIELD=VALUE,VALUE,...`.

    A comma inside parentheses or brackets separates no values.

    Raises:
      BadInput: another form, or a field or value given twice.
    """
    grid: dict[str, list[str]] = {}
    for text in axes:
        field, _, listed = (part.strip() for part in text.partition("="))
        # Split at commas that no closing parenthesis follows before an opening one.
        values = [value.strip() for value in re.split(r",(?![^(\[]*[)\]])", listed)]
        if not field or not all(values):
            raise BadInput(
                f"--grid={text}: must be FIELD=VALUE,VALUE,... such as --grid=batch_size=128,256"
            )
        for value in values:
            if values.count(value) > 1:
                raise BadInput(f"--grid={text}: {value} is given twice")
        if field in grid:
            raise BadInput(f"--grid={field}=...: is given twice; give it once")
        grid[field] = values
    return grid


def repeated(
    grid: dict[str, list[str]], repeats: int | None, overrides: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return a grid with this many seeds as its first field, which changes last.

    So the repeats of a combination are interleaved with those of the others.

    Raises:
      BadInput: the grid or the overrides have a seed.
    """
    if repeats is None:
        return grid
    given = [one for one in overrides if one.lstrip("-").startswith("experiment.seed")]
    if "seed" in grid or given:
        one = given[0] if given else "--grid=seed=..."
        raise BadInput(f"--repeats with {one}: the repeats have the seeds 0, 1, ...")
    return {"seed": [str(seed) for seed in range(repeats)], **grid}


def make_trials(
    spec: str | None,
    overrides: Sequence[str],
    grid: Mapping[str, Sequence[str]],
    flags: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> list[Trial]:
    """Return every combination of the grid's values; the last field changes fastest.

    Args:
      spec: the experiment, None if the grid names them.
      targets: machines to compile for, as one more field of the grid.

    Raises:
      BadInput: a field or value that one of the experiments does not allow.
    """
    for override in overrides:
        field = override.lstrip("-").removeprefix("no").removeprefix("experiment.")
        field = field.partition("=")[0]
        if field in grid:
            raise BadInput(f"--experiment.{field} and --grid={field}=...: give one of them")
    if "target" in grid:
        raise BadInput("--grid=target=...: give --target=NAME,NAME,...")
    if targets and "num_devices" in grid:
        raise BadInput("--grid=num_devices=... with --target: a target's name says how many")
    if (spec is None) == ("experiment" not in grid):
        raise BadInput(
            "give --experiment=NAME or --grid=experiment=NAME,NAME,..."
            + (", not both" if spec is not None else "")
        )
    by_key: dict[str, Trial] = {}
    axes = {**grid, **({"target": targets} if targets else {})}
    for values in itertools.product(*axes.values()):
        place = dict(zip(axes, values, strict=True))
        fields = place.keys() - {"experiment", "target"}
        swept = [f"--experiment.{field}={place[field]}" for field in axes if field in fields]
        trial_spec = str(place.get("experiment", spec))
        all_overrides = (*overrides, *swept)
        config = load_experiment(trial_spec, all_overrides)
        # A variant has two spellings.
        trial_spec = trial_spec if ".py" in trial_spec else config.name
        trial_flags = [*flags]
        if targets:
            from jaxbench.modes.targets import check_target  # imports JAX

            trial_flags.append(f"--target={check_target(config, place['target']).name}")
        trial = Trial(trial_spec, all_overrides, place, config, tuple(trial_flags))
        if trial.key in by_key:
            raise BadInput(f"{by_key[trial.key].title} and {trial.title} are the same run")
        by_key[trial.key] = trial
    return [*by_key.values()]
