"""Runs an experiment over a grid: `python -m jaxbench.sweep --experiment=cnn10 --grid=FIELD=A,B`.

Each combination of values is a cell, run by jaxbench.main in a process of its own; all of that
program's flags may be given. A cell that runs out of memory, takes too long or fails is a result
too. Broken off and started again with the same --sweepdir, a sweep does what is left.
"""

import math
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxbench.analysis.statistics import spread
from jaxbench.cli import entry_point, main_flags
from jaxbench.cli.main_checks import check_flags, chosen_mode
from jaxbench.clock import now
from jaxbench.distributed.child import ProcessResult, check_memory_limit, run_child
from jaxbench.errors import BadInput
from jaxbench.geometry import batch_multiple
from jaxbench.records.reader import CELL_STATUSES, load_run
from jaxbench.records.run_dir import close_abandoned, folder_name
from jaxbench.records.writers.console import Console, create_console, duration
from jaxbench.sweeps.grid import Cell, make_cells
from jaxbench.sweeps.max_batch import Trial, largest_batch
from jaxbench.sweeps.sweep_dir import SweepDir, check_sweepdir, open_sweepdir
from jaxbench.sweeps.tables import (
    COLUMNS,
    MAX_BATCH_COLUMNS,
    OVER_SEEDS,
    SPREAD_COLUMNS,
    cell_table,
    columns,
    describe_spread,
    differences,
    exit_code,
    figures_of,
    max_batch_table,
    plain,
    seen,
)

# Of seconds and of MiB.
_MOST = 1e9
# How a run's own status reads in a sweep; any other is a failure.
_STATUS_OF = {"done": "ok", "oom": "oom", "invalid": "invalid"}

