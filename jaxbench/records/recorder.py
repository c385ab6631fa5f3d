"""A run's records, its summary and its end."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jaxbench.analysis.pricing import Price, add_costs
from jaxbench.errors import (
    OUT_OF_MEMORY,
    Diverged,
    DoesNotFit,
    OtherProcessEnded,
    RunFailed,
    Terminated,
)
from jaxbench.hardware.telemetry.sampler import Telemetry, merge
from jaxbench.parallel.signals import reason_of
from jaxbench.records.attempts import changes, describe_changes
from jaxbench.records.run_dir import RunDir
from jaxbench.records.writers import Writers
from jaxbench.schema import Record, Summary, stated_fields


class Recorder:
    """A run's folder, its records and its end.

    Attributes:
      run_dir: the folder with run.json; None in all processes but the first, which alone writes.
      telemetry: reads the hardware meanwhile; the mode marks what it measures.
      is_resumed: whether another process began the run.
      changes: {name: values} of the software, devices and price that changed meanwhile.
      writers: where records go; a mode may add others.
      records: what `write` was given, in order.
      summary: the summary record, once the run has ended.
      state: of --mode=train at its end; None if the run was done already.
    """

    def __init__(
        self,
        run_dir: RunDir | None,
        telemetry: Telemetry,
        price: Price | None = None,
        is_resumed: bool = False,
    ):
        self.run_dir = run_dir
        self.telemetry = telemetry
        self.is_resumed = is_resumed
        self.changes = changes(run_dir.document) if run_dir and is_resumed else {}
        self._usd_per_hour = price.usd_per_hour if price else None
        self.writers = Writers()
        self.records: list[Record] = []
        self.summary: dict[str, Any] = {}
        self.state: Any = None

    @property
    def folder(self) -> pathlib.Path | None:
        """The folder for files; None if nothing is written."""
        return self.run_dir.path if self.run_dir else None

    def of_kind(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def write(self, record: Record) -> None:
        self.records.append(record)
        self.writers.write(record)

    def finish(
        self,
        status: str,
        reason: str | None,
        summarize: Callable[[str, Sequence[Record]], Summary],
    ) -> None:
        """End the telemetry and record how the run ended.

        `summarize` is called with the status and what was written, and returns the summary.
        """
        self.telemetry.stop()
        try:
            summary = summarize(status, self.records)
        except Exception as error:  # the run's end must be recorded in any case
            warning = f"the summary could not be made: {type(error).__name__}: {error}"
            summary = Summary(status=status, warnings=[warning])
        summary = self._with_telemetry_and_costs(summary)
        if status == "done" and summary.invalid:
            status, reason = "invalid", "; ".join(summary.invalid)
            summary = msgspec.structs.replace(summary, status=status)
        self.summary = summary.to_json()
        # A run that is done is not resumed, so its records must be complete before it says so. Any
        # other status comes first, in case the rest cannot be written.
        is_complete = status in ("done", "invalid")
        if is_complete:
            self.writers.write(summary)
        if self.run_dir is not None:
            self.run_dir.end(status, reason, summary=self.summary)
        if not is_complete:
            self.writers.write(summary)

    def _with_telemetry_and_costs(self, summary: Summary) -> Summary:
        fields = stated_fields(summary)
        merge(fields, self.telemetry)
        telemetry = fields.get("telemetry")
        if telemetry and self.is_resumed and telemetry["energy_covers"]:
            telemetry["energy_covers"] += "; without the work that was lost"
        if "price" in self.changes:
            change = describe_changes({"usd_per_hour": self.changes["price"]})
            fields["warnings"] = [*fields["warnings"], f"{change}: what it cost is unknown"]
        usd_per_hour = None if "price" in self.changes else self._usd_per_hour
        attempts = self.run_dir.document.get("attempts") if self.run_dir else None
        add_costs(fields, usd_per_hour, attempts)
        return type(summary)(**fields)


def classify(error: BaseException) -> tuple[str, str]:
    """Return the run's status and the reason in words."""
    error = reason_of(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted (Ctrl-C)"
    if isinstance(error, Terminated):
        return "preempted", f"terminated ({str(error) or 'SIGTERM'})"
    if isinstance(error, Diverged):
        return "diverged", str(error)
    if isinstance(error, DoesNotFit):
        return "oom", str(error)
    if isinstance(error, OtherProcessEnded):
        return error.status, str(error)
    name = "" if isinstance(error, RunFailed) else f"{type(error).__name__}: "
    message = f"{name}{str(error).strip()}"
    if OUT_OF_MEMORY.search(message):
        return "oom", message
    return "failed", message
