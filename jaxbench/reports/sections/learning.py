"""Loss and accuracy, epoch by epoch."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jaxbench.analysis.pricing import usd
from jaxbench.analysis.rate import FEWEST_RUNS, FEWEST_SEEDS, of_repeats, of_seeds
from jaxbench.metrics import count
from jaxbench.reports import work
from jaxbench.reports.blocks import LineChart, Point, Section, Series
from jaxbench.reports.columns import run_ids, setting_column, shared
from jaxbench.reports.context import ReportContext, left_out, make_section
from jaxbench.reports.prices import price_label
from jaxbench.reports.runs import NEVER_REACHED, SCORES, ReportedRun, TimeToTarget
from jaxbench.schema import METRICS, EpochRecord, value_of
from jaxbench.tables.columns import Cell, Column, metric_column, metric_columns
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
_RESULTS = (
    Column("epochs", "epochs", left=False),
    *metric_columns("last.train_loss", "evaluated.eval_loss"),
    Column("score", "score"),
    *metric_columns("last_score", "best_score", "evaluated.eval_count"),
    *metric_columns("first_epoch_with_compile_s", "median_epoch_s", of="run.summary."),
    metric_column("duration_s", "run.total_s", ", all epochs"),
)
_MEAN = ", mean (95 % interval)"
_SEEDS = (
    Column("setting", "setting"),
    Column("seeds that ended", "ended", left=False),
    metric_column("failed_seeds"),
    metric_column("images_per_s", "rate", _MEAN, ends="too"),
    Column("score", "score"),
    metric_column("n", "scores.n"),
    metric_column("score", "scores", _MEAN, ends="too"),
    metric_column("score", "least", ", least"),
    metric_column("score", "most", ", most"),
    metric_column("eval_top1_tta", "tta", _MEAN, ends="too"),
    Column("target", "target"),
    metric_column("reached"),
    metric_column("time_s", more=_MEAN, ends="too"),
    *metric_columns("epochs_s", "images", "training_flops", "energy_j"),
    metric_column("target_usd", "usd", _MEAN, ends="too"),
    Column("price", "price"),
    Column("caveat", "caveat", left=True),
    Column("runs", "runs", left=True),
)


@dataclasses.dataclass(frozen=True)
class _Course:
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
    parts = [part for group in lines for part in work.in_parts(group)]
    charts = [chart for part in parts[:_MOST_GROUPS] for chart in _charts(*part)]
    shown = shared("run", "status", "experiment", "precision", "feed", "batch", "seed")
    columns = [*shown, *setting_column(context, "seed"), *_RESULTS]
    results = make_table(columns, map(_results, trained), "Final results")
    return make_section(
        "learning",
        "Learning, epoch by epoch",
        "Runs that differ only in the seed are one line: the mean of the seeds, in a band from "
        "the least to the most, as far as all of them ran. A line without a band is one "
        "model. Test figures cover every example of the test split. A run that is still running "
        "or ended early is a line of its own, and in no band."
        + left_out(len(parts), _MOST_GROUPS, "groups of runs"),
        [*charts, _seeds_table(context), results],
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


def _charts(which: str, lines: Sequence[_Line]) -> Iterator[LineChart]:
    run = lines[0].run
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
    return Point(epoch, of_seeds(values).span[0], min(values), max(values), words)


def _note(lines: Sequence[_Line]) -> str:
    bands = [line for line in lines if line.is_band]
    if not bands:
        return "one value an epoch, no interval: n = 1 model a line"
    ids = "; ".join(f"n = {len(line)} ({run_ids(line.runs)})" for line in bands)
    line = "line: geometric mean of the seeds (their median if one is 0)"
    note = f"{line}, band: from the least to the most of them; {ids}"
    return note + ("; without a band n = 1" if len(bands) < len(lines) else "")


def _seeds_table(context: ReportContext) -> Table:
    """Return a row for each setting with several seeds, or with a target."""
    trained = [run for run in context.collection.all_runs if run.mode == "train"]
    groups = work.grouped(trained, lambda run: run.training_key).values()
    rows = [row for runs in groups for row in _seed_rows(context, runs)]
    always = ("experiment", "precision", "batch_size")
    labels = work.labelled(rows, lambda row: row["run"].training_setting, always)
    note = (
        "Each mean is geometric, with an interval from "
        f"{FEWEST_RUNS} seeds on; the median if a value is 0 or ∞. Score: the last of each seed; "
        "seeds that failed or diverged have none. From the time on: to the target, ∞ if it "
        "was never reached. Epochs alone: with evaluations, without start-up, "
        "reading and compilation. USD: at the lowest known price."
    )
    rows = [row | {"setting": label} for label, row in labels]
    return make_table(_SEEDS, rows, "Seeds together", note)


def _seed_rows(context: ReportContext, runs: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    """Yield a row of runs of one setting for each target that they have."""
    courses = [course for run in runs for course in _courses(run)]
    of_seed = work.one_of_each_seed(courses)
    done = [course for course in of_seed if course.status == "done"]
    scores: dict[str, list[float]] = {}
    for field in (*SCORES, "eval_top1_tta"):
        values = [course.values(field) for course in done]
        scores[field] = [max(of_epochs.items())[1] for of_epochs in values] if all(values) else []
    score = next((field for field in SCORES if scores[field]), "eval_top1")
    rates = [run.rate for run in runs if run.status == "done" and not run.changed_devices]
    row = {
        "run": runs[0],
        "runs": Cell(run_ids(runs), run=runs[0].id if len(runs) == 1 else None),
        "failed_seeds": sum(one.ended and one.status != "done" for one in of_seed),
        "rate": of_repeats([rate for rate in rates if rate.value]),
        "score": SCORES[score] if scores[score] else None,
        "scores": of_seeds(scores[score], 1.0),
        "least": min(scores[score], default=None),
        "most": max(scores[score], default=None),
        "tta": of_seeds(scores["eval_top1_tta"], 1.0),
    }
    times = filter(None, map(context.times_to_target.get, runs))
    for same in work.grouped(times, lambda one: one.target).values() or [[]]:
        if same or len(done) > 1:
            yield row | _counts(same or courses) | (_to_target(context, same) if same else {})


def _counts(tried: Sequence[_Course | TimeToTarget]) -> dict[str, Any]:
    """Return how many seeds ended, and what makes them no result."""
    of_seed = work.one_of_each_seed(tried)
    ended, repeats = [one for one in of_seed if one.ended], [o for o in tried if o not in of_seed]
    caveats = []
    if len(ended) < FEWEST_SEEDS:
        few = f"fewer than {FEWEST_SEEDS} seeds: no result yet" if ended else "none has ended"
        caveats.append(few)
    # Some seeds compiled, and others fetched their programs.
    outcomes = collections.Counter(one.run.compile_cache or "unknown" for one in ended)
    if len(outcomes) > 1:
        listed = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
        caveats.append(f"compilation cache differs ({listed}): compare the epochs alone")
    if repeats:
        caveats.append(f"{run_ids(repeats)}: a seed run again, not counted")
    return {"ended": f"{len(ended)} of {len(of_seed)}", "caveat": Cell("; ".join(caveats), "soft")}


def _to_target(context: ReportContext, times: Sequence[TimeToTarget]) -> dict[str, Any]:
    """Return what seeds took to their target, and what that costs."""
    ended = [one for one in work.one_of_each_seed(times) if one.ended]
    row: dict[str, Any] = {"target": times[0].label}
    if not ended:
        return row
    for name in ("time_s", "epochs_s", "images", "training_flops", "energy_j"):
        values = [getattr(one, name) if one.reached else math.inf for one in ended]
        row[name] = None if None in values else of_seeds(values)
    if price := context.prices.lowest(run := ended[0].run):
        paid = of_seeds([usd(one.paid_s, price.usd_per_hour) for one in ended])
        row |= {"usd": paid, "price": price_label(price, run)}
    return row | {"reached": sum(one.reached for one in ended)}


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
