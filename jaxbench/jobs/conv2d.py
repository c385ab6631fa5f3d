"""Measures one convolution on 1..N devices, each part of the work by itself.

One number for everything hides what costs the time: compiling and moving pixels, mostly. So each
cell (a problem on a number of devices) is told apart into compiling, host to device, computing on
what lies on the devices, and device to host, with SciPy on one CPU thread beside it.
"""

import contextlib
import dataclasses
import functools
import statistics
from typing import Any

import jax
import numpy as np
import psutil

from jaxbench.clock import Clock, Stopwatch, duration
from jaxbench.distributed.mesh import DataMesh, create_mesh, peak_memory_bytes
from jaxbench.errors import BadInput
from jaxbench.hardware.environment import host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.models.convolution import (
    Conv2dConfig,
    Problem,
    convolve,
    convolve_with_scipy,
    make_inputs,
)
from jaxbench.precision import get_precision
from jaxbench.records.recorder import recording
from jaxbench.records.run_dir import RunDir, check_workdir
from jaxbench.records.schema import Conv2dRecord
from jaxbench.records.writers.console import Console, create_console
from jaxbench.records.writers.files import CsvWriter
from jaxbench.records.writers.tables import text_table
from jaxbench.training.program import compile_step
from jaxbench.xla.compile_cache import without_cache

# A window of computing is cut short where a call takes so long that a few tell enough.
_WINDOW_S = 0.5
# The parts of a call that are measured every round, by the names they have in the record.
_PARTS = ("host_to_device_s", "compute_s", "call_s", "device_to_host_s")


@dataclasses.dataclass(frozen=True)
class Result:
    """One record for each cell, the summary record and the folder they are in."""

    cells: list[dict[str, Any]]
    summary: dict[str, Any]
    run_dir: RunDir


def measure(
    config: Conv2dConfig,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
) -> Result:
    """Measures every cell that the config names and prints them as a table.

    Args:
      config: the experiment.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      telemetry_s: seconds between readings of the hardware, 0 for none.

    Raises:
      BadInput: before anything is written.
    """
    config.validate()
    check_workdir(workdir, config.name)
    with contextlib.ExitStack() as stack:
        console = console or create_console()
        stack.callback(console.close)
        mesh = create_mesh(config)
        counts = _device_counts(config, mesh)
        problems = config.problems()
        _check_memory(problems)
        console.say(
            f"{config.name or 'conv2d'} on {mesh.num_devices} x {mesh.devices[0].device_kind}: "
            f"{config.images} images of {config.image_shape[0]}x{config.image_shape[1]}, "
            f"{len(problems)} problem(s), {_shared_by(config, counts)}, "
            f"{config.precision}, {config.rounds} rounds"
        )
        document = {
            "mode": "conv2d",
            "config": dataclasses.asdict(config),
            "device_counts": counts,
            "problems": [problem._asdict() | {"macs": problem.macs} for problem in problems],
        }
        clock, cells = Clock(), []
        with recording(workdir, config, mesh, document, console, clock, telemetry_s) as recorder:
            recorder.summarize = functools.partial(_summarize, clock, mesh, cells)
            recorder.writers.add(CsvWriter(recorder.run_dir.path / "conv2d.csv", Conv2dRecord))
            progress = _Progress(console, problems, config.rounds)
            for problem in problems:
                measured = counts
                if config.sweep == "axes" and problem != problems[0]:
                    measured = sorted({counts[0], counts[-1]})
                for cell in _measure_problem(config, problem, mesh, measured, clock, progress):
                    cells.append(cell)
                    recorder.writers.write(cell)
        for line in (*_table(cells), *recorder.summary["findings"]):
            console.say(line)
        return Result(cells, recorder.summary, recorder.run_dir)


