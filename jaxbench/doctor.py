"""Check this machine: `jaxbench doctor`.

Each line is ok, a warning or a problem with what to do about it. The exit code is 1 if there is
a problem. Nothing is measured, and no file stays.
"""

import json

import msgspec
from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.terminal import print_wrapped, printable

_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
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
            lines = [f"{check.status:<8} {check.name}: {check.detail}"]
            lines += [f"{'':8} -> {check.advice}"] * bool(check.advice)
            print_wrapped(*map(printable, lines), indent=" " * 9)
    worst = max((check.status for check in checks), key=_STATUSES.index)
    if _JSON.value:
        listed = [msgspec.structs.asdict(check) for check in checks]
        print(json.dumps({"status": worst, "checks": listed}))
    return int(worst == "problem")


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
