"""How far predicted rates are from published ones, for rows that the fit has not seen.

    python benchmarks/prediction_error.py [--rows] [--against=ROWS.csv]

`jaxbench calibrate` leaves out each device, each network, each generation, and all rows from 2023
on, and fits the others, with the standard deviations of its offsets. Its file has the errors, so
this takes seconds. Each table has the median, the 80th and 90th percentile of
|predicted / published - 1|, and how many rows the intervals hold, which come from rows of other
groups. The rows of XLA count that are no lower bounds; with a generation left out also those of
all software. A cell is a network, device, precision and software; its error is that of its middle
row. The last lines compare pairs of devices on one network by one software, each device left out.

--rows prints every row, and whether its 80 % and 90 % intervals contain it. For rows of XLA the
device was left out of the fit, for others the generation.
--against predicts other rows, in the columns of published/rates.csv, by the shipped fit, which
knows the values of JAX alone: rows of other software are predicted as those of an unknown one.
"""

import collections
import itertools
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.predict.calibration import LEVELS, LeftOut, load
from jaxbench.predict.model import is_judged, names_of
from jaxbench.predict.rates import Rate, read_rates
from jaxbench.tables.text import text_table

_ROWS = flags.DEFINE_bool("rows", False, "Print every row.")
_AGAINST = flags.DEFINE_string("against", None, "A CSV file of rates that the fit has not seen.")
_HEADINGS = ("rows", "median", "80th", "90th", "80 % holds", "90 % holds")
_WORST = 20


def _is_gpu(rate: Rate) -> bool:
    return rate.setting.target.platform == "gpu"


def _is_new_gpu(rate: Rate) -> bool:
    return _is_gpu(rate) and rate.setting.generation not in ("Maxwell", "Pascal", "Volta", "Turing")


def _is_large(rate: Rate) -> bool:
    """Return whether a rate is of a language model of this decade, or of DiT."""
    return str(rate.setting.network).startswith(("llama", "tinyllama", "mistral", "mpt", "dit"))


# What people ask for: {what: (what was left out, which rows)}.
_QUESTIONS: dict[str, tuple[str, Callable[[Rate], bool]]] = {
    "a GPU from 2020 on, XLA": ("device", _is_new_gpu),
    "a GPU, JAX": ("device", lambda rate: _is_gpu(rate) and rate.setting.by_jax),
    "a TPU": ("device", lambda rate: not _is_gpu(rate)),
    "transformers": ("device", lambda rate: rate.setting.shape.family == "transformer"),
    "Llama, Mistral, by network, XLA": ("network", _is_large),
    "Llama, MPT, a new generation, not XLA": (
        "generation",
        lambda rate: _is_large(rate) and not is_judged(rate),
    ),
    "convolutional networks": ("device", lambda rate: rate.setting.shape.family != "transformer"),
    "a new generation, XLA": ("generation", is_judged),
    "a new generation, all software": ("generation", lambda rate: True),
}


def _cell(rate: Rate) -> str:
    """Return the name of the rate's own offset, by network, device, arithmetic and software."""
    return names_of(rate.setting)[1][-1]


def errors_by_cell(rates: Sequence[Rate], rows: Iterable[LeftOut]) -> list[float]:
    """Return the median error of each cell, log(predicted / published)."""
    cells = collections.defaultdict(list)
    for row in rows:
        cells[_cell(rates[row.row])].append(row.error)
    return [statistics.median(errors) for errors in cells.values()]


def summary(name: str, errors: Sequence[float], holds: Sequence[str] = ("-", "-")) -> list[str]:
    """Return a row of a table."""
    sizes = np.abs(np.expm1(errors))
    quantiles = [f"{np.quantile(sizes, level):.1%}" for level in (0.5, 0.8, 0.9)]
    return [name, str(len(sizes)), *quantiles, *holds]


def softwares(rates: Iterable[Rate]) -> str:
    """Return how many rows are of which software, in words."""

    def short(name: str) -> str:
        kinds = ("JAX", "TensorFlow", "PyTorch", "MXNet", "PaddlePaddle")
        return next((kind for kind in kinds if name.startswith(kind)), name)

    counts = collections.Counter(short(rate.setting.software) for rate in rates)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def print_tables(rates: Sequence[Rate]) -> None:
    """Print the errors by what was left out, by question and by generation."""
    calibration = load()
    left_out = calibration.left_out
    holds = {name: [calibration.held(name, level) for level in LEVELS] for name in left_out}

    def holding(name: str, rows: Sequence[LeftOut]) -> list[str]:
        return [f"{np.mean([of[row.row] for row in rows]):.0%}" for of in holds[name]]

    def rows_of(name: str, is_counted: Callable[[Rate], bool]) -> list[LeftOut]:
        rows = itertools.chain(*left_out[name].values())
        return [row for row in rows if is_counted(rates[row.row])]

    table = []
    for name in left_out:
        rows = rows_of(name, is_judged)
        label = "from 2023 on" if name == "years" else f"each {name}"
        table.append(summary(label, [row.error for row in rows], holding(name, rows)))
        table.append(summary(f"{label}, by cell", errors_by_cell(rates, rows)))
    print("\n".join(text_table(("left out, XLA", *_HEADINGS), table, ())), end="\n\n")
    table = []
    for question, (name, is_asked) in _QUESTIONS.items():
        rows = rows_of(name, is_asked)
        line = summary(question, [row.error for row in rows], holding(name, rows))
        table.append([*line, softwares(rates[row.row] for row in rows)])
    headings = ("predicted", *_HEADINGS, "rows by software")
    print("\n".join(text_table(headings, table, ())), end="\n\n")
    table = []
    for generation, rows in left_out["generation"].items():
        xla = [row for row in rows if is_judged(rates[row.row])]
        line = summary(generation, [row.error for row in rows], holding("generation", rows))
        rest = summary("", [row.error for row in xla], holding("generation", xla)) if xla else []
        table.append([*line, *(rest[1:6] or ["0", *"----"])])
    headings = (*_HEADINGS, "XLA rows", "XLA median", "XLA 80th", "XLA 90th", "XLA 80 % holds")
    print("\n".join(text_table(("generation left out", *headings), table, ())))


