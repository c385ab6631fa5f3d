"""What a sweep's cells have to say: figures, tables, what several seeds say together."""

import math
import platform
from collections.abc import Iterable, Sequence
from typing import Any

from jaxbench.records.reader import Run
from jaxbench.sweeps.grid import Cell

# What sweep.csv says of a cell, after the grid's fields.
FIGURES = (
    "compile_s",
    "compile_cache",
    "first_epoch_s",
    "median_epoch_s",
    "total_s",
    "train_time_s",
    "images_per_s",
    "images_per_s_low",
    "images_per_s_high",
    "images_per_s_per_device",
    "weak_efficiency",
    "strong_efficiency",
    "prepare_images_per_s",
    "prepare_and_send_images_per_s",
    "train_step_images_per_s",
    "conv2d_compute_s",
    "conv2d_scipy_s",
    "latency_p50_s",
    "latency_p95_s",
    "latency_p99_s",
    "mfu",
    "eval_top1",
    "eval_top1_tta",
    "eval_dice",
    "best_eval_top1",
    "best_eval_dice",
    "epochs_done",
    "target_value",
    "target_reached",
    "target_s",
    "target_epoch",
    "target_images",
    "target_energy_j",
    "target_usd",
    "usd",
    "energy_j",
    "planned_bytes_per_device",
    "device_memory_bytes",
    "peak_memory_bytes",
    "private_memory_before_bytes",
    "host_peak_memory_bytes",
)
# What several seeds are asked about, and what people call it.
OVER_SEEDS = {
    "target_s": "seconds to the target",
    "target_epoch": "epochs to the target",
    "target_images": "images to the target",
    "target_energy_j": "joules to the target",
    "target_usd": "USD to the target",
    "train_time_s": "seconds of training",
    "eval_top1": "top-1",
    "eval_top1_tta": "top-1 with test-time augmentation",
    "eval_dice": "Dice",
    "images_per_s": "images/s",
}
SPREAD_COLUMNS = ("figure", "n", "of_seeds", "median", "mean", "std", "min", "max")
COLUMNS = ("status", *FIGURES, "reason", "wall_s", "num_devices", "device_kind", "run")
MAX_BATCH_COLUMNS = (
    "status",
    "max_batch",
    "max_batch_per_device",
    "smallest_too_large",
    "num_devices",
    "device_kind",
    "planned_bytes_per_device",
    "device_memory_bytes",
    "peak_memory_bytes",
    "host_peak_memory_bytes",
    "memory_limit_mb",
    "trials",
    "reason",
)


def figures_of(run: Run) -> dict[str, Any]:
    """The figures of a run that sweep.csv has columns for."""
    compiled = run.of_kind("compile")
    planned = [record["memory"]["total_bytes"] for record in compiled if record["memory"]]
    figures: dict[str, Any] = {
        "planned_bytes_per_device": max(planned, default=None),
        "device_memory_bytes": compiled[0]["device_memory_bytes"] if compiled else None,
    }
    for record in run.of_kind("throughput"):
        if record["stage"] == "train_step":
            figures |= record
    for record in run.of_kind("input"):
        figures[f"{record['stage']}_images_per_s"] = record["images_per_s"]
    for record in run.of_kind("scaling"):  # from few devices to all
        figures[f"{record['scaling']}_efficiency"] = record["efficiency"]
        figures["images_per_s"] = record["images_per_s"]
    for record in run.of_kind("conv2d"):
        figures.setdefault("conv2d_compute_s", record["compute_s"])
        figures.setdefault("conv2d_scipy_s", record["scipy_s"])
    summary = run.document.get("summary") or {}
    figures |= {name: value for name, value in summary.items() if value is not None}
    epochs = run.of_kind("epoch")
    if epochs and "compile_s" in summary:
        figures["total_s"] = summary["compile_s"] + sum(e["epoch_time_s"] for e in epochs)
    if target := summary.get("target"):
        figures |= {
            "target_value": target["value"],
            "target_reached": target["reached"],
            "target_s": target["time_s"],
            "target_epoch": target["epoch"],
            "target_images": target["images"],
            "target_energy_j": target.get("energy_j"),
            "target_usd": target.get("usd"),
        }
    figures["energy_j"] = (summary.get("telemetry") or {}).get("energy_j")
    return {name: figures[name] for name in FIGURES if figures.get(name) is not None}


def seen(figures: dict[str, Any], name: str) -> float | None:
    """A cell's figure; a target that was never reached takes and costs without end."""
    priced = name == "target_usd" and "usd" in figures
    if "target_value" in figures and (name == "target_s" or priced):
        return figures.get(name, math.inf)
    return figures.get(name)


