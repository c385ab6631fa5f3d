"""What a report is made of, and what its sections share."""

import dataclasses
import functools
from collections.abc import Sequence

from jaxbench.report.blocks import Chart, Section, Table, Text
from jaxbench.report.collect import Collection
from jaxbench.report.measurements import Measurement, measurements
from jaxbench.report.prices import Prices
from jaxbench.report.runs import RunRecord

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

    runs = property(lambda self: self.collection.runs)

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
    others: Sequence[Table | Chart | Text],
    where: str = "the table",
) -> Section | None:
    """Return a section of its first charts and what else has content, None where nothing has.

    Tables without rows are left out; `where` are the figures of charts that are not drawn.
    """
    blocks = [*charts[:MOST_CHARTS], *(o for o in others if not isinstance(o, Table) or o.rows)]
    lead += left_out(len(charts), min(len(charts), MOST_CHARTS), where)
    return Section(name, title, lead, blocks) if blocks else None


def left_out(charts: int, shown: int, where: str) -> str:
    """Return a sentence on what is not drawn, nothing where all is."""
    if charts <= shown:
        return ""
    return f" {shown} of {charts} charts are drawn; the figures of all are in {where}."
