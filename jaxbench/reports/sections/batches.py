"""The batch-size tables, the way the published comparisons print them."""

import operator
from collections.abc import Sequence

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.metrics import UNKNOWN, count, percent, plain, words
from jaxbench.reports.blocks import Section
from jaxbench.reports.collect import Sweep
from jaxbench.reports.columns import measured_share, shared
from jaxbench.reports.context import Measurement, ReportContext, make_section
from jaxbench.reports.runs import SCORES
from jaxbench.reports.work import differing, grouped, setting_key
from jaxbench.tables.table import (
    Cell,
    Column,
    Table,
    clock_time,
    estimate_columns,
    make_table,
    metric_column,
    metric_columns,
)

# What a row of max_batch.csv was compiled for, where that is not here.
_TARGET = operator.methodcaller("get", "target")


def _compile(row: Measurement) -> str:
    compile_s = plain(row.run.summary.compile_s)
    return f"{compile_s} (cached)" if row.run.compile_cache == "hit" else compile_s


# Columns without any figure are left out.
_FIGURES = (
    Column("compile [s]", _compile, left=False),
    *metric_columns("run.summary.first_epoch_with_compile_s", "run.summary.median_epoch_s"),
    Column("all epochs [h:mm:ss]", "run.total_s", clock_time),
    metric_column("run.summary.epochs_done"),
    *estimate_columns("rate", "images_per_s"),
    *metric_columns("record.latency_p50_s", "record.latency_p99_s", "record.mfu"),
    Column("score [%]", "run.score", percent),
)


def batches(context: ReportContext) -> Section | None:
    """Return tables of each experiment and mode that was run with more than one batch size."""
    rows = [row for row in context.measurements if row.run.batch_size is not None]
    rows = [row for row in rows if row.stage in ("training", "train_step", None)]
    rows = [row for row in rows if row.run.mode in ("train", "throughput", "")]
    tables = []
    for own in grouped(rows, key=_title).values():
        if len({row.run.batch_size for row in own}) > 1:
            own.sort(key=lambda row: (_setting(row), row.run.batch_size))
            tables.append(_table(own, [*_FIGURES, *measured_share(context)]))
    sweeps = [own for own in context.collection.sweeps if not any(map(_TARGET, own.max_batches))]
    return make_section(
        "batches",
        "Batch sizes",
        "Batch sizes are global, over all devices. OOM means out of memory, a result like any "
        "other. A trial that ended otherwise gives its reason.",
        [*tables, *map(_largest, sweeps)],
    )


def _title(row: Measurement) -> str:
    stage = "training step alone" if row.run.mode == "throughput" else "training"
    return f"{row.run.experiment}, {stage}"


def _setting(row: Measurement) -> tuple:
    run = row.run
    # Whatever else differs keeps two runs in two groups.
    shown = ("precision", "num_devices", "feed")
    rest = setting_key(row.setting, lambda name: name not in shown)
    return run.precision, run.num_devices or 0, run.hardware, row.feed, _place(row), rest


def _place(row: Measurement) -> str:
    elsewhere = ("batch_size", "num_devices", "precision", "experiment")
    own = {name: value for name, value in row.run.point.items() if name not in elsewhere}
    return ", ".join(f"{name}={words(value)}" for name, value in own.items())


def _headings(rows: Sequence[Measurement]) -> dict[tuple, str]:
    """Name every setting; what else differs is added where two would have one name."""
    first = {setting: own[0] for setting, own in grouped(rows, key=_setting).items()}
    headings = {}
    for same in grouped(first, lambda setting: _heading(first[setting])).values():
        settings = [first[setting].setting for setting in same]
        for setting in same:
            parts = (_heading(first[setting]), differing(first[setting].setting, settings))
            headings[setting] = " · ".join(filter(None, parts))
    return headings


def _heading(row: Measurement) -> str:
    run = row.run
    hardware = "devices unknown" if run.hardware == UNKNOWN else run.hardware
    feed = "" if row.feed == UNKNOWN else f"{row.feed} feed"
    parts = (hardware, run.precision, feed, _place(row))
    return " · ".join(part for part in parts if part not in ("", UNKNOWN))


def _table(rows: Sequence[Measurement], figures: Sequence[Column]) -> Table:
    usable = [row for row in rows if row.usable]
    figures = [c for c in figures if any(c.show(c.of(row)) != UNKNOWN for row in usable)]
    # Where nothing was measured, the column has reasons alone.
    first, *others = figures or [Column("what became of it", lambda row: None, count)]

    def first_or_reason(row: Measurement) -> object:
        unmeasured = row.run.summary.median_epoch_s is None
        if unmeasured and row.run.status not in ("done", "invalid"):
            reason = (row.run.reason or "no reason given").split("\n", 1)[0]
            return Cell(reason[:160], "soft", span=1 + len(others))
        return first.of(row)

    figures = [first._replace(value=first_or_reason), *others]
    scores = {SCORES[row.run.score_field] for row in rows if row.run.score_field}
    score = f"score: {scores.pop()} of the last epoch. " if len(scores) == 1 else ""
    headings = _headings(rows)
    return make_table(
        [*shared("batch", "status"), *figures, *shared("run")],
        rows,
        title=_title(rows[0]),
        note=f"{score}images/s: over all devices, median of the epochs from the 2nd on or of "
        f"windows; n of them, from {FEWEST_FOR_INTERVAL} on with an interval.",
        group=lambda row: headings[_setting(row)],
    )


def _largest(sweep: Sweep) -> Table:
    names = dict.fromkeys(name for row in sweep.max_batches for name, value in row.items() if value)
    columns = [
        Column(name.replace("_", " "), operator.itemgetter(name), left=name in ("status", "reason"))
        for name in filter(None, names)
    ]
    return make_table(columns, sweep.max_batches, f"{sweep.name}: the largest batch that fits")
