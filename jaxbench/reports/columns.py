"""The columns that tables of several sections have."""

from collections.abc import Iterable
from typing import Any

from jaxbench.cards.figures import MATMULS, share_of_measured
from jaxbench.metrics import UNKNOWN
from jaxbench.records.same import host_key
from jaxbench.reports.context import ReportContext
from jaxbench.reports.work import name_settings
from jaxbench.schema import value_of
from jaxbench.tables.columns import Cell, Column, metric_column

_MARKS = {
    **dict.fromkeys(("done", "pass", "ok"), "good"),
    **dict.fromkeys(("warn", "warning", "incomplete", "inconclusive"), "warn"),
    **{"running": "running", "not judged": "soft", UNKNOWN: ""},
}


def status_cell(status: str | None) -> Cell:
    """Show how a run or a sweep's trial ended, an outcome of a card, or what the doctor says."""
    shown = {"oom": "OOM"}.get(status or "", (status or UNKNOWN).replace("_", " "))
    return Cell(shown, _MARKS.get(shown, "bad"))


def run_cell(run: str | None) -> Cell:
    """Return a cell that links to a run."""
    return Cell(run or UNKNOWN, run=run)


def run_ids(rows: Iterable[Any]) -> str:
    """Name runs, or those of rows; many of them by the first and the last."""
    # A trial that left no run has no id.
    ids = {getattr(row, "run", row).id or UNKNOWN for row in rows}
    # R10 comes after R9.
    ids = sorted(ids, key=lambda id: (id == UNKNOWN, len(id), id))
    if len(ids) > 8:
        return f"{', '.join(ids[:6])} … {ids[-1]} ({len(ids)} runs)"
    return ", ".join(ids)


# Of rows that have a run.
_SHARED = {
    "run": Column("run", "run.id", run_cell, left=True),
    "status": Column("status", "run.status", status_cell, left=True),
    "experiment": Column("experiment", "run.experiment"),
    "mode": Column("mode", "run.mode"),
    "precision": Column("precision", "run.precision"),
    "feed": Column("feed", "run.rate_feed"),
    "batch": metric_column("run.batch_size"),
    "devices": Column("devices", "run.hardware"),
    "seed": metric_column("run.seed"),
}


def shared(*names: str) -> list[Column]:
    """Return the columns of these names that many tables have."""
    return [_SHARED[name] for name in names]


def setting_column(context: ReportContext, *without: str) -> list[Column]:
    """Return the column of what tells rows with a `run` apart; none if nothing has to."""

    def shown(row: Any) -> str:
        run = row["run"] if isinstance(row, dict) else row.run
        setting = context.apart.get(run, {})
        return name_settings(setting, [name for name in setting if name not in without])

    needed = any(name not in without for setting in context.apart.values() for name in setting)
    return [Column("setting", shown)] if needed else []


def measured_share(context: ReportContext) -> list[Column]:
    """Return the column of the fraction of a measured peak; none without a card.

    The rows have a `run` and a `record`. The card is of the same host and kind of device.
    """
    cards = {
        host_key(one.card.environment): one.card
        for one in context.collection.cards
        if (part := one.card.part("ceilings")) and any(part.named(*MATMULS))
    }

    def fraction(row: Any) -> float | None:
        run, record = row.run, row.record
        card = cards.get(host_key(run.environment))
        if card is None or not run.num_devices:
            return None
        return share_of_measured(
            card.figures(),
            (value_of(record, "peak") or {}).get("arithmetic"),
            run.precision,
            value_of(record, "flops_per_s_per_device"),
            run.num_devices,
            card.environment["backend"],
        )

    return [metric_column("measured_peak_share", fraction)] if cards else []
