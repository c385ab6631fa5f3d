"""Loss and accuracy, epoch by epoch."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, spread
from jaxbench.report.blocks import Cell, LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, left_out
from jaxbench.report.estimates import estimate
from jaxbench.report.fields import items, known, number
from jaxbench.report.formats import UNKNOWN, count, interval, loss, percent, plain
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.runs import SCORES, ReportedRun
from jaxbench.report.settings import in_parts, series_labels, setting_key
from jaxbench.report.tables import (
    BATCH,
    EXPERIMENT,
    FEED,
    PRECISION,
    RUN,
    STATUS,
    Column,
    make_table,
    run_ids,
)

# Of more epochs only so many are drawn and listed; the last one always is.
_MOST_EPOCHS = 120
# Trios of charts: a reader who has more runs looks at the table first.
_MOST_GROUPS = 4


@dataclasses.dataclass(frozen=True)
class _Curve:
    """A figure of epochs: its field in their records, and how it is drawn."""

    title: str
    field: str
    y_label: str
    factor: float = 1


_CURVES = (
    _Curve("top-1 on the test split", "eval_top1", "top-1 [%]", 100),
    _Curve("top-1 with test-time augmentation", "eval_top1_tta", "top-1 (augmented) [%]", 100),
    _Curve("Dice on the test split", "eval_dice", "Dice [%]", 100),
    _Curve("loss on the test split", "eval_loss", "loss"),
    _Curve("loss in training", "train_loss", "loss"),
)
_SEED_SCORES = {
    "eval_top1": "top-1",
    "eval_top1_tta": "top-1 with test-time augmentation",
    "eval_dice": "Dice",
}
# {field: {epoch: value}}.
_Values = dict[str, dict[float, float]]
_FINAL_RESULTS = (
    *(RUN, STATUS, EXPERIMENT, PRECISION, FEED, BATCH),
    Column("seed", "run.seed", count),
    Column("epochs", "epochs", left=False),
    Column("train loss", "last.train_loss", loss),
    Column("test loss", "evaluated.eval_loss", loss),
    Column("score", "score"),
    Column("last [%]", "last_score", percent),
    Column("best [%]", "best_score", percent),
    Column("test examples", "evaluated.eval_count", count),
)
_SEEDS = (
    Column("runs", "runs"),
    *(EXPERIMENT, PRECISION, FEED, BATCH),
    Column("seeds", "scores.n", count),
    Column("last epoch", "epochs", left=False),
    Column("score", "score"),
    Column("median [%]", "scores.median", percent),
    Column("least [%]", "scores.min", percent),
    Column("greatest [%]", "scores.max", percent),
    Column("mean [%]", "scores.mean", percent),
    Column("standard deviation [%]", "scores.std", percent),
    Column("95 % interval of the median [%]", "median", interval(percent)),
)


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


def learning(context: ReportContext) -> Section | None:
    """Curves of the runs of one experiment, network and data together; a line for each setting."""
    trained = [run for run in context.runs if run.of_kind("epoch")]
    if not trained:
        return None
    groups: dict[tuple, dict[tuple, _Line]] = {}
    for run in trained:
        lines = groups.setdefault((run.experiment, run.network, run.data, run.feed), {})
        setting = setting_key(run.training_setting())
        for course in _courses(run):
            lines.setdefault(_line_key(course, setting, lines), []).append(course)
    every_line = [line for lines in groups.values() for line in lines.values()]
    parts = [
        (part, len(lines) > MOST_SERIES)
        for lines in groups.values()
        for part in in_parts([*lines.values()], MOST_SERIES)
    ]
    charts = [chart for part in parts[:_MOST_GROUPS] for chart in _charts(*part)]
    shown = min(len(parts), _MOST_GROUPS)
    tables = [_seeds_table(every_line), _results_table(trained)]
    return Section(
        "learning",
        "Learning, epoch by epoch",
        "What differs in nothing but the seed is one line: the median of the seeds in a band from "
        "the least to the greatest of them, as far as all of them came. Without a band a line is "
        "one model. Test figures are over every example of the test split; what is still running "
        "or ended early is a line of its own, drawn as far as it came, and in no band. "
        + left_out(len(parts), shown, "the table").replace("charts", "groups of runs"),
        [*charts, *filter(None, tables)],
    )


def _courses(run: ReportedRun) -> list[_Course]:
    """One of a run of one model, else one of each of its models."""
    own: _Values = {}
    models: dict[float, _Values] = {}
    for record in run.of_kind("epoch"):
        epoch = number(record, "epoch")
        for curve in _CURVES:
            part, _, figure = curve.field.partition("_")
            _put(own, curve.field, epoch, number(record, curve.field))
            for model in items(record, f"{part}_models"):
                seed = number(model, "seed")
                if seed is not None:
                    values = models.setdefault(seed, {})
                    _put(values, curve.field, epoch, number(model, figure))
    if len(models) < 2:
        return [_Course(run, run.seed, run.status, own)]
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


def _charts(lines: Sequence[_Line], in_parts: bool) -> list[LineChart]:
    run = lines[0][0].run
    which = f", {run.id} to {lines[-1][-1].run.id}" if in_parts else ""
    labels = _labels(lines)
    charts = []
    for curve in _CURVES:
        drawn = [
            (label, line, points)
            for label, line in zip(labels, lines, strict=True)
            if (points := _points(line, curve))
        ]
        if drawn:
            note = f"{run.network}; {run.data}, {run.feed} feed; {_note(lines, curve.field)}"
            charts.append(
                LineChart(
                    title=f"{run.experiment}: {curve.title}{which}",
                    note=note,
                    x_label="epoch",
                    y_label=curve.y_label,
                    series=[
                        # A band of one epoch is no area: its ends are.
                        Series(label, points, band=len(line) > 1 and len(points) > 1)
                        for label, line, points in drawn
                    ],
                    from_zero=not curve.field.startswith("eval_top1"),
                    table=_points_table(curve, [(label, line) for label, line, _ in drawn]),
                )
            )
    return charts


def _labels(lines: Sequence[_Line]) -> list[str]:
    seeds_differ = len({tuple(course.seed for course in line) for line in lines}) > 1
    settings = series_labels([line[0].run.training_setting() for line in lines])
    labels = []
    for line, setting in zip(lines, settings, strict=True):
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


def _points(line: _Line, curve: _Curve) -> list[Point]:
    points = []
    for epoch in _thinned(_common(line, curve.field)):
        values = [curve.factor * values[epoch] for values in _of(line, curve.field)]
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


def _points_table(curve: _Curve, drawn: Sequence[tuple[str, _Line]]) -> Table:
    """The numbers behind a chart, and below them where each seed of a band ended."""
    columns, epochs = ["epoch"], set()
    for label, line in drawn:
        columns.append(f"{label} {curve.y_label}")
        if len(line) > 1:
            columns[-1] += ", median"
            columns += ["least", "greatest", "n"]
        epochs |= set(_thinned(sorted(set().union(*_of(line, curve.field)))))
    rows: list[list[Cell | str]] = []
    for epoch in sorted(epochs):
        row: list[Cell | str] = [count(epoch)]
        for _, line in drawn:
            found = _of(line, curve.field)
            values = [curve.factor * values[epoch] for values in found if epoch in values]
            complete = len(values) == len(line)
            row.append(plain(statistics.median(values)) if complete else UNKNOWN)
            if len(line) > 1:
                row += [plain(f(values)) if complete else UNKNOWN for f in (min, max)]
                row.append(f"{len(values)} of {len(line)}")
        rows.append(row)
    groups = {}
    for label, line in drawn:
        if len(line) > 1:
            groups[len(rows)] = f"{label}: {curve.y_label} of each seed's last epoch"
            for course in line:
                values = course.values[curve.field]
                place = f"{course.run.id}, seed {count(course.seed)}, epoch {count(max(values))}"
                value = plain(curve.factor * values[max(values)])
                rows.append([Cell(place, run=course.run.id), Cell(value, span=len(columns) - 1)])
    return Table(columns, rows, text_columns=(0,) if groups else (), groups=groups)


def _seeds_table(lines: Sequence[_Line]) -> Table | None:
    """The last scores of a setting's seeds together."""
    rows = []
    for line in lines:
        for field, score in _SEED_SCORES.items():
            if len(line) > 1 and all(_of(line, field)):
                lasts = [max(values) for values in _of(line, field)]
                scores = [v[last] for v, last in zip(_of(line, field), lasts, strict=True)]
                first, final = count(min(lasts)), count(max(lasts))
                rows.append(
                    {
                        "run": line[0].run,
                        "runs": run_ids(_ids(line)),
                        "scores": spread(scores),
                        "median": estimate(scores),
                        "epochs": first if first == final else f"{first} to {final}",
                        "score": score,
                    }
                )
    note = (
        "Each seed's last test score. The interval is of order statistics, from "
        f"{FEWEST_FOR_INTERVAL} seeds on."
    )
    return make_table(_SEEDS, rows, title="Seeds together", note=note) if rows else None


def _results_table(runs: Sequence[ReportedRun]) -> Table:
    return make_table(_FINAL_RESULTS, map(_results, runs), title="Final results")


def _results(run: ReportedRun) -> dict[str, Any]:
    epochs = run.of_kind("epoch")
    last = epochs[-1]
    # Not every epoch need be evaluated.
    seen = [epoch for epoch in epochs if number(epoch, "eval_count") is not None]
    evaluated = seen[-1] if seen else {}
    field = "eval_top1" if number(evaluated, "eval_top1") is not None else "eval_dice"
    scores = known(number(epoch, field) for epoch in epochs)
    return {
        "run": run,
        "last": last,
        "epochs": f"{count(last.get('epoch'))} of {count(last.get('epochs'))}",
        "evaluated": evaluated,
        "score": SCORES[field] if scores else None,
        "last_score": evaluated.get(field),
        "best_score": max(scores, default=None),
    }
