"""Machines to rent: what compilers report of them, what was measured and published, and offers."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxbench.analysis import pricing
from jaxbench.metrics import count, plain
from jaxbench.offering.folder import Offer
from jaxbench.records.schema import TargetRecord
from jaxbench.reports.blocks import Dot, DotChart, Section
from jaxbench.reports.collect import ReportedCard
from jaxbench.reports.columns import run_cell, shared, status_cell
from jaxbench.reports.compiled import CompiledStep, compiled_steps
from jaxbench.reports.context import STAGES, Measurement, ReportContext, make_section
from jaxbench.reports.prices import price_words
from jaxbench.reports.published import Sources, published_rate
from jaxbench.reports.runs import RunRecord
from jaxbench.reports.sections.cards import status_cell as card_status
from jaxbench.reports.work import grouped
from jaxbench.tables.columns import Cell, Column, metric_column, metric_columns
from jaxbench.tables.table import Table, make_table, with_figures

_MOST_DOTS = 16
_NO_CEILING = (
    "No peak rate of the machine in this precision is known, or the step does not fit: no ceiling."
)


def _fits(step: CompiledStep) -> Cell:
    # A compiler that crashed said nothing.
    return status_cell(step.run.status) if step.fits is None else _yes_or_no(step.fits)


def _yes_or_no(fits: object) -> Cell:
    return Cell("yes", "good") if fits is True else Cell("no", "bad")


def _measured(step: CompiledStep) -> Cell | None:
    row = step.measured
    if row is None:
        return None
    batch = row.run.batch_size
    at = "" if batch == step.batch_size or batch is None else f"batch {count(batch)}, "
    told = f"{plain(row.rate.value)} ({at}{STAGES[row.stage]}, {row.run.id})"
    return Cell(told, "measured", run=row.run.id)


def _published(step: CompiledStep) -> Cell | None:
    return step.published and Cell(plain(published_rate(step.published)), "published")


def _published_with(step: CompiledStep) -> str | None:
    row = step.published
    if row is None:
        return None
    return f"{row['precision']}, batch {count(row['global_batch'])}, {row['cited']}"


def _reason(step: CompiledStep) -> str | None:
    if step.fits is True:
        return None
    reason = (step.run.reason or "no reason given").removeprefix(f"{step.run.target}: ")
    return reason.split("\n", 1)[0][:160]


def _price(step: CompiledStep) -> str | None:
    if step.price is None:
        return None
    return f"{plain(step.price.usd_per_hour)} USD/h; {price_words(step.price, step.run)}"


_COLUMNS = (
    Column("target", lambda step: Cell(step.run.target, run=step.run.id)),
    Column("machine", "run.hardware"),
    *shared("precision"),
    Column("setting", "setting"),
    Column("fits (compiled)", _fits, left=True),
    metric_column("batch_size"),
    Column("largest batch (compiled)", "largest", str),
    metric_column("record.needed_bytes", more=" (compiled)"),
    metric_column("record.device_memory_bytes"),
    metric_column("ceiling_images_per_s", "ceiling", " (predicted)"),
    Column("bound by (predicted)", lambda step: step.ceiling and step.bound_by),
    Column("bytes moved, times the least (predicted)", "bytes_over_least", plain),
    Column("measured images/s", _measured, left=True),
    Column("published images/s", _published, left=False),
    Column("published with", _published_with),
    metric_column("usd_per_million_images", more=" at the ceiling (predicted)"),
    Column("price", _price, left=True),
    metric_column("record.compile_s"),
    Column("why not", _reason, left=True),
)
_SCALING = (
    *shared("run", "experiment"),
    Column("target", "record.target"),
    Column("scaling", "record.scaling"),
    *shared("precision"),
    *metric_columns("record.num_devices", "record.batch_size", "record.batch_per_device"),
    Column("fits (compiled)", lambda row: _yes_or_no(row.record.fits), left=True),
    metric_column("record.needed_bytes", more=" (compiled)"),
    Column("MB exchanged (compiled)", lambda row: _exchanged_mb(row.record), plain),
    metric_column(
        "ceiling_images_per_s",
        lambda row: (row.record.ceiling or {}).get("images_per_s") if row.record.fits else None,
        " (predicted)",
    ),
    metric_column("record.efficiency_no_overlap", more=" (predicted)"),
    metric_column("record.efficiency_full_overlap", more=" (predicted)"),
)


def before_you_rent(context: ReportContext) -> Section | None:
    """Return tables and charts of steps that were compiled for machines that are not here."""
    sources = Sources()
    steps = compiled_steps(context, sources)
    table = make_table(
        with_figures(_COLUMNS, steps),
        steps,
        title="What the compilers say",
        note=_note(steps, sources),
        group=lambda step: step.run.experiment,
    )._replace(folded=False)
    by_experiment = grouped(steps, lambda step: step.run.experiment).values()
    scaled = [
        RunRecord(run, record)
        for run in context.compiled
        for record in run.of_kind(TargetRecord)
        if record.scaling
    ]
    return make_section(
        "before-you-rent",
        "Before you rent",
        "Training steps compiled for machines that are not here. Whether a step fits is what the "
        "machine's own compiler says (compiled). The ceiling is the most images/s that the "
        "machine's peak rates allow (predicted): real rates are lower, often by far. Only what is "
        "marked measured or published was run on such a machine.",
        [
            table,
            make_table(
                with_figures(_SCALING, scaled),
                scaled,
                title="Scaling, predicted",
                note="The step compiled for ever more devices of the machine. Efficiency: of the "
                "ceilings, against the fewest devices, if nothing of the all-reduces overlaps with "
                "the step (nothing hidden), or all of them (all hidden).",
            ),
        ],
        [chart for own in by_experiment for chart in _chart(own, table)],
    )


def _note(steps: Sequence[CompiledStep], sources: Sources) -> str:
    assumed = dict.fromkeys(filter(None, (step.limit.get("assumptions") for step in steps)))
    compilers = dict.fromkeys(step.record.compiler for step in steps if step.record)
    told = [
        f"The ceiling assumes {'; or '.join(assumed)}." if assumed else _NO_CEILING,
        "Bound by: which of them takes longest.",
        "Bytes moved: what the compiled kernels read from memory and write to it, over the least "
        "if no activation stays on the chip (jaxbench/xla/least_bytes.py has the rules)."
        * any(step.bytes_over_least is not None for step in steps),
        "An image of a language model is a sequence." * any(map(_is_of_sequences, steps)),
        "Needed: what the compiler plans for the step; a resident data set comes on top. Usable: "
        "of a GPU 75 %, which JAX takes by default, of a TPU what its compiler says.",
        "Largest batch: of those that were tried, and behind “not” the smallest above it that does "
        "not fit; “at least” where all fit.",
        "Measured: a run of this report of the same work on as many of the same devices. "
        "Published: by others, with other software; of a training, the images/s of its median "
        "epoch.",
        f"Compiled with {', '.join(compilers)}; “compile” is the time here." * bool(compilers),
        sources.note,
    ]
    return " ".join(filter(None, told))


def _chart(steps: Sequence[CompiledStep], table: Table) -> list[DotChart]:
    """Return an experiment's ceilings by machine; of a machine and setting, the highest."""
    drawn = sorted((step for step in steps if step.ceiling), key=lambda step: step.ceiling)
    best = {(step.run.target, step.run.precision, step.setting): step for step in drawn}
    drawn = [*best.values()][-_MOST_DOTS:]
    if len(drawn) < 2 and not any(map(_dots_below, drawn)):
        return []
    shared_by_all = {own for own in _settings(drawn[0]) if all(own in _settings(s) for s in drawn)}
    dots = [
        Dot(_label(step, shared_by_all), step.ceiling, below=_dots_below(step)) for step in drawn
    ]
    more = f"; the highest {_MOST_DOTS} of {len(best)}" if len(best) > _MOST_DOTS else ""
    common = [own for own in _settings(drawn[0]) if own in shared_by_all]
    note = (
        f"{'; '.join([*common, ''])}bars end at the ceiling, which is predicted, in brackets what "
        "bounds it; ● measured in this report, ○ published by others; logarithmic; the assumptions "
        f"are below the table{more}"
    )
    unit = "sequences/s" if _is_of_sequences(steps[0]) else "images/s"
    title = f"{steps[0].run.experiment}: {unit} at most, by machine"
    return [DotChart(title, note, unit, dots, table, x_log=True)]


