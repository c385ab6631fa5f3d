"""Where the time went: parts that add up to the whole."""

from typing import Any

from jaxbench.metrics import percent, plain
from jaxbench.records.goodput import CAUSES
from jaxbench.reports.blocks import BarChart, Section
from jaxbench.reports.columns import shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.runs import ReportedRun
from jaxbench.tables.table import Column, Table, make_table, metric_column, metric_columns

_MOST_BARS = 16
# What the clock's phases are shown as; a phase that is not listed counts as other.
_PARTS = {
    "initialise": ("devices", "build", "init", "init_from_images"),
    "read data": ("read_data", "place_data"),
    "compile": ("lower", "compile"),
    "data wait": ("data_wait",),
    "train": ("train", "first_step"),
    "evaluate": ("eval",),
    "measure": ("warm_up", "measure", "scipy", "compare", "run", "profile"),
    "checkpoints": ("checkpoint", "restore"),
    # `records`: event files and what wandb is told.
    "other": ("records", "other"),
}
_PART_OF = {phase: part for part, phases in _PARTS.items() for phase in phases}
# Rounding of sums, and a clock that is read twice.
_SAME = 1e-3
_COLUMNS = (
    *shared("run", "status", "experiment", "mode"),
    *(Column(f"{part} [s]", f"parts_s.{part}", plain) for part in _PARTS),
    Column("sum [s]", "sum_s", plain),
    metric_column("run.summary.wall_s"),
    Column("adds up", "agreement"),
)
_GOODPUT = (
    *shared("run", "status", "experiment"),
    *metric_columns("run.summary.num_resumes", "run.summary.goodput"),
    *(Column(f"{cause} [s]", f"run.summary.badput_s.{cause}", plain) for cause in CAUSES),
    metric_column("run.summary.total_wall_s"),
)


def time_split(context: ReportContext) -> Section | None:
    """Return a bar for each run, and the seconds of every part beside the whole."""
    rows = [row for run in context.runs if (row := _split(run))["sum_s"] > 0]
    note = "; ".join(f"{part}: {', '.join(names)}" for part, names in _PARTS.items())
    table = make_table(_COLUMNS, rows, title="Seconds", note=f"{note} (the names in run.json).")
    # The longest ones, in the order of the table.
    longest = sorted(rows, key=lambda row: -row["sum_s"])[:_MOST_BARS]
    bars = [(row["label"], list(row["parts_s"].values())) for row in rows if row in longest]
    note = "seconds of wall time by the run's own clock, n = 1 run a bar, no interval"
    note += f"; the {_MOST_BARS} longest of {len(rows)} runs" if len(rows) > _MOST_BARS else ""
    title = "Where the time of each run went"
    return make_section(
        "time",
        "Where the time went",
        "The clock's phases do not overlap, so the parts add up to the whole run. Time of no "
        "phase is other.",
        [table, _goodput(context)],
        [BarChart(title, note, "seconds", list(_PARTS), bars, table)] if rows else [],
    )


def _goodput(context: ReportContext) -> Table:
    """Return the goodput and the badput of training runs, over all their processes."""
    rows = [{"run": run} for run in context.runs if run.summary.goodput is not None]
    return make_table(
        _GOODPUT,
        rows,
        title="Goodput",
        note="Share of the wall time that was steps whose result is in the final state, and the "
        "seconds of the rest by cause, from the start of a run's first process to its end. "
        "lost_work: done again after a resume. down: between two processes.",
    )


def _split(run: ReportedRun) -> dict[str, Any]:
    parts_s = dict.fromkeys(_PARTS, 0.0)
    phases_s = run.summary.phases_s or {}
    for phase in phases_s:
        parts_s[_PART_OF.get(phase, "other")] += phases_s[phase]
    sum_s, wall_s = sum(parts_s.values()), run.summary.wall_s
    off = sum_s / wall_s - 1 if wall_s else None
    agrees = off is not None and abs(off) <= _SAME
    row = {"run": run, "parts_s": parts_s, "sum_s": sum_s}
    row["agreement"] = "yes" if agrees else off and f"no: {percent(off)} % off"
    return row | {"label": f"{run.id} {run.experiment} {run.mode}"}
