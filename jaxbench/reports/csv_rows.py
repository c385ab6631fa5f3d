"""Write measurements as CSV: one time or rate a row, to which n and the interval belong."""

from collections.abc import Iterator
from typing import Any

from jaxbench.analysis.pricing import usd
from jaxbench.analysis.published import load_published
from jaxbench.analysis.rate import Estimate, of_rounds, of_windows
from jaxbench.predict.rates import devices_of
from jaxbench.reports import published
from jaxbench.reports.context import STAGES, Measurement, ReportContext
from jaxbench.reports.prices import price_words
from jaxbench.reports.runs import SCORES, ReportedRun
from jaxbench.reports.work import grouped
from jaxbench.schema import METRICS, Conv2dRecord, ScalingRecord, TargetRecord, value_of
from jaxbench.tables import spreadsheet

# Columns are added at the end: whoever reads them by their place goes on reading the same.
_COLUMNS = """
    origin run name status reason experiment network parameters data train_examples feed mode stage
    precision batch_size num_devices hardware processor hostname framework
    images_per_s images_per_s_low images_per_s_high n images_per_s_per_device
    latency_p50_s latency_p95_s latency_p99_s latency_steps mfu flops_per_byte
    flops_per_s_per_device compile_s compile_cache first_epoch_with_compile_s median_epoch_s total_s
    epochs figure score best_score peak_memory_bytes joules_per_image date source
    scaling overlap efficiency efficiency_low efficiency_high
    kernel channels filters height width time_s time_s_low time_s_high images
    target target_reached energy_j usd_per_hour price usd epoch
    machine fits needed_bytes device_memory_bytes training_flops
"""
COLUMNS = _COLUMNS.split()
_OF_A_RUN = COLUMNS[: COLUMNS.index("scaling")]
_OF_A_RECORD = COLUMNS[COLUMNS.index("images_per_s_per_device") : COLUMNS.index("compile_s")]
_OF_A_PROBLEM = ("kernel", "channels", "filters", "height", "width", "images")
# The first columns have always been these; others may have been added since a file was written.
MARK = ",".join(COLUMNS[:8])
_Row = dict[str, Any]


def render_csv(context: ReportContext) -> str:
    """Return a row for each measurement, and for each published run and rate of its networks.

    Times are in seconds, an unknown value is an empty cell. Text that a spreadsheet would take for
    a formula has an apostrophe before it.
    """
    rows = (*_measured(context), *_compiled(context), *_published(context))
    return spreadsheet.render_csv(COLUMNS, rows)


def _measured(context: ReportContext) -> Iterator[_Row]:
    """Yield the measurements, and what else each run measured next to its own rate.

    A measurement that contains only that there was a run gives way to them. A run whose hardware
    has several prices has a row for each of them.
    """
    for run, measurements in grouped(context.measurements, lambda one: one.run).items():
        rows = [*map(_row_of, measurements)]
        no_rate = dict.fromkeys(("n", "joules_per_image", *_OF_A_RECORD))
        bare = rows[0] | no_rate | Estimate().fields("images_per_s")
        details = [*_scaling(run, bare), *_predictions(run, bare), *_conv2d(run, bare)]
        details += _to_target(context, run, bare)
        if details and measurements[0].stage is None:
            rows = []
        for row in (*rows, *details):
            yield from _priced(row, run, context)


def _row_of(measurement: Measurement) -> _Row:
    run, score = measurement.run, measurement.run.score_field
    row = {name: getattr(run, name) for name in _OF_A_RUN if hasattr(run, name)}
    of_summary = METRICS.keys() & {*_OF_A_RUN} - row.keys()
    row |= {name: value_of(run.summary, name) for name in of_summary}
    row |= {name: value_of(measurement.record, name) for name in _OF_A_RECORD}
    return row | {
        "origin": "measured",
        "run": run.id,
        "parameters": run.document.parameters,
        "feed": measurement.feed,
        "data": measurement.data,
        "stage": measurement.stage,
        "hostname": run.host,
        **measurement.rate.fields("images_per_s"),
        "n": measurement.rate.n,
        "epochs": value_of(run.summary, "epochs_done"),
        "figure": SCORES.get(score or ""),
        "best_score": score and value_of(run.summary, f"best_{score}"),
        "joules_per_image": run.telemetry.get("joules_per_image"),
        "date": run.document.started_at,
    }


