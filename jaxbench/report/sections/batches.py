"""The batch-size tables, the way the published comparisons print them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.report.blocks import Cell, Section, Table
from jaxbench.report.measurements import Measurement, differing, setting_key
from jaxbench.report.sections.material import ReportContext, run_cell, status_cell
from jaxbench.report.values import (
    clock_time,
    count,
    interval,
    milliseconds,
    percent,
    rate,
    seconds,
    words,
)

# (heading, what it is made of, how it is shown); columns without any figure are left out.
_FIGURES = (
    ("compile [s]", "compile_s", seconds),
    ("1st epoch, with compile [s]", "first_epoch_with_compile_s", seconds),
    ("2nd on, median [s]", "median_epoch_s", seconds),
    ("all epochs [h:mm:ss]", "total_s", clock_time),
    ("epochs", "epochs", count),
    ("images/s", "images_per_s", rate),
    ("95 % interval", None, None),
    ("n", "n", count),
    ("p50 [ms]", "latency_p50_s", milliseconds),
    ("p99 [ms]", "latency_p99_s", milliseconds),
    ("MFU [%]", "mfu", lambda share: percent(share, 1)),
    ("score [%]", "score", percent),
)
# Where nothing was measured, the column has reasons alone.
_NO_FIGURES = (("what became of it", None, None),)
_ENDED_EARLY = ("oom", "timeout", "failed", "killed", "corrupt", "running", "preempted", "diverged")


def batches(material: ReportContext) -> Section | None:
    """A table for each experiment and mode that was run with more than one batch or setting."""
    groups: dict[tuple, list[Measurement]] = {}
    for row in material.measurements:
        if row.batch_size is None or row.stage not in ("training", "train_step", None):
            continue
        if row.mode in ("train", "throughput", None):
            groups.setdefault((row.experiment or "", row.mode or "train"), []).append(row)
    blocks: list[Any] = []
    for (experiment, mode), rows in groups.items():
        if len({row.batch_size for row in rows}) > 1:
            rows = sorted(rows, key=lambda row: (_setting(row), row.batch_size, row.run or ""))
            blocks.append(_table(experiment, mode, rows))
            matrix = _matrix(experiment, mode, rows)
            blocks += [matrix] if matrix else []
    blocks += [_largest(sweep) for sweep in material.collection.sweeps if sweep.max_batches]
    if not blocks:
        return None
    return Section(
        "batches",
        "Batch sizes",
        "The global batch, over all devices. OOM: out of memory, which is a result like any "
        "other; a cell that ended otherwise says how.",
        blocks,
    )


def _setting(row: Measurement) -> tuple:
    return (
        row.precision or "",
        row.num_devices or 0,
        row.hardware or "",
        row.feed or "",
        _place(row),
        # Whatever else differs keeps two runs in two groups.
        setting_key(row.setting, ("precision", "num_devices", "feed")) if row.setting else (),
    )


def _place(row: Measurement) -> str:
    return ", ".join(
        f"{name}={words(value)}"
        for name, value in row.place.items()
        if name not in ("batch_size", "num_devices", "precision", "experiment")
    )


def _headings(rows: Sequence[Measurement]) -> dict[tuple, str]:
    """Names every setting; what else differs is added where two would have one name."""
    first: dict[tuple, Measurement] = {}
    for row in rows:
        first.setdefault(_setting(row), row)
    headings = {setting: _heading(row) for setting, row in first.items()}
    for setting, row in first.items():
        twins = [other.setting for other in first.values() if _heading(other) == _heading(row)]
        headings[setting] += f" · {more}" if (more := differing(row.setting, twins)) else ""
    return headings


def _heading(row: Measurement) -> str:
    devices = row.hardware
    if devices is None:
        devices = f"{count(row.num_devices)} device(s)" if row.num_devices else "devices unknown"
    told = [devices, row.precision, f"{row.feed} feed" if row.feed else None, _place(row) or None]
    return " · ".join(part for part in told if part)


def _table(experiment: str, mode: str, rows: Sequence[Measurement]) -> Table:
    figures = [
        (title, name, show)
        for title, name, show in _FIGURES
        if any(getattr(row, name or "images_per_s_low") is not None for row in rows if row.usable)
    ]
    headings = _headings(rows)
    groups: dict[int, str] = {}
    cells = []
    before = None
    for number, row in enumerate(rows):
        own = _setting(row)
        if own != before:
            groups[number] = headings[own]
            before = own
        cells.append([count(row.batch_size), *_figure_cells(row, figures), run_cell(row.run)])
    scores = {row.figure for row in rows if row.figure}
    score = f"score: {scores.pop()} of the last epoch. " if len(scores) == 1 else ""
    return Table(
        ("batch", "status", *(title for title, _, _ in figures or _NO_FIGURES), "run"),
        cells,
        title=f"{experiment}, {'training' if mode == 'train' else 'training step alone'}",
        note=(
            f"{score}images/s: over all devices, median of the epochs from the 2nd on or of "
            f"windows; n of them, from {FEWEST_FOR_INTERVAL} on with an interval."
        ),
        text_columns=(1, len(figures or _NO_FIGURES) + 2),
        groups=groups,
    )


def _figure_cells(row: Measurement, figures: Sequence[tuple]) -> list[Cell | str]:
    if row.status in _ENDED_EARLY and row.median_epoch_s is None:
        reason = (row.reason or "no reason given").split("\n", 1)[0]
        return [status_cell(row.status), Cell(reason[:160], "soft", span=max(1, len(figures)))]
    cells: list[Cell | str] = [status_cell(row.status)]
    for _, name, show in figures:
        if name is None:
            cells.append(interval(row.images_per_s_low, row.images_per_s_high))
        else:
            cells.append(show(getattr(row, name)))
    return cells


def _matrix(experiment: str, mode: str, rows: Sequence[Measurement]) -> Table | None:
    """Batch sizes against settings, one figure each: median epoch, or images/s."""
    settings = list(dict.fromkeys(_setting(row) for row in rows))
    if not 1 < len(settings) <= 8:
        return None
    headings = list(_headings(rows).values())
    batch_sizes = sorted({row.batch_size for row in rows})
    table = []
    for batch_size in batch_sizes:
        cells: list[Cell | str] = [count(batch_size)]
        for setting in settings:
            found = [r for r in rows if r.batch_size == batch_size and _setting(r) == setting]
            cells.append(_matrix_cell(found))
        table.append(cells)
    if all(len(cells) - cells.count("–") <= 2 for cells in table):
        return None  # no batch size has two of them
    return Table(
        ("batch", *headings),
        table,
        title=f"{experiment}, {'training' if mode == 'train' else 'training step alone'}: images/s",
        note="Where a cell was measured more than once, the last run stands here.",
        text_columns=(),
    )


def _matrix_cell(found: Sequence[Measurement]) -> Cell | str:
    if not found:
        return "–"
    row = found[-1]
    if row.usable and row.images_per_s is not None:
        return Cell(rate(row.images_per_s), run=row.run)
    return dataclasses.replace(status_cell(row.status), run=row.run)


def _largest(sweep: Any) -> Table:
    names = list(dict.fromkeys(name for row in sweep.max_batches for name in row if name))
    shown = [name for name in names if any(row.get(name) for row in sweep.max_batches)]
    return Table(
        [name.replace("_", " ") for name in shown],
        [[words(row.get(name)) for name in shown] for row in sweep.max_batches],
        title=f"{sweep.name}: the largest batch that fits",
        text_columns=[i for i, name in enumerate(shown) if name in ("status", "reason")],
    )
