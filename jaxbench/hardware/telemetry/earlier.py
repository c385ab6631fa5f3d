"""Read back what earlier processes of a resumed run wrote to `telemetry.csv`."""

import contextlib
import csv
import math
import pathlib

from jaxbench.clock import seconds_since_1970
from jaxbench.files import open_regular, read_lines
from jaxbench.hardware.telemetry.summary import KEPT, Series

# The run's clock stands still between two processes: the date goes ahead of it by more than this.
_JUMP_S = 0.5


def read_series(path: pathlib.Path) -> dict[str, Series]:
    """Return each device's readings, without lines that are damaged; what follows is resumed."""
    found: dict[str, Series] = {}
    began_s: float | None = None
    with (
        contextlib.suppress(OSError, csv.Error, UnicodeDecodeError),
        open_regular(path, newline="", encoding="utf-8", most_bytes=math.inf) as file,
    ):
        for row in csv.DictReader(read_lines(file)):
            try:
                elapsed_s = float(row["elapsed_s"])
                values = {name: float(row[name]) for name in KEPT if row.get(name)}
                date_s = seconds_since_1970(row["time"])
                device, kind = row["device"], row["kind"]
                if date_s is None or not math.isfinite(elapsed_s):
                    raise ValueError("not a time")
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if kind in ("gpu", "mig"):
                values["throttle_reasons"] = row.get("throttle_reasons") or ""
            if began_s is not None and date_s - elapsed_s - began_s > _JUMP_S:
                _resume(found)
            began_s = date_s - elapsed_s
            found.setdefault(device, Series(kind)).add(elapsed_s, values)
    _resume(found)
    return found


def _resume(found: dict[str, Series]) -> None:
    for series in found.values():
        series.resume()
