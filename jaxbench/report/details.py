"""What --format=csv has beside the rates: scaling, a convolution's parts, the way to a target."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.analysis.pricing import usd
from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL, median_interval
from jaxbench.report.collect import Collection, ReportedRun
from jaxbench.report.measurements import OF_A_RATE, Measurement, interval_of
from jaxbench.report.offers import Offers, price_words
from jaxbench.report.values import items, mapping, number, text
from jaxbench.report.ways import time_to_target

# What a run's row says of its own rate, and of no other figure.
_OF_THE_RATE = (
    "images_per_s",
    "images_per_s_low",
    "images_per_s_high",
    "n",
    *OF_A_RATE,
    "joules_per_image",
)
# What nobody can have measured of devices that were not there.
_OF_THE_RUN = ("compile_s", "compile_cache", "peak_memory_bytes")
# What a price an hour says something of.
_PRICED = ("training", "train_step", "to_target")
_PARTS = ("host_to_device", "compute", "device_to_host")
_PROBLEM = ("kernel", "channels", "filters", "height", "width", "images")


def with_details(
    collection: Collection,
    rows: Sequence[Measurement],
    offers: Offers,
    target: float | None = None,
) -> list[Measurement]:
    """Returns the rows with what else each run measured, next to the run's own.

    A row that says no more than that there was a run gives way to them. One whose hardware has
    several prices is there with each of them.

    Args:
      collection: the runs.
      rows: those that `measurements` made of them.
      offers: what the hardware costs.
      target: the accuracy that all runs are asked for, None for each one's own.
    """
    by_id = {run.id: run for run in collection.runs}
    left = dict(by_id)
    found = []
    for row in rows:
        run = left.pop(row.run, None)
        details = [] if run is None else _details(run, row, target)
        if row.stage is not None or not details:
            found.append(row)
        found += details
    return [
        priced
        for row in found
        for priced in (_priced(row, by_id[row.run], offers) if row.run else [row])
    ]


def _priced(row: Measurement, run: ReportedRun, offers: Offers) -> list[Measurement]:
    """The row with each price of the run's hardware, and what its time comes to."""
    time_s = number(run.summary, "wall_s") if row.stage == "training" else None
    if row.stage == "to_target":
        time_s = row.time_s
    prices = offers.of(run) if row.stage in _PRICED else []
    return [
        dataclasses.replace(
            row,
            usd_per_hour=price.usd_per_hour,
            price=price_words(price, run),
            usd=None if time_s is None else usd(time_s, price.usd_per_hour),
        )
        for price in prices
    ] or [row]


def _details(run: ReportedRun, row: Measurement, target: float | None) -> list[Measurement]:
    bare = dataclasses.replace(row, **dict.fromkeys(_OF_THE_RATE))
    return [
        *_scaling(run, bare),
        *_predictions(run, bare),
        *_conv2d(run, bare),
        *_target(run, bare, target),
    ]


def _scaling(run: ReportedRun, bare: Measurement) -> Iterator[Measurement]:
    for record in run.of_kind("scaling"):
        n = len(items(record, "windows_s"))
        low, high = interval_of(record, "images_per_s", n)
        share_low, share_high = interval_of(record, "efficiency", n)
        # One cell may be out of memory where the run goes on.
        own = text(record, "status")
        lost = {} if own in (None, "done") else {"status": own, "reason": text(record, "reason")}
        yield dataclasses.replace(
            bare,
            stage="scaling",
            scaling=text(record, "scaling"),
            batch_size=number(record, "batch_size"),
            **_devices(run, number(record, "num_devices"), number(record, "images_per_s")),
            n=n or None,
            images_per_s_low=low,
            images_per_s_high=high,
            mfu=number(record, "mfu"),
            efficiency=number(record, "efficiency"),
            efficiency_low=share_low,
            efficiency_high=share_high,
            **lost,
        )


