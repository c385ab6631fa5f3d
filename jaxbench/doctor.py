"""Check this machine: `python -m jaxbench.doctor`.

Each line is ok, a warning or a problem with what to do about it. The exit code is 1 where there is
a problem. Nothing is measured, and nothing is written.
"""

import json
import textwrap
from typing import Any

import msgspec
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.terminal import printable

_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
_WIDTH = 80
_STATUSES = ("ok", "warning", "problem")


def main(arguments: list[str]) -> int:
    """Print the checks; return the exit code."""
    if arguments:
        raise BadInput(f"{arguments[0]!r}: doctor takes no arguments")
    # Imported here, so that --help needs no library.
    from jaxbench.hardware.checks import run_checks

    checks = []
    for check in run_checks():
        checks.append(check)
        if not _JSON.value:
            print("\n".join(_lines(check)), flush=True)
    worst = max((check.status for check in checks), key=_STATUSES.index)
    if _JSON.value:
        listed = [msgspec.structs.asdict(check) for check in checks]
        print(json.dumps({"status": worst, "checks": listed}))
    return int(worst == "problem")


def _lines(check: Any) -> list[str]:
    """Return a check in lines of the terminal's width; a long word, such as a path, stays whole."""
    lines = [f"{check.status:<8} {check.name}: {check.found}"]
    lines += [f"-> {check.advice}"] * bool(check.advice)
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            printable(line),
            _WIDTH,
            initial_indent=" " * 9 if line.startswith("->") else "",
            subsequent_indent=" " * 9,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