def describe(config: Conv2dConfig) -> dict[str, Any]:
    """Returns what `--mode=describe` shows; nothing is measured."""
    config.validate()
    mesh = create_mesh(config)
    return {
        "experiment": config.name,
        "config": dataclasses.asdict(config),
        "devices": [device.device_kind for device in mesh.devices],
        "device_counts": _device_counts(config, mesh),
        "shared_by": _shared_by(config, _device_counts(config, mesh)),
        "problems": [
            {
                **problem._asdict(),
                "macs": problem.macs,
                "input_bytes": 4 * int(np.prod(problem[:4])),
                "output_bytes": 4 * int(np.prod(problem[:3])) * problem.filters,
            }
            for problem in config.problems()
        ],
    }


def _check_memory(problems: list[Problem]) -> None:
    """Raises BadInput where images, outputs and their copies would fill the memory."""
    largest = max(problems, key=lambda p: p.images * p.height * p.width * (p.channels + p.filters))
    pixels = largest.images * largest.height * largest.width
    needed_bytes = 3 * 4 * pixels * (largest.channels + largest.filters)
    available_bytes = psutil.virtual_memory().available
    if needed_bytes > available_bytes:
        raise BadInput(
            f"images={largest.images} of {largest.height}x{largest.width} with {largest.channels} "
            f"channels and {largest.filters} filters need {needed_bytes / 2**30:,.1f} GiB; "
            f"{available_bytes / 2**30:,.1f} GiB are free"
        )


def _shared_by(config: Conv2dConfig, counts: list[int]) -> str:
    """Which numbers of devices measure what, in words."""
    all_counts = ", ".join(map(str, counts))
    if config.sweep == "grid" or len(counts) < 3:
        return f"each on {all_counts} device(s)"
    return f"the first on {all_counts} device(s), the others on {counts[0]} and {counts[-1]}"


def _device_counts(config: Conv2dConfig, mesh: DataMesh) -> list[int]:
    if config.device_counts:
        if max(config.device_counts) > mesh.num_devices:
            raise BadInput(
                f"device_counts={config.device_counts}: this machine has {mesh.num_devices} "
                f"{mesh.devices[0].device_kind} device(s)"
            )
        return sorted(set(config.device_counts))
    return [count for count in range(1, mesh.num_devices + 1) if config.images % count == 0]


class _Progress:
    """Says how far the measuring is, and about how long it will take, by the arithmetic to do."""

    def __init__(self, console: Console, problems: list[Problem], rounds: int):
        self._console = console
        self._work = {problem: problem.macs for problem in problems}
        self._rounds = rounds
        self._total = sum(self._work.values()) * rounds
        self._done = self._count = 0
        self._watch = Stopwatch()

    def round_done(self, problem: Problem) -> None:
        self._done += self._work[problem]
        self._count += 1
        left_s = self._watch.elapsed_s() * (self._total / self._done - 1)
        self._console.progress(
            f"kernel {problem.kernel}, channels {problem.channels}",
            self._count,
            len(self._work) * self._rounds,
            f"rounds, about {duration(left_s)} left",
        )


class _Cell:
    """One problem on the first `count` devices."""

    def __init__(
        self,
        config: Conv2dConfig,
        problem: Problem,
        mesh: DataMesh,
        inputs: tuple[np.ndarray, np.ndarray],
    ):
        self._config = config
        self._mesh = mesh
        images_NxHxWxC, self._kernel = inputs
        self._images_DxBxHxWxC = images_NxHxWxC.reshape(
            mesh.num_devices, -1, *images_NxHxWxC.shape[1:]
        )
        dtype = get_precision(config.precision).compute_dtype
        self._step = mesh.parallelize(
            functools.partial(convolve, dtype=dtype), sharded=(False, True), sharded_output=True
        )
        self.samples: dict[str, list[float]] = {part: [] for part in (*_PARTS, "calls")}

    def compile(self, clock: Clock) -> dict[str, Any]:
        """Does everything for the first time, result on the host included."""
        watch = Stopwatch()
        arguments = self._place()
        # Of the first use compiling is a part, which a cache would hide.
        with without_cache():
            compiled = compile_step("convolve", self._step, *arguments, clock=clock)
        self.outputs_DxBxHxWxF = np.asarray(self._step(*arguments))
        return {
            "lower_s": compiled["lower_s"],
            "compile_s": compiled["compile_s"],
            "first_use_s": watch.elapsed_s(),
            "memory": compiled["memory"],
        }

    def _place(self) -> tuple[jax.Array, jax.Array]:
        arguments = (
            self._mesh.replicate(self._kernel),
            self._mesh.shard(self._images_DxBxHxWxC),
        )
        # Blocking: looking now and then would be late by a tenth.
        return jax.block_until_ready(arguments)

    def measure_round(self) -> None:
        """Adds one sample of each part."""
        watch = Stopwatch()
        arguments = self._place()
        self.samples["host_to_device_s"].append(watch.elapsed_s())

        watch = Stopwatch()
        outputs = jax.block_until_ready(self._step(*arguments))
        self.samples["call_s"].append(watch.elapsed_s())
        calls = max(1, min(self._config.calls, int(_WINDOW_S / watch.elapsed_s())))

        watch = Stopwatch()
        # One after the other on each device: the last is ready when all are.
        for _ in range(calls):
            outputs = self._step(*arguments)
        jax.block_until_ready(outputs)
        self.samples["compute_s"].append(watch.elapsed_s() / calls)
        self.samples["calls"].append(calls)

        watch = Stopwatch()
        np.asarray(outputs)
        self.samples["device_to_host_s"].append(watch.elapsed_s())


