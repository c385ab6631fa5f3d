"""The fitted model, the errors of rows that were left out, and intervals from them.

`calibration.json` holds both; `jaxbench calibrate` makes it, with a user's rows too.
A row is left out of the fit together with its group (`LEFT_OUT`). An interval is a number of the
prediction's standard deviations: a quantile of the errors of rows left out, each over its own
standard deviation, as in conformal prediction (`Calibration.scale`).
"""

import collections
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from jaxbench.files import read_text, replace_file
from jaxbench.predict.model import OFFSETS, PARAMETERS, Fitter, Model, is_judged
from jaxbench.predict.rates import Rate, Setting

FILE = pathlib.Path(__file__).with_name("calibration.json")
SOFTWARE = "JAX"  # whose rates are predicted
LEVELS = (0.8, 0.9)
LATER = "2023"
# {what rates are alike in: the property of their settings}.
_ALIKE = {"device": "kind", "network": "network_name", "generation": "generation"}
# {what was left out: a row's group, None if it is never left out}. The errors of XLA's rows count,
# which are like jaxbench's; with a generation left out those of all software do.
LEFT_OUT: dict[str, Callable[[Rate], str | None]] = {
    "device": lambda rate: rate.setting.kind,
    "network": lambda rate: rate.setting.network_name,
    "generation": lambda rate: rate.setting.generation,
    "years": lambda rate: f"from {LATER} on" if rate.date[:4] >= LATER else None,
}
_LEFT_OUT_STEPS = 3
# Correlations of the values are whole numbers of thousandths in the file.
_THOUSAND = 1000
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Correlation = Annotated[int, msgspec.Meta(ge=-_THOUSAND, le=_THOUSAND)]


class LeftOut(NamedTuple):
    """A row that was predicted by a model which was fitted without its group.

    Attributes:
      row: its index in the table.
      error: log(predicted / published); `sd` is its standard deviation, as the model says.
    """

    row: int
    error: float
    sd: _Positive


LeftOutRows = dict[str, dict[str, list[LeftOut]]]  # {what was left out: {group: its rows}}


@dataclasses.dataclass
class Calibration:
    """A model and the errors of rows left out, by what was left out with them.

    Attributes:
      model: of JAX's rates.
      rows_of_jax_on_gpus: the indices of these rows.
      counts: {network, device or generation: {its name: how many rows of XLA it has}}.
      generations: with rows of any software.
      near: each platform, arithmetic and family of networks with rows of XLA.
    """

    model: Model
    left_out: LeftOutRows
    rows_of_jax_on_gpus: list[int]
    counts: dict[str, dict[str, int]]
    generations: list[str]
    near: list[str]
    num_rates: int

    @functools.cached_property
    def scales(self) -> dict[float, float]:
        """{level: the half width of an interval in standard deviations}."""
        return {level: self.scale(level) for level in LEVELS}

    def scale(self, level: float, without: Iterable[int] = ()) -> float:
        """Return the quantile of errors over their standard deviations, of the hardest of the ways.

        The ways are to leave out each device, network and generation. With each device left out,
        JAX's rows on GPUs also count alone, each the same: people ask for them, and they are the
        furthest off.

        Args:
          without: rows that do not count.
        """
        hidden = {*without}
        ways = [
            [[row for row in rows if row.row not in hidden] for rows in self.left_out[way].values()]
            for way in _ALIKE
        ]
        asked = {*self.rows_of_jax_on_gpus} - hidden
        rows_by_device = self.left_out["device"].values()
        ways.append([[row] for rows in rows_by_device for row in rows if row.row in asked])
        return max(error_quantile(groups, level) for groups in ways)

    def held(self, name: str, level: float) -> dict[int, bool]:
        """Return {row: whether its interval holds it}; the intervals are from other groups' rows.

        Args:
          name: what was left out.
        """
        return {
            row.row: abs(row.error) <= row.sd * width
            for rows in self.left_out[name].values()
            for width in [self.scale(level, without=[one.row for one in rows])]
            for row in rows
        }

    def rates_of(self, setting: Setting) -> dict[str, int]:
        """Return how many rows of XLA the setting's device, network and generation have."""
        return {
            what: self.counts[what].get(getattr(setting, name), 0) for what, name in _ALIKE.items()
        }


def error_quantile(groups: Iterable[Sequence[LeftOut]], level: float) -> float:
    """Return the quantile of absolute errors over their deviations; each group has one weight."""
    groups = [rows for rows in groups if rows]
    pairs = sorted((abs(row.error) / row.sd, 1 / len(rows)) for rows in groups for row in rows)
    # As if a further group with the largest error were there.
    least, reached = level * (len(groups) + 1), 0.0
    for error, weight in pairs:
        reached += weight
        if reached >= least - 1e-9:
            return error
    return pairs[-1][0]


def leave_out(
    fitter: Fitter, name: str, model: Model, progress: Callable[[str], None] = lambda _: None
) -> dict[str, list[LeftOut]]:
    """Return the rows of each group that count, predicted by a fit to the rows of other groups."""
    groups = collections.defaultdict(list)
    for index, rate in enumerate(fitter.rates):
        counts = not rate.lower_bound if name == "generation" else is_judged(rate)
        if counts and (group := LEFT_OUT[name](rate)) is not None:
            groups[group].append(index)
    left_out = {}

    def errors_of(group: str) -> list[LeftOut]:
        def is_used(rate: Rate) -> bool:
            return LEFT_OUT[name](rate) != group

        _, errors, sds = fitter.fit(is_used, model, _LEFT_OUT_STEPS)
        return [LeftOut(row, float(errors[row]), float(sds[row])) for row in groups[group]]

    # NumPy computes in several threads at once.
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    try:
        rows = {group: pool.submit(errors_of, group) for group in sorted(groups)}
        for number, (group, found) in enumerate(rows.items(), 1):
            left_out[group] = found.result()
            progress(f"left out each {name}: {number} of {len(groups)}")
    finally:
        # Ctrl-C waits for the fits that run, not for those that have not begun.
        pool.shutdown(cancel_futures=True)
    return left_out