def _priced(row: _Row, run: ReportedRun, context: ReportContext) -> Iterator[_Row]:
    """Yield a row at each price of its hardware, which whole runs and steps have."""
    times_s = {**dict.fromkeys(STAGES, run.summary.wall_s), "to_target": row.get("time_s")}
    prices = context.prices.of(run) if run.id and row["stage"] in times_s else []
    for price in prices:
        time_s = times_s[row["stage"]]
        yield row | {
            "usd_per_hour": price.usd_per_hour,
            "price": price_words(price, run),
            "usd": None if time_s is None else usd(run.paid_s(time_s), price.usd_per_hour),
        }
    if not prices:
        yield row


def _devices(run: ReportedRun, num_devices: int, images_per_s: float | None) -> _Row:
    rate = None if run.changed_devices else images_per_s
    return {
        "num_devices": num_devices,
        "hardware": run.devices(num_devices),
        "images_per_s": images_per_s,
        "images_per_s_per_device": rate and rate / num_devices,
    }


def _scaling(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    for record in run.of_kind(ScalingRecord):
        rate = of_windows(record, "images_per_s")
        # One number of devices may be out of memory while the run goes on.
        failed = record.status not in (None, "done")
        names = ("scaling", "batch_size", "mfu", *(("status", "reason") if failed else ()))
        yield {
            **bare,
            "stage": "scaling",
            **{name: getattr(record, name) for name in names},
            **_devices(run, record.num_devices, rate.value),
            **rate.fields("images_per_s"),
            "n": rate.n,
            **of_windows(record, "efficiency").fields("efficiency"),
        }


def _predictions(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    # What nobody can have measured of devices that were not there.
    unknown = dict.fromkeys(("compile_s", "compile_cache", "peak_memory_bytes"))
    for record in value_of(run.summary, "predictions") or ():
        for overlap in ("no", "full"):
            yield {
                **bare,
                **unknown,
                "origin": "predicted",
                "stage": "scaling",
                "scaling": record["scaling"],
                "overlap": {"no": "none"}.get(overlap, overlap),
                "batch_size": record["num_devices"] * record["batch_per_device"],
                **_devices(run, record["num_devices"], record[f"images_per_s_{overlap}_overlap"]),
                "efficiency": record[f"efficiency_{overlap}_overlap"],
                "source": f"one device's step; links: {record['link_source']}",
            }


def _conv2d(run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    scipy = f"scipy {run.environment.get('versions', {}).get('scipy') or ''}".rstrip()
    one_thread = {"hardware": "1 CPU thread", "processor": run.environment.get("cpu")}
    one_thread |= {"precision": "fp32", "num_devices": None, "framework": scipy}
    by_scipy = set()
    for record in run.of_kind(Conv2dRecord):
        problem = {name: getattr(record, name) for name in _OF_A_PROBLEM}
        on_devices = _devices(run, record.devices, None)
        times = {
            "compile": (Estimate(record.lower_s + record.compile_s, n=1), on_devices),
            "first_use": (Estimate(record.first_use_s, n=1), on_devices),
            "host_to_device": (of_rounds(record, "host_to_device_s"), on_devices),
            "compute": (of_rounds(record, "compute_s"), on_devices),
            "device_to_host": (of_rounds(record, "device_to_host_s"), on_devices),
        }
        # SciPy was measured once for all numbers of devices.
        if record.scipy_s is not None and (key := tuple(problem.values())) not in by_scipy:
            by_scipy.add(key)
            times["scipy"] = (of_rounds(record, "scipy_s"), one_thread)
        for stage, (time_s, hardware) in times.items():
            row = {**bare, **problem, **hardware, "stage": stage, "n": time_s.n}
            if stage in ("compute", "scipy") and time_s.value:
                rate = time_s.map(lambda value_s, images=record.images: images / value_s)
                row |= rate.fields("images_per_s")
                num_devices = row["num_devices"]
                row["images_per_s_per_device"] = num_devices and rate.value / num_devices
            yield row | time_s.fields("time_s")


def _to_target(context: ReportContext, run: ReportedRun, bare: _Row) -> Iterator[_Row]:
    """Yield how long a run took to its target; without a time if it never reached it."""
    to_target = context.times_to_target.get(run)
    if to_target and to_target.evaluations:
        names = ("target", "epoch", "images", "training_flops", "energy_j")
        scores = (score for _, score in to_target.evaluations if score >= to_target.target)
        yield {
            **bare,
            "stage": "to_target",
            "n": 1,
            **{name: getattr(to_target, name) for name in names},
            # Nobody knows it of a run that was broken off.
            "target_reached": str(to_target.reached) if to_target.ended else None,
            "time_s": to_target.time_s if to_target.reached else None,
            "score": next(scores, None),
        }


def _compiled(context: ReportContext) -> Iterator[_Row]:
    """Yield what compilers report of machines that are not here, predicted rates and ceilings."""
    names = ("name", "status", "reason", "experiment", "mode", "framework")
    sizes = ("precision", "batch_size", "num_devices", "scaling", "device_memory_bytes")
    outcomes = ("needed_bytes", "compile_s")
    for run in context.compiled:
        for record in run.of_kind(TargetRecord):
            row = {name: getattr(run, name) for name in names}
            row |= {name: getattr(record, name) for name in sizes}
            row |= {"run": run.id, "date": run.document.started_at, "machine": record.target}
            row["hardware"] = run.devices(record.num_devices)
            outcome = {name: getattr(record, name) for name in outcomes}
            outcome |= {"fits": str(record.fits), "source": record.compiler}
            if record.compiler:
                yield row | outcome | {"origin": "compiled", "stage": "compile"}
            row["origin"] = "predicted"
            if predicted := record.predicted:
                rate = Estimate.of_fields(predicted, "images_per_s")
                expected = {"stage": "train_step", "source": "published rates; 80 % interval"}
                yield row | expected | rate.fields("images_per_s")
            rate = (record.ceiling or {}).get("images_per_s")
            if rate is not None and record.fits:
                yield row | {"stage": "ceiling", "images_per_s": rate}


def _published(context: ReportContext) -> Iterator[_Row]:
    networks = {row.run.published_network for row in context.measurements}
    columns = {
        "network": "model",
        "batch_size": "global_batch",
        "num_devices": "devices",
        "first_epoch_with_compile_s": "first_epoch_s",
        "total_s": "total_time_s",
        "score": "top1",
    }
    same = "precision hardware framework images_per_s median_epoch_s date source"
    columns |= {name: name for name in same.split()}
    trainings = (row for row in load_published("training_runs") if row["model"] in networks)
    rates = published.article_rates(networks)
    for one in context.measurements:
        nearest = published.nearest(published.run_key(one.run), [one.run.batch_size])
        # The rates of trainings are those of their epochs.
        rates += [rate for rate in nearest[: published.MOST] if rate.data or not rate.dataset]
    for theirs in (*trainings, *map(published.rate_row, dict.fromkeys(rates))):
        row = {column: theirs.get(name) for column, name in columns.items()}
        if theirs["device"]:
            row["num_devices"] = devices_of(theirs["device"], theirs["devices"])[1]
        if theirs.get("lower_bound") == "yes":
            row["images_per_s"], row["images_per_s_low"] = None, row["images_per_s"]
        row["source"] = "; ".join(filter(None, (theirs["source"], theirs["note"])))
        row["status"] = "oom" if theirs.get("status") == "oom" else "done"
        row["data"] = theirs.get("data") or theirs["dataset"]
        row["figure"] = None if row["score"] is None else SCORES["eval_top1"]
        yield {"origin": "published", "stage": "training", **row}
