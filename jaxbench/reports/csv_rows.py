"""Write measurements as CSV: one time or rate a row, to which n and the interval belong."""

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from jaxbench.analysis.estimates import (
    Estimate,
    of_rounds,
    of_windows,
)
from jaxbench.analysis.pricing import usd
from jaxbench.analysis.published import load_published
from jaxbench.metrics import UNKNOWN
from jaxbench.records.schema import Conv2dRecord, ScalingRecord, TargetRecord
from jaxbench.reports.context import Measurement, ReportContext
from jaxbench.reports.prices import price_words
from jaxbench.reports.runs import SCORES, ReportedRun
from jaxbench.reports.time_to_target import time_to_target
from jaxbench.reports.work import grouped
from jaxbench.tables.spreadsheet import inert_cell

_OF_A_RECORD = (
    *("images_per_s_per_device", "latency_p50_s", "latency_p95_s", "latency_p99_s"),
    *("latency_steps", "mfu", "flops_per_byte", "flops_per_s_per_device"),
)
_RATE = ("images_per_s", "images_per_s_low", "images_per_s_high", "n")
_PROBLEM = ("kernel", "channels", "filters", "height", "width", "images")
_OF_A_RUN = (
    *("origin", "run", "name", "status", "reason", "experiment", "network", "parameters"),
    *("data", "train_examples", "feed", "mode", "stage", "precision", "batch_size"),
    *("num_devices", "hardware", "processor", "hostname", "framework"),
    *(*_RATE, *_OF_A_RECORD),
    *("compile_s", "compile_cache", "first_epoch_with_compile_s", "median_epoch_s", "total_s"),
    *("epochs", "figure", "score", "best_score", "peak_memory_bytes", "joules_per_image"),
    *("date", "source"),
)
# Columns are added at the end: whoever reads them by their place goes on reading the same.
COLUMNS = (
    *_OF_A_RUN,
    *("scaling", "overlap", "efficiency", "efficiency_low", "efficiency_high"),
    *(*_PROBLEM[:-1], "time_s", "time_s_low", "time_s_high", "images"),
    *("target", "target_reached", "energy_j", "usd_per_hour", "price", "usd", "epoch"),
    *("machine", "fits", "needed_bytes", "device_memory_bytes"),
    "training_flops",
)
# The first columns have always been these; others may have been added since a file was written.
MARK = ",".join(COLUMNS[:8])
# What a run's row says of its own rate, and of no other figure.
_OF_A_RATE = (*_RATE, *_OF_A_RECORD, "joules_per_image")
_OF_A_PUBLISHED_ROW = {
    **{name: name for name in ("precision", "hardware", "framework", "images_per_s")},
    **{name: name for name in ("median_epoch_s", "date", "source")},
    "network": "model",
    "batch_size": "global_batch",
    "num_devices": "devices",
    "first_epoch_with_compile_s": "first_epoch_s",
    "total_s": "total_time_s",
    "score": "top1",
}
# What nobody can have measured of devices that were not there.
_NOT_PREDICTED = ("compile_s", "compile_cache", "peak_memory_bytes")
# What a price an hour says something of.
_PRICED = ("training", "train_step", "to_target")
_PARTS = ("host_to_device", "compute", "device_to_host")
_Row = dict[str, Any]


