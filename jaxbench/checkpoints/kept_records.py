"""The records that a checkpoint counts on: their digests, and a run's records set back to them.

metrics.jsonl is the source of truth, so that a run is resumed only where it is as it was written.
epochs.csv is made anew from it. telemetry.csv and TensorBoard's events hold what nothing else does:
what is left of them is kept.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.files import LINE_LENGTH, end_of_lines, open_own
from jaxbench.records import schema
from jaxbench.records.run_dir import EVENTS, RECORDS, measure_records

_METRICS, _EPOCHS = RECORDS[:2]
_KINDS = {record.kind for record in schema.RECORDS}


def mark_records(folder: pathlib.Path) -> dict[str, list[Any]]:
    """Return {file: [bytes, SHA-256 of them]} of a run's records, for `restore_records`."""
    sizes = measure_records(folder)
    sizes.pop(_EPOCHS, None)
    return {name: [size, _digest(folder / name, size)] for name, size in sizes.items()}


def read_epochs(path: pathlib.Path, point: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the epochs' records of a run directory up to a checkpoint; change nothing.

    Raises:
      BadInput: metrics.jsonl is not as it was at this checkpoint, whose `point` is given.
    """
    size, digest = _mark(point["records"].get(_METRICS))
    epochs, damage, found, hashed = [], None, 0, hashlib.sha256()
    for number, line in enumerate(_lines(path / _METRICS, size), 1):
        found += len(line)
        hashed.update(line)
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            if record["kind"] == "epoch":
                epochs.append(record)
                in_order = schema.record_from_json(record).epoch == len(epochs)
            else:
                in_order = record["kind"] in _KINDS
        except (ValueError, KeyError, TypeError, RecursionError):
            in_order = False
        if not in_order:
            damage = f"line {number} is damaged"
            break
    if damage is None and found < size:
        damage = f"is shorter than it was, {found} of {size} bytes"
    if damage is None and digest not in (None, hashed.hexdigest()):
        damage = "a value is not as it was written"
    if damage is None and _done(epochs) != _done_then(point):
        damage = f"has {len(epochs)} epochs, the checkpoint counts {point['epochs_done']}"
    if damage:
        raise BadInput(
            f"{path / _METRICS}: {damage}; put the file back, or begin anew in a new --workdir"
        )
    return epochs


def _lines(path: pathlib.Path, size: int) -> Iterator[bytes]:
    """Yield the lines of a file's first bytes; the last one may have no end."""
    if path.name not in measure_records(path.parent):
        return
    with open(path, "rb") as file:
        while size > 0 and (line := file.readline(min(size, LINE_LENGTH))):
            yield line
            size -= len(line)


def restore_records(folder: pathlib.Path, marks: Mapping[str, Any]) -> list[str]:
    """Cut a run's records to the lengths that they had at a checkpoint, and remove later files.

    `marks` is what `mark_records` returned then; `read_epochs` has checked metrics.jsonl. Return
    the other files that are shorter than that or differ. They are kept: telemetry.csv holds other
    figures than metrics.jsonl, TensorBoard's events the times at which they were written.
    """
    for name in (*RECORDS, EVENTS):
        if (folder / name).is_symlink():  # its target is no part of this run
            (folder / name).unlink()
    found, short = measure_records(folder), []
    # Anybody may have written the names in `marks`: only files of records are touched.
    for name, own_size in found.items():
        if name not in marks or name == _EPOCHS:
            (folder / name).unlink()
            continue
        size, digest = _mark(marks[name])
        if own_size > size:
            os.truncate(folder / name, size)
        if own_size < size or digest not in (None, _digest(folder / name, size)):
            short.append(name)
            if name.endswith(".csv"):  # the next row begins a line
                with open_own(folder / name, "r+b") as file:
                    file.truncate(end_of_lines(file))
    return [*short, *(name for name in marks if name not in found and name != _EPOCHS)]


def copy_records(source: pathlib.Path, target: pathlib.Path, marks: Mapping[str, Any]) -> list[str]:
    """Copy a run's records to another folder, as they were at a checkpoint, see above."""
    for name in measure_records(source).keys() & marks.keys():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with open(target / name, "wb") as file:
            file.writelines(_first_blocks(source / name, _mark(marks[name])[0]))
    return restore_records(target, marks)


def _mark(mark: Any) -> tuple[int, str | None]:
    """Return a file's bytes and digest; older checkpoints have no digest."""
    size, digest = mark if isinstance(mark, list) and len(mark) == 2 else (mark, None)
    return (size if isinstance(size, int) and size >= 0 else 0), digest


def _done(epochs: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many epochs there are, and the last one's last step."""
    return len(epochs), epochs[-1]["step"] if epochs else 0


def _done_then(point: Mapping[str, Any]) -> tuple[int, int]:
    """Return the same as a checkpoint has it."""
    # `progress` is the former name of the epoch that is under way.
    begun = point.get("epoch_metrics") or point.get("progress") or {"steps": 0}
    return point["epochs_done"], point["step"] - begun["steps"]


def _digest(path: pathlib.Path, size: int) -> str:
    """Return the SHA-256 of a file's first bytes."""
    digest = hashlib.sha256()
    for block in _first_blocks(path, size):
        digest.update(block)
    return digest.hexdigest()


def _first_blocks(path: pathlib.Path, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a file, in blocks."""
    with open(path, "rb") as file:
        while size > 0 and (block := file.read(min(size, 2**20))):
            yield block
            size -= len(block)
