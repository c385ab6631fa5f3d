"""Machines to rent: rates to expect, what compilers report, was measured and published."""

import dataclasses
from collections.abc import Sequence

from jaxbench.analysis.pricing import Price, costs_to_expect
from jaxbench.analysis.rate import Estimate, rank
from jaxbench.metrics import UNKNOWN, count, plain
from jaxbench.records.same import is_compiled, is_step, machine_key, setting_key
from jaxbench.reports import work
from jaxbench.reports.blocks import Dot, DotChart, Section
from jaxbench.reports.columns import shared, status_cell
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import price_words
from jaxbench.reports.published import Row, Sources, nearest, run_key
from jaxbench.reports.runs import ReportedRun
from jaxbench.schema import METRICS, TargetRecord
from jaxbench.tables.columns import Cell, Column, metric_column, metric_columns
from jaxbench.tables.table import make_table

_MOST_DOTS = 16
_RANKS = (
    "Rank: by USD per million images, or without any price by images/s. Machines whose intervals "
    "overlap are not told apart and have several possible ranks."
)
_COMPILED = (
    "Needed: what the compiler plans for the step; a resident data set comes on top. Usable: of a "
    "GPU 75 %, which JAX takes by default, of a TPU what its compiler says. Largest batch: of "
    "those that were tried, and behind “not” the smallest above it that does not fit; “at least” "
    "if all fit. “compile” is the time here."
)
_BESIDE = (
    "Measured: a run of this report of the same work on as many of the same devices. Published: by "
    "others, with other software, on as many of the same devices, which multiply in the same type: "
    "JAX's if there is one, then that of the nearest batch; of a training the rate of its median "
    "epoch. “at least”: from the time of a whole training."
)


@dataclasses.dataclass(eq=False, kw_only=True)
class _Step:
    """A training step that was predicted, and mostly compiled, for a machine.

    Attributes:
      ranks: the possible ones among the machines of a table, by cost, in words.
      largest: the largest batch of the machine and setting, in words.
      setting: what tells it apart from the other steps of its experiment and machine.
      measured: the best rate that a run of this report measured of the same work on that machine.
      published: the rate that others published of it, the nearest to it, as a row.
    """

    run: ReportedRun
    record: TargetRecord | None
    price: Price | None = None
    ranks: str = UNKNOWN
    largest: str = UNKNOWN
    setting: str = ""
    measured: Measurement | None = None
    published: Row | None = None
    others: int = 0

    batch_size = property(lambda self: self.run.batch_size)
    fits = property(lambda self: self.record and self.record.fits)
    _prediction = property(lambda self: (self.record and self.record.predicted) or {})

    @property
    def predicted(self) -> Estimate:
        """Images/s to expect, with the 80 % interval."""
        return Estimate.of_fields(self._prediction, "images_per_s")

    @property
    def usd_per_hour(self) -> float | None:
        """The report's price of the machine, or the one that its predictions were asked with."""
        return self.price.usd_per_hour if self.price else self._prediction.get("usd_per_hour")

    @property
    def usd(self) -> Estimate | None:
        """USD per million images to expect; None without a price."""
        hourly = self.usd_per_hour
        return costs_to_expect([self.predicted], [hourly])[0] if hourly else None

    @property
    def why_not(self) -> str:
        """Why the step does not fit, or nothing is predicted."""
        reason = self.run.reason or (self.record and self.record.not_predicted) or ""
        return reason.removeprefix(f"{self.run.target}: ").split("\n", 1)[0][:160]


def _ranked(machines: Sequence[_Step]) -> list[_Step]:
    """Return what is to expect with its ranks, the cheapest first."""
    hourly = [one.usd_per_hour for one in machines]
    ranks = rank(costs_to_expect([one.predicted for one in machines], hourly))
    for index, words in ranks:
        machines[index].ranks = words
    return [machines[index] for index, _ in ranks]


