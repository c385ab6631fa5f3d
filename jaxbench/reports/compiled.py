"""Runs that were compiled for machines that are not here, and what is known of the same work."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.pricing import Price, usd_per_million_images
from jaxbench.analysis.published import load_published
from jaxbench.metrics import count
from jaxbench.records.schema import TargetRecord
from jaxbench.reports import published, work
from jaxbench.reports.context import STAGES, Measurement, ReportContext
from jaxbench.reports.runs import ReportedRun

# Of published rates, see `jaxbench.analysis.published`.
_TABLES = ("throughput", "training_runs")


class LargestBatch(NamedTuple):
    """What the runs that are equal but for the batch tell of the largest one.

    Attributes:
      fits: the largest that the compiler accepts; None where it accepts none.
      refused: the smallest above it that does not fit; None where none was tried.
    """

    fits: float | None
    refused: float | None

    def __str__(self) -> str:
        if self.fits is None:
            return "–" if self.refused is None else f"none; not {count(self.refused)}"
        if self.refused is None:
            return f"at least {count(self.fits)}"
        return f"{count(self.fits)}; not {count(self.refused)}"


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A training step that was compiled for a machine.

    Attributes:
      record: None if the compiler came to none.
      largest: the largest batch of the machine and setting.
      setting: what tells it apart from the other steps of its experiment and machine.
      measured: the best rate that a run of this report measured of the same work on that machine.
      published: the best rate that others published of it.
      price: the lowest of the machine.
    """

    run: ReportedRun
    record: TargetRecord | None
    largest: LargestBatch = LargestBatch(None, None)
    setting: str = ""
    measured: Measurement | None = None
    published: Mapping[str, Any] | None = None
    price: Price | None = None

    batch_size = property(lambda self: self.run.batch_size)
    fits = property(lambda self: self.record and self.record.fits)
    limit = property(lambda self: (self.record and self.record.ceiling) or {})
    bound_by = property(lambda self: self.limit.get("bound_by"))

    @property
    def ceiling(self) -> float | None:
        """Images/s that the step cannot exceed; None for a step that does not fit."""
        found = self.limit.get("images_per_s")
        return found if self.fits is True and (found or 0) > 0 else None

    @property
    def bytes_over_least(self) -> float | None:
        """What the step moves, over the least if no activation stays on the chip."""
        step = self.record
        known = step and step.moved_bytes and step.bytes_lower_bound
        return step.moved_bytes / step.bytes_lower_bound if known else None

    @property
    def usd_per_million_images(self) -> float | None:
        """At the ceiling: nobody trains for less."""
        if None in (self.ceiling, self.price):
            return None
        return usd_per_million_images(self.ceiling, self.price.usd_per_hour)


def compiled_steps(context: ReportContext, sources: published.Sources) -> list[CompiledStep]:
    """Return what stands in a row: of a search for the largest batch its first batch and that one.

    Args:
      sources: gets the sources of published rates.
    """
    searches = [sweep.path for sweep in context.collection.sweeps if sweep.max_batches]
    steps = []
    for runs in work.grouped(
        # What compiled for parts of the machine too is in another table.
        (run for run in context.compiled if not run.document.scaling),
        lambda run: (run.target, work.setting_key(work.setting_of(run), work.is_compiled)),
    ).values():
        alone = [CompiledStep(run, next(iter(run.of_kind(TargetRecord)), None)) for run in runs]
        largest = largest_batch(alone)
        tried = [one for one in alone if any(map(one.run.path.is_relative_to, searches))]
        shown = [one for one in alone if one not in tried] or tried[:1]
        shown += [one for one in tried if one.batch_size == largest.fits]
        # Of a batch that was compiled more than once, the last.
        by_batch = {one.batch_size: one for one in shown}
        steps += [dataclasses.replace(one, largest=largest) for one in by_batch.values()]
    # Sweeps of the same experiment, for GPUs and TPUs say, stand together.
    together = work.grouped(steps, lambda step: step.run.experiment).values()
    steps = [step for own in together for step in own]
    rates = work.grouped(filter(_is_rate, context.measurements), lambda row: _work(row.run))
    return [
        dataclasses.replace(
            step,
            measured=_nearest(step, rates.get(_work(step.run), ())),
            published=_published(sources, step),
            price=context.prices.lowest(step.run),
        )
        for own in work.grouped(steps, lambda step: (step.run.experiment, step.run.target)).values()
        for step in _named(own)
    ]


def largest_batch(steps: Sequence[CompiledStep]) -> LargestBatch:
    """Return the largest batch that fits, of steps that differ in the batch alone."""
    known = [one for one in steps if one.batch_size is not None]
    fits = max((one.batch_size for one in known if one.fits is True), default=None)
    above = [one.batch_size for one in known if one.fits is False]
    above = [batch for batch in above if fits is None or batch > fits]
    return LargestBatch(fits, min(above, default=None))


def _named(steps: Sequence[CompiledStep]) -> Iterator[CompiledStep]:
    settings = [
        {n: v for n, v in work.setting_of(step.run).items() if work.is_compiled(n)}
        for step in steps
    ]
    # A trial whose compiler crashed has no configuration: it differs in nothing.
    known_settings = [own for own, step in zip(settings, steps, strict=True) if step.run.config]
    names = [name for name in work.differing_names(known_settings) if name != "precision"]
    for step, own in zip(steps, settings, strict=True):
        told = work.name_settings(own, names) if step.run.config else ""
        yield dataclasses.replace(step, setting=told)


def _is_rate(row: Measurement) -> bool:
    known = row.stage in STAGES and (row.rate.value or 0) > 0
    return known and row.usable and not row.run.changed_devices


def _nearest(step: CompiledStep, rates: Sequence[Measurement]) -> Measurement | None:
    """Return the best of the rates: of the same batch if there is one, of the step alone."""

    def nearness(row: Measurement) -> tuple:
        same_batch = row.run.batch_size == step.batch_size
        return same_batch, row.stage == "train_step", row.rate.value

    return max(rates, key=nearness, default=None)


def _work(run: ReportedRun) -> tuple:
    """Return what must be equal for two rates to be of the same work on the same machine."""
    # Older drivers leave the maker out.
    kind = run.device_kind.removeprefix("NVIDIA ")
    return kind, run.num_devices, work.setting_key(work.setting_of(run), work.is_step)


def _published(sources: published.Sources, step: CompiledStep) -> published.Row | None:
    """Return the best published rate of the network on the same devices in the same arithmetic."""
    run, network = step.run, step.run.published_network
    if network is None:
        return None
    machine = (run.device_kind.removeprefix("NVIDIA "), run.num_devices)
    arithmetic = {
        run.config.get("precision"),
        (step.limit.get("peak") or {}).get("arithmetic"),
    }

    def is_same(row: published.Row) -> bool:
        return (
            row["model"] == network
            and published.published_devices(row) == machine
            and row["precision"].split()[0] in arithmetic
            and published.published_rate(row) is not None
            and not published.other_images(work.setting_of(run), row["dataset"])
        )

    best = max(
        (row for table in _TABLES for row in filter(is_same, load_published(table))),
        key=published.published_rate,
        default=None,
    )
    # Only what is shown is cited.
    cited = (row for table in _TABLES for row in sources.rows(table, lambda row: row == best))
    return next(cited, None)
