"""Find which operations have a fast kernel, on machines that are here or not.

    jaxbench kernels --target=gpu:h100,tpu:v5e:1x1
    jaxbench kernels --target=here
    jaxbench kernels --out=KERNELS.csv

Each of about thirty operations that networks are made of is compiled alone, and XLA's text is read.
What it finds is one of: library (a call by name, such as cuDNN's), fused product (by Triton, or on
a TPU's matrix unit), fused loop, dense detour (a product that computes many zeros), naive loop.
A compiler for a machine that is not here chooses without timing. With `here` this machine's first
device is compiled for, and the operations are timed, each in turns with a product or a copy.

Without --target it is one machine of each generation whose compiler is installed, and this machine
if it has an accelerator. --out writes a row for each operation on each machine, as they are found.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput, as_refusal, one_of
from jaxbench.files import replace_file
from jaxbench.hardware.targets.target import list_targets, split_targets
from jaxbench.metrics import UNKNOWN, count, percent, plain, words
from jaxbench.paths import new_csv
from jaxbench.records.writers.console import create_console
from jaxbench.tables.text import text_table
from jaxbench.terminal import print_wrapped, printable

if TYPE_CHECKING:  # imports JAX
    from jaxbench.modes import kernels

_TARGET, _OPERATION, _OUT = define_flags("kernels")


def main(arguments: list[str]) -> int:
    """Print a table for each machine; return the exit code."""
    if arguments:
        raise BadInput(f"{arguments[0]!r}: give flags: jaxbench kernels --target=... --out=...")
    if _TARGET.value == "list":
        print("\n".join(["here", *list_targets()]))
        return 0
    from jaxbench.modes import kernels  # imports JAX

    names = _OPERATION.value.split(",") if _OPERATION.value else []
    if names == ["list"]:
        print("\n".join(kernels.OPERATIONS))
        return 0
    if unknown := [name for name in names if name not in kernels.OPERATIONS]:
        raise BadInput(f"--operation={unknown[0]}: {one_of(unknown[0], kernels.OPERATIONS)}")
    if kernels.RESULT_VARIABLE in os.environ:  # in a child process
        kernels.write_rows(_TARGET.value, names)
        return 0
    if _TARGET.value:
        targets, missing = split_targets(_TARGET.value), []
    else:
        targets, missing = kernels.machines_to_ask()
    for target in targets:
        kernels.variables_for(target)
    out = new_csv(_OUT.value) if _OUT.value else None
    rows: list[kernels.KernelRow] = []
    for number, target in enumerate(targets, 1):
        begin = len(rows)
        with contextlib.closing(create_console()) as console:
            title = f"{target}, machine {number} of {len(targets)}"
            console.say(f"{title} ...")
            show = functools.partial(console.progress, title)
            for row in kernels.find_kernels(target, names, show):
                rows.append(row)
                if out:
                    with as_refusal(f"--out={out}"):
                        replace_file(out, kernels.as_csv(rows))
        _print_table(rows[begin:])
    for line in dict.fromkeys(missing):
        print_wrapped(line)
    if out:
        print(printable(f"{len(rows)} rows: {out}"))
    return 0


def _print_table(rows: Sequence["kernels.KernelRow"]) -> None:
    """Print what was found on a machine, a line for each operation; columns that are empty, not."""
    first = rows[0]
    print_wrapped(f"{first.target}: {first.device_kind}, {first.compiler}, JAX {first.jax}")
    table = [
        {
            "operation": row.operation,
            "found": row.verdict,
            "without Triton": words(row.found_without_triton),
            "time": UNKNOWN if row.time_us is None else f"{plain(row.time_us)} us",
            "share": _share(row),
            "runs": words(row.calls),
            "kernels": count(row.kernels),
            "multiplies": words(row.operands),
        }
        for row in rows
    ]
    titles = [one for one in table[0] if any(line[one] != UNKNOWN for line in table)]
    cells = [[line[title] for title in titles] for line in table]
    spare = ("multiplies", "kernels", "without Triton", "runs")
    print("\n".join(map(printable, text_table(titles, cells, spare))))
    for row in rows:
        if row.refused:
            print_wrapped(printable(f"{row.operation}: {row.refused}"))
    print()


def _share(row: "kernels.KernelRow") -> str:
    """Show a rate as a share of the product's or the copy's, measured or estimated."""
    if row.share is not None:
        return f"{percent(row.share)} % of {row.share_of}"
    if row.estimated_share is None:
        return UNKNOWN
    return f"{percent(row.estimated_share)} % of {row.share_of}, estimated"


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
