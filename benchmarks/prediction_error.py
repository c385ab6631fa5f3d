"""How far predicted rates are from published ones, for rows that the fit has not seen.

    python benchmarks/prediction_error.py [--rows] [--against=ROWS.csv]

Four ways of leaving out: each device, each generation, each network, and all rows from 2023 on
(fitted until 2022). Rows of XLA that are no lower bounds count. For each way: the median and the
80th and 90th percentile of |predicted / published - 1|, and how many rows the intervals hold, which
come from the errors of the other groups. Takes about two minutes on a quiet core.

--rows prints every row with its prediction by the fit without its device.
--against predicts other rows, in the columns of jaxbench/predict/rates.csv, by the shipped fit.
"""

import pathlib

import numpy as np
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.predict.calibration import LEFT_OUT, LEVELS, error_quantile, leave_out, load
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
    early = [rate for rate in rates if rate.date[:4] < "2023"]
    late = [
        rate
        for rate in rates
        if rate.date[:4] >= "2023" and rate.setting.uses_xla and not rate.lower_bound
    ]
    logs = errors(fit(early), late)
    table.append(summary("from 2023 on", np.expm1(logs), ["-", "-"]))
    print("\n".join(text_table(_HEADINGS, table, ())))
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
