"""The results of a sweep's trials: their figures, tables, and statistics over seeds."""

import collections
import math
import platform
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from jaxbench.analysis.rate import FEWEST_SEEDS, Estimate, spread
from jaxbench.metrics import UNKNOWN, plain
from jaxbench.records.reader import RunRecords
from jaxbench.records.same import others_of
from jaxbench.reports.runs import NEVER_REACHED, ReportedRun, time_to_target
from jaxbench.reports.work import grouped
from jaxbench.schema import (
    METRICS,
    CompileRecord,
    Conv2dRecord,
    EpochRecord,
    InputRecord,
    MaxBatchResult,
    ScalingRecord,
    TargetRecord,
    ThroughputRecord,
    TrialFigures,
    TrialResult,
    column_heading,
    shown_in,
    value_of,
)
from jaxbench.sweeps.grid import Trial
from jaxbench.tables.text import text_table

# Columns that are shown even if the console is narrow.
_MARKED = ("images_per_s", "eval_top1", "eval_dice")  # their best trial is marked
_MAIN = (*_MARKED, "needed_bytes_per_device", "predicted_images_per_s")
_MOST_WARNINGS = 3


def figures_of(run: RunRecords, status: str | None = None) -> TrialFigures:
    """Return the figures of a trial's run.

    Args:
      status: how the trial ended; None takes the run's own word.
    """
    compiled = run.of_kind(CompileRecord)
    planned = [record.memory["total_bytes"] for record in compiled if record.memory]
    reported = ReportedRun(
        None, "", run.path, run.document, run.records, status or run.document.status
    )
    figures: dict[str, Any] = {
        "compile_cache": reported.compile_cache,
        "planned_bytes_per_device": max(planned, default=None),
        "device_memory_bytes": compiled[0].device_memory_bytes if compiled else None,
    }
    for record in run.of_kind(TargetRecord):
        figures["needed_bytes_per_device"] = record.needed_bytes
    for record in run.of_kind(ThroughputRecord):
        if record.stage == "train_step":
            figures |= msgspec.structs.asdict(record)
    for record in run.of_kind(InputRecord):
        figures[f"{record.stage}_images_per_s"] = record.images_per_s
    for record in run.of_kind(ScalingRecord):  # from few devices to all
        figures[f"{record.scaling}_efficiency"] = record.efficiency
    for record in run.of_kind(Conv2dRecord):
        figures.setdefault("conv2d_compute_s", record.compute_s)
        figures.setdefault("conv2d_scipy_s", record.scipy_s)
    summary = reported.summary
    figures |= {
        name: value for name, value in msgspec.structs.asdict(summary).items() if value is not None
    }
    figures |= reported.rate.fields("images_per_s") | {"total_s": reported.total_s}
    epochs = run.of_kind(EpochRecord)
    if flops := run.document.training_flops_per_image:
        figures["training_flops"] = flops * sum(e.images for e in epochs) if epochs else None
    if to_target := time_to_target(reported, None):
        figures |= {"target_value": to_target.target, "target_energy_j": to_target.energy_j}
        # Nobody knows it of a run that was broken off.
        figures["target_reached"] = to_target.reached if to_target.ended else None
        if to_target.reached:
            figures |= {"target_s": to_target.time_s, "target_epoch": to_target.epoch}
            figures |= {"target_images": to_target.images, "target_flops": to_target.training_flops}
            figures["target_usd"] = (value_of(summary, "target_accuracy") or {}).get("usd")
    figures["energy_j"] = (summary.telemetry or {}).get("energy_j")
    return TrialFigures(**{name: figures.get(name) for name in TrialFigures.__struct_fields__})