_GRID = flags.DEFINE_multi_string(
    "grid",
    [],
    "FIELD=VALUE,VALUE,...: a field as in --experiment.FIELD, or experiment itself; give it "
    "several times for every combination.",
)
_SWEEPDIR = flags.DEFINE_string(
    "sweepdir",
    None,
    "A new or empty folder, or a sweep's that is to go on; default runs/EXPERIMENT/sweep-TIME.",
)
_TIMEOUT_S = flags.DEFINE_float(
    "timeout_s", None, "A cell that takes longer is ended.", lower_bound=0.001
)
_MEMORY_LIMIT_MB = flags.DEFINE_float(
    "memory_limit_mb",
    None,
    "MiB of private memory that each process of a cell may have on the host (Linux). On CPU "
    "devices, whose memory that is, a cell that needs more is out of memory.",
    lower_bound=1,
)
_RETRY = flags.DEFINE_multi_enum(
    "retry",
    [],
    [*CELL_STATUSES[1:]],
    "Run cells that ended so once more; may be given several times.",
)
_FIND_MAX_BATCH = flags.DEFINE_bool(
    "find_max_batch",
    False,
    "Instead of a run, find each cell's largest batch that fits in memory (--mode=memory).",
)
_BATCH_MULTIPLE = flags.DEFINE_integer(
    "batch_multiple",
    1,
    "With --find_max_batch: look at multiples of this only (and of what the devices need).",
    lower_bound=1,
)
# Flags of jaxbench.main that cannot be for a whole sweep.
_NOT_FORWARDED = ("workdir", "json", "resume")


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Does what the flags say; returns the exit code: 1 where a cell failed or is invalid."""
    cells = _cells(spec, overrides)
    path = pathlib.Path(_SWEEPDIR.value or _default_path(cells)).expanduser()
    if _SWEEPDIR.value == "":
        raise BadInput("--sweepdir=: must name a folder")
    with open_sweepdir(path) as folder:
        console = create_console()
        sweep = Sweep(folder, console)
        console.say(f"{len(cells)} cells, results in {folder.path}")
        if flags.FLAGS["wandb"].present:
            # wandb itself reads it, in every cell.
            os.environ.setdefault("WANDB_RUN_GROUP", folder.path.resolve().name)
        try:
            if _FIND_MAX_BATCH.value:
                return sweep.find_max_batches(cells)
            return sweep.run(cells)
        except BaseException:
            console.close()
            console.say(f"to go on: the same command with --sweepdir={folder.path}")
            raise
        finally:
            console.close()


def _cells(spec: str | None, overrides: Sequence[str]) -> list[Cell]:
    """Returns the cells that the flags ask for; everything is checked that can be."""
    for name in _NOT_FORWARDED:
        if flags.FLAGS[name].present:
            raise BadInput(f"--{name}: is for one run; a sweep has --sweepdir")
    for name in main_flags.COORDINATOR_FLAGS:
        if flags.FLAGS[name].present:
            raise BadInput(
                f"--{name}: is for one run; a sweep's cells take --local_processes, or a sweep of "
                "your own calls jaxbench.main on every host"
            )
    if not _GRID.value and not _FIND_MAX_BATCH.value:
        raise BadInput("give --grid=FIELD=VALUE,VALUE,... (or --find_max_batch)")
    if _BATCH_MULTIPLE.value > 1 and not _FIND_MAX_BATCH.value:
        raise BadInput("--batch_multiple: it goes with --find_max_batch")
    for name in ("timeout_s", "memory_limit_mb"):
        value = flags.FLAGS[name].value
        if value is not None and not value <= _MOST:  # nan fails it too
            raise BadInput(f"--{name}={value:g}: must be at most {_MOST:g}")
    check_memory_limit(_MEMORY_LIMIT_MB.value)
    # An own --mode comes first, so that flags are checked against the one that will run.
    mode = flags.FLAGS["mode"]
    if _FIND_MAX_BATCH.value:
        if mode.present and mode.value != "memory":
            raise BadInput(f"--mode={mode.value} with --find_max_batch: it goes with --mode=memory")
        mode.value = "memory"
        if any(text.startswith("batch_size=") for text in _GRID.value):
            raise BadInput("--grid=batch_size=... with --find_max_batch: that is what it finds")
    elif mode.value == "describe":
        raise BadInput("--mode=describe: runs nothing; a sweep is for the other modes")
    limits = [f"memory_limit_mb={_MEMORY_LIMIT_MB.value:g}"] if _MEMORY_LIMIT_MB.value else []
    cells = make_cells(spec, overrides, _GRID.value, _forwarded(), limits)
    for cell in cells:
        check_flags(cell.config, chosen_mode(cell.config))
    return cells


def _forwarded() -> list[str]:
    """The flags of jaxbench.main that were given, as it will get them."""
    own = {flag.name for flag in flags.FLAGS.get_key_flags_for_module(main_flags)}
    given = [
        f"--{name}={flags.FLAGS[name].value}"
        for name in sorted(own)
        if flags.FLAGS[name].present and name != "mode"
    ]
    mode = flags.FLAGS["mode"].value
    return given + ([f"--mode={mode}"] if mode else [])


def _default_path(cells: Sequence[Cell]) -> pathlib.Path:
    names = {cell.config.name for cell in cells}
    parent = pathlib.Path("runs", folder_name(names.pop()) if len(names) == 1 else "several")
    stamp = now().strftime("%Y%m%d-%H%M%S")
    numbers = ("", *(f"-{number}" for number in range(2, 1000)))
    path = next(p for n in numbers if not (p := parent / f"sweep-{stamp}{n}").exists())
    check_sweepdir(path)
    return path


class Sweep:
    """The cells on their way to their results.

    Args:
      folder: where results are kept.
      console: where progress is shown.
    """

    def __init__(self, folder: SweepDir, console: Console):
        self._folder = folder
        self._console = console
        # Cells that ended in this process are never run again by it, whatever --retry says.
        self._fresh: set[str] = set()
        self._left = 0

    def run(self, cells: Sequence[Cell]) -> int:
        """Runs what has no result yet; prints and writes the table."""
        fields = list(cells[0].place)
        self._left = sum(not self._is_done(cell) for cell in cells)
        if self._left < len(cells):
            self._console.say(f"{len(cells) - self._left} of them are done already")
        for number, cell in enumerate(cells, 1):
            if not self._is_done(cell):
                self._run_cell(cell, f"[{number}/{len(cells)}]")
                self._left -= 1
                self._write_csv(cells, fields)
        self._write_csv(cells, fields)
        records = [self._folder.results[cell.key] for cell in cells]
        self._console.close()  # a bar below a table would be drawn again below each line
        for line in (
            *cell_table(fields, cells, records),
            *differences(records),
            *self._over_seeds(cells),
        ):
            self._console.say(line)
        self._console.say(f"table: {self._folder.path / 'sweep.csv'}")
        return exit_code(record["status"] for record in records)

    def _is_done(self, cell: Cell) -> bool:
        record = self._folder.results.get(cell.key)
        if record is None:
            return False
        return cell.key in self._fresh or record["status"] not in _RETRY.value

    def _run_cell(self, cell: Cell, place: str) -> dict[str, Any]:
        """Runs a cell and keeps its result."""
        run_path, log = self._folder.new_attempt(cell.folder)
        command = [
            *(sys.executable, "-m", "jaxbench.main"),
            *cell.arguments,
            f"--workdir={run_path}",
        ]
        self._console.say(f"{place} {cell.title} ...")
        ending = run_child(
            command,
            log,
            timeout_s=_TIMEOUT_S.value,
            memory_limit_mb=_MEMORY_LIMIT_MB.value,
            watch=lambda line: self._console.progress(
                f"{place} {cell.title}", len(self._fresh), len(self._fresh) + self._left, line
            ),
        )
        record = self._record(cell, ending, run_path, log)
        self._folder.add(record)
        self._fresh.add(cell.key)
        self._console.say(f"{place} {cell.title}: {_outcome(record)}{self._time_left()}")
        return record

    def _record(
        self, cell: Cell, ending: ProcessResult, run_path: pathlib.Path, log: pathlib.Path
    ) -> dict[str, Any]:
        status, reason = ending.status, ending.reason
        run = None
        if run_path.exists():
            abandoned = {"timeout": "failed", "oom": "oom"}.get(status, "failed")
            close_abandoned(run_path, abandoned, reason or "ended without a word")
            try:
                run = load_run(str(run_path))
            except BadInput as error:
                reason = reason or str(error)
        if status == "exited":
            ended = run.document["status"] if run else "failed"
            status = _STATUS_OF.get(ended, "failed")
            if run is not None and ended != "done":
                reason = run.document.get("reason") or reason
        environment = run.document.get("environment", {}) if run else {}
        return {
            "key": cell.key,
            "experiment": cell.spec,
            "place": cell.place,
            "status": status,
            "reason": None if status == "ok" else reason,
            "exit_code": ending.exit_code,
            "wall_s": ending.wall_s,
            "finished_at": now().isoformat(),
            "run": str(run_path.relative_to(self._folder.path)) if run else None,
            "log": str(log.relative_to(self._folder.path)),
            "figures": figures_of(run) if run else {},
            "backend": environment.get("backend"),
            "num_devices": environment.get("num_devices"),
            "device_kind": environment.get("device_kind"),
            "hostname": environment.get("hostname"),
            "versions": environment.get("versions"),
            "commit": (environment.get("git") or {}).get("commit"),
        }

    def _time_left(self) -> str:
        if self._left <= 1:
            return ""
        mean_s = statistics.mean(
            record["wall_s"] for key, record in self._folder.results.items() if key in self._fresh
        )
        return f"; about {duration((self._left - 1) * mean_s)} left"

    def _write_csv(self, cells: Sequence[Cell], fields: Sequence[str]) -> None:
        rows = []
        for cell in cells:
            record = self._folder.results.get(cell.key)
            if record is not None:
                rows.append(record["figures"] | plain(record) | cell.place)
        self._folder.write_table("sweep.csv", rows, columns(fields, COLUMNS))

    def _over_seeds(self, cells: Sequence[Cell]) -> list[str]:
        """Returns what the seeds of each other place in the grid say together; writes seeds.csv."""
        groups: dict[tuple, list[dict[str, Any]]] = {}
        for cell in cells:
            others = tuple((f, v) for f, v in cell.place.items() if f != "seed")
            groups.setdefault(others, []).append(self._folder.results[cell.key])
        if "seed" not in cells[0].place or len(cells) == len(groups):
            return []
        rows, lines = [], []
        for others, records in groups.items():
            for name, title in OVER_SEEDS.items():
                values = [seen(r["figures"], name) for r in records]
                values = [value for value in values if value is not None]
                if not values:
                    continue
                row = dict(others) | {"figure": name, "of_seeds": len(records)} | spread(values)
                rows.append(row)
                where = " ".join(f"{field}={value}" for field, value in others)
                lines.append(f"{where + ': ' if where else ''}{title}: {describe_spread(row)}")
        others = [field for field in cells[0].place if field != "seed"]
        self._folder.write_table("seeds.csv", rows, columns(others, SPREAD_COLUMNS))
        return [*lines, f"table: {self._folder.path / 'seeds.csv'}"]

    def find_max_batches(self, cells: Sequence[Cell]) -> int:
        """Finds each cell's largest batch; prints and writes the table."""
        fields = list(cells[0].place)
        rows: list[dict[str, Any]] = []
        for number, cell in enumerate(cells, 1):
            rows.append(self._find_max_batch(cell, f"[{number}/{len(cells)}]") | cell.place)
            self._folder.write_table("max_batch.csv", rows, columns(fields, MAX_BATCH_COLUMNS))
        for line in max_batch_table(fields, rows):
            self._console.say(line)
        self._console.say(f"table: {self._folder.path / 'max_batch.csv'}")
        return exit_code(row["status"] for row in rows)

    def _find_max_batch(self, cell: Cell, place: str) -> dict[str, Any]:
        trials: list[dict[str, Any]] = []

        def try_batch(batch_size: int) -> Trial:
            one = cell.with_field("batch_size", batch_size, cell.flags)
            if not self._is_done(one):
                self._left = 1  # how many more is not known
                self._run_cell(one, place)
            trials.append(self._folder.results[one.key] | {"batch_size": batch_size})
            return _trial(trials[-1], trials[0])

        row = {"memory_limit_mb": _MEMORY_LIMIT_MB.value}
        try:
            first = try_batch(cell.config.batch_size)
            unit = math.lcm(_BATCH_MULTIPLE.value, _batch_unit(cell, trials[0]))
            start = max(unit, cell.config.batch_size // unit * unit)
            largest, too_large = largest_batch(
                lambda batch: first if batch == cell.config.batch_size else try_batch(batch),
                start,
                unit,
            )
        except _Unanswered as error:
            return row | {"status": "failed", "reason": str(error), "trials": len(trials)}
        by_batch = {trial["batch_size"]: trial for trial in trials}
        best, over = by_batch.get(largest), by_batch[too_large]
        return row | {
            **(best["figures"] | plain(best) if best else {}),
            "status": "ok" if best else "oom",
            "max_batch": largest,
            "max_batch_per_device": largest / best["num_devices"] if best else None,
            "smallest_too_large": too_large,
            "trials": len(trials),
            # Why it is too large; of a failure, that is a guess.
            "reason": f"{too_large}: {over['status']} ({over['reason']})",
        }


class _Unanswered(Exception):
    """A trial neither fitted nor ran out of memory; the message says what became of it."""


def _trial(record: dict[str, Any], first: dict[str, Any]) -> Trial:
    """What a run of --mode=memory says of its batch, beside the first one of the search.

    Libraries that get no memory do not always say so: where a smaller batch ran, any failure of a
    larger one counts as too large, and is told.
    """
    smaller_ran = first["status"] == "ok" and first["batch_size"] < record["batch_size"]
    if record["status"] not in (("ok", "oom", "failed") if smaller_ran else ("ok", "oom")):
        raise _Unanswered(
            f"batch_size={record['batch_size']} was to be tried and {_outcome(record)}"
        )
    figures = record["figures"]
    planned = figures.get("planned_bytes_per_device")
    limit = figures.get("device_memory_bytes")
    if record["backend"] == "cpu":
        # All devices have the host's memory, and the process itself is in it too.
        if not _MEMORY_LIMIT_MB.value:
            raise _Unanswered(
                "CPU devices take what memory the host has: give --memory_limit_mb, or the search "
                "would end with the machine"
            )
        limit = _MEMORY_LIMIT_MB.value * 2**20
        besides = first["figures"].get("private_memory_before_bytes")
        if planned is not None:
            planned = planned * record["num_devices"] + besides if besides else None
    return Trial(record["status"] == "ok", planned, limit)


def _batch_unit(cell: Cell, record: dict[str, Any]) -> int:
    """What the devices need the batch to be a multiple of."""
    return batch_multiple(cell.config, record["num_devices"] or 1)


def _outcome(record: dict[str, Any]) -> str:
    text = record["status"] + (f" ({record['reason']})" if record["reason"] else "")
    return f"{text} after {duration(record['wall_s'])}"


if __name__ == "__main__":
    entry_point.run_over_experiments(main)