def describe_spread(row: dict[str, Any]) -> str:
    def form(value: float | None) -> str:
        return "-" if value is None else f"{value:.5g}"

    few = "; fewer than five seeds are no result" if row["n"] < 5 else ""
    return (
        f"median {form(row['median'])}, mean {form(row['mean'])}, std {form(row['std'])}, "
        f"{form(row['min'])} to {form(row['max'])}, n = {row['n']} of {row['of_seeds']}{few}"
    )


def columns(fields: Sequence[str], others: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*fields, *others)))


def plain(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in COLUMNS if name in record}


def cell_table(
    fields: Sequence[str], cells: Sequence[Cell], records: Sequence[dict[str, Any]]
) -> list[str]:
    """The lines of a table in the published comparisons' form: a row for each cell."""
    shown = [
        ("compile", "compile", str),
        ("first epoch", "first_epoch_s", lambda s: f"{s:,.2f} s"),
        ("median epoch", "median_epoch_s", lambda s: f"{s:,.2f} s"),
        ("total", "total_s", lambda s: f"{s:,.2f} s"),
        ("images/s", "images_per_s", lambda rate: f"{rate:,.1f}"),
        ("95 % interval", "interval", str),
        ("p50", "latency_p50_s", lambda s: f"{s * 1e3:,.2f} ms"),
        ("p99", "latency_p99_s", lambda s: f"{s * 1e3:,.2f} ms"),
        ("weak", "weak_efficiency", lambda share: f"{share:.1%}"),
        ("strong", "strong_efficiency", lambda share: f"{share:.1%}"),
        ("host images/s", "prepare_and_send_images_per_s", lambda rate: f"{rate:,.1f}"),
        ("device images/s", "train_step_images_per_s", lambda rate: f"{rate:,.1f}"),
        ("compute", "conv2d_compute_s", lambda s: f"{s * 1e3:,.2f} ms"),
        ("SciPy", "conv2d_scipy_s", lambda s: f"{s * 1e3:,.2f} ms"),
        ("MFU", "mfu", lambda share: f"{share:.1%}"),
        ("to target", "target_s", lambda s: f"{s:,.2f} s" if math.isfinite(s) else "never"),
        ("USD", "usd", lambda usd: f"{usd:,.4f}"),
        ("top-1", "eval_top1", lambda share: f"{share:.2%}"),
        ("Dice", "eval_dice", lambda share: f"{share:.2%}"),
    ]
    figures = []
    for record in records:
        own = dict(record["figures"]) if record["status"] in ("ok", "invalid") else {}
        if "images_per_s_low" in own:
            own["interval"] = f"{own['images_per_s_low']:,.1f} to {own['images_per_s_high']:,.1f}"
        if "target_value" in own:
            own["target_s"] = seen(own, "target_s")
        if "compile_s" in own:
            kept = " (kept)" if own.get("compile_cache") == "hit" else ""
            own["compile"] = f"{own['compile_s']:,.2f} s{kept}"
        figures.append(own)
    shown = [column for column in shown if any(column[1] in own for own in figures)]
    rows = [[*fields, "status", *(title for title, _, _ in shown)]]
    for cell, record, own in zip(cells, records, figures, strict=True):
        status = record["status"]
        rows.append(
            [
                *cell.place.values(),
                "OOM" if status == "oom" else status,
                *(form(own[name]) if name in own else "-" for _, name, form in shown),
            ]
        )
    reasons = [
        f"{cell.title}: {record['status']}: {record['reason']}"
        for cell, record in zip(cells, records, strict=True)
        if record["reason"]
    ]
    return _aligned(rows) + reasons


def max_batch_table(fields: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    table = [[*fields, "largest batch", "per device", "too large", "trials"]]
    for row in rows:
        each = row.get("max_batch_per_device")
        table.append(
            [
                *(row[field] for field in fields),
                str(row.get("max_batch") or ("OOM" if row["status"] == "oom" else "failed")),
                f"{each:g}" if each else "-",
                str(row.get("smallest_too_large") or "-"),
                str(row["trials"]),
            ]
        )
    return _aligned(table) + [row["reason"] for row in rows if row["reason"]]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
        for row in rows
    ]


def differences(records: Sequence[dict[str, Any]]) -> list[str]:
    """Says what differs between the cells that the grid did not ask for."""
    told = []
    elsewhere = {r["hostname"] for r in records if r["hostname"] not in (None, platform.node())}
    if elsewhere:
        told.append(f"warning: some cells were measured on {', '.join(sorted(elsewhere))}")
    for name in ("device_kind", "hostname", "commit", "versions"):
        kinds = {str(record[name]) for record in records if record[name] is not None}
        if len(kinds) > 1:
            told.append(f"warning: the cells differ in {name}: {'; '.join(sorted(kinds))}")
    return told


def exit_code(statuses: Iterable[str]) -> int:
    """Returns a sweep's exit code: what did not fit in memory or in time is a result."""
    return int(any(status in ("failed", "invalid") for status in statuses))