def _is_of_sequences(step: CompiledStep) -> bool:
    return bool(step.run.sequence_length)


def _settings(step: CompiledStep) -> list[str]:
    told = (step.run.precision, f"batch {count(step.batch_size)}", step.setting)
    return [*filter(None, told)]


def _label(step: CompiledStep, elsewhere: set[str]) -> str:
    told = [step.run.hardware, *(own for own in _settings(step) if own not in elsewhere)]
    return f"{', '.join(told)} ({step.bound_by})"


def _dots_below(step: CompiledStep) -> list[Dot]:
    found = []
    if step.measured is not None:
        row = step.measured
        found.append(Dot(f"measured, {row.run.id}", row.rate.value))
    if step.published is not None:
        row = step.published
        found.append(Dot(f"published, {row['machine']}", published_rate(row), published=True))
    return found


def _exchanged_mb(record: TargetRecord) -> float | None:
    kinds = record.collectives
    return None if kinds is None else sum(kind["bytes"] for kind in kinds.values()) / 1e6


class _Offered(NamedTuple):
    """An offer with something that came back; with neither, it has not run yet."""

    context: ReportContext
    offer: Offer
    ceiling: float | None
    measured: Measurement | None = None
    card: ReportedCard | None = None

    run = property(lambda self: self.measured and self.measured.run)
    to_target = property(lambda self: self.context.times_to_target.get(self.run))

    @property
    def price(self) -> pricing.Price | None:
        """The lowest of the run's own hardware; without a run, the catalogue's of the offer."""
        if self.run is None:
            return self.context.prices.of_offer(self.offer.name)
        return self.context.prices.lowest(self.run)


