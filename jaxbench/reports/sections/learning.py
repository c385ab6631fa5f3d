"""Loss and accuracy, epoch by epoch."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.rate import FEWEST_RUNS, of_seeds
from jaxbench.metrics import count
from jaxbench.reports import work
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import run_ids, setting_column, shared
from jaxbench.reports.context import ReportContext, left_out, make_section
from jaxbench.reports.runs import NEVER_REACHED, SCORES, ReportedRun
from jaxbench.schema import METRICS, EpochRecord, value_of
from jaxbench.tables.columns import Column, metric_column, metric_columns, span
from jaxbench.tables.table import Table, make_table

# At most this many epochs are drawn; the last one always is.
_MOST_EPOCHS = 120
# Trios of charts: a reader who has more runs looks at the table first.
_MOST_GROUPS = 2


# {field of the epochs' records: the title of its chart}.
_CURVES = {
    "eval_top1": "top-1 on the test split",
    "eval_top1_tta": "top-1 with test-time augmentation",
    "eval_dice": "Dice on the test split",
    "eval_bits_per_byte": "bits per byte on the test split",
    "eval_loss": "loss on the test split",
    "train_loss": "loss in training",
}
_SEED_SCORES = {**SCORES, "eval_top1_tta": METRICS["eval_top1_tta"].title}
_RESULTS = (
    Column("epochs", "epochs", left=False),
    *metric_columns("last.train_loss", "evaluated.eval_loss"),
    Column("score", "score"),
    *metric_columns("last_score", "best_score", "evaluated.eval_count"),
    *metric_columns("first_epoch_with_compile_s", "median_epoch_s", of="run.summary."),
    metric_column("duration_s", "run.total_s", ", all epochs"),
)
_SEEDS = (
    Column("runs", "runs"),
    *shared("experiment", "precision", "feed", "batch"),
    metric_column("n", "scores.n"),
    Column("last epoch", "epochs", left=False),
    Column("score", "score"),
    metric_column("score", "scores", ", mean (95 % interval)", ends="too"),
    metric_column("score", "least", ", least"),
    metric_column("score", "most", ", most"),
    metric_column("failed_seeds"),
)


class _Course(NamedTuple):
    """One model's training.

    Attributes:
      status: the run's, or `diverged` if this model is lost and others went on.
      one_of_several: whether its run trained several models.
    """

    run: ReportedRun
    seed: float | None
    status: str
    one_of_several: bool = False

    ended = property(lambda self: self.status in NEVER_REACHED)
    sample = property(lambda self: self.run.sample if self.seed is None else self.seed)

    def values(self, field: str) -> dict[float, float]:
        """Return {epoch: value} of a field of the epochs' records."""
        part, _, metric = field.partition("_")
        values = {}
        for record in self.run.of_kind(EpochRecord):
            if self.one_of_several:
                models = getattr(record, f"{part}_models") or ()
                scores = {model["seed"]: model.get(metric) for model in models}
                values[record.epoch] = scores.get(self.seed)
            else:
                custom = getattr(record, f"{part}_metrics") or {}
                known = metric in custom
                values[record.epoch] = custom[metric] if known else getattr(record, field, None)
        return {epoch: value for epoch, value in values.items() if value is not None}


class _Line(list[_Course]):
    """Courses that differ only in their seed: a band, if they are several."""

    run = property(lambda self: self[0].run)
    runs = property(lambda self: [*dict.fromkeys(course.run for course in self)])
    is_band = property(lambda self: len(self) > 1)

    def common(self, field: str) -> dict[float, list[float]]:
        """Return the values of the epochs of which all courses have one."""
        each = [course.values(field) for course in self]
        epochs = [epoch for epoch in each[0] if all(epoch in values for values in each)]
        return {epoch: [values[epoch] for values in each] for epoch in sorted(epochs)}

    def label(self, setting: str) -> str:
        seed = f"{len(self)} seeds" if self.is_band else f"seed {count(self[0].seed)}"
        status = "" if self[0].status == "done" else f" ({self[0].status})"
        return f"{run_ids(self.runs)} {setting}, {seed}{status}"


def learning(context: ReportContext) -> Section | None:
    """Return curves of one experiment, network and data together; a line for each setting."""
    trained = [run for run in context.runs if run.of_kind(EpochRecord)]
    groups = work.grouped(trained, lambda run: run.work)
    lines = [_lines(runs) for runs in groups.values()]
    parts = [(p, len(work.in_parts(group)) > 1) for group in lines for p in work.in_parts(group)]
    charts = [chart for part in parts[:_MOST_GROUPS] for chart in _charts(*part)]
    shown = shared("run", "status", "experiment", "precision", "feed", "batch", "seed")
    columns = [*shown, *setting_column(context, "seed"), *_RESULTS]
    results = make_table(columns, map(_results, trained), "Final results")
    # A seed that left no run directory failed, too.
    seeds = _seeds_table([line for group in lines for line in group], context.collection.all_runs)
    return make_section(
        "learning",
        "Learning, epoch by epoch",
        "Runs that differ only in the seed are one line: the mean of the seeds, in a band from "
        "the least to the most, as far as all of them ran. A line without a band is one "
        "model. Test figures cover every example of the test split. A run that is still running "
        "or ended early is a line of its own, and in no band."
        + left_out(len(parts), _MOST_GROUPS, "groups of runs"),
        [*charts, seeds, results],
    )