def trial_table(trials: Sequence[Trial], results: Sequence[TrialResult]) -> list[str]:
    """Return the lines of a table in the published comparisons' form: a row for each trial."""
    shown = [_shown(result) for result in results]
    marked = [line for name in _MARKED for line in _mark_best(name, results, shown)]
    names = [name for name in shown_in("trial") if any(name in one for one in shown)]
    rows, reasons = [], []
    for trial, result, texts in zip(trials, results, shown, strict=True):
        status = "OOM" if result.status == "oom" else result.status
        rows.append([*result.place.values(), status, *(texts.get(n, UNKNOWN) for n in names)])
        if result.reason:
            first, _, rest = result.reason.strip().partition("\n")
            rest = rest and f" (the rest is in {result.log})"
            reasons.append(f"{trial.title}: {result.status}: {first}{rest}")
    headings = [*results[0].place, "status", *(column_heading(name) for name in names)]
    # A reader looks at what a rate or a score costs before what it is made of.
    spare = [column_heading(name) for name in names if name not in _MAIN]
    return _simulated(results) + text_table(headings, rows, spare) + marked[:1] + reasons


def _simulated(results: Sequence[TrialResult]) -> list[str]:
    """Return the line that CPU devices are simulated, if they are."""
    counts = {one.num_devices for one in results if one.backend == "cpu" and one.num_devices}
    if max(counts, default=1) == 1:
        return []
    listed = ", ".join(map(str, sorted(counts)))
    return [f"warning: simulated devices ({listed}): the rates say nothing about accelerators"]


def _mark_best(
    name: str, results: Sequence[TrialResult], shown: Sequence[dict[str, str]]
) -> list[str]:
    """Mark the highest value of a metric; return the note on the mark, if there is one.

    Not among seeds: the best of repeats is luck.
    """
    values = [
        result.figures.value(name) if result.status == "done" and name in texts else None
        for result, texts in zip(results, shown, strict=True)
    ]
    known = [value for value in values if value is not None]
    if len({*known}) < 2 or "seed" in results[0].place:
        return []
    best = shown[values.index(max(known))]
    best[name] = f"* {best[name]}"
    return ["* the highest; `jaxbench compare` says whether a difference is significant"]


def _shown(result: TrialResult) -> dict[str, str]:
    """Return {metric: text} of a trial; of one that did not end well, only its memory."""
    figures, shown = result.figures, {}
    well = result.status in ("done", "invalid")
    for name in shown_in("trial"):
        value = figures.value(name)
        steadier = name == "images_per_s_whole_run" and figures.images_per_s is not None
        if value is not None and not steadier and (well or METRICS[name].unit == "GiB"):
            shown[name] = METRICS[name].show(value)
    for name in ("images_per_s", "predicted_images_per_s"):
        if f"{name}_low" in shown:
            shown[f"{name}_low"] += f" to {plain(figures.value(f'{name}_high'))}"
    if figures.compile_cache == "hit" and "compile_s" in shown:
        shown["compile_s"] += " (cached)"
    return shown