def render_csv(context: ReportContext) -> str:
    """Return a row for each measurement, and for each published run and rate of its networks.

    Times are in seconds, an unknown value is an empty cell. Text that a spreadsheet would take for
    a formula has an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    networks = {row.run.published_network for row in context.measurements}
    for row in (*_measured(context), *_compiled(context), *_published(networks)):
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Return a finite number or inert text; None for what is not known."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if value == UNKNOWN else inert_cell(value)


def _measured(context: ReportContext) -> Iterator[_Row]:
    """Yield the measurements, and what else each run measured next to its own rate.

    A measurement that says no more than that there was a run gives way to them. One whose hardware
    has several prices is there with each of them.
    """
    for run, measurements in grouped(context.measurements, lambda one: one.run).items():
        rows = [_row_of(one) for one in measurements]
        bare = rows[0] | dict.fromkeys(_OF_A_RATE)
        details = [
            *_scaling(run, bare),
            *_predictions(run, bare),
            *(row for row in _conv2d(run, bare) if row["time_s"] is not None),
            *_target(run, bare, context.target_accuracy),
        ]
        if measurements[0].stage is None and details:
            rows = []
        for row in (*rows, *details):
            yield from _priced(row, run, context)


def _row_of(measurement: Measurement) -> _Row:
    run, score = measurement.run, measurement.run.score_field
    row = {
        "origin": "measured",
        "run": run.id,
        "parameters": run.document.parameters,
        "feed": measurement.feed,
        "stage": measurement.stage,
        "hostname": run.environment.get("hostname"),
        **_ends("images_per_s", measurement.rate),
        "n": measurement.rate.n,
        **{name: getattr(measurement.record, name) for name in _OF_A_RECORD},
        "epochs": run.summary.epochs_done,
        "figure": SCORES.get(score or ""),
        "best_score": score and getattr(run.summary, f"best_{score}"),
        "joules_per_image": run.telemetry.get("joules_per_image"),
        "date": run.document.started_at,
    }
    for name in _OF_A_RUN:
        if name not in row:
            row[name] = getattr(run, name, getattr(run.summary, name, None))
    return row


def _priced(row: _Row, run: ReportedRun, context: ReportContext) -> Iterator[_Row]:
    stage = row["stage"]
    time_s = run.summary.wall_s if stage == "training" else None
    if stage == "to_target":
        time_s = row["time_s"]
    prices = context.prices.of(run) if run.id and stage in _PRICED else []
    for price in prices:
        yield row | {
            "usd_per_hour": price.usd_per_hour,
            "price": price_words(price, run),
            "usd": None if time_s is None else usd(run.paid_s(time_s), price.usd_per_hour),
        }
    if not prices:
        yield row


def _ends(name: str, of: Estimate) -> _Row:
    return {name: of.value, f"{name}_low": of.low, f"{name}_high": of.high}


def _devices(run: ReportedRun, num_devices: float | None, images_per_s: float | None) -> _Row:
    rate = None if run.changed_devices else images_per_s
    return {
        "num_devices": num_devices,
        "hardware": None if num_devices is None else run.devices(num_devices),
        "images_per_s": images_per_s,
        "images_per_s_per_device": num_devices and rate and rate / num_devices,
    }


def _scaling(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    for record in run.of_kind(ScalingRecord):
        rate = of_windows(record, "images_per_s")
        # One count of devices may be out of memory where the run goes on.
        lost = {name: getattr(record, name) for name in ("status", "reason")}
        yield {
            **bare,
            "stage": "scaling",
            **{name: getattr(record, name) for name in ("scaling", "batch_size", "mfu")},
            **_devices(run, record.num_devices, rate.value),
            **_ends("images_per_s", rate),
            "n": rate.n,
            **_ends("efficiency", of_windows(record, "efficiency")),
            **(lost if lost["status"] not in (None, "done") else {}),
        }


def _predictions(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    for record in run.summary.predictions or ():
        num_devices = record["num_devices"]
        for overlap, suffix in (("none", "no_overlap"), ("full", "full_overlap")):
            yield {
                **bare,
                **dict.fromkeys(_NOT_PREDICTED),
                "origin": "predicted",
                "stage": "scaling",
                "scaling": record["scaling"],
                "overlap": overlap,
                "batch_size": num_devices * record["batch_per_device"],
                **_devices(run, num_devices, record[f"images_per_s_{suffix}"]),
                "efficiency": record[f"efficiency_{suffix}"],
                "source": f"one device's step; links: {record['link_source']}",
            }


def _conv2d(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    on_the_host = set()
    for record in run.of_kind(Conv2dRecord):
        problem = {name: getattr(record, name) for name in _PROBLEM}
        num_devices = record.devices
        own = bare | problem | _devices(run, num_devices, None)
        parts = {
            "compile": Estimate(record.lower_s + record.compile_s, n=1),
            "first_use": Estimate(record.first_use_s, n=1),
            **{part: of_rounds(record, f"{part}_s") for part in _PARTS},
        }
        for stage, timed in parts.items():
            images = problem["images"] if stage == "compute" else None
            yield own | {"stage": stage} | _timed(timed, images, num_devices)
        # SciPy took its turns once for all numbers of devices.
        if (key := tuple(problem.values())) not in on_the_host:
            on_the_host.add(key)
            version = run.environment.get("versions", {}).get("scipy")
            yield {
                **bare,
                **problem,
                "stage": "scipy",
                "precision": "fp32",
                "num_devices": None,
                "hardware": "1 CPU thread",
                "processor": run.environment.get("cpu"),
                "framework": f"scipy {version}" if version else "scipy",
                **_timed(of_rounds(record, "scipy_s"), problem["images"], None),
            }


def _timed(timed: Estimate, images: float | None, num_devices: float | None) -> _Row:
    """Return a time with its interval, and the rate of `images` in that time."""
    row = _ends("time_s", timed) | {"n": timed.n}
    if images is not None and (timed.value or 0) > 0:
        rate = timed.map(lambda time_s: images / time_s)
        row |= _ends("images_per_s", rate)
        row["images_per_s_per_device"] = num_devices and rate.value / num_devices
    return row


def _target(run: ReportedRun, bare: _Row, asked: float | None) -> Iterator[_Row]:
    """Yield how long a run took to its target; without a time where it never reached it."""
    found = time_to_target(run, asked)
    if found is None or not found.evaluations:
        return
    yield {
        **bare,
        "stage": "to_target",
        "n": 1,
        "target": found.target,
        # Of a run that was broken off nobody knows.
        "target_reached": str(found.reached) if found.ended else None,
        "epoch": found.epoch,
        "time_s": found.time_s if found.reached else None,
        "images": found.images,
        "training_flops": found.training_flops,
        "energy_j": found.energy_j,
        "score": next((score for _, score in found.evaluations if score >= found.target), None),
    }


def _compiled(context: ReportContext) -> Iterator[_Row]:
    """Yield what compilers said of machines that are not here, and the ceilings predicted of it."""
    for run in context.compiled:
        bare = {name: getattr(run, name) for name in ("name", "status", "reason", "experiment")}
        bare |= {"run": run.id, "mode": run.mode, "framework": run.framework}
        bare |= {"date": run.document.started_at}
        for record in run.of_kind(TargetRecord):
            names = ("precision", "batch_size", "num_devices", "scaling", "device_memory_bytes")
            own = bare | {name: getattr(record, name) for name in names}
            own |= {
                "machine": record.target,
                "hardware": run.devices(record.num_devices),
            }
            yield own | {
                "origin": "compiled",
                "stage": "compile",
                "fits": str(record.fits),
                "needed_bytes": record.needed_bytes,
                "compile_s": record.compile_s,
                "source": record.compiler,
            }
            rate = (record.ceiling or {}).get("images_per_s")
            if rate is not None and record.fits is True:
                yield own | {"origin": "predicted", "stage": "ceiling", "images_per_s": rate}


def _published(networks: set[str | None]) -> Iterator[_Row]:
    for table in ("training_runs", "throughput"):
        for row in load_published(table):
            if row["model"] in networks:
                own = {column: row.get(name) for column, name in _OF_A_PUBLISHED_ROW.items()}
                own["status"] = "oom" if row.get("status") == "oom" else "done"
                own["data"] = row.get("data") or row["dataset"]
                own["figure"] = None if own["score"] is None else "top-1"
                yield {"origin": "published", "stage": "training", **own}
