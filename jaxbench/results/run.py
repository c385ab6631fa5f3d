"""A run, as the Python API shows it."""

import functools
import os
import pathlib
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.metrics import plain
from jaxbench.records.reader import load_run, read_records
from jaxbench.reports.runs import reported
from jaxbench.reports.runs_table import run_row
from jaxbench.results.tables import records_table
from jaxbench.schema import METRICS, value_of


def _of_summary(name: str, doc: str) -> property:
    return property(lambda run: value_of(run._reported.summary, name), doc=doc)


class Run:
    """A run directory: `jaxbench.Run("runs/cnn10/20260101-120000")` reads it from the disk.

    What a run has not recorded is None. A run that is still running is read as it is now.

    Attributes:
      path: the folder.
      document: run.json: config, environment, status, summary.

    Raises:
      BadInput: the folder is no run directory, or cannot be read.
    """

    def __init__(self, path: str | os.PathLike):
        # Without the training steps, of which there may be millions.
        self._reported = reported(load_run(os.fspath(path)))
        self.path: pathlib.Path = self._reported.path
        self.document: dict[str, Any] = self._reported.document.to_json()

    def __fspath__(self) -> str:
        return str(self.path)

    @functools.cached_property
    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, as dictionaries; read when they are first asked for."""
        return [*read_records(self.path)]

    @property
    def status(self) -> str:
        """One of `done`, `failed`, `oom`, `interrupted`, `preempted`, `diverged`, `invalid`.

        `killed` if its process ended without a record of why, `running` if it has not ended,
        `corrupt` if records are lost.
        """
        return self._reported.status

    reason = property(lambda run: run._reported.reason, doc="Why it is not `done`.")
    experiment = property(lambda run: run._reported.experiment, doc="The experiment's name.")
    mode = property(lambda run: run._reported.mode, doc="Its mode, such as `train`.")
    config = property(
        lambda run: run._reported.config, doc="The experiment's fields, nested as in its file."
    )

    @property
    def summary(self) -> dict[str, Any]:
        """The run's last record, with its metrics; empty until it has ended."""
        return self.document.get("summary") or {}

    images_per_s = property(
        lambda run: run._reported.rate.value,
        doc="The steady rate over all devices, of training or of the training step alone.",
    )
    images_per_s_low = property(
        lambda run: run._reported.rate.low,
        doc="The lower end of the rate's 95 % interval; None for fewer than six epochs.",
    )
    images_per_s_high = property(
        lambda run: run._reported.rate.high,
        doc="The upper end of the rate's 95 % interval; None for fewer than six epochs.",
    )
    top1 = _of_summary(
        "eval_top1",
        "The top-1 of the last evaluation, as a fraction; None if a run has Dice or neither.",
    )
    warnings = _of_summary("warnings", "What is doubtful about the metrics.")
    epochs = property(lambda run: run.table("epoch"), doc="The epochs as a table; see `table`.")

    def table(self, kind: str) -> Any:
        """Return the records of a kind, such as `step`, `throughput` or `scaling`.

        Returns:
          A pandas DataFrame, a list of dictionaries if pandas is not installed. Metrics are its
          columns; lists and nested values are in `records` only.
        """
        records = read_records(self.path)
        return records_table(record for record in records if record.get("kind") == kind)

    def restore_state(self, *, best: bool = False) -> dict[str, Any]:
        """Return the trained state from the newest checkpoint; this loads JAX.

        Args:
          best: take the checkpoint with the best evaluation of those that were kept.

        Returns:
          Nested dictionaries of NumPy arrays: `params` and `batch_stats`, which a Flax network's
          `apply` takes, `opt_state`, and `step`, the number of steps done. With
          `replicas=independent` each array's first axis is the model.

        Raises:
          BadInput: the run has no such checkpoint, or it is corrupt.
        """
        from jaxbench.checkpoints import checkpoint
        from jaxbench.checkpoints.resume import CHECKPOINTS

        folder = self.path / CHECKPOINTS
        names = checkpoint.list_checkpoints(folder)
        if best:
            names = [name] if (name := checkpoint.best_checkpoint(folder)) else []
        if not names:
            raise BadInput(f"{self.path}: has no checkpoint{' with a score' if best else ''}")
        return checkpoint.read_checkpoint(folder, names[-1], None).state

    def __repr__(self) -> str:
        row, rate = run_row(self._reported), self._reported.rate
        shown = [self.status + (f": {self.reason}" if self.reason else "")]
        if row["num_devices"] is not None:
            shown.append(f"{row['num_devices']} x {row['device_kind']}")
        if row["batch_size"] is not None:
            shown.append(f"batch {row['batch_size']}, {row['precision']}")
        if rate.value is not None:
            ends = f" ({rate.ends_in_words})" if rate.ends_in_words else ""
            shown.append(f"{METRICS['images_per_s'].title} {plain(rate.value)}{ends}")
        for name in ("tokens_per_s", "bits_per_byte", "top1", "dice", "mfu"):
            if row[name] is not None:
                metric = METRICS[name]
                shown.append(f"{metric.title} {metric.show(row[name])}{metric.unit}")
        for one in value_of(self._reported.summary, "efficiencies") or ():
            if one["efficiency"] is not None:
                devices = f"{one['scaling']}, {one['num_devices']} device(s)"
                shown.append(f"{devices} efficiency {one['efficiency']:.1%}")
        if row["wall_s"] is not None:
            shown.append(f"{row['wall_s']:.1f} s")
        if self.warnings:
            shown.append(f"{len(self.warnings)} warning(s)")
        return f"<Run {self.path}: {self.experiment} {self.mode}, {', '.join(shown)}>"
