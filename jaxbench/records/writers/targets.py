"""The tables of what compilers say of a step on machines that are not here."""

from collections.abc import Sequence

from jaxbench.metrics import plain
from jaxbench.schema import METRICS, TargetRecord
from jaxbench.tables.text import text_table

TITLE = "Compiled, not measured."
_SHARED = ("batch", "fits", "needed [GiB]")
_HEADINGS = ("target", *_SHARED, "compile", "lowering")
_SCALED = ("devices", *_SHARED, "exchanged", "compile", "lowering")
_SPARE = ("lowering", "compile", "batch")


def target_table(records: Sequence[TargetRecord]) -> list[str]:
    """Return the lines of a table with a row for each target, or each size of one; or none."""
    if not records:
        return []
    scaled = any(record.scaling for record in records)
    rows = [_scaled(record) if scaled else [record.target, *_row(record)] for record in records]
    rows = [[*row, *_times(record)] for row, record in zip(rows, records, strict=True)]
    refusals = [f"{r.target}: {r.refusal}" for r in records if r.refusal]
    return [TITLE, *text_table(_SCALED if scaled else _HEADINGS, rows, _SPARE), *refusals]


def compiled_facts(records: Sequence[TargetRecord]) -> list[str]:
    """Return the lines of what compiled steps do on their targets; none for what was refused."""
    lines = []
    for record in records:
        if not record.memory:
            continue
        collectives = [
            f"{each['count']} {name} ({plain(each['bytes'] / 1e6)} MB)"
            for name, each in (record.collectives or {}).items()
        ]
        calls = [f"{count} {name}" for name, count in sorted((record.custom_calls or {}).items())]
        lines += [
            f"{record.target}: the step on each device",
            f"  collectives: {', '.join(collectives) or 'none'}",
            f"  library calls: {', '.join(calls) or 'none'}",
            "  state: " + ("donated whole" if record.state_donated else "not donated whole"),
        ]
        if record.estimated_cycles:
            lines.append(
                f"  estimated cycles: {record.estimated_cycles:,}, "
                f"{plain(record.estimated_images_per_s)}/s at the device's clock (no part of the "
                "predicted rate)"
            )
    return lines


def _row(record: TargetRecord) -> list[str]:
    show = METRICS["device_memory_bytes"].show
    needed = f"{show(record.needed_bytes)} of {show(record.device_memory_bytes)}"
    fits = {True: "yes", False: "no", None: "unsupported"}[record.fits]
    return [f"{record.batch_size:,}", fits, needed]


def _scaled(record: TargetRecord) -> list[str]:
    row = [f"{record.scaling or '-'} {record.num_devices}", *_row(record)]
    if record.collectives is None:
        return [*row, "-"]
    exchanged_bytes = sum(each["bytes"] for each in record.collectives.values())
    return [*row, f"{plain(exchanged_bytes / 1e6)} MB" if exchanged_bytes else "nothing"]


def _times(record: TargetRecord) -> list[str]:
    times_s = (record.compile_s, record.lower_s)
    return ["-" if time_s is None else f"{time_s:.1f} s" for time_s in times_s]
