"""Find what distorts a measurement: settings for debugging, and programs that watch this one."""

import os
import re
import sys
import threading
import tracemalloc
from typing import Any

import jax

from jaxbench.files import read_table
from jaxbench.hardware.system import search_file
from jaxbench.xla.variables import added_flags, flags_of, public_value

_OFF = r"|0|-1|false|off|no|none"
# A warning shows no more of a value.
_MOST_SHOWN = 60


def distorters() -> list[str]:
    """Return what distorts measurements of this process: `NAME=VALUE (its effect)`.

    The values are those in force, whoever set them.
    """
    flags = [f for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") for f in flags_of(name)]
    # Of a flag that is given twice the last value holds.
    in_force = {
        name: value if equals else "true"
        for name, equals, value in (f[2:].partition("=") for f in flags if f not in added_flags)
    }
    values = {"config": jax.config.values, "flag": in_force, "variable": os.environ}
    found = []
    for row in read_table(__file__, "distorters.csv"):
        unusual = [
            f"{'--' * (row['kind'] == 'flag')}{name}={public_value(name, text)[:_MOST_SHOWN]}"
            for name, text in ((n, _text(v)) for n, v in values[row["kind"]].items())
            if re.fullmatch(row["name"], name)
            and not re.fullmatch(row["usual"] or _OFF, text, re.IGNORECASE)
        ]
        found += [f"{', '.join(unusual)} ({row['effect']})"] * bool(unusual)
    return [*found, *(words for words, is_on in watchers().items() if is_on)]


def distortion_warnings() -> list[str]:
    """Return the warning that this process does not measure what users get; none if it does."""
    if not (found := distorters()):
        return []
    return [f"rates and times are distorted, unset what was for debugging: {'; '.join(found)}"]


def _text(value: Any) -> str:
    """Return a value as a variable would have it: of an enumeration its value, without quotes."""
    return str(getattr(value, "value", value)).strip("\"'")


def watchers() -> dict[str, bool]:
    """Return, by their words, which programs watch Python or this process."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    hooks = [sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]
    return {
        "Python's development mode (everything is checked)": sys.flags.dev_mode,
        "a debug build of Python (everything is checked)": hasattr(sys, "gettotalrefcount"),
        "a debugger, profiler or coverage (it watches each line or call of Python)": any(
            one is not None for one in (*hooks, *tools)
        ),
        "tracemalloc (it traces each allocation of Python)": tracemalloc.is_tracing(),
        "a debugger or strace (it watches system calls)": bool(
            search_file("/proc/self/status", r"^TracerPid:\s*([1-9]\d*)")
        ),
    }
