"""What compilers say of machines that are not here, beside what was measured and published."""

from collections.abc import Sequence

from jaxbench.metrics import count, plain
from jaxbench.records.schema import TargetRecord
from jaxbench.reports.blocks import Dot, DotChart, Section
from jaxbench.reports.columns import shared, status_cell
from jaxbench.reports.compiled import CompiledStep, compiled_steps
from jaxbench.reports.context import STAGES, ReportContext, make_section
from jaxbench.reports.prices import price_words
from jaxbench.reports.published import Sources, published_rate
from jaxbench.reports.runs import RunRecord
from jaxbench.reports.work import grouped
from jaxbench.tables.table import (
    Cell,
    Column,
    Table,
    make_table,
    metric_column,
    metric_columns,
    with_figures,
)

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
    return bool(step.run.config.get("data", {}).get("sequence_length"))


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