def seed_statistics(results: Sequence[TrialResult]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of seeds.csv and the lines of a table: what several seeds say together.

    There are none if the grid has no seeds, or one seed for each combination of the others.
    """
    groups = grouped(results, lambda one: tuple(others_of(one.place, "seed").items()))
    if "seed" not in results[0].place or len(results) == len(groups):
        return [], []
    rows, shown, notes = [], [], []
    for others, group in groups.items():
        not_done = collections.Counter(one.status for one in group if one.status != "done")
        if not_done:
            ended = ", ".join(f"{count} {status}" for status, count in not_done.items())
            which = " ".join(f"{name}={value}" for name, value in others)
            notes.append(f"{which}{': ' * bool(which)}{ended} of {len(group)} seeds")
        for name in shown_in("seeds"):
            values = _of_seeds(group, name)
            if not values:
                continue
            counts = {"figure": name, "n": len(values), "of_seeds": len(group)}
            metric = METRICS[name]
            of_seeds = spread(values, 1.0 if metric.unit == "%" else math.inf)
            rows.append(dict(others) | counts | {"not_done": not_done.total()} | of_seeds)
            cells = {key: metric.show(value) for key, value in of_seeds.items()}
            ends = [cells[f"geometric_mean{end}"] for end in ("_low", "_high")]
            interval = UNKNOWN if UNKNOWN in ends else " to ".join(ends)
            cells_of_row = (metric.heading, f"{len(values)}", cells["median"])
            fields = (value for _, value in others)
            shown.append([*fields, *cells_of_row, cells["geometric_mean"], interval])
    if not shown:
        return rows, notes
    headings = [*(name for name, _ in others), "over seeds", "n", "median", "mean", "95 % interval"]
    few = f"; fewer than {FEWEST_SEEDS} seeds are no result"
    is_few = any(row["n"] < FEWEST_SEEDS for row in rows)
    mean = "the mean is geometric (none if a value is 0 or ∞), the interval is the mean's"
    mean += few * is_few
    return rows, [*text_table(headings, shown, ["median", "n"]), mean, *notes]


def _of_seeds(group: Sequence[TrialResult], name: str) -> list[Estimate]:
    """Return a figure of the seeds that have it; a target that was never reached takes endlessly.

    What seeds that failed measured before their end is no other figure of a whole run.
    """
    is_of_target = name.startswith("target_")
    known = [
        Estimate.of_fields(msgspec.structs.asdict(one.figures) | {name: value}, name)
        for one in group
        if is_of_target or one.status == "done"
        if (value := one.figures.value(name)) is not None
    ]
    if known and is_of_target:
        known += [Estimate(math.inf)] * sum(
            one.figures.value(name) is None
            and one.status in NEVER_REACHED
            # None of a run that failed before it had a record of its target.
            and (one.figures.target_reached is False or one.figures.target_value is None)
            for one in group
        )
    return known


def max_batch_table(results: Sequence[MaxBatchResult]) -> list[str]:
    """Return the lines of a table with the largest batch of each trial's experiment."""
    names = ("max_batch", "max_batch_per_device", "smallest_too_large", "trials")
    rows = []
    for result in results:
        largest, *others = [METRICS[name].show(getattr(result, name)) for name in names]
        if not result.max_batch:
            largest = "OOM" if result.status == "oom" else "failed"
        rows.append([*result.place.values(), largest, *others])
    headings = [*results[0].place, *(METRICS[name].heading for name in names)]
    return text_table(headings, rows) + [result.reason for result in results]


def differences(results: Sequence[TrialResult], hardware: Collection[str] = ()) -> list[str]:
    """Return warnings about what differs between the trials beside the grid's fields.

    Args:
      hardware: that of the launcher; empty if the trials should have run on this machine.
    """
    warnings = []
    elsewhere = {result.hostname for result in results if result.hostname} - {platform.node()}
    if elsewhere and not hardware:
        warnings.append(f"warning: some trials ran on {', '.join(sorted(elsewhere))}")
    # Targets are meant to differ.
    targets = any("target" in result.place for result in results)
    for name in ("commit", "versions") if targets else ("device_kind", "commit", "versions"):
        values = [getattr(result, name) for result in results]
        kinds = {str(value) for value in values if value is not None}
        if len(kinds) > 1:
            warnings.append(f"warning: the trials differ in {name}: {'; '.join(sorted(kinds))}")
    return warnings


def repeated_warnings(results: Sequence[TrialResult]) -> list[str]:
    """Return the trials' warnings, once for those that differ only in numbers; the first few."""
    kinds: dict[str, dict[str, str]] = {}
    for result in results:
        for warning in result.warnings:
            kind = kinds.setdefault(re.sub(r"\d+(?:[.,]\d+)*", "0", warning), {})
            kind.setdefault(result.key, warning)
    lines = []
    for kind in sorted(kinds.values(), key=len, reverse=True):
        example = ", for example" if len(set(kind.values())) > 1 else ""
        first = next(iter(kind.values()))
        lines.append(f"warning ({len(kind)} of {len(results)} trials{example}): {first}")
    more = len(lines) - _MOST_WARNINGS
    return lines[:_MOST_WARNINGS] + [f"{more} more warning(s) in the report"] * (more > 0)


def exit_code(statuses: Iterable[str]) -> int:
    """Return a sweep's exit code: a trial that did not fit in memory or in time is a result."""
    return int(any(status in ("failed", "invalid", "lost") for status in statuses))
