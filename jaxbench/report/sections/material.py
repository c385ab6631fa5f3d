"""What all sections are made of, and what they share."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxbench.report.blocks import Cell
from jaxbench.report.collect import Collection, ReportedRun
from jaxbench.report.measurements import Measurement
from jaxbench.report.offers import Offers

# Charts of one section; what is beyond them stands in tables only, and the section says so.
MOST_CHARTS = 6
_MARKS = {"ok": "good", "running": "running"}


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """What a report is made of.

    Attributes:
      collection: the runs and sweeps.
      measurements: the rows that were made of them.
      offers: what the hardware costs.
      target: the accuracy, as a share, that all runs are asked for; None asks each for its own.
    """

    collection: Collection
    measurements: Sequence[Measurement]
    offers: Offers = dataclasses.field(default_factory=Offers)
    target: float | None = None

    @property
    def runs(self) -> Sequence[ReportedRun]:
        return self.collection.runs


def status_cell(status: str | None) -> Cell:
    """How a run or a sweep's cell ended."""
    shown = {"oom": "OOM", "done": "ok"}.get(status or "", status or "?")
    return Cell(shown, _MARKS.get(shown, "bad"))


def run_cell(run: str | None) -> Cell:
    """A link to a run."""
    return Cell(run or "–", run=run)


def run_ids(runs: Iterable[str | None]) -> str:
    """Names runs, many of them by the first and the last."""
    ids = list(dict.fromkeys(run for run in runs if run))
    if len(ids) > 8:
        return f"{', '.join(ids[:6])} … {ids[-1]} ({len(ids)} runs)"
    return ", ".join(ids)


def left_out(charts: int, shown: int, where: str) -> str:
    """Says that not everything is drawn; nothing where it is."""
    if charts <= shown:
        return ""
    return f"{shown} of {charts} charts are drawn; the figures of all stand in {where}."
