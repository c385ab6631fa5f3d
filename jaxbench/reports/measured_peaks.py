"""The share of a measured peak: a column beside MFU, where a card of the same machine is given."""

from typing import Any

from jaxbench.cards.figures import MATMULS
from jaxbench.cards.run_figures import share_of_measured
from jaxbench.metrics import percent
from jaxbench.reports.context import ReportContext
from jaxbench.reports.tables import Column


def measured_share(context: ReportContext) -> list[Column]:
    """Return the column, for rows with a `run` and a `record`; none without a card."""
    cards = {
        (own.card.environment["hostname"], own.card.environment["device_kind"]): own.card
        for own in context.collection.cards
        # A card of several processes has links alone.
        if (part := own.card.part("ceilings")) and any(part.named(*MATMULS))
    }

    def share(row: Any) -> float | None:
        run = row.run
        card = cards.get((run.environment.get("hostname"), run.device_kind))
        if card is None or not run.num_devices:
            return None
        return share_of_measured(
            card.figures(),
            (row.record.peak or {}).get("arithmetic"),
            run.precision,
            row.record.flops_per_s_per_device,
            run.num_devices,
            card.environment["backend"],
        )

    return [Column("of the measured peak [%]", share, percent)] if cards else []
