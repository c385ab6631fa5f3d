"""Loss and accuracy, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.report.blocks import LineChart, Point, Section, Series, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.measurements import series_labels
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.sections.material import Material, left_out, run_cell, status_cell
from jaxbench.report.values import count, loss, number, percent, plain

# Of more epochs only so many are drawn and listed; the last one always is.
_MOST_EPOCHS = 120
# Trios of charts: a reader who has more runs looks at the table first.
_MOST_GROUPS = 4
# (title, the epoch record's field, axis, factor).
_CURVES = (
    ("top-1 on the test split", "eval_top1", "top-1 [%]", 100),
    ("Dice on the test split", "eval_dice", "Dice [%]", 100),
    ("loss on the test split", "eval_loss", "loss", 1),
    ("loss in training", "train_loss", "loss", 1),
)


def learning(material: Material) -> Section | None:
    """Curves of the runs of one experiment, network and data together; a line for each run."""
    trained = [(run, run.of_kind("epoch")) for run in material.runs]
    trained = [(run, epochs) for run, epochs in trained if epochs]
    if not trained:
        return None
    groups: dict[tuple, list[tuple[ReportedRun, list]]] = {}
    for run, epochs in trained:
        key = (run.experiment, run.network, run.data, run.feed)
        groups.setdefault(key, []).append((run, epochs))
    parts = [
        (key, group[start : start + MOST_SERIES])
        for key, group in groups.items()
        for start in range(0, len(group), MOST_SERIES)
    ]
    charts = [
        chart
        for key, part in parts[:_MOST_GROUPS]
        for chart in _charts(key, part, in_parts=len(groups[key]) > MOST_SERIES)
    ]
    shown = min(len(parts), _MOST_GROUPS)
    return Section(
        "learning",
        "Learning, epoch by epoch",
        "One line is one run. Test figures are over every example of the test split; a run that "
        "is still running or ended early is drawn as far as it came. "
        + left_out(len(parts), shown, "the table").replace("charts", "groups of runs"),
        [*charts, _table(trained)],
    )


def _charts(
    key: tuple, group: Sequence[tuple[ReportedRun, list]], *, in_parts: bool
) -> list[LineChart]:
    experiment, network, data, feed = key
    which = f", {group[0][0].id} to {group[-1][0].id}" if in_parts else ""
    settings = [
        {**run.setting(), "batch_size": run.batch_size, "seed": number(run.config, "seed")}
        for run, _ in group
    ]
    labels = [
        f"{run.id} {label}" + ("" if run.status == "done" else f" ({run.status})")
        for (run, _), label in zip(group, series_labels(settings), strict=True)
    ]
    charts = []
    for title, field, y_label, factor in _CURVES:
        series = []
        for label, (_, epochs) in zip(labels, group, strict=True):
            points = _points(epochs, field, factor)
            if points:
                series.append(Series(label, points))
        if series:
            charts.append(
                LineChart(
                    title=f"{experiment}: {title}{which}",
                    note=f"{network}; {data}, {feed} feed; one value an epoch, no interval: n = 1 "
                    "run a line",
                    x_label="epoch",
                    y_label=y_label,
                    series=series,
                    from_zero=field != "eval_top1",
                    table=_points_table(y_label, series),
                )
            )
    return charts


def _points(epochs: Sequence[Mapping[str, Any]], field: str, factor: float) -> list[Point]:
    points = []
    for record in epochs:
        epoch, value = number(record, "epoch"), number(record, field)
        if epoch is not None and value is not None:
            points.append(Point(epoch, value * factor))
    points.sort(key=lambda point: point.x)
    if len(points) <= _MOST_EPOCHS:
        return points
    step = -(-len(points) // _MOST_EPOCHS)
    return points[::-1][::step][::-1]


def _points_table(y_label: str, series: Sequence[Series]) -> Table:
    by_epoch: dict[float, dict[int, float]] = {}
    for place, one in enumerate(series):
        for point in one.points:
            by_epoch.setdefault(point.x, {})[place] = point.y
    return Table(
        ("epoch", *(f"{one.label} {y_label}" for one in series)),
        [
            [count(epoch), *(plain(values.get(place)) for place in range(len(series)))]
            for epoch, values in sorted(by_epoch.items())
        ],
        text_columns=(),
    )


def _table(trained: Sequence[tuple[ReportedRun, list]]) -> Table:
    rows = []
    for run, epochs in trained:
        last = epochs[-1]
        figure = "top1" if number(last, "eval_top1") is not None else "dice"
        scores = [number(epoch, f"eval_{figure}") for epoch in epochs]
        scores = [score for score in scores if score is not None]
        rows.append(
            [
                run_cell(run.id),
                status_cell(run.status),
                run.experiment,
                run.precision,
                run.feed,
                count(run.batch_size),
                count(number(run.config, "seed")),
                f"{count(number(last, 'epoch'))} of {count(number(last, 'epochs'))}",
                loss(number(last, "train_loss")),
                loss(number(last, "eval_loss")),
                {"top1": "top-1", "dice": "Dice"}[figure] if scores else "–",
                percent(number(last, f"eval_{figure}")),
                percent(max(scores, default=None)),
                count(number(last, "eval_count")),
            ]
        )
    return Table(
        (
            "run",
            "status",
            "experiment",
            "precision",
            "feed",
            "batch",
            "seed",
            "epochs",
            "train loss",
            "test loss",
            "score",
            "last [%]",
            "best [%]",
            "test examples",
        ),
        rows,
        title="Where each run came to",
        text_columns=(0, 1, 2, 3, 4, 10),
    )
