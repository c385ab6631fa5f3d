"""What a report is made of, and what its sections share."""

import dataclasses
import functools
from collections.abc import Sequence

from jaxbench.report.blocks import Chart, Section, Table, Text
from jaxbench.report.collect import Collection
from jaxbench.report.measurements import Measurement, measurements
from jaxbench.report.prices import Prices
from jaxbench.report.runs import ReportedRun, RunRecord

# Charts of one section; what is beyond them stands in tables only, and the section says so.
MOST_CHARTS = 6


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """What a report is made of.

    Attributes:
      collection: the runs and sweeps.
      prices: what the hardware costs.
      target: the accuracy, as a share, that all runs are asked for; None asks each for its own.
    """

    collection: Collection
    prices: Prices = dataclasses.field(default_factory=Prices)
    target: float | None = None

    @property
    def runs(self) -> Sequence[ReportedRun]:
        return self.collection.runs

    @functools.cached_property
    def measurements(self) -> Sequence[Measurement]:
        return measurements(self.collection)

    def of_kind(self, kind: str) -> list[RunRecord]:
        """Return the records of a kind, of all runs."""
        return [RunRecord(run, record) for run in self.runs for record in run.of_kind(kind)]


def make_section(
    name: str,
    title: str,
    lead: str,
    charts: Sequence[Chart],
    others: Sequence[Table | Text | None],
    where: str = "the table",
) -> Section:
    """Return a section of its first charts, what else it has, and a word on what is not drawn."""
    shown = charts[:MOST_CHARTS]
    lead += f" {left_out(len(charts), len(shown), where)}"
    return Section(name, title, lead, [*shown, *filter(None, others)])


def left_out(charts: int, shown: int, where: str) -> str:
    """Say that not everything is drawn; nothing where it is."""
    if charts <= shown:
        return ""
    return f"{shown} of {charts} charts are drawn; the figures of all stand in {where}."
