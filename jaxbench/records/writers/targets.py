"""The tables of what compilers say of a step on machines that are not here."""

from collections.abc import Sequence

from jaxbench.records.schema import TargetRecord
from jaxbench.records.writers.tables import text_table

TITLE = "Compiled, not measured. The ceilings are predicted."
_HEADINGS = (
    *("target", "batch", "fits", "GiB", "of", "ceiling images/s", "bound by"),
    *("compile", "set-up"),
)
_SCALED = ("scaling", "devices", *_HEADINGS[1:], "exchanged", "efficiency")
_SPARE = ("of", "compile", "set-up", "bound by", "exchanged")


def target_table(records: Sequence[TargetRecord]) -> list[str]:
    """Return the lines of a table with a row for each target, or each size of one; or none."""
    if not records:
        return []
    scaled = any(record.scaling for record in records)
    rows = [_scaled(record) if scaled else [record.target, *_row(record)] for record in records]
    refusals = [f"{r.target}: {r.refusal}" for r in records if r.refusal]
    return [TITLE, *text_table(_SCALED if scaled else _HEADINGS, rows, _SPARE), *refusals]


def _row(record: TargetRecord) -> list[str]:
    row = [f"{record.batch_size:,}", "yes" if record.fits else "no"]
    row.append("?" if record.needed_bytes is None else f"{record.needed_bytes / 2**30:.2f}")
    row.append(f"{record.device_memory_bytes / 2**30:.2f}")
    # What does not fit reaches no rate.
    rate = record.fits and record.ceiling and record.ceiling["images_per_s"]
    row += [f"{rate:,.0f}", record.ceiling["bound_by"]] if rate else ["-", "-"]
    times_s = (record.compile_s, record.lower_s)
    return [*row, *("-" if time_s is None else f"{time_s:.1f} s" for time_s in times_s)]


def _scaled(record: TargetRecord) -> list[str]:
    row = [record.scaling or "-", str(record.num_devices), *_row(record)]
    if record.collectives is None:
        return [*row, "-", "-"]
    exchanged_mb = sum(each["bytes"] for each in record.collectives.values()) / 1e6
    kinds = [f"{each['count']} {name}" for name, each in record.collectives.items()]
    row.append(f"{', '.join(kinds)}, {exchanged_mb:,.1f} MB" if kinds else "nothing")
    if record.efficiency_no_overlap is None:
        return [*row, "-"]
    low, high = record.efficiency_no_overlap, record.efficiency_full_overlap
    return [*row, f"{low:.0%} to {high:.0%}"]
