"""How far predicted rates are from published ones, for rows that the fit has not seen.

    python benchmarks/prediction_error.py [--rows] [--against=ROWS.csv]

Four ways of leaving out: each device, each generation, each network, and all rows from 2023 on
(fitted until 2022). Rows of XLA that are no lower bounds count. For each way: the median and the
80th and 90th percentile of |predicted / published - 1|, and how many rows the intervals hold, which
come from the errors of the other groups. Two more lines shift each row, its device left out, by
the error of another row on that device as its anchor. The last lines compare pairs of devices on
one network by one software, each left out: how many are in the predicted order, if their 80 %
intervals overlap and if not. Takes about two minutes on a quiet core.

--rows prints every row with its prediction by the fit without its device.
--against predicts other rows, in the columns of published/rates.csv, by the shipped fit.
"""

import itertools
import pathlib

import numpy as np
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.predict.calibration import (
    ANCHOR_WEIGHT,
    LEFT_OUT,
    LEVELS,
    LeftOut,
    error_quantile,
    is_judged,
    leave_out,
    load,
)
from jaxbench.predict.model import errors, fit
from jaxbench.predict.rates import Rate, read_rates
from jaxbench.tables.text import text_table

_ROWS = flags.DEFINE_bool("rows", False, "Print every row.")
_AGAINST = flags.DEFINE_string("against", None, "A CSV file of rates that the fit has not seen.")
_HEADINGS = ("left out", "rows", "median", "80th", "90th", "80 % holds", "90 % holds")


def summary(name: str, relative_errors: np.ndarray, held: list[str]) -> list[str]:
    """Return a row of the table; `held` are the fractions that the intervals hold."""
    sizes = np.abs(relative_errors)
    quantiles = [f"{np.quantile(sizes, level):.1%}" for level in (0.5, 0.8, 0.9)]
    return [name, str(len(sizes)), *quantiles, *held]


def print_rows(rates: list[Rate], logs: np.ndarray) -> None:
    """Print a table of predicted and published rates."""
    headings = ("network", "device", "devices", "arithmetic", "batch", "software")
    rows = []
    for rate, log in zip(rates, logs, strict=True):
        one = rate.setting
        what = [str(one.network), one.kind, str(one.num_devices), one.arithmetic]
        what += [f"{one.batch * one.num_devices:,.0f}", one.software]
        ratio = float(np.exp(log))
        rows.append([*what, f"{rate.rate * ratio:,.4g}", f"{rate.rate:,.4g}", f"{ratio:.2f}"])
    table = text_table((*headings, "predicted", "published", "ratio"), rows, ())
    print("\n".join(table))


def anchored_errors(rates: list[Rate], rows: list[LeftOut], same_network: bool) -> np.ndarray:
    """Return the errors of rows that are shifted by another row on the device in its precision."""

    def place(row: LeftOut) -> tuple:
        one = rates[row.row].setting
        return one.kind, one.arithmetic, one.software

    networks = {row.row: rates[row.row].setting.network for row in rows}
    return np.array(
        [
            one.error - ANCHOR_WEIGHT * other.error
            for one in rows
            for other in rows
            if one.row != other.row and place(one) == place(other)
            if (networks[one.row] == networks[other.row]) == same_network
        ]
    )


def print_order(rates: list[Rate], rows: list[LeftOut]) -> None:
    """Print how many pairs of devices have overlapping intervals, and how many are in order."""
    widths = {
        group: error_quantile([row for row in rows if row.group != group], LEVELS[0])
        for group in {row.group for row in rows}
    }
    right: dict[bool, list[bool]] = {True: [], False: []}
    for one, other in itertools.combinations(rows, 2):
        first, second = rates[one.row], rates[other.row]
        what = [(each.setting.network, each.setting.software) for each in (first, second)]
        if one.group == other.group or what[0] != what[1]:
            continue
        published = np.log(first.rate / second.rate)
        predicted = published + one.error - other.error
        apart = abs(predicted) > widths[one.group] + widths[other.group]
        right[bool(apart)].append(bool(predicted * published > 0))
    for apart, ordered in right.items():
        what = "do not overlap" if apart else "overlap"
        print(
            f"{len(ordered)} pairs of devices whose 80 % intervals {what}: "
            f"{np.mean(ordered):.1%} in the published order"
        )


def main(_: list[str]) -> int:
    """Print the errors."""
    calibration = load()
    if _AGAINST.value:
        rates = read_rates(pathlib.Path(_AGAINST.value))
        logs = errors(calibration.model, rates)
        held = []
        for level in LEVELS:
            widths = [calibration.half_width(rate.setting, level) for rate in rates]
            held.append(f"{np.mean(np.abs(logs) <= widths):.0%}")
        print("\n".join(text_table(_HEADINGS, [summary("not seen", np.expm1(logs), held)], ())))
        print_rows(rates, logs)
        return 0
    rates = read_rates()
    table = []
    for name in LEFT_OUT:
        rows = leave_out(rates, name, calibration.model)
        held = []
        for level in LEVELS:
            inside = [
                abs(row.error)
                <= error_quantile([other for other in rows if other.group != row.group], level)
                for row in rows
            ]
            held.append(f"{np.mean(inside):.0%}")
        table.append(summary(f"each {name}", np.expm1([row.error for row in rows]), held))
        if _ROWS.value and name == "device":
            print_rows([rates[row.row] for row in rows], np.array([row.error for row in rows]))
        if name == "device":
            device_rows = rows
            for same in (True, False):
                logs = anchored_errors(rates, rows, same)
                what = "the same network" if same else "another network"
                table.append(summary(f"device; anchor: {what}", np.expm1(logs), ["-", "-"]))
    early = [rate for rate in rates if rate.date[:4] < "2023"]
    late = [rate for rate in rates if rate.date[:4] >= "2023" and is_judged(rate)]
    logs = errors(fit(early), late)
    table.append(summary("from 2023 on", np.expm1(logs), ["-", "-"]))
    print("\n".join(text_table(_HEADINGS, table, ())))
    print_order(rates, device_rows)
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
