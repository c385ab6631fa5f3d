"""Where the time went: parts that add up to the whole."""

from jaxbench.report.blocks import BarChart, Section, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.sections.material import ReportContext, run_cell, status_cell
from jaxbench.report.values import number, percent, seconds

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


def time_split(material: ReportContext) -> Section | None:
    """A bar for each run, and the seconds of every part beside the whole."""
    split = [(run, _split(run)) for run in material.runs]
    split = [(run, parts) for run, parts in split if parts]
    if not split:
        return None
    table = _table(split)
    # The longest ones, in the order of the table.
    longest = sorted(split, key=lambda entry: -sum(entry[1].values()))[:_MOST_BARS]
    drawn = [entry for entry in split if entry in longest]
    chart = BarChart(
        title="Where the time of each run went",
        note="seconds of wall time by the run's own clock, n = 1 run a bar, no interval"
        + (f"; the {_MOST_BARS} longest of {len(split)} runs" if len(split) > _MOST_BARS else ""),
        x_label="seconds",
        parts=list(_PARTS),
        bars=[
            (f"{run.id} {run.experiment} {run.mode}", list(parts.values())) for run, parts in drawn
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
    phases_s = run.summary.get("phases_s")
    if not isinstance(phases_s, dict):
        return {}
    parts = dict.fromkeys(_PARTS, 0.0)
    of_phase = {phase: part for part, phases in _PARTS.items() for phase in phases}
    for phase in phases_s:
        spent_s = number(phases_s, phase)
        if spent_s is not None and spent_s >= 0:
            parts[of_phase.get(phase, "other")] += spent_s
    return parts if sum(parts.values()) > 0 else {}


def _table(split: list[tuple[ReportedRun, dict[str, float]]]) -> Table:
    rows = []
    for run, parts in split:
        total_s, wall_s = sum(parts.values()), number(run.summary, "wall_s")
        agrees = "–"
        if wall_s:
            off = total_s / wall_s - 1
            agrees = "yes" if abs(off) <= _SAME else f"no: {percent(off, 1)} % off"
        rows.append(
            [
                run_cell(run.id),
                status_cell(run.status),
                run.experiment,
                run.mode,
                *(seconds(value) for value in parts.values()),
                seconds(total_s),
                seconds(wall_s),
                agrees,
            ]
        )
    return Table(
        (
            "run",
            "status",
            "experiment",
            "mode",
            *(f"{part} [s]" for part in _PARTS),
            "sum [s]",
            "wall [s]",
            "adds up",
        ),
        rows,
        title="Seconds",
        note="; ".join(f"{part}: {', '.join(names)}" for part, names in _PARTS.items() if names)
        + " (the names in run.json).",
        text_columns=(0, 1, 2, 3, 4 + len(_PARTS) + 2),
    )
