"""The conclusions of --mode=conv2d from its records: findings in words, and a table."""

from collections.abc import Sequence

from jaxbench.records.schema import Conv2dRecord
from jaxbench.records.writers.tables import text_table

_HEADINGS = ("kernel", "channels", "devices", "compile", "to device", "compute", "to host")
_HEADINGS += ("steady total", "first use", "images/s", "speed-up", "SciPy")
_UNITS = ("", "", "", "ms", "ms", "ms", "ms", "ms", "ms", "", "", "ms")


def findings(records: Sequence[Conv2dRecord]) -> list[str]:
    """Answer the questions that the published comparison left open, a line each."""
    if not records:
        return []
    first = records[0]
    lines = [
        f"first use on {first.devices} device(s): {_ms(first.first_use_s)}, of which "
        f"{(first.lower_s + first.compile_s) / first.first_use_s:.0%} is compiling; "
        f"after that a call computes for {_ms(first.compute_s)} and moves data for "
        f"{_ms(first.host_to_device_s)} to the device(s) and {_ms(first.device_to_host_s)} back"
    ]
    if first.scipy_s:
        lines.append(
            f"SciPy on one CPU thread takes {_ms(first.scipy_s)}: "
            f"{first.scipy_per_compute:.2f} times the computing alone, "
            f"{first.scipy_per_steady_total:.2f} times computing and moving, "
            f"{first.scipy_s / first.first_use_s:.2f} times the first use"
        )
    same = [r for r in records if (r.kernel, r.channels) == (first.kernel, first.channels)]
    if len(same) > 1 and same[-1].speedup:
        lines.append(
            f"from 1 to {same[-1].devices} devices computing becomes {same[-1].speedup:.2f} times "
            "as fast (strong scaling: the same images split over the devices), computing and "
            f"moving {first.steady_total_s / same[-1].steady_total_s:.2f} times"
        )
    on_first = [record for record in records if record.devices == first.devices]
    kernels = [record for record in on_first if record.channels == first.channels]
    last = max(kernels, key=lambda record: record.kernel)
    if last.kernel > first.kernel:
        growth = f"kernel {first.kernel} to {last.kernel}"
        lines.append(_compare_work(growth, (last.kernel / first.kernel) ** 2, first, last))
    channels = [record for record in on_first if record.kernel == first.kernel]
    last = max(channels, key=lambda record: record.channels)
    if last.channels > first.channels:
        growth = f"channels {first.channels} to {last.channels}"
        lines.append(_compare_work(growth, last.channels / first.channels, first, last))
    return lines


def _compare_work(growth: str, work: float, first: Conv2dRecord, last: Conv2dRecord) -> str:
    line = (
        f"{growth}: {work:.1f} times the arithmetic; computing takes "
        f"{last.compute_s / first.compute_s:.1f} times as long"
    )
    return line + (f", SciPy {last.scipy_s / first.scipy_s:.1f} times" if first.scipy_s else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"


def table(records: Sequence[Conv2dRecord]) -> list[str]:
    """Return the table of every record's times, in milliseconds."""
    rows = [_UNITS]
    for record in records:
        times_s = (
            record.lower_s + record.compile_s,
            record.host_to_device_s,
            record.compute_s,
            record.device_to_host_s,
            record.steady_total_s,
            record.first_use_s,
        )
        rows.append(
            (
                *(str(size) for size in (record.kernel, record.channels, record.devices)),
                *(f"{seconds * 1e3:,.2f}" for seconds in times_s),
                f"{record.images_per_s:,.0f}",
                f"{record.speedup:.2f}" if record.speedup else "",
                f"{record.scipy_s * 1e3:,.1f}" if record.scipy_s else "",
            )
        )
    return text_table(_HEADINGS, rows, spare=("first use", "speed-up", "compile", "steady total"))
