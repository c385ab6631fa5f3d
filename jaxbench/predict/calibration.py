"""The fitted model, the errors of rows that were left out, and intervals from them.

`calibration.json` holds both; `jaxbench calibrate` makes it, with a user's rows too.
An interval is a quantile of the errors of rows left out (split conformal). Each row is left out of
the fit together with its group (`LEFT_OUT`). Each group has the same weight.
"""

import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from jaxbench.files import read_text, replace_file
from jaxbench.predict.model import PARAMETERS, Model, errors, fit
from jaxbench.predict.rates import Rate, Setting

FILE = pathlib.Path(__file__).with_name("calibration.json")
LEVELS = (0.8, 0.9)
# {what was left out: a row's group}. Errors of XLA's rows count, which are like jaxbench's.
LEFT_OUT: dict[str, Callable[[Rate], str]] = {
    "network on device": lambda rate: f"{rate.setting.network} on {rate.setting.kind}",
    "device": lambda rate: rate.setting.kind,
    "network": lambda rate: str(rate.setting.network),
    "generation": lambda rate: rate.setting.generation,
}
_SEEN = ("network", "device", "generation", "arithmetic, family")
_SLOW_LINKS = ("PCIe", "through the host")
_LEFT_OUT_STEPS = 5
# A prediction is shifted by this fraction of its anchor's error. benchmarks/prediction_error.py
# shows what that leaves, for anchors of the same network and of another one.
ANCHOR_WEIGHT = 0.7
# Rows of a device or a generation that make it known.
_ENOUGH = 6


class LeftOut(NamedTuple):
    """A row that was predicted by a model which was fitted without its group.

    Attributes:
      error: log(predicted / published).
      row: its index in the table.
      cell: its network, device kind, arithmetic and software.
    """

    group: str
    error: float
    link: str
    row: int
    cell: str


@dataclasses.dataclass
class Calibration:
    """A model and the errors of rows left out, by what was left out with them.

    `seen` names what enough rows are of: networks, device kinds, generations; and each platform,
    arithmetic and family of networks.
    """

    model: Model
    left_out: dict[str, list[LeftOut]]
    seen: dict[str, list[str]]
    num_rates: int

    def evidence(self, setting: Setting) -> tuple[str, ...]:
        """Return which of `LEFT_OUT` are like this setting: what about it is new."""
        new = []
        if setting.generation not in self.seen["generation"]:
            new.append("generation")
        elif setting.kind not in self.seen["device"]:
            new.append("device")
        if setting.network not in self.seen["network"]:
            new.append("network")
        return tuple(new or ["network on device"])

    def half_width(self, setting: Setting, level: float, has_anchor: bool = False) -> float:
        """Return the half width of an interval, of the logarithm of the rate.

        `has_anchor` says that the prediction was shifted by the error of a rate of the same device,
        network, precision and software.
        """
        if has_anchor:
            return error_quantile(anchored(self.left_out["device"]), level)
        widths = [error_quantile(self.left_out[name], level) for name in self.evidence(setting)]
        if setting.link in _SLOW_LINKS:
            slow = [one for one in self.left_out["device"] if one.link == setting.link]
            widths = [max(widths[0], error_quantile(slow, level)), *widths[1:]]
        return math.hypot(*widths)


def anchored(rows: Sequence[LeftOut]) -> list[LeftOut]:
    """Return the error of each row that is left after another row of its cell as the anchor."""
    cells = collections.defaultdict(list)
    for row in rows:
        cells[row.cell].append(row)
    # A device's own error is gone from the pairs, so each counts as a group.
    return [
        one._replace(group=f"{one.row} {other.row}", error=one.error - ANCHOR_WEIGHT * other.error)
        for members in cells.values()
        for one in members
        for other in members
        if one.row != other.row
    ]


def error_quantile(rows: Sequence[LeftOut], level: float) -> float:
    """Return the quantile of the rows' absolute errors, each group with the same weight."""
    sizes = collections.Counter(row.group for row in rows)
    pairs = sorted((abs(row.error), 1 / sizes[row.group]) for row in rows)
    # As if a further group with the largest error were there.
    total = sum(weight for _, weight in pairs) + 1
    reached = 0.0
    for error, weight in pairs:
        reached += weight
        if reached >= level * total - 1e-9:
            return error
    return pairs[-1][0]


def is_judged(rate: Rate) -> bool:
    """Return whether a row's error counts: XLA compiled it, and it is no lower bound."""
    return rate.setting.uses_xla and not rate.lower_bound


def leave_out(rates: Sequence[Rate], name: str, model: Model) -> list[LeftOut]:
    """Return the judged rows, each predicted by a fit to the rows of other groups."""
    group_of = LEFT_OUT[name]
    groups = collections.defaultdict(list)
    for index, rate in enumerate(rates):
        if is_judged(rate):
            groups[group_of(rate)].append(index)
    rows = []
    for group, members in sorted(groups.items()):
        others = [rate for rate in rates if group_of(rate) != group]
        without = fit(others, start=model, steps=_LEFT_OUT_STEPS)
        row_errors = errors(without, [rates[index] for index in members])
        for index, error in zip(members, row_errors.tolist(), strict=True):
            one = rates[index].setting
            cell = f"{one.network}, {one.kind}, {one.arithmetic}, {one.software}"
            rows.append(LeftOut(group, round(error, 4), one.link, index, cell))
    return rows


def calibrate(
    rates: Sequence[Rate], progress: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Fit the model, and again without each group in turn; takes about a minute."""
    progress(f"fitting {len(rates)} rates")
    model = fit(rates)
    left_out = {}
    for name in LEFT_OUT:
        progress(f"leaving out each {name}")
        left_out[name] = leave_out(rates, name, model)
    xla = [rate.setting for rate in rates if rate.setting.uses_xla]
    kinds = collections.Counter(one.kind for one in xla)
    generations = collections.Counter(rate.setting.generation for rate in rates)
    seen = {
        "network": sorted({str(one.network) for one in xla}),
        "device": sorted(kind for kind, count in kinds.items() if count >= _ENOUGH),
        # Rows of other software tell how fast a generation is, too.
        "generation": sorted(name for name, count in generations.items() if count >= _ENOUGH),
        "arithmetic, family": sorted(
            {f"{one.target.platform}, {one.arithmetic}, {one.shape.family}" for one in xla}
        ),
    }
    return Calibration(model, left_out, seen, len(rates))


def save(calibration: Calibration, path: pathlib.Path) -> None:
    """Write a calibration as JSON, numbers with six digits."""

    def short(value):
        if isinstance(value, dict):
            return {key: short(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [short(one) for one in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    text = json.dumps(short(dataclasses.asdict(calibration)), indent=0) + "\n"
    replace_file(pathlib.Path(os.path.realpath(path)), text)  # of a link, where it leads to


@functools.cache
def load(path: pathlib.Path = FILE) -> Calibration:
    """Return the calibration in a file, jaxbench's by default.

    Raises:
      OSError, ValueError: the file is missing or no calibration.
    """
    calibration = msgspec.json.decode(read_text(path), type=Calibration)
    needed = {
        "a parameter": calibration.model.parameters.keys() >= PARAMETERS.keys(),
        "what was seen": calibration.seen.keys() >= {*_SEEN},
        "errors of rows left out": all(calibration.left_out.get(name) for name in LEFT_OUT),
    }
    if missing := [name for name, is_there in needed.items() if not is_there]:
        raise ValueError(f"it lacks {missing[0]}")
    return calibration
