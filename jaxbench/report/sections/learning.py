"""Loss and accuracy, epoch by epoch."""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, spread
from jaxbench.report.blocks import Cell, LineChart, Point, Section, Series, Table
from jaxbench.report.context import ReportContext, left_out
from jaxbench.report.estimates import estimate
from jaxbench.report.fields import items, known, number
from jaxbench.report.formats import count, interval, percent, plain
from jaxbench.report.plot import MOST_SERIES
from jaxbench.report.runs import SCORES, ReportedRun
from jaxbench.report.settings import grouped, in_parts, labelled, setting_key, thinned
from jaxbench.report.tables import Column, make_table, run_ids, shared

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
_SEED_SCORES = {**SCORES, "eval_top1_tta": "top-1 with test-time augmentation"}
_RESULTS = (
    *shared("run", "status", "experiment", "precision", "feed", "batch", "seed"),
    Column("epochs", "epochs", left=False),
    Column("train loss", "last.train_loss", plain),
    Column("test loss", "evaluated.eval_loss", plain),
    Column("score", "score"),
    Column("last [%]", "last_score", percent),
    Column("best [%]", "best_score", percent),
    Column("test examples", "evaluated.eval_count", count),
)
_SEEDS = (
    Column("runs", "runs"),
    *shared("experiment", "precision", "feed", "batch"),
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


class _Line(list[_Course]):
    """Courses that differ in their seed alone."""

    @property
    def run(self) -> ReportedRun:
        return self[0].run

    @property
    def runs(self) -> list[ReportedRun]:
        return list(dict.fromkeys(course.run for course in self))

    @property
    def is_band(self) -> bool:
        return len(self) > 1

    def of(self, field: str) -> list[dict[float, float]]:
        """Return {epoch: value} of each course."""
        return [course.values.get(field, {}) for course in self]

    def epochs(self, field: str) -> list[float]:
        """Return the epochs of which some have a value."""
        return sorted(set().union(*self.of(field)))

    def common(self, field: str) -> list[float]:
        """Return the epochs of which all have a value."""
        return sorted(set.intersection(*map(set, self.of(field))))

    def label(self, setting: str, seeds_differ: bool) -> str:
        ids = [run.id for run in self.runs]
        names = ", ".join(ids) if len(ids) <= 3 else f"{ids[0]} … {ids[-1]}"
        seed = f", {len(self)} seeds" if self.is_band else ""
        if seeds_differ and not self.is_band and self[0].seed is not None:
            seed = f", seed {count(self[0].seed)}"
        status = "" if self[0].status == "done" else f" ({self[0].status})"
        return f"{names} {setting}{seed}{status}"


def learning(context: ReportContext) -> Section | None:
    """Return curves of one experiment, network and data together; a line for each setting."""
    trained = [run for run in context.runs if run.of_kind("epoch")]
    if not trained:
        return None
    groups = grouped(trained, lambda run: (run.experiment, run.network, run.data, run.feed))
    groups = [_lines(runs) for runs in groups.values()]
    parts = [
        (p, len(lines) > MOST_SERIES) for lines in groups for p in in_parts(lines, MOST_SERIES)
    ]
    charts = [chart for part in parts[:_MOST_GROUPS] for chart in _charts(*part)]
    shown = min(len(parts), _MOST_GROUPS)
    seeds = _seeds_table([line for lines in groups for line in lines])
    results = make_table(_RESULTS, map(_results, trained), "Final results")
    return Section(
        "learning",
        "Learning, epoch by epoch",
        "What differs in nothing but the seed is one line: the median of the seeds in a band from "
        "the least to the greatest of them, as far as all of them came. Without a band a line is "
        "one model. Test figures are over every example of the test split; what is still running "
        "or ended early is a line of its own, drawn as far as it came, and in no band."
        + left_out(len(parts), shown, "the table").replace("charts", "groups of runs"),
        [*charts, *([seeds] if seeds.rows else []), results],
    )


def _lines(runs: Sequence[ReportedRun]) -> list[_Line]:
    lines: dict[tuple, _Line] = {}
    for run in runs:
        setting = setting_key(run.training_setting())
        for course in _courses(run):
            lines.setdefault(_line_key(course, setting, lines), _Line()).append(course)
    return [*lines.values()]


def _courses(run: ReportedRun) -> list[_Course]:
    """Return the course of a run of one model, or of each of its models."""
    own: _Values = {}
    models: dict[float, _Values] = {}
    for record in run.of_kind("epoch"):
        epoch = number(record, "epoch")
        for field in (curve.field for curve in _CURVES):
            part, _, figure = field.partition("_")
            _put(own, field, epoch, number(record, field))
            for model in items(record, f"{part}_models"):
                if (seed := number(model, "seed")) is not None:
                    _put(models.setdefault(seed, {}), field, epoch, number(model, figure))
    if len(models) < 2:
        return [_Course(run, run.seed, run.status, own)]
    lost = items(run.summary, "diverged_seeds") if run.status == "done" else ()
    return [
        _Course(run, seed, "diverged" if seed in lost else run.status, own)
        for seed, own in models.items()
    ]


def _put(values: _Values, field: str, epoch: float | None, value: float | None) -> None:
    if epoch is not None and value is not None:
        values.setdefault(field, {})[epoch] = value


def _line_key(course: _Course, setting: tuple, lines: Mapping[tuple, _Line]) -> tuple:
    """Return a course's line; a seed that was run again says nothing of other seeds."""
    if course.status != "done" or course.seed is None:
        return (len(lines),)
    again = 0
    while any(course.seed == other.seed for other in lines.get((setting, again), ())):
        again += 1
    return (setting, again)


def _charts(lines: Sequence[_Line], is_part: bool) -> Iterator[LineChart]:
    run = lines[0].run
    which = f", {run.id} to {lines[-1][-1].run.id}" if is_part else ""
    seeds_differ = len({tuple(course.seed for course in line) for line in lines}) > 1
    settings = labelled(lines, lambda line: line.run.training_setting())
    for curve in _CURVES:
        drawn = {
            line.label(setting, seeds_differ): line
            for setting, line in settings
            if line.common(curve.field)
        }
        if drawn:
            title = f"{run.experiment}: {curve.title}{which}"
            note = f"{run.network}; {run.data}, {run.feed} feed; {_note(lines, curve.field)}"
            series = [_series(label, line, curve) for label, line in drawn.items()]
            table, from_zero = _points_table(curve, drawn), not curve.field.startswith("eval_top1")
            labels = ("epoch", curve.y_label)
            yield LineChart(title, note, *labels, series, table, from_zero=from_zero)


def _series(label: str, line: _Line, curve: _Curve) -> Series:
    points = []
    for epoch in thinned(line.common(curve.field), _MOST_EPOCHS):
        values = [curve.factor * values[epoch] for values in line.of(curve.field)]
        ends = (min(values), max(values)) if line.is_band else ()
        points.append(Point(epoch, statistics.median(values), *ends))
    # A band of one epoch is no area: its ends are.
    return Series(label, points, band=line.is_band and len(points) > 1)


def _note(lines: Sequence[_Line], field: str) -> str:
    """Return what a line is, of how many seeds, and where a band ends before its seeds do."""
    bands = [line for line in lines if line.is_band]
    if not bands:
        return "one value an epoch, no interval: n = 1 model a line"
    told = "; ".join(f"n = {len(line)} ({run_ids(line.runs)})" for line in bands)
    note = f"line: median of the seeds, band: from the least to the greatest of them; {told}"
    for line in bands:
        common, epochs = line.common(field), line.epochs(field)
        if common[-1:] != epochs[-1:]:
            end = f"ends at epoch {count(common[-1])}, the last" if common else "is not drawn: none"
            note += (
                f"; {line.run.id}'s band {end} that all {len(line)} have a value of (some go on "
                f"to {count(epochs[-1])})"
            )
    return note + ("; without a band n = 1" if len(bands) < len(lines) else "")


def _points_table(curve: _Curve, drawn: Mapping[str, _Line]) -> Table:
    """Return the numbers behind a chart, and below them where each seed of a band ended."""
    rows: list[dict[str, Any]] = []
    for label, line in drawn.items():
        for epoch in thinned(line.epochs(curve.field), _MOST_EPOCHS):
            values = [curve.factor * v[epoch] for v in line.of(curve.field) if epoch in v]
            complete = len(values) == len(line)
            n = f"{len(values)} of {len(line)}"
            row = {"line": label, "epoch": epoch, "n": n}
            ends = spread(values) if line.is_band else {"median": values[0]}
            rows.append(row | {"values": ends if complete else None})
    for label, line in drawn.items():
        for course in line if line.is_band else ():
            values = course.values[curve.field]
            last = max(values)
            place = f"{course.run.id}, seed {count(course.seed)}, epoch {count(last)}"
            rows.append(
                {
                    "line": f"{label}: each seed's last epoch",
                    "epoch": Cell(place, run=course.run.id),
                    "values": {"median": curve.factor * values[last]},
                }
            )
    columns = [
        Column("epoch", "epoch", count, left=True),
        Column(f"{curve.y_label}, median", "values.median", plain),
        Column("least", "values.min", plain),
        Column("greatest", "values.max", plain),
        Column("n", "n", left=False),
    ]
    return make_table(columns, rows, group=lambda row: row["line"])


def _seeds_table(lines: Sequence[_Line]) -> Table:
    """Return the last scores of a setting's seeds together."""
    rows = []
    for line in lines:
        for field, score in _SEED_SCORES.items():
            if line.is_band and all(line.of(field)):
                scores = [values[max(values)] for values in line.of(field)]
                lasts = sorted(max(values) for values in line.of(field))
                rows.append(
                    {
                        "run": line.run,
                        "runs": run_ids(line.runs),
                        "scores": spread(scores),
                        "median": estimate(scores),
                        "epochs": " to ".join(dict.fromkeys(map(count, lasts[:1] + lasts[-1:]))),
                        "score": score,
                    }
                )
    note = (
        "Each seed's last test score. The interval is of order statistics, from "
        f"{FEWEST_FOR_INTERVAL} seeds on."
    )
    return make_table(_SEEDS, rows, "Seeds together", note)


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
