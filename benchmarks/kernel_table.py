"""Print the tables of docs/kernels.md: what runs each operation where.

    python benchmarks/kernel_table.py [--rows=results/kernels.csv]

Tables in Markdown, of rows that `jaxbench kernels --out=FILE.csv` has written: one of GPUs, one of
TPUs, and one of each machine whose operations were timed. Machines with equal columns share one.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput, as_refusal
from jaxbench.metrics import percent, plain
from jaxbench.modes.kernels import HERE, KernelRow, read_rows
from jaxbench.paths import user_path

_ROWS = flags.DEFINE_string(
    "rows",
    str(pathlib.Path(__file__).resolve().parent.parent / "results" / "kernels.csv"),
    "The rows of `jaxbench kernels`.",
)


def tables(rows: Sequence[KernelRow]) -> list[str]:
    """Return the lines of all tables."""
    lines: list[str] = []
    for platform, cell in {"gpu": _on_gpus, "tpu": _on_tpus, HERE: _timed}.items():
        machines: dict[str, dict[str, KernelRow]] = {}
        for row in rows:
            if row.target.partition(":")[0] == platform:
                machines.setdefault(row.target, {})[row.operation] = row
        if machines:
            lines += ["", *_table(machines, cell)]
    return lines[1:]


def _table(
    machines: Mapping[str, Mapping[str, KernelRow]], cell: Callable[[KernelRow], str]
) -> list[str]:
    operations = dict.fromkeys(name for found in machines.values() for name in found)
    columns: dict[tuple[str, ...], list[str]] = {}
    for target, found in machines.items():
        column = tuple(cell(found[name]) if name in found else "" for name in operations)
        name = next(iter(found.values())).device_kind if target == HERE else f"`{target}`"
        columns.setdefault(column, []).append(name)
    table = [["operation", *(", ".join(named) for named in columns.values())]]
    table.append(["---"] * (1 + len(columns)))
    for number, name in enumerate(operations):
        table.append([f"`{name}`", *(column[number] for column in columns)])
    return [f"| {' | '.join(cells)} |" for cells in table]


def _on_gpus(row: KernelRow) -> str:
    """Say what runs it, and without Triton's products, if that is another."""
    without = row.found_without_triton
    return row.verdict + (f"; {without}" if without not in (None, row.found) else "")


def _on_tpus(row: KernelRow) -> str:
    """Say what runs it, and the estimated percentage of the bf16 product's rate."""
    fraction = row.estimated_fraction
    return row.verdict + (f", {100 * fraction:.3g} %" if fraction is not None else "")


def _timed(row: KernelRow) -> str:
    """Say what runs it, the time, and the percentage of the bf16 product's or the copy's rate."""
    if row.time_us is None or row.fraction is None:
        return row.verdict
    return f"{row.verdict}, {plain(row.time_us)} us, {percent(row.fraction)} %"


def main(arguments: list[str]) -> None:
    if arguments:
        raise BadInput(f"{arguments[0]!r}: give the file with --rows")
    with as_refusal(f"--rows={_ROWS.value}", ValueError):
        rows = read_rows(user_path(_ROWS.value))
    print("\n".join(tables(rows)))


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
