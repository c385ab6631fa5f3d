"""Runs, their environments, and warnings."""

import collections
from collections.abc import Sequence

from jaxbench.report.blocks import Cell, Section, Table, Text
from jaxbench.report.context import ReportContext
from jaxbench.report.fields import find, items, known, mapping, number, text
from jaxbench.report.formats import UNKNOWN, mebibytes, moment, percent, rate, seconds, words
from jaxbench.report.runs import ReportedRun
from jaxbench.report.settings import grouped
from jaxbench.report.tables import (
    BATCH,
    DEVICES,
    EXPERIMENT,
    FEED,
    MODE,
    PRECISION,
    STATUS,
    Column,
    estimate_columns,
    make_table,
    run_cell,
    run_ids,
)

# Machines or versions in one table; the rarest are left to its note.
_MOST_ENVIRONMENTS = 6
_MOST_WARNINGS = 200
_RUNS = (
    Column("run", "run.id"),
    Column("name", "run.name"),
    *(STATUS, EXPERIMENT, MODE, PRECISION, FEED, BATCH, DEVICES),
    *estimate_columns("images/s", "rate", rate),
    Column("score [%]", "run.score", percent),
    Column("wall [s]", "run.summary.wall_s", seconds),
    Column("network", "run.network"),
    Column("data", "run.data"),
    Column("started", "run.document.started_at", moment),
)


def overview(context: ReportContext) -> Section:
    """States, warnings, the table of runs, and environments with their differences."""
    runs, sweeps = context.runs, context.collection.sweeps
    notes = [Text(note) for note in context.collection.notes]
    notes += [Text(f"The sweep {s.name} is corrupt: {s.problem}.") for s in sweeps if s.problem]
    tables = [_warnings(runs), _runs_table(context), *_environments(runs)]
    return Section(
        "runs",
        "Runs and environment",
        _states(runs, len(sweeps)),
        [*notes, *filter(None, tables)],
    )


def _states(runs: Sequence[ReportedRun], sweeps: int) -> str:
    states = collections.Counter(run.status for run in runs)
    told = ", ".join(f"{n} {status}" for status, n in states.most_common())
    dates = sorted(known(text(run.document, "started_at") for run in runs))
    when = ""
    if dates:
        first, last = dates[0][:10], dates[-1][:10]
        when = f", {first}" if first == last else f", {first} to {last}"
    of = f" and {sweeps} sweep{'s' if sweeps > 1 else ''}" if sweeps else ""
    return (
        f"{len(runs)} run{'s' if len(runs) != 1 else ''}{of} ({told or 'none has begun'}){when}. "
        "All figures below marked with a run's id (R1, R2 …) were measured in that run; what "
        "others published is marked as such, with its source."
    )


def _warnings(runs: Sequence[ReportedRun]) -> Table | None:
    """What the runs themselves warn of; what several say stands once."""
    told: dict[str, list[str]] = {}
    for run in runs:
        for line in _warnings_of(run):
            told.setdefault(line, []).append(run.id)
    if not told:
        return None
    more = len(told) - _MOST_WARNINGS
    columns = (
        Column("what", lambda line: line[0]),
        Column("run", lambda line: _linked(line[1]), left=True),
    )
    return make_table(
        columns,
        [*told.items()][:_MOST_WARNINGS],
        title="Warnings",
        note=f"{more} more lines are left out." if more > 0 else "",
    )


def _linked(ids: Sequence[str]) -> Cell:
    return run_cell(ids[0]) if len(ids) == 1 else Cell(run_ids(ids))


