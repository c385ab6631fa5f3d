"""Runs that were compiled for machines that are not here, and what is known of the same work."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxbench.analysis.pricing import Price, usd_per_million_images
from jaxbench.analysis.published import load_published
from jaxbench.metrics import count
from jaxbench.records.schema import Record, TargetRecord
from jaxbench.reports.context import STAGES, Measurement, ReportContext
from jaxbench.reports.prices import is_of_other_hardware
from jaxbench.reports.published import (
    Row,
    Sources,
    other_images,
    published_devices,
    published_rate,
)
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.settings import differing_names, grouped, name_settings, setting_key
from jaxbench.reports.sides import is_work

# Of published rates, see `jaxbench.analysis.published`.
_TABLES = ("throughput", "training_runs")
# Of where and when it was compiled, which says nothing of the machine that it was compiled for.
_ELSEWHERE = ("host", "cpu", "driver", "commit", "device_kind", "num_devices", "network", "mode")
# What a measured run is asked for apart, or cannot be known of a compiled one.
_NOT_ASKED = ("mode", "network", "batch_size")


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
      record: the `target` record; the summary of a run without one.
      largest: the largest batch of the machine and setting.
      setting: what tells it apart from the other steps of its experiment and machine.
      measured: the best rate that a run of this report measured of the same work on that machine.
      published: the best rate that others published of it.
      price: the lowest of the machine.
    """

    run: ReportedRun
    record: Record
    largest: LargestBatch
    setting: str = ""
    measured: Measurement | None = None
    published: Row | None = None
    price: Price | None = None

    batch_size = property(lambda self: self.run.batch_size)
    fits = property(lambda self: self.record.fits)
    bound_by = property(lambda self: (self.record.ceiling or {}).get("bound_by"))

    @property
    def ceiling(self) -> float | None:
        """Images/s that the step cannot exceed; None for a step that does not fit."""
        found = (self.record.ceiling or {}).get("images_per_s")
        return found if self.fits is True and (found or 0) > 0 else None

    @property
    def bytes_over_least(self) -> float | None:
        """What the step moves, over the least if no activation stays on the chip."""
        moved, least = self.record.moved_bytes, self.record.bytes_lower_bound
        return moved / least if moved and least else None

    @property
    def usd_per_million_images(self) -> float | None:
        """At the ceiling: nobody trains for less."""
        if None in (self.ceiling, self.price):
            return None
        return usd_per_million_images(self.ceiling, self.price.usd_per_hour)


def compiled_steps(context: ReportContext, sources: Sources) -> list[CompiledStep]:
    """Return what stands in a row: of a search for the largest batch its first batch and that one.

    Args:
      sources: gets the sources of published rates.
    """
    searches = [sweep.path for sweep in context.collection.sweeps if sweep.max_batches]
    steps = []
    for runs in grouped(_whole_machine(context), _but_for_the_batch).values():
        alone = [CompiledStep(run, _record(run), LargestBatch(None, None)) for run in runs]
        largest = largest_batch(alone)
        tried = [one for one in alone if _below(one.run, searches)]
        shown = [one for one in alone if one not in tried] or tried[:1]
        shown += [one for one in tried if one.batch_size == largest.fits]
        # Of a batch that was compiled more than once, the last.
        by_batch = {one.batch_size: one for one in shown}
        steps += [dataclasses.replace(one, largest=largest) for one in by_batch.values()]
    # Sweeps of the same experiment, for GPUs and TPUs say, stand together.
    together = grouped(steps, lambda step: step.run.experiment).values()
    steps = [step for own in together for step in own]
    rates = grouped(filter(_is_rate, context.measurements), lambda row: _work(row.run))
    return [
        dataclasses.replace(
            step,
            measured=_nearest(step, rates.get(_work(step.run), ())),
            published=_published(sources, step),
            price=_lowest_price(context, step.run),
        )
        for own in grouped(steps, _machine).values()
        for step in _named(own)
    ]


def largest_batch(steps: Sequence[CompiledStep]) -> LargestBatch:
    """Return the largest batch that fits, of steps that differ in the batch alone."""
    known = [one for one in steps if one.batch_size is not None]
    fits = max((one.batch_size for one in known if one.fits is True), default=None)
    above = [one.batch_size for one in known if one.fits is False]
    above = [batch for batch in above if fits is None or batch > fits]
    return LargestBatch(fits, min(above, default=None))


def _whole_machine(context: ReportContext) -> Iterator[ReportedRun]:
    """Yield the runs that compiled for their target alone, not for its parts too."""
    for run in context.compiled:
        if not run.document.scaling:
            yield run


def _record(run: ReportedRun) -> Record:
    return next(iter(run.of_kind(TargetRecord)), run.summary)


def _below(run: ReportedRun, folders: Sequence[Any]) -> bool:
    return any(run.path.is_relative_to(folder) for folder in folders)


def _machine(step: CompiledStep) -> tuple:
    return step.run.experiment, step.run.target


def _setting(run: ReportedRun) -> dict[str, Any]:
    return {name: value for name, value in run.setting().items() if name not in _ELSEWHERE}


def _but_for_the_batch(run: ReportedRun) -> tuple:
    return run.target, setting_key(_setting(run))


def _named(steps: Sequence[CompiledStep]) -> Iterator[CompiledStep]:
    settings = [_setting(step.run) for step in steps]
    # A trial whose compiler crashed has no configuration: it differs in nothing.
    known_settings = [own for own, step in zip(settings, steps, strict=True) if step.run.config]
    names = [name for name in differing_names(known_settings) if name != "precision"]
    for step, own in zip(steps, settings, strict=True):
        told = name_settings(own, names) if step.run.config else ""
        yield dataclasses.replace(step, setting=told)


def _lowest_price(context: ReportContext, run: ReportedRun) -> Price | None:
    prices = [price for price in context.prices.of(run) if not is_of_other_hardware(price, run)]
    return min(prices, key=lambda price: price.usd_per_hour, default=None)


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
    setting = run.setting()
    others = [name for name in setting if name in _NOT_ASKED or not is_work(name)]
    # Older drivers leave the maker out.
    return run.device_kind.removeprefix("NVIDIA "), run.num_devices, setting_key(setting, others)


def _published(sources: Sources, step: CompiledStep) -> Row | None:
    """Return the best published rate of the network on the same devices in the same arithmetic."""
    run, network = step.run, step.run.published_network
    if network is None:
        return None
    machine = (run.device_kind.removeprefix("NVIDIA "), run.num_devices)
    arithmetic = {
        run.config.get("precision"),
        ((step.record.ceiling or {}).get("peak") or {}).get("arithmetic"),
    }

    def is_same(row: Row) -> bool:
        return (
            row["model"] == network
            and published_devices(row) == machine
            and row["precision"].split()[0] in arithmetic
            and published_rate(row) is not None
            and not other_images(run.setting(), row["dataset"])
        )

    best = max(
        (row for table in _TABLES for row in filter(is_same, load_published(table))),
        key=published_rate,
        default=None,
    )
    # Only what is shown is cited.
    cited = (row for table in _TABLES for row in sources.rows(table, lambda row: row == best))
    return next(cited, None)
