"""The table of runs, one row each: the report's CSV, and what `load_runs` returns."""

import pathlib
from typing import Any

from jaxbench.metrics import UNKNOWN
from jaxbench.reports.collect import Collection
from jaxbench.reports.context import STAGES, measurements_of
from jaxbench.reports.runs import ReportedRun
from jaxbench.schema import value_of
from jaxbench.tables import spreadsheet

# {column: field of the summary}, of the columns before `seed` and of those after `epochs`.
_OF_SUMMARY = {
    "top1": "eval_top1",
    "dice": "eval_dice",
    "bits_per_byte": "eval_bits_per_byte",
    **{name: name for name in ("tokens_per_s", "mfu", "compile_s", "wall_s", "usd")},
}
_MORE_OF_SUMMARY = {
    "epochs": "epochs_done",
    "best_top1": "best_eval_top1",
    "best_dice": "best_eval_dice",
    "best_loss": "best_eval_loss",
    **{n: n for n in ("first_epoch_with_compile_s", "median_epoch_s", "peak_memory_bytes")},
}


def run_row(run: ReportedRun) -> dict[str, Any]:
    """Return the row of `COLUMNS` of a run; what it has not recorded is None."""
    of_rate = next((one.record for one in measurements_of(run) if one.stage in STAGES), run.summary)
    row = {
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
        "feed": run.rate_feed,
        "started_at": run.document.started_at,
        "reason": run.reason,
        "path": str(run.path),
        "target": run.target,
        # Columns are added at the end: whoever reads them by their place goes on reading the same.
        "run": run.id,
        "name": run.name,
        "hostname": run.host,
        "processor": run.processor,
        "network": None if run.network == "?" else run.network,
        "parameters": run.document.parameters,
        "data": run.rate_data,
        "n": run.rate.n,
        "images_per_s_per_device": value_of(of_rate, "images_per_s_per_device"),
        "latency_p50_s": value_of(of_rate, "latency_p50_s"),
        "latency_p99_s": value_of(of_rate, "latency_p99_s"),
        **{name: value_of(run.summary, field) for name, field in _MORE_OF_SUMMARY.items()},
        "total_s": run.total_s,
        "compile_cache": run.compile_cache,
        "joules_per_image": run.telemetry.get("joules_per_image"),
        "usd_per_hour": run.price and run.price.usd_per_hour,
    }
    return {name: None if value == UNKNOWN else value for name, value in row.items()}


# Names as in run.json and its summary, but for those of `_OF_SUMMARY` and `_MORE_OF_SUMMARY`.
COLUMNS = (*run_row(ReportedRun(None, "", pathlib.Path())),)
# What the table begins with since it is the report's, and what that began with before.
_FIRST = ",".join(COLUMNS[: COLUMNS.index("usd_per_hour") + 1])
_BEFORE = "origin,run,name,status,reason,experiment,network,parameters,"


def render_csv(collection: Collection) -> str:
    """Return the runs as CSV; an unknown value is an empty cell."""
    return spreadsheet.render_csv(COLUMNS, map(run_row, collection.all_runs))


def is_csv_report(text: str) -> bool:
    """Return whether a file begins as a report in CSV, of this version or of an earlier one.

    A table of runs to which somebody has added columns is none.
    """
    header = text.partition("\n")[0]
    is_table = header.startswith(_FIRST) and ",".join(COLUMNS).startswith(header)
    return is_table or header.startswith(_BEFORE)