def _measure_problem(
    config: Conv2dConfig,
    problem: Problem,
    mesh: DataMesh,
    counts: list[int],
    clock: Clock,
    progress: _Progress,
) -> list[dict[str, Any]]:
    """Returns the records of one problem, one for each number of devices.

    The numbers of devices and SciPy take turns, so that what drifts hits all alike.
    """
    inputs = make_inputs(problem, config.seed)
    cells, records = [], []
    for count in counts:
        cell = _Cell(config, problem, DataMesh(mesh.devices[:count], mesh.parallelism), inputs)
        record = {"kind": "conv2d", "devices": count, **problem._asdict(), **cell.compile(clock)}
        record["max_relative_error"] = _relative_error(problem, inputs, cell.outputs_DxBxHxWxF)
        del cell.outputs_DxBxHxWxF
        cells.append(cell)
        records.append(record)
    scipy_s = []
    with clock.phase("measure"):
        for number in range(config.rounds):
            for cell in cells:
                cell.measure_round()
            if number < config.scipy_rounds:
                images_NxHxWxC, kernel = inputs
                with clock.phase("scipy"):
                    watch = Stopwatch()
                    convolve_with_scipy(kernel, images_NxHxWxC)
                    scipy_s.append(watch.elapsed_s())
            progress.round_done(problem)
    for cell, record in zip(cells, records, strict=True):
        record |= {part: statistics.median(cell.samples[part]) for part in _PARTS}
        record["steady_total_s"] = (
            record["host_to_device_s"] + record["compute_s"] + record["device_to_host_s"]
        )
        record["images_per_s"] = problem.images / record["compute_s"]
        record["gflop_per_s"] = 2 * problem.macs / record["compute_s"] / 1e9
        alone_s = records[0]["compute_s"] if counts[0] == 1 else None
        record["speedup"] = alone_s / record["compute_s"] if alone_s else None
        one_thread_s = statistics.median(scipy_s) if scipy_s else None
        record["scipy_s"] = one_thread_s
        for part in ("compute", "steady_total"):
            record[f"scipy_per_{part}"] = (
                one_thread_s / record[f"{part}_s"] if one_thread_s else None
            )
        record["samples"] = cell.samples | {"scipy_s": scipy_s}
    return records


def _relative_error(
    problem: Problem, inputs: tuple[np.ndarray, np.ndarray], outputs_DxBxHxWxF: np.ndarray
) -> float:
    """The largest difference from SciPy, relative to its largest value, over a few images."""
    images_NxHxWxC, kernel = inputs
    outputs_NxHxWxF = outputs_DxBxHxWxF.reshape(problem.images, *outputs_DxBxHxWxF.shape[2:])
    # From all over the set, so that every device has some of its images looked at.
    places = sorted(set(np.linspace(0, problem.images - 1, 16).astype(int).tolist()))
    expected = convolve_with_scipy(kernel, images_NxHxWxC[places])
    difference = np.abs(outputs_NxHxWxF[places] - expected).max()
    return float(difference / np.abs(expected).max())


