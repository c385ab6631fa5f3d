"""Where the time went: parts that add up to the whole."""

from typing import Any

from jaxbench.report.blocks import BarChart, Section
from jaxbench.report.context import ReportContext
from jaxbench.report.fields import mapping, number
from jaxbench.report.formats import UNKNOWN, percent, seconds
from jaxbench.report.runs import ReportedRun
from jaxbench.report.tables import EXPERIMENT, MODE, RUN, STATUS, Column, make_table

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
# Rounding of sums, and a clock that is read twice.
_SAME = 1e-3
_COLUMNS = (
    *(RUN, STATUS, EXPERIMENT, MODE),
    *(Column(f"{part} [s]", f"parts_s.{part}", seconds) for part in _PARTS),
    Column("sum [s]", "sum_s", seconds),
    Column("wall [s]", "run.summary.wall_s", seconds),
    Column("adds up", lambda row: _agreement(row["sum_s"], number(row["run"].summary, "wall_s"))),
)


def time_split(context: ReportContext) -> Section | None:
    """A bar for each run, and the seconds of every part beside the whole."""
    rows: list[dict[str, Any]] = []
    for run in context.runs:
        parts_s = _split(run)
        if sum(parts_s.values()) > 0:
            rows.append({"run": run, "parts_s": parts_s, "sum_s": sum(parts_s.values())})
    if not rows:
        return None
    note = "; ".join(f"{part}: {', '.join(names)}" for part, names in _PARTS.items())
    table = make_table(_COLUMNS, rows, title="Seconds", note=f"{note} (the names in run.json).")
    # The longest ones, in the order of the table.
    longest = sorted(rows, key=lambda row: -row["sum_s"])[:_MOST_BARS]
    chart = BarChart(
        title="Where the time of each run went",
        note="seconds of wall time by the run's own clock, n = 1 run a bar, no interval"
        + (f"; the {_MOST_BARS} longest of {len(rows)} runs" if len(rows) > _MOST_BARS else ""),
        x_label="seconds",
        parts=list(_PARTS),
        bars=[
            (f"{run.id} {run.experiment} {run.mode}", list(row["parts_s"].values()))
            for row in rows
            if row in longest
            for run in [row["run"]]
        ],
        table=table,
    )
    return Section(
        "time",
        "Where the time went",
        "The clock's phases exclude one another, so the parts add up to the whole run; what could "
        "not be told apart is other.",
        [chart, table],
    )


def _split(run: ReportedRun) -> dict[str, float]:
    parts_s = dict.fromkeys(_PARTS, 0.0)
    part_of = {phase: part for part, phases in _PARTS.items() for phase in phases}
    phases_s = mapping(run.summary, "phases_s")
    for phase in phases_s:
        spent_s = number(phases_s, phase)
        if spent_s is not None and spent_s >= 0:
            parts_s[part_of.get(phase, "other")] += spent_s
    return parts_s


def _agreement(sum_s: float, wall_s: float | None) -> str:
    if not wall_s:
        return UNKNOWN
    off = sum_s / wall_s - 1
    return "yes" if abs(off) <= _SAME else f"no: {percent(off, 1)} % off"