def _steps(context: ReportContext, sources: Sources) -> list[_Step]:
    """Return what stands in a row: of a search for the largest batch its first and that one."""
    searches = [sweep.path for sweep in context.collection.sweeps if sweep.max_batches]
    # What compiled for parts of the machine too is in another table.
    whole = [run for run in context.compiled if not run.document.scaling]
    steps = []
    for runs in work.grouped(
        whole, lambda run: (run.target, setting_key(run.setting, is_compiled))
    ).values():
        group = [_Step(run=run, record=next(iter(run.of_kind(TargetRecord)), None)) for run in runs]
        fits = max((one.batch_size for one in group if one.fits), default=None)
        tried = [one for one in group if any(map(one.run.path.is_relative_to, searches))]
        shown = [one for one in group if one not in tried] or tried[:1]
        shown += [one for one in tried if one.batch_size == fits]
        # Of a batch that was compiled more than once, the last.
        for one in {one.batch_size: one for one in shown}.values():
            one.largest = _largest(group, fits)
            steps.append(one)
    rates = [row for row in context.measurements if row.stage in STAGES and row.usable]
    measured = work.grouped(
        (row for row in rates if (row.rate.value or 0) > 0), lambda row: _step_on_machine(row.run)
    )
    for same in work.grouped(steps, lambda step: (step.run.experiment, step.run.target)).values():
        _name_settings(same)
    for step in steps:
        step.measured = _nearest(step, measured.get(_step_on_machine(step.run), ()))
        rates = nearest(run_key(step.run), [step.batch_size])
        step.published = next(iter(sources.rates(rates[:1])), None)
        step.others = len(rates[1:])
        step.price = context.prices.lowest(step.run)
    # Sweeps of the same experiment, for GPUs and TPUs say, stand together, the cheapest first.
    by_experiment = work.grouped(steps, lambda step: step.run.experiment).values()
    return [step for same in by_experiment for step in _ranked(same)]


def _largest(steps: Sequence[_Step], fits: float | None) -> str:
    """Return the largest batch that fits and the smallest above it that does not, in words."""
    refused = [one.batch_size for one in steps if one.fits is False]
    refused = min((one for one in refused if one > (fits or 0)), default=None)
    if fits is None:
        return UNKNOWN if refused is None else f"none; not {count(refused)}"
    return f"at least {count(fits)}" if refused is None else f"{count(fits)}; not {count(refused)}"


def _name_settings(steps: Sequence[_Step]) -> None:
    # A trial whose compiler crashed has no configuration: it differs in nothing.
    settings = {
        step: {n: v for n, v in step.run.setting.items() if is_compiled(n)}
        for step in steps
        if step.run.config
    }
    names = [name for name in work.differing_names([*settings.values()]) if name != "precision"]
    for step, setting in settings.items():
        step.setting = work.name_settings(setting, names)


def _nearest(step: _Step, rates: Sequence[Measurement]) -> Measurement | None:
    """Return the best of the rates: of the same batch if there is one, of the step alone."""

    def nearness(row: Measurement) -> tuple:
        same_batch = row.run.batch_size == step.batch_size
        return same_batch, row.stage == "train_step", row.rate.value

    return max(rates, key=nearness, default=None)


def _step_on_machine(run: ReportedRun) -> tuple:
    return machine_key(run.environment), setting_key(run.setting, is_step)


def _measured(step: _Step) -> Cell | None:
    if (rate := step.measured) is None:
        return None
    batch, id = rate.run.batch_size, rate.run.id
    at = "" if batch in (step.batch_size, None) else f"batch {count(batch)}, "
    return Cell(f"{plain(rate.rate.value)} ({at}{STAGES[rate.stage]}, {id})", "measured", run=id)


def _published(step: _Step) -> Cell | None:
    row = step.published
    at_least = "at least " * bool(row and row["lower_bound"] == "yes")
    return Cell(at_least + plain(row["images_per_s"]), "published") if row else None


def _published_with(step: _Step) -> str:
    if not (row := step.published):
        return ""
    what = f"{row['precision']}, batch {count(row['global_batch'])}, {row['framework']}"
    return f"{what}, {row['cited']}" + (f"; {step.others} more" if step.others else "")


def _price(step: _Step) -> str:
    price = step.price
    return f"{plain(price.usd_per_hour)} USD/h; {price_words(price, step.run)}" if price else ""


def _fits(step: _Step) -> Cell:
    if step.record is None:
        return status_cell(step.run.status)  # a compiler that crashed said nothing
    if step.fits is None:
        refused = Cell("unsupported", "bad")
        return refused if step.record.refusal else Cell("not compiled", "soft")
    return Cell("yes", "good") if step.fits else Cell("no", "bad")


def _with_80(title: str, name: str, value: str, more: str = "") -> list[Column]:
    """Return the columns of a metric to expect and of its 80 % interval."""
    ends = metric_column(name, value, ends="only")._replace(title=f"{title} (predicted)")
    return [metric_column(name, value, more), ends]


_PREDICTED = _with_80("80 % interval", "predicted_images_per_s", "predicted")
_USD = _with_80("USD, 80 % interval", "usd_per_million_images", "usd", " (predicted)")
_COLUMNS = (
    Column("rank by cost (predicted)", "ranks"),
    Column("target", lambda step: Cell(step.run.target, run=step.run.id)),
    Column("machine", "run.hardware"),
    *shared("precision"),
    Column("setting", "setting"),
    metric_column("batch_size"),
    *(*_PREDICTED, *_USD),
    Column("price", _price, left=True),
    Column("fits (compiled)", _fits, left=True),
    Column("largest batch (compiled)", "largest", str),
    metric_column("record.needed_bytes", more=" (compiled)"),
    metric_column("record.device_memory_bytes"),
    Column("measured " + METRICS["images_per_s"].title, _measured, left=True),
    Column("published " + METRICS["images_per_s"].title, _published, left=False),
    Column("published with", _published_with),
    metric_column("record.compile_s"),
    Column("why not", "why_not", left=True),
)


