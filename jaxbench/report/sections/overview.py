"""What was run, on what, and what to be careful about."""

import collections
from typing import Any

from jaxbench.report.blocks import Cell, Section, Table, Text
from jaxbench.report.collect import ReportedRun
from jaxbench.report.sections.material import ReportContext, run_cell, run_ids, status_cell
from jaxbench.report.values import (
    count,
    find,
    interval,
    items,
    mapping,
    mebibytes,
    moment,
    number,
    percent,
    rate,
    seconds,
    text,
    words,
)

# Machines or versions in one table; the rarest are left to its note.
_MOST_ENVIRONMENTS = 6
_MOST_WARNINGS = 200


def overview(material: ReportContext) -> Section:
    """What was run on what: states, the table of runs, environments and their differences."""
    runs = material.runs
    sweeps = material.collection.sweeps
    blocks: list[Any] = [Text(note) for note in material.collection.notes]
    blocks += [Text(f"The sweep {s.name} is corrupt: {s.problem}.") for s in sweeps if s.problem]
    careful = _careful(runs)
    blocks += [table for table in (careful, _runs_table(material), *_environments(runs)) if table]
    return Section(
        "runs",
        "What was run on what",
        _states(runs, len(sweeps)),
        blocks,
    )


def _states(runs: list[ReportedRun], sweeps: int) -> str:
    states = collections.Counter(run.status for run in runs)
    told = ", ".join(f"{n} {status}" for status, n in states.most_common())
    dates = sorted(filter(None, (text(run.document, "started_at") for run in runs)))
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


def _careful(runs: list[ReportedRun]) -> Table | None:
    """What the runs themselves warn of; what several say stands once."""
    told: dict[str, list[str]] = {}
    for run in runs:
        lines = [words(warning) for warning in items(run.summary, "warnings")]
        # An invalid run's reason is made of these.
        if run.status != "invalid":
            lines += [f"cannot be true: {words(why)}" for why in items(run.summary, "invalid")]
        if run.status != "done":
            shown = {"oom": "out of memory"}.get(run.status, run.status)
            lines.insert(0, f"{shown}: {run.reason or 'no reason given'}")
        resumes = [mapping(entry) for entry in items(run.document, "resumes")]
        if resumes:
            lost_s = sum(number(entry, "lost_s") or 0.0 for entry in resumes)
            lines.append(
                f"taken up again {len(resumes)} time{'s' if len(resumes) > 1 else ''}; "
                f"{seconds(lost_s)} s of work was lost and done again, and is in none of its times"
            )
        if find(run.environment, "git", "dirty") is True:
            lines.append("measured with changes to jaxbench that were not committed")
        for line in lines:
            told.setdefault(line, []).append(run.id)
    if not told:
        return None
    rows = [
        [line, run_cell(ids[0]) if len(ids) == 1 else run_ids(ids)] for line, ids in told.items()
    ]
    more = len(rows) - _MOST_WARNINGS
    return Table(
        ("what", "run"),
        rows[:_MOST_WARNINGS],
        title="To be careful about",
        note=f"{more} more lines are left out." if more > 0 else "",
        text_columns=(0, 1),
    )


def _runs_table(material: ReportContext) -> Table:
    by_run: dict[str, Any] = {}
    for row in material.measurements:
        if row.run and row.stage in ("training", "train_step", None):
            by_run.setdefault(row.run, row)
    rows = []
    for run in material.runs:
        row = by_run.get(run.id)
        rows.append(
            [
                run.id,
                run.name,
                status_cell(run.status),
                run.experiment,
                run.mode,
                run.precision,
                run.feed,
                count(run.batch_size),
                run.hardware,
                rate(row and row.images_per_s),
                interval(row and row.images_per_s_low, row and row.images_per_s_high),
                count(row and row.n),
                percent(row and row.score),
                seconds(number(run.summary, "wall_s")),
                run.network,
                run.data,
                moment(text(run.document, "started_at")),
            ]
        )
    return Table(
        (
            "run",
            "name",
            "status",
            "experiment",
            "mode",
            "precision",
            "feed",
            "global batch",
            "devices",
            "images/s",
            "95 % interval",
            "n",
            "score [%]",
            "wall [s]",
            "network",
            "data",
            "started",
        ),
        rows,
        title="Runs",
        note=(
            "images/s: over all devices together, median of training epochs from the 2nd on, or "
            "of the training step's windows; n of them. Score: top-1 or Dice of the last epoch."
        ),
        text_columns=(0, 1, 2, 3, 4, 5, 6, 8, 14, 15),
        anchors=[run.id for run in material.runs],
    )


def _environments(runs: list[ReportedRun]) -> list[Table]:
    """One table of what all have in common, one of that in which they differ."""
    groups: dict[str, tuple[dict[str, str], list[str]]] = {}
    for run in runs:
        if not run.environment:
            continue
        described = _describe(run)
        groups.setdefault(repr(described), (described, []))[1].append(run.id)
    ordered = sorted(groups.values(), key=lambda group: -len(group[1]))
    if not ordered:
        return []
    shown, more = ordered[:_MOST_ENVIRONMENTS], len(ordered) - _MOST_ENVIRONMENTS
    names = list(dict.fromkeys(name for described, _ in ordered for name in described))
    differing = {
        name for name in names if len({described.get(name) for described, _ in ordered}) > 1
    }
    tables = []
    if differing:
        heads = [f"environment {number}" for number in range(1, len(shown) + 1)]
        rows: list[list[Cell | str]] = [["runs", *(run_ids(ids) for _, ids in shown)]]
        for name in names:
            if name in differing:
                runs_with: collections.Counter[str] = collections.Counter()
                for described, ids in ordered:
                    runs_with[described.get(name, "–")] += len(ids)
                usual = runs_with.most_common(1)[0][0]
                cells = [described.get(name, "–") for described, _ in shown]
                rows.append([name, *(Cell(c, "" if c == usual else "differs") for c in cells)])
        tables.append(
            Table(
                ("", *heads),
                rows,
                title="Where the environments differ",
                note=(
                    f"Figures of different environments are two things: {len(ordered)} of them "
                    "were found. ≠ marks what is not what most runs have."
                    + (f" {more} more are left out here." if more > 0 else "")
                ),
                text_columns=range(len(heads) + 1),
            )
        )
    common = ordered[0][0]
    same = [[name, common[name]] for name in names if name not in differing and common[name] != "–"]
    tables.append(Table(("", "value"), same, title="The same for all runs", text_columns=(0, 1)))
    return tables


def _describe(run: ReportedRun) -> dict[str, str]:
    environment = run.environment
    commit = text(environment, "git", "commit")
    described = {
        name: words(environment.get(name))
        for name in ("hostname", "platform", "backend", "device_kind", "driver", "cpu", "cpu_cores")
    }
    described["host memory [MiB]"] = mebibytes(number(environment, "host_memory_bytes"))
    described["python"] = words(environment.get("python"))
    described |= {name: words(v) for name, v in mapping(environment, "versions").items()}
    described |= {name: words(v) for name, v in mapping(environment, "variables").items()}
    described["fp32 multiplies in"] = text(environment, "matmul_precision") or "backend's default"
    if "compile_cache" in environment:
        described["compilation cache"] = "off" if environment["compile_cache"] is None else "on"
    dirty = " with changes" if find(environment, "git", "dirty") is True else ""
    described["jaxbench commit"] = f"{commit[:12]}{dirty}" if commit else "–"
    return described