def _warnings_of(run: ReportedRun) -> list[str]:
    lines = [words(warning) for warning in items(run.summary, "warnings")]
    # An invalid run's reason is made of these.
    if run.status != "invalid":
        lines += [f"fails a sanity check: {words(why)}" for why in items(run.summary, "invalid")]
    if run.status != "done":
        shown = {"oom": "out of memory"}.get(run.status, run.status)
        lines.insert(0, f"{shown}: {run.reason or 'no reason given'}")
    resumes = [mapping(entry) for entry in items(run.document, "resumes")]
    if resumes:
        lost_s = sum(number(entry, "lost_s") or 0.0 for entry in resumes)
        lines.append(
            f"resumed {len(resumes)} time{'s' if len(resumes) > 1 else ''}; "
            f"{seconds(lost_s)} s of work was lost and done again, and is in none of its times"
        )
    if find(run.environment, "git", "dirty") is True:
        lines.append("measured with changes to jaxbench that were not committed")
    return lines


def _runs_table(context: ReportContext) -> Table:
    rates = {
        row.run.id: row.rate
        for row in reversed(context.measurements)
        if row.stage in ("training", "train_step", None)
    }
    return make_table(
        _RUNS,
        [{"run": run, "rate": rates.get(run.id)} for run in context.runs],
        title="Runs",
        note=(
            "images/s: over all devices together, median of training epochs from the 2nd on, or "
            "of the training step's windows; n of them. Score: top-1 or Dice of the last epoch."
        ),
        anchor=lambda row: row["run"].id,
    )


def _environments(runs: Sequence[ReportedRun]) -> list[Table]:
    """One table of the fields in which environments differ, one of those that are common."""
    described = {run.id: _describe(run) for run in runs if run.environment}
    groups = grouped(described, key=lambda id: repr(described[id]))
    ordered = sorted(groups.values(), key=len, reverse=True)
    if not ordered:
        return []
    names = list(dict.fromkeys(name for own in described.values() for name in own))
    common = described[ordered[0][0]]
    values = {
        name: collections.Counter(own.get(name, UNKNOWN) for own in described.values())
        for name in names
    }
    differing = [name for name in names if len({own.get(name) for own in described.values()}) > 1]
    tables = []
    if differing:
        more = len(ordered) - _MOST_ENVIRONMENTS
        ordered = ordered[:_MOST_ENVIRONMENTS]
        rows: list[list[Cell | str]] = [["runs", *(run_ids(ids) for ids in ordered)]]
        for name in differing:
            usual = values[name].most_common(1)[0][0]
            cells = [described[ids[0]].get(name, UNKNOWN) for ids in ordered]
            rows.append([name, *(Cell(c, "" if c == usual else "differs") for c in cells)])
        tables.append(
            Table(
                ["", *(f"environment {number}" for number in range(1, len(ordered) + 1))],
                rows,
                title="Where the environments differ",
                note=(
                    f"Figures of different environments are two things: {len(groups)} of them "
                    "were found. ≠ marks what is not what most runs have."
                    + (f" {more} more are left out here." if more > 0 else "")
                ),
                text_columns=range(len(ordered) + 1),
            )
        )
    same = [
        [name, common[name]] for name in names if name not in differing and common[name] != UNKNOWN
    ]
    title = "Common environment"
    return [*tables, Table(("", "value"), same, title=title, text_columns=(0, 1))]


def _describe(run: ReportedRun) -> dict[str, str]:
    environment = run.environment
    commit = text(environment, "git", "commit")
    described = {
        name: words(environment.get(name))
        for name in ("hostname", "platform", "backend", "device_kind", "driver", "cpu", "cpu_cores")
    }
    described["host memory [MiB]"] = mebibytes(environment.get("host_memory_bytes"))
    described["python"] = words(environment.get("python"))
    described |= {name: words(v) for name, v in mapping(environment, "versions").items()}
    described |= {name: words(v) for name, v in mapping(environment, "variables").items()}
    described["fp32 multiplies in"] = text(environment, "matmul_precision") or "backend's default"
    if "compile_cache" in environment:
        described["compilation cache"] = "off" if environment["compile_cache"] is None else "on"
    dirty = " with changes" if find(environment, "git", "dirty") is True else ""
    described["jaxbench commit"] = f"{commit[:12]}{dirty}" if commit else UNKNOWN
    return described
