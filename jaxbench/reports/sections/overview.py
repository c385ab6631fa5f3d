"""The answers first: what each machine came to at best."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jaxbench.analysis.statistics import Estimate
from jaxbench.metrics import METRICS, UNKNOWN, count, percent, plain
from jaxbench.reports.blocks import Section
from jaxbench.reports.context import ReportContext, make_section
from jaxbench.reports.machines import Best, Comparison, Machine, compare_machines
from jaxbench.reports.runs import SCORES
from jaxbench.tables.table import (
    Cell,
    Column,
    Format,
    clock_time,
    interval,
    make_table,
    with_figures,
)

# What fits on a screen or two; further rows are folded.
_MOST_ROWS = 30
_NOTE = (
    "images/s: over all devices together, of the fastest setting with an interval: the median of "
    "a run, or the geometric mean of three or more. Score: of the last epoch, the median of the "
    "seeds of the best setting. Time to the target: since the run's start, the median of the "
    "seeds of the fastest setting; seeds that failed never get there. USD: that time at the "
    "lowest known price. In brackets: the 95 % interval, and how many epochs or windows (n), runs "
    "or seeds. Grey, “only”: no interval, or fewer than five seeds, and nothing better. Speed-up: "
    "over the slowest machine, where experiment, images, precision and global batch are equal; "
    "otherwise none is given."
)


class _Row(NamedTuple):
    """A machine below the heading of its comparison."""

    heading: str
    machine: Machine


def overview(context: ReportContext) -> Section | None:
    """Return the best figures of each machine, by experiment, stage and feed."""
    found = compare_machines(context)
    headed = [*zip(found, _headings(found), strict=True)]
    first = _number_shown(found)
    parts = {"Best of each machine": headed[:first], "Further experiments": headed[first:]}
    tables = []
    for title, part in parts.items():
        rows = [_Row(heading, machine) for own, heading in part for machine in own.machines]
        columns = with_figures(_columns([own for own, _ in part]), rows)
        table = make_table(columns, rows, title, group=lambda row: row.heading)
        tables.append(table._replace(folded=bool(tables), note="" if tables else _NOTE))
    return make_section(
        "overview",
        "Overview",
        "The best that each machine came to. Training and the training step alone, and the feeds, "
        "are different figures and never mixed.",
        tables,
    )


def _number_shown(found: Sequence[Comparison]) -> int:
    """Return how many comparisons the first table has room for, at least one."""
    rows = itertools.accumulate(len(own.machines) for own in found)
    return max(1, sum(total <= _MOST_ROWS for total in rows))


def _columns(found: Sequence[Comparison]) -> list[Column]:
    scores = {SCORES[m.score.run.score_field] for c in found for m in c.machines if m.score}
    targets = {c.target for c in found if c.target}
    score = scores.pop() if len(scores) == 1 else "score"
    target = f"{targets.pop()} %" if len(targets) == 1 else "the target"
    return [
        Column("machine", "machine.name"),
        Column("images/s", _best("rate", plain), left=False),
        Column("speed-up", _speedup, left=False),
        Column(f"best {score} [%]", _best("score", percent), left=False),
        Column(f"time to {target} [h:mm:ss]", _best("time_s", _time), left=False),
        Column(f"USD to {target}", _best("usd", plain), left=False),
        Column(METRICS["joules_per_image"].heading, _best("joules_per_image", plain), left=False),
        Column("fastest with", _fastest),
        Column("runs", "machine.runs", count),
    ]


def _best(name: str, show: Format) -> Callable[[_Row], Cell]:
    def cell(row: _Row) -> Cell:
        best: Best | None = getattr(row.machine, name)
        if best is None:
            return Cell(UNKNOWN)
        ends = interval(show)(best.of)
        told = [ends, best.counted if best.is_result else f"only {best.counted}"]
        shown = f"{show(best.of.value)} ({'; '.join(own for own in told if own != UNKNOWN)})"
        mark = "" if best.is_result else "soft"
        return Cell(shown, mark, run=best.run.id, sort=best.of.value)

    return cell


def _time(time_s: float | None) -> str:
    """Show short times with their tenths: steps of a second would hide what differs."""
    if time_s == math.inf:
        return "never"
    return f"{time_s:.1f} s" if time_s is not None and time_s < 60 else clock_time(time_s)


def _speedup(row: _Row) -> Cell | None:
    found: Estimate | None = row.machine.speedup
    if found is None:
        return None
    if found == Estimate(1.0):
        return Cell("1 (slowest)", "soft")
    ends = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    if found.low is not None and found.high > 100 * found.low:
        ends = " (too few repeats for an interval)"
    return Cell(f"{found.value:.2f}{ends}", sort=found.value)


def _fastest(row: _Row) -> str:
    rate = row.machine.fastest
    batch = rate.setting.get("batch_size")
    busy = rate.run.telemetry.get("host_busy") is True
    told = [
        rate.run.precision,
        f"batch {count(batch)}" if batch else "",
        rate.run.id,
        "host was busy" * busy,
    ]
    return ", ".join(filter(None, told))


def _headings(found: Sequence[Comparison]) -> Iterator[str]:
    """Yield the heading of each comparison; network and data too, where two would be alike."""
    shorts = [
        f"{c.first.run.experiment} · {c.first.stage} · {c.first.run.feed} feed" for c in found
    ]
    for comparison, short in zip(found, shorts, strict=True):
        run = comparison.first.run
        told = [short]
        if shorts.count(short) > 1:
            told.append(f"{run.network}; {run.data}")
        if comparison.at:
            told.append(f"speed-up at {comparison.at}")
        elif len(comparison.machines) > 1:
            told.append("no speed-up: no two machines did equal work")
        yield " · ".join(told)
