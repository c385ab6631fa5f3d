"""The runs, their environments, and what makes their values doubtful."""

import collections
import functools
from collections.abc import Sequence

from jaxbench.analysis.pricing import lost_s
from jaxbench.metrics import UNKNOWN, plain, words
from jaxbench.records.attempts import describe_changes
from jaxbench.records.same import board_settings
from jaxbench.reports.blocks import Banner, Section
from jaxbench.reports.columns import run_cell, run_ids, setting_column, shared
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import grouped
from jaxbench.schema import METRICS
from jaxbench.tables.columns import Cell, Column, estimate_columns, metric_column, moment, span
from jaxbench.tables.table import Table, make_table

# Machines or versions in one table; the rarest are left to its note.
_MOST_ENVIRONMENTS = 6
_OF_ENVIRONMENT = ("hostname", "platform", "backend", "device_kind", "driver")
_OF_ENVIRONMENT += ("cpu", "cpu_cores", "cpu_quota")
_WARNINGS = (Column("what", "what"), Column("run", "runs", left=True))


def list_runs(context: ReportContext) -> Section | None:
    """Return the states, the table of runs, and environments with their differences."""
    runs, sweeps = context.collection.runs, context.collection.sweeps
    days = [run.document.started_at for run in runs if run.document.started_at]
    when = f", {span(days, lambda day: day[:10])}" if days else ""
    of = f" and {len(sweeps)} sweep{'s' if len(sweeps) > 1 else ''}" if sweeps else ""
    compiled = len(runs) - len(context.runs)
    verb = "is" if compiled == 1 else "are"
    only = f" {compiled} of them {verb} of machines that are not here: nothing was measured there."
    only = only if compiled else ""
    states = collections.Counter(run.status for run in runs).most_common()
    listed = ", ".join(f"{n} {status}" for status, n in states) or "none has begun"
    corrupt = [f"The sweep {s.name} is corrupt: {s.problem}." for s in sweeps if s.problem]
    return make_section(
        "runs",
        "Runs and environment",
        f"{len(runs)} run{'s' if len(runs) != 1 else ''}{of} ({listed}){when}.{only} "
        "Figures with a run's id (R1, R2 …) were measured in that run, unless they are marked "
        "compiled or predicted. Published figures are marked, with their source.",
        [*context.collection.notes, *corrupt, _runs_table(context), _environments(context.runs)],
    )


def _runs_table(context: ReportContext) -> Table:
    columns = (
        Column("run", "run.id"),
        Column("name", "run.name"),
        *shared("status", "experiment", "mode", "precision", "feed", "batch", "devices"),
        *setting_column(context),
        *estimate_columns("run.rate", "images_per_s"),
        metric_column("run.score"),
        metric_column("run.summary.wall_s"),
        Column("network", "run.network"),
        Column("data", "run.rate_data"),
        Column("started", "run.document.started_at", moment),
    )
    note = (
        "images/s: over all devices together, median of training epochs from the 2nd on, or of "
        "the training step's windows; n of them. Score: top-1 or Dice of the last epoch."
    )
    rows = [{"run": run} for run in context.collection.runs]
    return make_table(columns, rows, "Runs", note, anchor=lambda row: row["run"].id)


def trust(context: ReportContext) -> list[Banner]:
    """Return what makes values doubtful, counted over the runs; each warning is in the details."""
    runs, by_warning = context.runs, collections.defaultdict(list)
    for run in runs:
        for line in _warnings_of(run):
            by_warning[line].append(run)
    rows = [
        {"what": line, "runs": run_cell(warned[0].id) if len(warned) == 1 else run_ids(warned)}
        for line, warned in by_warning.items()
    ]
    ended = collections.Counter(run.status for run in runs if run.status != "done")
    counted = {
        "shared the host with other processes: their rates may be too low": [
            run for run in runs if run.telemetry.get("host_busy") is True
        ],
        "had settings for debugging, which distort rates and times: see the warnings": [
            run for run in runs if run.distorters
        ],
        "had simulated devices, which share one processor: their rates and efficiencies are not "
        "those of accelerators": [run for run in runs if run.are_simulated(run.num_devices)],
        f"did not complete ({', '.join(f'{n} {status}' for status, n in ended.items())})": [
            run for run in runs if run.status != "done"
        ],
    }
    sentences = [
        f"{f'All {len(runs)}' if len(these) == len(runs) > 1 else f'{len(these)} of {len(runs)}'} "
        f"run{'s' * (len(runs) > 1)} {reason}."
        for reason, these in counted.items()
        if these
    ]
    return [Banner(sentences, make_table(_WARNINGS, rows, "Warnings"))] if rows or sentences else []


