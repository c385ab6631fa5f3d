"""What a report is made of: runs, prices, and what was measured.

There is a measurement for each rate of each run, and for a run that has none.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.analysis.steady_rate import steady_epochs
from jaxbench.records.schema import EpochRecord, InputRecord, Record, ThroughputRecord
from jaxbench.records.schema.base import Utilization
from jaxbench.reports.blocks import Block, Chart, Section, Table
from jaxbench.reports.collect import Collection
from jaxbench.reports.fields import Estimate, estimate, find, known, of_windows
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs import ReportedRun, RunRecord
from jaxbench.reports.settings import differing_names, grouped, name_settings
from jaxbench.reports.tables import Column
from jaxbench.reports.time_to_target import TimeToTarget, time_to_target

# Charts of one section; what is beyond them stands in tables only, and the section says so.
MOST_CHARTS = 6
# A training run and its training step measured alone are two figures.
STAGES = {"training": "training", "train_step": "training step alone"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRate(Utilization):
    """What belongs to the steady rate of a training run."""

    kind = "training"
    images_per_s_per_device: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """One rate of a run, or a run without any.

    Attributes:
      stage: `training`, or one of --mode=throughput's or input's.
      rate: images/s, with the number of windows or epochs that it is from.
      record: what the stage recorded beside its rate.
      setting: what is equal for figures on one line.
    """

    run: ReportedRun
    stage: str | None
    rate: Estimate
    record: Record
    setting: Mapping[str, Any]

    feed = property(lambda self: self.setting["feed"])

    @property
    def work(self) -> tuple:
        """What rates must have in common to be compared: the examples, and what was done."""
        images = [str(self.setting.get(f"data.{name}")) for name in ("image_shape", "num_classes")]
        # Records that are older than sequences are of images.
        length = str(self.setting.get("data.sequence_length") or 0)
        return self.feed, self.stage, *images, length

    @property
    def usable(self) -> bool:
        """Whether its figures may be drawn: the run ended well."""
        return self.run.status == "done"


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """What a report is made of.

    Attributes:
      target_accuracy: the fraction that all runs are asked for; None asks each for its own.
    """

    collection: Collection
    prices: Prices = dataclasses.field(default_factory=Prices)
    target_accuracy: float | None = None

    @functools.cached_property
    def runs(self) -> Sequence[ReportedRun]:
        """Those that measured: what was compiled for machines that are not here is apart."""
        return [run for run in self.collection.runs if run.target is None]

    @functools.cached_property
    def compiled(self) -> Sequence[ReportedRun]:
        """What was compiled for machines that are not here; trials without a run at the end."""
        return [run for run in [*self.collection.runs, *self._missing] if run.target]

    @functools.cached_property
    def measurements(self) -> Sequence[Measurement]:
        """Those of all runs that measured, in their order; trials without a run at the end."""
        return [one for run in self._measured for one in _of_run(run)]

    @property
    def _measured(self) -> list[ReportedRun]:
        return [*self.runs, *(run for run in self._missing if run.target is None)]

    @property
    def _missing(self) -> list[ReportedRun]:
        return [run for sweep in self.collection.sweeps for run in sweep.missing]

    @functools.cached_property
    def apart(self) -> Mapping[ReportedRun, Mapping[str, Any]]:
        """The settings that tell each run apart from those that look like it in a table."""
        found = {}
        for alike in grouped(self.runs, _look).values():
            settings = [{"seed": run.seed, **run.training_setting()} for run in alike]
            names = differing_names(settings)
            for run, setting in zip(alike, settings, strict=True):
                found[run] = {name: setting.get(name) for name in names}
        return found

    @functools.cached_property
    def times_to_target(self) -> Mapping[ReportedRun, TimeToTarget]:
        """What each run took to its target, or to the one that is asked; of runs that have one."""
        found = {run: time_to_target(run, self.target_accuracy) for run in self._measured}
        return {run: own for run, own in found.items() if own is not None}

    def of_kind(self, kind: str) -> list[RunRecord]:
        """Return the records of a kind, of all runs."""
        return [RunRecord(run, record) for run in self.runs for record in run.of_kind(kind)]


def _look(run: ReportedRun) -> tuple:
    shown = (run.experiment, run.mode, run.precision, run.feed, run.batch_size, run.hardware)
    return (*shown, run.network, run.processor)


def setting_column(context: ReportContext, *without: str) -> list[Column]:
    """Return the column of what tells rows with a `run` apart; none where nothing has to.

    Args:
      without: fields that have a column of their own.
    """

    def told(row: Any) -> str:
        own = context.apart.get(find(row, "run"), {})
        return name_settings(own, [name for name in own if name not in without])

    needed = any(name not in without for own in context.apart.values() for name in own)
    return [Column("setting", told)] if needed else []


def _of_run(run: ReportedRun) -> list[Measurement]:
    if stages := [*_of_stages(run)]:
        return stages
    if run.mode == "train":
        epochs = steady_epochs(run.of_kind(EpochRecord))
        rate = estimate([epoch.images_per_s for epoch in epochs])
        has_devices = rate.value is not None and run.num_devices and not run.changed_devices
        record = TrainingRate(
            mfu=estimate(known(epoch.mfu for epoch in epochs)).value,
            images_per_s_per_device=rate.value / run.num_devices if has_devices else None,
            flops_per_s_per_device=run.summary.flops_per_s_per_device,
            peak=run.summary.peak,
            tokens_per_s=run.summary.tokens_per_s,
        )
        return [Measurement(run, "training", rate, record, run.setting() | {"stage": "training"})]
    # A run that ended before it came to a rate is beside those that did.
    stage = {"stage": "train_step"} if run.mode == "throughput" else {}
    return [Measurement(run, stage.get("stage"), Estimate(), run.summary, run.setting() | stage)]


def _of_stages(run: ReportedRun) -> Iterator[Measurement]:
    for record in (*run.of_kind(ThroughputRecord), *run.of_kind(InputRecord)):
        # An input run's training step takes one batch that is there already: another feed.
        is_alone = isinstance(record, InputRecord) and record.stage == "train_step"
        feed = "synthetic" if is_alone else run.feed
        setting = run.setting() | {"stage": record.stage, "feed": feed}
        yield Measurement(run, record.stage, of_windows(record, "images_per_s"), record, setting)


def make_section(
    name: str, title: str, lead: str, others: Sequence[Block], charts: Sequence[Chart] = ()
) -> Section | None:
    """Return a section of its first charts and of others; None where nothing has content.

    Tables without rows are left out.
    """
    blocks = [*charts[:MOST_CHARTS], *(o for o in others if not isinstance(o, Table) or o.rows)]
    lead += left_out(len(charts), MOST_CHARTS)
    return Section(name, title, lead, blocks) if blocks else None


def left_out(charts: int, most: int, what: str = "charts") -> str:
    """Return a sentence on what is not drawn, nothing where all is."""
    if charts <= most:
        return ""
    return f" {most} of {charts} {what} are drawn; the figures of all are in the tables."