def _predictions(run: ReportedRun, bare: Measurement) -> Iterator[Measurement]:
    for record in items(run.summary, "predictions"):
        devices = number(record, "num_devices")
        share = number(record, "batch_per_device")
        for overlap in ("none", "full"):
            suffix = {"none": "no_overlap", "full": "full_overlap"}[overlap]
            yield dataclasses.replace(
                bare,
                origin="predicted",
                **dict.fromkeys(_OF_THE_RUN),
                stage="scaling",
                scaling=text(record, "scaling"),
                overlap=overlap,
                batch_size=None if None in (devices, share) else devices * share,
                **_devices(run, devices, number(record, f"images_per_s_{suffix}")),
                efficiency=number(record, f"efficiency_{suffix}"),
                source=f"one device's step; links: {text(record, 'link_source') or 'unknown'}",
            )


def _devices(run: ReportedRun, count: float | None, images_per_s: float | None) -> dict[str, Any]:
    """What a row says of the devices that took part, and of their rate."""
    return {
        "num_devices": count,
        "hardware": None if count is None else f"{count:.0f} × {run.device_kind}",
        "images_per_s": images_per_s,
        "images_per_s_per_device": images_per_s / count if images_per_s and count else None,
    }


def _conv2d(run: ReportedRun, bare: Measurement) -> Iterator[Measurement]:
    on_the_host = set()
    for record in run.of_kind("conv2d"):
        problem = {name: number(record, name) for name in _PROBLEM}
        cell = dataclasses.replace(
            bare, **problem, **_devices(run, number(record, "devices"), None)
        )
        once = {"compile": _sum(record, "lower_s", "compile_s")}
        once["first_use"] = number(record, "first_use_s")
        for stage, time_s in once.items():
            if time_s is not None:
                yield dataclasses.replace(cell, stage=stage, time_s=time_s, n=1)
        for stage in _PARTS:
            timed = timed_rounds(record, f"{stage}_s")
            if timed:
                rates = _rates(timed, problem["images"], cell.num_devices)
                own = rates if stage == "compute" else {}
                yield dataclasses.replace(cell, stage=stage, **timed, **own)
        # SciPy took its turns once for all numbers of devices.
        key, timed = tuple(problem.values()), timed_rounds(record, "scipy_s")
        if timed and key not in on_the_host:
            on_the_host.add(key)
            version = text(run.environment, "versions", "scipy")
            yield dataclasses.replace(
                bare,
                **problem,
                stage="scipy",
                precision="fp32",
                num_devices=None,
                hardware="1 CPU thread",
                processor=text(run.environment, "cpu"),
                framework=f"scipy {version}" if version else "scipy",
                **timed,
                **_rates(timed, problem["images"], None),
            )


def _sum(record: Mapping[str, Any], *names: str) -> float | None:
    values = [number(record, name) for name in names]
    return None if None in values else sum(values)


def timed_rounds(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a median of rounds with its interval; nothing where it was not measured."""
    time_s = number(record, name)
    if time_s is None:
        return {}
    samples_s = [number(sample) for sample in items(mapping(record, "samples"), name)]
    samples_s = [sample_s for sample_s in samples_s if sample_s is not None]
    timed = {"time_s": time_s, "n": len(samples_s) or None}
    if len(samples_s) >= FEWEST_FOR_INTERVAL:
        _, timed["time_s_low"], timed["time_s_high"] = median_interval(samples_s)
    return timed


def _rates(
    timed: Mapping[str, Any], images: float | None, devices: float | None
) -> dict[str, float]:
    """Images a second by a time, and its interval: the longest time is the lowest rate."""
    rates = {
        rate: images / timed[time]
        for rate, time in (
            ("images_per_s", "time_s"),
            ("images_per_s_low", "time_s_high"),
            ("images_per_s_high", "time_s_low"),
        )
        if images is not None and (timed.get(time) or 0) > 0
    }
    if "images_per_s" in rates and devices:
        rates["images_per_s_per_device"] = rates["images_per_s"] / devices
    return rates


def _target(run: ReportedRun, bare: Measurement, asked: float | None) -> Iterator[Measurement]:
    """How long a run took to its target; without a time where it never got there."""
    way = time_to_target(run, asked)
    if way is None or not way.evaluations:
        return
    reached = way.epoch is not None
    yield dataclasses.replace(
        bare,
        stage="to_target",
        n=1,
        target=way.target,
        # Of a run that was broken off nobody knows.
        target_reached=reached if way.ended else None,
        epoch=way.epoch,
        time_s=way.time_s if reached else None,
        images=way.images,
        energy_j=way.energy_j,
        score=next((score for _, score in way.evaluations if score >= way.target), None),
    )
