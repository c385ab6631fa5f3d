"""What a report is made of: runs, prices, measurements, and the columns of several sections."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from jaxbench.analysis.rate import Estimate, estimate, of_windows, steady_epochs
from jaxbench.records.reader import Kind
from jaxbench.records.same import chart_key, setting_key
from jaxbench.reports.blocks import Block, Chart, Section
from jaxbench.reports.collect import Collection
from jaxbench.reports.prices import Prices
from jaxbench.reports.runs import ReportedRun, RunRecord, TimeToTarget, time_to_target
from jaxbench.reports.work import differing_names, grouped
from jaxbench.schema import EpochRecord, InputRecord, Record, ThroughputRecord, value_of
from jaxbench.tables.table import Table

# Charts of one section; what is beyond them stands in tables only, and the section says so.
MOST_CHARTS = 6
# A training run and its training step measured alone are two figures.
STAGES = {"training": "training", "train_step": "training step alone"}


class TrainingRate(Record, frozen=True, kw_only=True):
    """What belongs to the steady rate of a training run."""

    kind: ClassVar[str] = "training"
    mfu: float | None
    images_per_s_per_device: float | None
    flops_per_s_per_device: float | None
    peak: dict[str, Any] | None
    tokens_per_s: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """One rate of a run, or a run without any.

    Attributes:
      stage: `training`, or one of --mode=throughput's or input's; empty without a rate.
      rate: images/s, with the number of windows or epochs that it is from.
      setting: what is equal for figures on one line.
    """

    run: ReportedRun
    stage: str
    rate: Estimate
    record: Record
    setting: Mapping[str, Any]

    feed = property(lambda self: self.setting["feed"])
    data = property(lambda self: self.run.data_of(self.feed))
    work = property(lambda self: chart_key(self.data, self.setting))

    @property
    def usable(self) -> bool:
        """Whether its figures may be drawn: the run ended well, on the devices that it began on."""
        return self.run.status == "done" and not self.run.changed_devices


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
        """What was compiled for machines that are not here."""
        return [run for run in self.collection.all_runs if run.target]

    @functools.cached_property
    def measurements(self) -> Sequence[Measurement]:
        measured = [run for run in self.collection.all_runs if run.target is None]
        return [one for run in measured for one in measurements_of(run)]

    @functools.cached_property
    def runs_of_setting(self) -> Mapping[tuple, Sequence[ReportedRun]]:
        """The runs by the `setting_key` of a measurement and its batch, those that failed too."""
        by_key = grouped(
            self.measurements,
            lambda one: setting_key({**one.setting, "batch_size": one.run.batch_size}),
        )
        return {key: [one.run for one in same] for key, same in by_key.items()}

    @functools.cached_property
    def times_to_target(self) -> Mapping[ReportedRun, TimeToTarget]:
        """What each run took to its target, or to the one that is asked; of runs that have one."""
        times = {run: time_to_target(run, self.target_accuracy) for run in self.collection.all_runs}
        return {run: time for run, time in times.items() if time is not None}

    @functools.cached_property
    def apart(self) -> Mapping[ReportedRun, Mapping[str, Any]]:
        """The settings that tell each run apart from those that look like it in a table."""
        apart = {}
        for alike in grouped(self.runs, _look).values():
            settings = [{"seed": run.seed, **run.training_setting} for run in alike]
            names = differing_names(settings)
            for run, setting in zip(alike, settings, strict=True):
                apart[run] = {name: setting.get(name) for name in names}
        return apart

    def of_kind(self, kind: type[Kind]) -> list[RunRecord[Kind]]:
        """Return the records of a kind, of all runs."""
        return [RunRecord(run, record) for run in self.runs for record in run.of_kind(kind)]


def _look(run: ReportedRun) -> tuple:
    shown = (run.experiment, run.mode, run.precision, run.feed, run.batch_size, run.hardware)
    return (*shown, run.network, run.processor)


def measurements_of(run: ReportedRun) -> Iterator[Measurement]:
    """Yield the rates of a run, one that has none if it has none."""
    setting = run.setting
    stages: list[ThroughputRecord | InputRecord] = [*run.of_kind(ThroughputRecord)]
    stages += run.of_kind(InputRecord)
    for record in stages:
        feed = run.rate_feed if record.stage == "train_step" else run.feed
        of_stage = setting | {"stage": record.stage, "feed": feed}
        yield Measurement(run, record.stage, of_windows(record, "images_per_s"), record, of_stage)
    if run.mode == "train" and not stages:
        epochs = steady_epochs(run.of_kind(EpochRecord))
        rate = run.rate
        has_devices = rate.value is not None and run.num_devices and not run.changed_devices
        summary, mfus = run.summary, [epoch.mfu for epoch in epochs if epoch.mfu is not None]
        record = TrainingRate(
            mfu=estimate(mfus).value,
            images_per_s_per_device=rate.value / run.num_devices if has_devices else None,
            flops_per_s_per_device=value_of(summary, "flops_per_s_per_device"),
            peak=value_of(summary, "peak"),
            tokens_per_s=value_of(summary, "tokens_per_s"),
        )
        yield Measurement(run, "training", rate, record, setting | {"stage": "training"})
    elif not stages:
        # A run that ended before it came to a rate is beside those that did.
        stage = "train_step" if run.mode == "throughput" else ""
        of_stage = setting | ({"stage": stage} if stage else {})
        yield Measurement(run, stage, Estimate(), run.summary, of_stage)


def make_section(
    name: str, title: str, lead: str, others: Sequence[Block], charts: Sequence[Chart] = ()
) -> Section | None:
    """Return a section of its first charts and of others; None if nothing has content.

    Tables without rows are left out.
    """
    blocks = [*charts[:MOST_CHARTS], *(o for o in others if not isinstance(o, Table) or o.rows)]
    lead += left_out(len(charts), MOST_CHARTS)
    return Section(name, title, lead, blocks) if blocks else None


def left_out(charts: int, most: int, noun: str = "charts") -> str:
    """Return a sentence on what is not drawn, nothing if all is."""
    if charts <= most:
        return ""
    return f" {most} of {charts} {noun} are drawn; the values of all are in the tables."
