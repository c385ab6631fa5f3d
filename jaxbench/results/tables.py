"""Tables: pandas DataFrames if pandas is installed."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxbench.analysis.rate import Estimate
from jaxbench.metrics import UNKNOWN
from jaxbench.reports.collect import collect
from jaxbench.reports.runs import ReportedRun
from jaxbench.schema import value_of

# The columns of `load_runs`: names as in run.json and its summary, but for `top1`, `dice`
# and `bits_per_byte`.
_OF_SUMMARY = {
    "top1": "eval_top1",
    "dice": "eval_dice",
    "bits_per_byte": "eval_bits_per_byte",
    **{name: name for name in ("tokens_per_s", "mfu", "compile_s", "wall_s", "usd")},
}
COLUMNS = (
    *("experiment", "mode", "status", "device_kind", "num_devices", "batch_size", "precision"),
    *(*Estimate().fields("images_per_s"), *_OF_SUMMARY),
    *("seed", "feed", "started_at", "reason", "path", "target"),
)


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas DataFrame; if pandas is not installed, a list of dictionaries."""
    table = [{name: row.get(name) for name in columns} for row in rows]
    try:
        import pandas
    except ImportError:
        return table
    return pandas.DataFrame(table, columns=list(columns))


def records_table(records: Iterable[Mapping[str, Any]]) -> Any:
    """Return the metrics of records, without lists and nested values, as `as_table` does."""
    # Columns and not rows: millions of dictionaries would fill the memory.
    columns: dict[str, list[Any]] = {}
    count = 0
    for count, record in enumerate(records, 1):
        for name, value in record.items():
            if name != "kind" and not isinstance(value, (list, dict)):
                column = columns.setdefault(name, [])
                column += [*itertools.repeat(None, count - 1 - len(column)), value]
    for column in columns.values():
        column += itertools.repeat(None, count - len(column))
    try:
        import pandas
    except ImportError:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return pandas.DataFrame(columns)


def run_row(run: ReportedRun) -> dict[str, Any]:
    """Return the row of `COLUMNS` of a run."""
    return {
        "experiment": run.experiment,
        "mode": run.mode,
        "status": run.status,
        "device_kind": run.environment.get("device_kind"),
        "num_devices": run.num_devices,
        "batch_size": run.batch_size,
        "precision": run.config.get("precision"),
        **run.rate.fields("images_per_s"),
        **{name: value_of(run.summary, field) for name, field in _OF_SUMMARY.items()},
        "seed": run.seed,
        "feed": None if run.rate_feed == UNKNOWN else run.rate_feed,
        "started_at": run.document.started_at,
        "reason": run.reason,
        "path": str(run.path),
        "target": run.target,
    }


def runs_table(folders: Sequence[str]) -> Any:
    """Return the table of all runs in and below some folders, sweeps included."""
    collection = collect(folders)
    missing = [run for sweep in collection.sweeps for run in sweep.missing]
    return as_table([run_row(run) for run in [*collection.runs, *missing]], COLUMNS)