def calibrate(
    rates: Sequence[Rate], progress: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Fit the model, and again without each group in turn; takes about two minutes on two cores."""
    progress(f"fitting {len(rates)} rates")
    fitter = Fitter(rates)
    model, _, _ = fitter.fit()
    xla = [rate.setting for rate in rates if rate.setting.uses_xla]
    return Calibration(
        model=model.of_software(SOFTWARE),
        left_out={name: leave_out(fitter, name, model, progress) for name in LEFT_OUT},
        rows_of_jax_on_gpus=[
            row
            for row, rate in enumerate(rates)
            if rate.setting.by_jax and rate.setting.target.platform == "gpu"
        ],
        counts={
            what: dict(collections.Counter(sorted(getattr(one, name) for one in xla)))
            for what, name in _ALIKE.items()
        },
        generations=sorted({rate.setting.generation for rate in rates}),
        near=sorted({near(one) for one in xla}),
        num_rates=len(rates),
    )


def near(setting: Setting) -> str:
    """Return the platform, arithmetic and family of networks of a setting, in a word."""
    return f"{setting.target.platform}, {setting.arithmetic}, {setting.shape.family}"


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """A calibration as its file has it; `values` has values, deviations and correlations."""

    num_rates: int
    noise: _Positive
    sds: dict[str, _Positive]
    generations: list[str]
    near: list[str]
    rows_of_jax_on_gpus: list[int]
    counts: dict[str, dict[str, int]]
    values: dict[str, tuple[float, _Positive, list[_Correlation]]]
    left_out: LeftOutRows


# Fields of a calibration that its file has as they are.
_UNCHANGED = ("num_rates", "generations", "near", "rows_of_jax_on_gpus", "counts")


def save(calibration: Calibration, path: pathlib.Path) -> None:
    """Write a calibration as JSON, a row a line."""

    def short(number: float) -> float:
        return float(f"{number:.6g}")

    def written(value: Any, depth: int) -> str:
        if not isinstance(value, dict) or not depth:
            return json.dumps(value, separators=(",", ":"))
        rows = (f"{json.dumps(key)}: {written(one, depth - 1)}" for key, one in value.items())
        return "{\n" + ",\n".join(rows) + "\n}"

    model = calibration.model
    sds = np.sqrt(np.diag(model.covariance))
    correlations = np.rint(_THOUSAND * model.covariance / sds / sds[:, None]).astype(int).tolist()
    stored = _Stored(
        noise=short(model.noise),
        sds={kind: short(sd) for kind, sd in model.sds.items()},
        values={
            name: (short(value), short(sds[row]), correlations[row][:row])
            for row, (name, value) in enumerate(model.values.items())
        },
        left_out={
            name: {
                group: [LeftOut(one.row, round(one.error, 4), round(one.sd, 4)) for one in rows]
                for group, rows in groups.items()
            }
            for name, groups in calibration.left_out.items()
        },
        **{name: getattr(calibration, name) for name in _UNCHANGED},
    )
    text = written(msgspec.to_builtins(stored), 3) + "\n"
    replace_file(pathlib.Path(os.path.realpath(path)), text)  # of a link, where it leads to


@functools.cache
def load(path: pathlib.Path = FILE) -> Calibration:
    """Return the calibration in a file, jaxbench's by default.

    Raises:
      OSError, ValueError: the file is missing or no calibration.
    """
    stored = msgspec.json.decode(read_text(path), type=_Stored)
    rows = [correlations for _, _, correlations in stored.values.values()]
    needed = {
        "a parameter": stored.values.keys() >= PARAMETERS.keys(),
        "a standard deviation": stored.sds.keys() >= {*OFFSETS},
        "a correlation": [len(row) for row in rows] == [*range(len(rows))],
        "what was counted": stored.counts.keys() >= _ALIKE.keys(),
        "errors of rows left out": all(
            any(stored.left_out.get(name, {}).values()) for name in LEFT_OUT
        ),
        "a row of JAX on a GPU": not {*stored.rows_of_jax_on_gpus}.isdisjoint(
            row.row for rows in stored.left_out.get("device", {}).values() for row in rows
        ),
    }
    if missing := [name for name, is_there in needed.items() if not is_there]:
        raise ValueError(f"it lacks {missing[0]}")
    sds = np.array([sd for _, sd, _ in stored.values.values()])
    lower = np.zeros((len(rows), len(rows)))
    for number, row in enumerate(rows):
        lower[number, :number] = np.divide(row, _THOUSAND)
    correlation = lower + lower.T + np.eye(len(rows))
    values = {name: value for name, (value, _, _) in stored.values.items()}
    model = Model(values, correlation * sds * sds[:, None], stored.sds, stored.noise)
    unchanged = {name: getattr(stored, name) for name in _UNCHANGED}
    return Calibration(model=model, left_out=stored.left_out, **unchanged)
