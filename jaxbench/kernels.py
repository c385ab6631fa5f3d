"""Find which operations have a fast kernel, on machines that are here or not.

    jaxbench kernels --target=gpu:h100,tpu:v5e:1x1
    jaxbench kernels --target=here
    jaxbench kernels --out=KERNELS.csv

35 operations that networks are made of are compiled, each alone. XLA's text says what runs them:

    library        a call by name, such as cuDNN's
    fused product  a product by Triton, on a TPU's matrix unit, or in a CPU's own loops
    fused loop     no product
    dense detour   a product that mostly multiplies zeros
    naive loop     a product without matrix units

`in f32` behind it says that it multiplies a wider type than the operation asks for.

A compiler for a machine that is not here chooses without timing. `here` compiles for this machine's
first device and times each operation, interleaved with a product or a copy.

Without --target it is one machine of each generation, from Volta and TPU v2 on, whose compiler is
installed, and this machine if it has an accelerator. --out writes a row for each operation on each
machine, as they are found.
"""

import contextlib
import functools
import os
import pathlib
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput, RunFailed, as_refusal, one_of
from jaxbench.hardware.system import is_disturbed
from jaxbench.hardware.targets.target import list_targets, split_targets
from jaxbench.hardware.telemetry.summary import OTHER_WORK
from jaxbench.metrics import UNKNOWN, count, percent, plain, words
from jaxbench.paths import new_csv
from jaxbench.records.writers.console import create_console
from jaxbench.tables.text import text_table
from jaxbench.terminal import print_wrapped, printable, warn

if TYPE_CHECKING:  # imports JAX
    from jaxbench.modes import kernels

_TARGET, _OPERATION, _OUT = define_flags("kernels")


def main(arguments: list[str]) -> int:
    """Print a table for each machine; return the exit code."""
    if arguments:
        raise BadInput(f"{arguments[0]!r}: give flags, such as --target=list or --operation=list")
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
    num_rows = 0
    for number, target in enumerate(targets, 1):
        rows: list[kernels.KernelRow] = []
        title = f"{target}, machine {number} of {len(targets)}"
        with contextlib.closing(create_console()) as console:
            console.say(f"{title} ...")
            show = functools.partial(console.progress, title)
            try:
                for row in kernels.find_kernels(target, names, show):
                    rows.append(row)
                    if out:
                        _append(out, row, num_rows + len(rows))
            except (BadInput, RunFailed) as error:
                if _TARGET.value:
                    raise
                missing.append(f"{target}: {error}")
        if rows:
            _print_table(rows)
        num_rows += len(rows)
    for line in dict.fromkeys(missing):
        print_wrapped(printable(f"not compiled: {line}"))
    if out:
        print(printable(f"{num_rows} row{'s' * (num_rows != 1)}: {out}"))
    return 0


def _append(out: pathlib.Path, row: "kernels.KernelRow", number: int) -> None:
    """Append a row to a CSV file; the first one, number 1, makes it."""
    from jaxbench.modes.kernels import as_csv

    heading, _, line = as_csv([row]).partition("\n")
    mode, text = ("a", line) if number > 1 else ("x", f"{heading}\n{line}")
    with as_refusal(f"--out={out}"), open(out, mode, encoding="utf-8") as file:
        file.write(text)


def _print_table(rows: Sequence["kernels.KernelRow"]) -> None:
    """Print what was found on a machine, a line for each operation, without empty columns."""
    first = rows[0]
    print_wrapped(f"{first.target}: {first.device_kind}, {first.compiler}, JAX {first.jax}")
    if len(rows) == 1:  # whole
        for name, value in vars(first).items():
            if value is not None and name not in ("target", "device_kind", "compiler", "jax"):
                print_wrapped(printable(f"{name}: {value}"))
    else:
        table = [
            {
                "operation": row.operation,
                "found": row.verdict,
                "without Triton": words(row.found_without_triton),
                "time": UNKNOWN if row.time_us is None else f"{plain(row.time_us)} us",
                "rate": _rate(row),
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
    others = [row.other_cpu_percent for row in rows if row.other_cpu_percent is not None]
    if others:
        percent_of_others = statistics.mean(others)
        if is_disturbed(percent_of_others, percent_of_others, first.device_kind == "cpu"):
            warn("warning: " + OTHER_WORK.format(other_cpu_percent_mean=percent_of_others))
    print()


def _rate(row: "kernels.KernelRow") -> str:
    """Show a rate as a percentage of the product's or the copy's, measured or estimated."""
    if row.fraction is not None:
        ends = (row.fraction_low, row.fraction_high)
        interval = "" if None in ends else f" ({' to '.join(map(percent, ends))})"
        return f"{percent(row.fraction)} %{interval} of {row.fraction_of}"
    if row.estimated_fraction is None:
        return UNKNOWN
    return f"{percent(row.estimated_fraction)} % of {row.fraction_of}, estimated"


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