def _exchanged_bytes(step: _Step) -> int | None:
    kinds = step.record.collectives if step.record else None
    return None if kinds is None else sum(kind["bytes"] for kind in kinds.values())


_SCALING = (
    *shared("run", "experiment"),
    Column("target", "record.target"),
    Column("scaling", "record.scaling"),
    *shared("precision"),
    *metric_columns("record.num_devices", "record.batch_size", "record.batch_per_device"),
    Column("fits (compiled)", _fits, left=True),
    metric_column("record.needed_bytes", more=" (compiled)"),
    metric_column("exchanged_bytes", _exchanged_bytes, " (compiled)"),
    *_PREDICTED,
    metric_column("efficiency", "record.predicted.efficiency", " to expect (predicted)"),
)


def before_you_rent(context: ReportContext) -> Section | None:
    """Return tables and charts of steps that were compiled for machines that are not here."""
    sources = Sources()
    steps = _steps(context, sources)
    table = make_table(
        _COLUMNS,
        steps,
        title="By machine",
        note=_note(steps, sources),
        group=lambda step: step.run.experiment,
    )._replace(folded=False)
    by_experiment = work.grouped(steps, lambda step: step.run.experiment).values()
    scaled = [
        _Step(run=run, record=record)
        for run in context.compiled
        for record in run.of_kind(TargetRecord)
        if record.scaling
    ]
    return make_section(
        "before-you-rent",
        "Before you rent",
        "Training steps for machines that are not here, the lowest predicted cost first. The "
        "rate is what to expect from published rates, with an 80 % interval (predicted). Whether a "
        "step fits is what the machine's own compiler says (compiled). Only what is marked "
        "measured or published was run on such a machine.",
        [
            table,
            make_table(
                _SCALING,
                scaled,
                title="Scaling, predicted",
                note="The step on ever more devices of the machine. Efficiency to expect: of the "
                "predicted rates, against the fewest devices.",
            ),
        ],
        [chart for group in by_experiment for chart in _chart(group)],
    )


def _note(steps: Sequence[_Step], sources: Sources) -> str:
    records = [step.record for step in steps if step.record]
    compilers = dict.fromkeys(record.compiler for record in records if record.compiler)
    notes = [
        _RANKS * any(step.ranks != UNKNOWN for step in steps),
        "An image of a language model is a sequence."
        * any(step.run.sequence_length for step in steps),
        f"{_COMPILED} Compiled with {', '.join(compilers)}." * bool(compilers),
        _BESIDE,
        sources.note,
    ]
    return " ".join(filter(None, notes))


def _chart(steps: Sequence[_Step]) -> list[DotChart]:
    """Return an experiment's rates to expect; of a machine and setting, the highest."""
    drawn = [step for step in steps if step.predicted.value]
    drawn.sort(key=lambda step: step.predicted.span[0])
    best = {(step.run.target, step.run.precision, step.setting): step for step in drawn}
    drawn = [*best.values()][-_MOST_DOTS:]
    if len(drawn) < 2 and not any(map(_dots_beside, drawn)):
        return []
    settings = [_settings(step) for step in drawn]
    common = [part for part in settings[0] if all(part in others for others in settings)]
    dots = []
    for step, setting in zip(drawn, settings, strict=True):
        parts = [step.run.hardware, *(part for part in setting if part not in common)]
        beside = _dots_beside(step)
        dots.append(Dot(", ".join(parts), *step.predicted.span, "predicted", beside=beside))
    more = f"; the highest {_MOST_DOTS} of {len(best)}" if len(best) > _MOST_DOTS else ""
    note = (
        f"{'; '.join([*common, ''])}lines are predicted rates with their 80 % intervals; "
        f"● measured in this report, ○ published by others; logarithmic{more}"
    )
    unit = "sequences/s" if steps[0].run.sequence_length else METRICS["images_per_s"].title
    title = f"{steps[0].run.experiment}: {unit} to expect, by machine"
    return [DotChart(title, note, unit, dots, x_log=True)]


def _settings(step: _Step) -> list[str]:
    return [*filter(None, (step.run.precision, f"batch {count(step.batch_size)}", step.setting))]


def _dots_beside(step: _Step) -> list[Dot]:
    dots = []
    if row := step.measured:
        dots.append(Dot(f"measured, {row.run.id}", row.rate.span[0]))
    if row := step.published:
        label = f"{row['origin'].text}, {row['machine']}"
        dots.append(Dot(label, row["images_per_s"], kind="published"))
    return dots