def _lines(runs: Sequence[ReportedRun]) -> list[_Line]:
    lines: dict[Any, _Line] = {}
    repeats: collections.Counter[Any] = collections.Counter()
    for run in runs:
        setting = run.training_key
        for course in _courses(run):
            key: Any = len(lines)
            if course.ended and course.seed is not None:
                # A seed that was run again says nothing of other seeds.
                again = repeats[setting, course.seed]
                repeats[setting, course.seed] += 1
                key = (setting, again) if course.status == "done" else key
            lines.setdefault(key, _Line()).append(course)
    return [*lines.values()]


def _courses(run: ReportedRun) -> list[_Course]:
    seeds = dict.fromkeys(
        seed
        for record in run.of_kind(EpochRecord)
        for name in ("eval_models", "train_models")
        for model in getattr(record, name) or ()
        if (seed := model.get("seed")) is not None
    )
    if len(seeds) < 2:
        return [_Course(run, run.seed, run.status)]
    lost = (value_of(run.summary, "diverged_seeds") if run.status == "done" else None) or ()
    return [_Course(run, s, "diverged" if s in lost else run.status, True) for s in seeds]


def _charts(lines: Sequence[_Line], is_part: bool) -> Iterator[LineChart]:
    run = lines[0].run
    which = f", {run.id} to {lines[-1][-1].run.id}" if is_part else ""
    settings = work.labelled(lines, lambda line: line.run.training_setting)
    # The metrics that a custom task computes.
    computed = [record.eval_metrics or {} for record in run.of_kind(EpochRecord)]
    names = [*dict.fromkeys(name for metrics in computed for name in metrics)][:8]
    curves = _CURVES | {f"eval_{name}": f"{name} on the test split" for name in names}
    for field, title in curves.items():
        drawn = {line.label(setting): line for setting, line in settings if line.common(field)}
        if drawn:
            metric = METRICS.get(field)
            note = f"{run.network}; {run.data}, {run.feed} feed; {_note(lines)}"
            factor = metric.factor if metric else 1.0
            yield LineChart(
                f"{run.experiment}: {title}{which}",
                note,
                "epoch",
                metric.heading if metric else field.removeprefix("eval_"),
                [_series(label, line, field, factor) for label, line in drawn.items()],
                from_zero=not field.startswith("eval_top1"),
                numbers=True,
            )


def _series(label: str, line: _Line, field: str, factor: float) -> Series:
    common = {
        epoch: [factor * value for value in values] for epoch, values in line.common(field).items()
    }
    points = [_point(epoch, common[epoch]) for epoch in work.thinned([*common], _MOST_EPOCHS)]
    if len(points) == 1:
        # A band of one epoch is no area, and no interval either: its seeds are dots.
        runs = common[points[0].x] if line.is_band else ()
        points = [points[0]._replace(low=None, high=None, runs=runs)]
    return Series(label, points, band=line.is_band)


def _point(epoch: float, values: Sequence[float]) -> Point:
    if len(values) == 1:
        return Point(epoch, values[0])
    words = f"{len(values)} seeds, least to most"
    return Point(epoch, of_seeds(values).value, min(values), max(values), words)


def _note(lines: Sequence[_Line]) -> str:
    bands = [line for line in lines if line.is_band]
    if not bands:
        return "one value an epoch, no interval: n = 1 model a line"
    ids = "; ".join(f"n = {len(line)} ({run_ids(line.runs)})" for line in bands)
    line = "line: geometric mean of the seeds (their median if one is 0)"
    note = f"{line}, band: from the least to the most of them; {ids}"
    return note + ("; without a band n = 1" if len(bands) < len(lines) else "")


def _seeds_table(lines: Sequence[_Line], runs: Sequence[ReportedRun]) -> Table:
    courses = work.grouped((c for run in runs for c in _courses(run)), lambda c: c.run.training_key)
    failed = {
        key: sum(c.ended and c.status != "done" for c in work.one_of_each_seed(same))
        for key, same in courses.items()
    }
    rows = []
    for line in filter(lambda line: line.is_band, lines):
        for field, score in _SEED_SCORES.items():
            ends = [max(values.items()) for course in line if (values := course.values(field))]
            if len(ends) == len(line):
                epochs, scores = zip(*ends, strict=True)
                row = {"run": line.run, "runs": run_ids(line.runs), "score": score}
                row["failed_seeds"] = failed[line.run.training_key]
                row |= {"scores": of_seeds(scores, 1.0), "least": min(scores), "most": max(scores)}
                rows.append(row | {"epochs": span(epochs)})
    note = "Each seed's last test score; seeds that failed or diverged have none. "
    note += "The mean is geometric (the median if a score is 0) and has an interval from "
    note += f"{FEWEST_RUNS} seeds on."
    return make_table(_SEEDS, rows, "Seeds together", note)


def _results(run: ReportedRun) -> dict[str, Any]:
    epochs = run.of_kind(EpochRecord)
    last = epochs[-1]
    # Not every epoch need be evaluated.
    evaluated = next((epoch for epoch in reversed(epochs) if epoch.eval_count is not None), None)
    field = "eval_top1" if evaluated and evaluated.eval_top1 is not None else "eval_dice"
    scores = [score for epoch in epochs if (score := getattr(epoch, field)) is not None]
    return {
        "run": run,
        "last": last,
        "epochs": f"{count(last.epoch)} of {count(last.epochs)}",
        "evaluated": evaluated,
        "score": SCORES[field] if scores else None,
        "last_score": evaluated and getattr(evaluated, field),
        "best_score": max(scores, default=None),
    }