def print_rows(
    rates: Sequence[Rate], errors: Sequence[float], held: Sequence[Sequence[bool]]
) -> None:
    """Print a table of predicted and published rates.

    Args:
      held: whether the intervals of each of `LEVELS` hold each rate.
    """
    headings = ("network", "device", "devices", "arithmetic", "batch", "software")
    rows = []
    for rate, error, *inside in zip(rates, errors, *held, strict=True):
        one = rate.setting
        what = [str(one.network), one.kind, str(one.num_devices), one.arithmetic]
        what += [f"{one.batch * one.num_devices:,.0f}", one.software]
        ratio = float(np.exp(error))
        what += [f"{rate.rate * ratio:,.4g}", f"{rate.rate:,.4g}", f"{ratio:.2f}"]
        rows.append(what + ["yes" if one else "no" for one in inside])
    table = text_table((*headings, "predicted", "published", "ratio", *_HEADINGS[4:]), rows, ())
    print("\n".join(table))


def print_order(rates: Sequence[Rate]) -> None:
    """Print how many pairs of devices have overlapping intervals, and how many are in order."""
    calibration = load()
    rows = [row for rows in calibration.left_out["device"].values() for row in rows]
    width = calibration.scales[LEVELS[0]]
    right: dict[bool, list[bool]] = {True: [], False: []}
    for one, other in itertools.combinations(rows, 2):
        first, second = rates[one.row], rates[other.row]
        what = [(each.setting.network, each.setting.software) for each in (first, second)]
        if first.setting.kind == second.setting.kind or what[0] != what[1]:
            continue
        published = np.log(first.rate / second.rate)
        predicted = published + one.error - other.error
        apart = abs(predicted) > width * (one.sd + other.sd)
        right[bool(apart)].append(bool(predicted * published > 0))
    for apart, ordered in right.items():
        what = "do not overlap" if apart else "overlap"
        print(
            f"{len(ordered)} pairs of devices whose 80 % intervals {what}: "
            f"{np.mean(ordered):.1%} in the published order"
        )


def print_anchors(rates: Sequence[Rate]) -> None:
    """Print the error of each row whose fit knows another row of its cell, its device left out."""
    errors, noise = [], load().model.noise
    rows = [row for rows in load().left_out["device"].values() for row in rows]
    own = collections.defaultdict(list)
    for row in rows:
        own[_cell(rates[row.row])].append(row)
    for members in own.values():
        for one, other in itertools.permutations(members, 2):
            # Beside noise, rows of a cell share their error.
            weight = 1 - noise**2 / other.sd**2
            errors.append(one.error - weight * other.error)
    line = summary("another row of its cell known", errors)
    print("\n".join(text_table(("left out: device", *_HEADINGS[:4]), [line[:5]], ())))


def main(_: list[str]) -> int:
    """Print the errors."""
    calibration = load()
    if _AGAINST.value:
        rates = read_rates(pathlib.Path(_AGAINST.value))
        log_s, sds = calibration.model.predict([rate.setting for rate in rates])
        errors = np.log([rate.step_s for rate in rates]) - log_s
        held = [abs(errors) <= width * sds for width in calibration.scales.values()]
        table = [summary("all", errors, [f"{np.mean(inside):.0%}" for inside in held])]
        if (by_jax := np.array([rate.setting.by_jax for rate in rates])).any():
            table.append(summary("JAX", errors[by_jax]))
        print("\n".join(text_table(("rows of the file", *_HEADINGS), table, ())))
        print_rows(rates, errors.tolist(), held)
        return 0
    rates = read_rates()
    print_tables(rates)
    print()
    print_anchors(rates)
    print_order(rates)
    kinds = ("generation", "device") if _ROWS.value else ("device",)
    # A row of XLA is in both.
    left_out = {
        row.row: row
        for kind in kinds
        for rows in calibration.left_out[kind].values()
        for row in rows
    }
    rows = [*left_out.values()]
    if not _ROWS.value:
        print(f"\nthe {_WORST} rows that are furthest off, their device left out")
        rows = sorted(rows, key=lambda row: -abs(row.error))[:_WORST]
    held = []
    for level in LEVELS:
        inside = {}
        for kind in kinds:
            inside |= calibration.held(kind, level)
        held.append([inside[row.row] for row in rows])
    print_rows([rates[row.row] for row in rows], [row.error for row in rows], held)
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