def _state(row: _Offered) -> Cell:
    if row.card is not None:
        return card_status(row.card.card.verdict and row.card.card.verdict.outcome)
    return status_cell(row.run.status) if row.run else Cell("not yet run", "soft")


def _came_back(row: _Offered) -> Cell | str | None:
    if row.card is not None:
        return row.card.id
    return run_cell(row.run.id) if row.run else None


def _usd_to_target(row: _Offered) -> float | None:
    unknown = row.to_target is None or row.price is None
    return None if unknown else pricing.usd(row.to_target.paid_s, row.price.usd_per_hour)


def _usd_per_million(row: _Offered) -> float | None:
    rate = row.measured and row.measured.rate.value
    if not rate or row.price is None:
        return None
    return pricing.usd_per_million_images(rate, row.price.usd_per_hour)


_OFFERS = (
    Column("offer", "offer.name"),
    Column("of", "offer.label"),
    Column("state", _state, left=True),
    Column("run or card", _came_back, left=True),
    Column("what", lambda row: row.measured and STAGES.get(row.measured.stage)),
    metric_column("images_per_s", "measured.rate.value"),
    Column("target [%]", "to_target.label"),
    metric_column("target_s", "to_target.time_s"),
    metric_column("target_usd", _usd_to_target),
    metric_column("usd_per_million_images", _usd_per_million),
    metric_column("joules_per_image", "run.telemetry.joules_per_image"),
    metric_column("price.usd_per_hour"),
    Column("price: offer, date, source", lambda row: row.price and price_words(row.price, row.run)),
    metric_column("ceiling_images_per_s", "ceiling", " (predicted)"),
    Column("compiles as", "offer.target"),
)


def offers(context: ReportContext) -> Section | None:
    """Return a table of the offers: those that came back with their figures, and the others."""
    steps = compiled_steps(context, Sources()) if context.collection.offers else []
    ceilings: dict[tuple, float] = {}
    for step in steps:
        key = step.run.target, step.run.experiment
        ceilings[key] = max(step.ceiling or 0.0, ceilings.get(key, 0.0))
    rows = [
        row
        for offer in context.collection.offers
        for row in _offered(context, offer, ceilings.get((offer.target, offer.label)) or None)
    ]
    waiting = [row.offer for row in rows if not (row.run or row.card)]
    note = (
        "USD: at the lowest price that the report knows of just this hardware; what was paid may "
        "differ. The ceiling is predicted, see Before you rent."
    )
    if waiting and not ceilings:
        # The section Before you rent is made of such a sweep.
        targets = ",".join(dict.fromkeys(offer.target for offer in waiting))
        note += f" Ask the compiler first: jaxbench sweep --experiment=... --target={targets}."
    return make_section(
        "offers",
        "Offers",
        f"{len(context.collection.offers)} machines to rent, {len(waiting)} of them not yet run.",
        [make_table(with_figures(_OFFERS, rows), rows, title="By offer", note=note)],
    )


def _offered(context: ReportContext, offer: Offer, ceiling: float | None) -> Iterator[_Offered]:
    """Yield an offer with each rate and card in its folder, or alone."""
    folder = offer.folder.resolve()
    within = [card for card in context.collection.cards if card.path.is_relative_to(folder)]
    yield from (_Offered(context, offer, ceiling, card=card) for card in within)
    measured = [
        row
        for row in context.measurements
        if row.run.path.resolve().is_relative_to(folder) and row.stage in (None, *STAGES)
    ]
    # The runs of a card are its parts.
    if not within:
        yield from (_Offered(context, offer, ceiling, row) for row in measured)
        if not measured:
            yield _Offered(context, offer, ceiling)