def _warnings_of(run: ReportedRun) -> list[str]:
    lines = [words(warning) for warning in run.summary.warnings]
    # An invalid run's reason is made of these.
    if run.status != "invalid":
        lines += [f"fails a sanity check: {words(why)}" for why in run.summary.invalid]
    if run.status != "done":
        shown = {"oom": "out of memory"}.get(run.status, run.status)
        lines.insert(0, f"{shown}: {run.reason or 'no reason given'}")
    resumes = len(run.document.attempts or ()) - 1
    if resumes > 0:
        lines.append(
            f"resumed {resumes} time{'s' if resumes > 1 else ''}; "
            f"{plain(lost_s(run.document.attempts))} s of work was lost and done again, "
            "and is in none of its times"
        )
    if run.changes:
        lines.append(f"was resumed on something else: {words(describe_changes(run.changes))}")
    if (run.environment.get("git") or {}).get("dirty") is True:
        lines.append("measured with changes to jaxbench that were not committed")
    return lines


def _environments(runs: Sequence[ReportedRun]) -> Table:
    """Return the environments, a column each, the one of most runs first."""
    described = {run: _describe(run) for run in runs if run.environment}
    groups = grouped(described, key=lambda run: repr(described[run])).values()
    largest = sorted(groups, key=len, reverse=True)[:_MOST_ENVIRONMENTS]
    names = dict.fromkeys(name for values in described.values() for name in values)
    usual = {
        name: collections.Counter(values.get(name, UNKNOWN) for values in described.values())
        for name in names
    }

    def cell(runs: Sequence[ReportedRun], name: str) -> Cell:
        value = described[runs[0]].get(name, UNKNOWN)
        return Cell(value, "" if value == usual[name].most_common(1)[0][0] else "differs")

    columns = [Column(run_ids(runs), functools.partial(cell, runs)) for runs in largest]
    more = len(groups) - len(largest)
    note = "Figures of different environments are two things. ≠ marks what most runs do not have."
    note += f" {more} more environments are left out here." if more > 0 else ""
    # What differs comes first.
    rows = [name for name in names if [*usual[name]] != [UNKNOWN]]
    rows.sort(key=lambda name: len(usual[name]) == 1)
    table = make_table([Column("", str), *columns], rows, "Environment", note)
    return table._replace(folded=True)


def _describe(run: ReportedRun) -> dict[str, str]:
    environment = run.environment
    commit = (environment.get("git") or {}).get("commit")
    described = {name: environment.get(name) for name in _OF_ENVIRONMENT}
    described["host memory [MiB]"] = METRICS["host_peak_memory_bytes"].show(
        environment.get("host_memory_bytes")
    )
    described["python"] = environment.get("python")
    described |= board_settings(environment)
    described |= environment.get("versions", {}) | environment.get("variables", {})
    described["fp32 multiplies in"] = environment.get("matmul_precision") or "backend's default"
    if "compile_cache" in environment:
        described["compilation cache"] = "off" if environment["compile_cache"] is None else "on"
    dirty = " with changes" if (environment.get("git") or {}).get("dirty") is True else ""
    described["jaxbench commit"] = f"{commit[:12]}{dirty}" if commit else UNKNOWN
    return {name: words(value) for name, value in described.items()}
