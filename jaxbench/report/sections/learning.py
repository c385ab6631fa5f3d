"""Loss and accuracy, epoch by epoch."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval, spread
from jaxbench.report.blocks import Cell, LineChart, Point, Section, Series, Table
from jaxbench.report.collect import ReportedRun
from jaxbench.report.measurements import series_labels, setting_key
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.sections.material import (
    ReportContext,
    left_out,
    run_cell,
    run_ids,
    status_cell,
)
from jaxbench.report.values import count, interval, items, loss, number, percent, plain

# Of more epochs only so many are drawn and listed; the last one always is.
_MOST_EPOCHS = 120
# Trios of charts: a reader who has more runs looks at the table first.
_MOST_GROUPS = 4
# (title, the epoch record's field, axis, factor).
_CURVES = (
    ("top-1 on the test split", "eval_top1", "top-1 [%]", 100),
    ("top-1 with test-time augmentation", "eval_top1_tta", "top-1 (augmented) [%]", 100),
    ("Dice on the test split", "eval_dice", "Dice [%]", 100),
    ("loss on the test split", "eval_loss", "loss", 1),
    ("loss in training", "train_loss", "loss", 1),
)
_SCORES = {
    "eval_top1": "top-1",
    "eval_top1_tta": "top-1 with test-time augmentation",
    "eval_dice": "Dice",
}
# {field: {epoch: value}}.
_Values = dict[str, dict[float, float]]


@dataclasses.dataclass(frozen=True)
class _Course:
    """One model's training.

    Attributes:
      run: its run, which may have trained several models.
      seed: None where it is not known.
      status: the run's, or `diverged` where this model is lost and others went on.
      values: of the fields of `_CURVES`.
    """

    run: ReportedRun
    seed: float | None
    status: str
    values: _Values


# Courses that differ in their seed alone.
_Line = list[_Course]


def learning(material: ReportContext) -> Section | None:
    """Curves of the runs of one experiment, network and data together; a line for each setting."""
    trained = [(run, run.of_kind("epoch")) for run in material.runs]
    trained = [(run, epochs) for run, epochs in trained if epochs]
    if not trained:
        return None
    groups: dict[tuple, dict[tuple, _Line]] = {}
    for run, epochs in trained:
        lines = groups.setdefault((run.experiment, run.network, run.data, run.feed), {})
        setting = setting_key(_setting(run))
        for course in _courses(run, epochs):
            lines.setdefault(_line_key(course, setting, lines), []).append(course)
    every_line = [line for lines in groups.values() for line in lines.values()]
    parts = [
        (key, list(lines.values())[start : start + MOST_SERIES], len(lines) > MOST_SERIES)
        for key, lines in groups.items()
        for start in range(0, len(lines), MOST_SERIES)
    ]
    charts = [chart for part in parts[:_MOST_GROUPS] for chart in _charts(*part)]
    shown = min(len(parts), _MOST_GROUPS)
    tables = [_seeds_table(every_line), _table(trained)]
    return Section(
        "learning",
        "Learning, epoch by epoch",
        "What differs in nothing but the seed is one line: the median of the seeds in a band from "
        "the least to the greatest of them, as far as all of them came. Without a band a line is "
        "one model. Test figures are over every example of the test split; what is still running "
        "or ended early is a line of its own, drawn as far as it came, and in no band. "
        + left_out(len(parts), shown, "the table").replace("charts", "groups of runs"),
        [*charts, *(table for table in tables if table)],
    )


def _setting(run: ReportedRun) -> dict[str, Any]:
    """All but the seed: the schedule follows from the length, the step from the batch."""
    return {
        **run.setting(),
        "batch_size": run.batch_size,
        "epochs": number(run.config, "epochs"),
        "max_steps": number(run.config, "max_steps"),
        "train_examples": number(run.document, "data", "train_examples"),
    }


def _courses(run: ReportedRun, epochs: Sequence[Mapping[str, Any]]) -> list[_Course]:
    """One of a run of one model, else one of each of its models."""
    own: _Values = {}
    models: dict[float, _Values] = {}
    for record in epochs:
        epoch = number(record, "epoch")
        for _, field, _, _ in _CURVES:
            part, _, figure = field.partition("_")
            _put(own, field, epoch, number(record, field))
            for model in items(record, f"{part}_models"):
                seed = number(model, "seed")
                if seed is not None:
                    _put(models.setdefault(seed, {}), field, epoch, number(model, figure))
    if len(models) < 2:
        return [_Course(run, number(run.config, "seed"), run.status, own)]
    lost = items(run.summary, "diverged_seeds")
    return [
        _Course(run, seed, "diverged" if run.status == "done" and seed in lost else run.status, own)
        for seed, own in models.items()
    ]


def _put(values: _Values, field: str, epoch: float | None, value: float | None) -> None:
    if epoch is not None and value is not None:
        values.setdefault(field, {})[epoch] = value


def _line_key(course: _Course, setting: tuple, lines: Mapping[tuple, _Line]) -> tuple:
    """Which line a course belongs to; a seed that was run again tells nothing of other seeds."""
    if course.status != "done" or course.seed is None:
        return (len(lines),)
    again = 0
    while any(course.seed == other.seed for other in lines.get((setting, again), ())):
        again += 1
    return (setting, again)


def _charts(key: tuple, lines: Sequence[_Line], in_parts: bool) -> list[LineChart]:
    experiment, network, data, feed = key
    which = f", {lines[0][0].run.id} to {lines[-1][-1].run.id}" if in_parts else ""
    labels = _labels(lines)
    charts = []
    for title, field, y_label, factor in _CURVES:
        drawn = [
            (label, line, points)
            for label, line in zip(labels, lines, strict=True)
            if (points := _points(line, field, factor))
        ]
        if drawn:
            charts.append(
                LineChart(
                    title=f"{experiment}: {title}{which}",
                    note=f"{network}; {data}, {feed} feed; {_note(lines, field)}",
                    x_label="epoch",
                    y_label=y_label,
                    series=[
                        # A band of one epoch is no area: its ends are.
                        Series(label, points, band=len(line) > 1 and len(points) > 1)
                        for label, line, points in drawn
                    ],
                    from_zero=not field.startswith("eval_top1"),
                    table=_points_table(y_label, field, factor, drawn),
                )
            )
    return charts


def _labels(lines: Sequence[_Line]) -> list[str]:
    seeds_differ = len({tuple(course.seed for course in line) for line in lines}) > 1
    labels = []
    for line, setting in zip(
        lines, series_labels([_setting(line[0].run) for line in lines]), strict=True
    ):
        ids = _ids(line)
        names = ", ".join(ids) if len(ids) <= 3 else f"{ids[0]} … {ids[-1]}"
        label, status = f"{names} {setting}", line[0].status
        if len(line) > 1:
            label += f", {len(line)} seeds"
        elif seeds_differ and line[0].seed is not None:
            label += f", seed {count(line[0].seed)}"
        labels.append(label + ("" if status == "done" else f" ({status})"))
    return labels


def _ids(line: _Line) -> list[str]:
    return list(dict.fromkeys(course.run.id for course in line))


def _of(line: _Line, field: str) -> list[dict[float, float]]:
    return [course.values.get(field, {}) for course in line]


def _common(line: _Line, field: str) -> list[float]:
    """The epochs that all have a value of."""
    return sorted(set.intersection(*(set(values) for values in _of(line, field))))


def _points(line: _Line, field: str, factor: float) -> list[Point]:
    points = []
    for epoch in _thinned(_common(line, field)):
        values = [factor * values[epoch] for values in _of(line, field)]
        ends = (min(values), max(values)) if len(line) > 1 else ()
        points.append(Point(epoch, statistics.median(values), *ends))
    return points


def _thinned(epochs: Sequence[float]) -> Sequence[float]:
    step = max(1, -(-len(epochs) // _MOST_EPOCHS))
    return epochs[::-1][::step][::-1]


def _note(lines: Sequence[_Line], field: str) -> str:
    """What a line is, of how many seeds, and where a band ends before its seeds do."""
    bands = [line for line in lines if len(line) > 1]
    if not bands:
        return "one value an epoch, no interval: n = 1 model a line"
    told = "; ".join(f"n = {len(line)} ({run_ids(_ids(line))})" for line in bands)
    note = f"line: median of the seeds, band: from the least to the greatest of them; {told}"
    for line in bands:
        common = _common(line, field)
        furthest = max((epoch for values in _of(line, field) for epoch in values), default=None)
        if furthest is not None and common[-1:] != [furthest]:
            end = f"ends at epoch {count(common[-1])}, the last" if common else "is not drawn: none"
            note += (
                f"; {_ids(line)[0]}'s band {end} that all {len(line)} have a value of (some go on "
                f"to {count(furthest)})"
            )
    return note + ("; without a band n = 1" if len(bands) < len(lines) else "")


def _points_table(
    y_label: str,
    field: str,
    factor: float,
    drawn: Sequence[tuple[str, _Line, Sequence[Point]]],
) -> Table:
    """The numbers behind a chart, and below them where each seed of a band ended."""
    columns, epochs = ["epoch"], set()
    for label, line, _ in drawn:
        columns.append(f"{label} {y_label}")
        if len(line) > 1:
            columns[-1] += ", median"
            columns += ["least", "greatest", "n"]
        epochs |= set(_thinned(sorted(set().union(*_of(line, field)))))
    rows: list[list[Cell | str]] = []
    for epoch in sorted(epochs):
        row: list[Cell | str] = [count(epoch)]
        for _, line, _ in drawn:
            values = [factor * values[epoch] for values in _of(line, field) if epoch in values]
            complete = len(values) == len(line)
            row.append(plain(statistics.median(values)) if complete else "–")
            if len(line) > 1:
                row += [plain(min(values)), plain(max(values))] if complete else ["–", "–"]
                row.append(f"{len(values)} of {len(line)}")
        rows.append(row)
    groups = {}
    for label, line, _ in drawn:
        if len(line) > 1:
            groups[len(rows)] = f"{label}: {y_label} of each seed's last epoch"
            for course in line:
                last = max(course.values[field])
                place = f"{course.run.id}, seed {count(course.seed)}, epoch {count(last)}"
                value = plain(factor * course.values[field][last])
                rows.append([Cell(place, run=course.run.id), Cell(value, span=len(columns) - 1)])
    return Table(columns, rows, text_columns=(0,) if groups else (), groups=groups)


def _seeds_table(lines: Sequence[_Line]) -> Table | None:
    """What the seeds of a setting came to together."""
    rows = []
    for line in lines:
        for field, score in _SCORES.items():
            if len(line) < 2 or not all(_of(line, field)):
                continue
            lasts = [max(values) for values in _of(line, field)]
            scores = [v[last] for v, last in zip(_of(line, field), lasts, strict=True)]
            run, summed = line[0].run, spread(scores)
            _, low, high = median_interval(scores)
            known = len(scores) >= FEWEST_FOR_INTERVAL
            first, final = count(min(lasts)), count(max(lasts))
            rows.append(
                [
                    run_ids(_ids(line)),
                    run.experiment,
                    run.precision,
                    run.feed,
                    count(run.batch_size),
                    count(len(line)),
                    first if first == final else f"{first} to {final}",
                    score,
                    *(percent(summed[name]) for name in ("median", "min", "max", "mean", "std")),
                    interval(low, high, percent) if known else "–",
                ]
            )
    if not rows:
        return None
    return Table(
        (
            "runs",
            "experiment",
            "precision",
            "feed",
            "batch",
            "seeds",
            "last epoch",
            "score",
            "median [%]",
            "least [%]",
            "greatest [%]",
            "mean [%]",
            "standard deviation [%]",
            "95 % interval of the median [%]",
        ),
        rows,
        title="Seeds together",
        note="Each seed's last test score. The interval is of order statistics, from "
        f"{FEWEST_FOR_INTERVAL} seeds on.",
        text_columns=(0, 1, 2, 3, 7),
    )


def _table(trained: Sequence[tuple[ReportedRun, list]]) -> Table:
    rows = []
    for run, epochs in trained:
        last = epochs[-1]
        # Not every epoch need be evaluated.
        seen = [epoch for epoch in epochs if number(epoch, "eval_count") is not None]
        evaluated = seen[-1] if seen else {}
        figure = "top1" if number(evaluated, "eval_top1") is not None else "dice"
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
                loss(number(evaluated, "eval_loss")),
                {"top1": "top-1", "dice": "Dice"}[figure] if scores else "–",
                percent(number(evaluated, f"eval_{figure}")),
                percent(max(scores, default=None)),
                count(number(evaluated, "eval_count")),
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