def _summarize(
    clock: Clock, mesh: DataMesh, cells: list[dict[str, Any]], status: str
) -> dict[str, Any]:
    phases_s = clock.totals_s()
    return {
        "kind": "summary",
        "status": status,
        "cells": len(cells),
        "findings": _findings(cells),
        "peak_memory_bytes": peak_memory_bytes(mesh.devices),
        "host_peak_memory_bytes": host_peak_memory_bytes(),
        "phases_s": phases_s,
        "wall_s": clock.wall_s(),
    }


def _findings(cells: list[dict[str, Any]]) -> list[str]:
    """What the figures say to the questions that the published comparison left open."""
    if not cells:
        return []
    first = cells[0]
    own = [c for c in cells if (c["kernel"], c["channels"]) == (first["kernel"], first["channels"])]
    lines = [
        f"first use on {first['devices']} device(s): {_ms(first['first_use_s'])}, of which "
        f"{(first['lower_s'] + first['compile_s']) / first['first_use_s']:.0%} is compiling; "
        f"after that a call computes for {_ms(first['compute_s'])} and moves data for "
        f"{_ms(first['host_to_device_s'])} to the device(s) and {_ms(first['device_to_host_s'])} "
        "back"
    ]
    if first["scipy_s"]:
        lines.append(
            f"SciPy on one CPU thread takes {_ms(first['scipy_s'])}: "
            f"{first['scipy_per_compute']:.2f} times the computing alone, "
            f"{first['scipy_per_steady_total']:.2f} times computing and moving, "
            f"{first['scipy_s'] / first['first_use_s']:.2f} times the first use"
        )
    if len(own) > 1 and own[-1]["speedup"]:
        lines.append(
            f"from 1 to {own[-1]['devices']} devices computing becomes "
            f"{own[-1]['speedup']:.2f} times as fast (strong scaling: the same images dealt out), "
            f"computing and moving {first['steady_total_s'] / own[-1]['steady_total_s']:.2f} times"
        )
    for name in ("kernel", "channels"):
        other = {"kernel": "channels", "channels": "kernel"}[name]
        line = [c for c in cells if c["devices"] == first["devices"] and c[other] == first[other]]
        last = max(line, key=lambda c: c[name])
        if last[name] > first[name]:
            work = (last[name] / first[name]) ** (2 if name == "kernel" else 1)
            lines.append(
                f"{name} {first[name]} to {last[name]}: {work:.1f} times the arithmetic; computing "
                f"takes {last['compute_s'] / first['compute_s']:.1f} times as long"
                + (
                    f", SciPy {last['scipy_s'] / first['scipy_s']:.1f} times"
                    if first["scipy_s"]
                    else ""
                )
            )
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _table(cells: list[dict[str, Any]]) -> list[str]:
    """Return the table of every cell's times, in milliseconds."""
    headings = ("kernel", "channels", "devices", "compile", "to device", "compute", "to host") + (
        "steady total",
        "first use",
        "images/s",
        "speed-up",
        "SciPy",
    )
    rows = [("", "", "") + ("ms",) * 6 + ("", "", "ms")]
    for cell in cells:
        times_s = (
            cell["lower_s"] + cell["compile_s"],
            *(cell[part] for part in ("host_to_device_s", "compute_s", "device_to_host_s")),
            cell["steady_total_s"],
            cell["first_use_s"],
        )
        rows.append(
            (str(cell["kernel"]), str(cell["channels"]), str(cell["devices"]))
            + tuple(f"{seconds * 1e3:,.2f}" for seconds in times_s)
            + (f"{cell['images_per_s']:,.0f}",)
            + (f"{cell['speedup']:.2f}" if cell["speedup"] else "",)
            + (f"{cell['scipy_s'] * 1e3:,.1f}" if cell["scipy_s"] else "",)
        )
    return text_table(headings, rows)
