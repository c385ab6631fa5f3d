"""Measure one convolution on 1 to N devices, each part of the work by itself: --mode=conv2d.

One number for everything would hide that compiling and moving pixels take most of the time. So each
trial (a problem on a number of devices) is split into compiling, host to device, computing on the
devices, and device to host, with SciPy on one CPU thread beside it.
"""

import contextlib
import dataclasses
import functools
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.statistics import dependent
from jaxbench.clock import Clock, Stopwatch, rough_duration
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.models.convolution import (
    Conv2dConfig,
    Problem,
    convolve,
    convolve_with_scipy,
    make_inputs,
)
from jaxbench.modes.runner import RunContext, check_device_counts, record_run
from jaxbench.parallel.mesh import DataMesh, create_mesh
from jaxbench.precision import get_precision
from jaxbench.records.recorder import Recorder
from jaxbench.records.run_dir import check_workdir
from jaxbench.records.validity import impossible_arithmetic
from jaxbench.records.writers.console import Console, create_console
from jaxbench.schema import METRICS, Conv2dRecord, Conv2dSummary
from jaxbench.tables.columns import metric_column, metric_columns
from jaxbench.tables.table import make_table
from jaxbench.tables.text import text_table
from jaxbench.training.compilation import compile_step
from jaxbench.xla.compile_cache import without_cache

# A window of computing is cut short if a call takes so long that a few calls are enough.
_WINDOW_S = 0.5
# The parts of a call that are measured every round, by the names they have in the record.
_PARTS = ("host_to_device_s", "compute_s", "call_s", "device_to_host_s")


def measure_conv2d(
    config: Conv2dConfig,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
) -> Recorder:
    """Measure every trial that the config names, and print a table of them."""
    config.validate()
    check_workdir(workdir, config.name)
    with contextlib.closing(console or create_console()) as console:
        mesh = create_mesh(config)
        counts = _device_counts(config, mesh)
        console.say(
            f"{config.name or 'conv2d'} on {mesh.num_devices} x {mesh.devices[0].device_kind}: "
            f"{config.images} images of {config.image_shape[0]}x{config.image_shape[1]}, "
            f"{len(config.problems())} problem(s), on {', '.join(map(str, counts))} device(s), "
            f"{config.precision}, {config.rounds} rounds"
        )
        setup = RunContext(config, Clock(), console, mesh, unused=[])
        problems = config.problems()
        with record_run(
            setup,
            "conv2d",
            workdir,
            summarize=functools.partial(_summarize, config, mesh),
            document={
                "device_counts": counts,
                "problems": [one._asdict() | {"macs": one.macs} for one in problems],
            },
            csv_record=Conv2dRecord,
            telemetry_s=telemetry_s,
        ) as recorder:
            clock, watch, rounds, done_macs = setup.clock, Stopwatch(), 0, 0
            total_macs = sum(problem.macs for problem in problems) * config.rounds
            for problem in problems:
                if problem != problems[0]:
                    counts = sorted({counts[0], counts[-1]})
                images_NxHxWxC, kernel = inputs = make_inputs(problem, config.seed)
                meshes = [dataclasses.replace(mesh, devices=mesh.devices[:n]) for n in counts]
                trials = [Conv2dTrial(config, problem, first, inputs, clock) for first in meshes]
                scipy_s = []
                # The numbers of devices and SciPy are interleaved, so that drift hits all alike.
                with clock.phase("measure"):
                    for number in range(config.rounds):
                        for trial in trials:
                            trial.measure_round()
                        if number < config.scipy_rounds:
                            with clock.phase("scipy"):
                                one_thread = Stopwatch()
                                convolve_with_scipy(kernel, images_NxHxWxC)
                                scipy_s.append(one_thread.elapsed_s())
                        rounds, done_macs = rounds + 1, done_macs + problem.macs
                        # By the arithmetic that is left.
                        left_s = watch.elapsed_s() * (total_macs / done_macs - 1)
                        console.progress(
                            f"kernel {problem.kernel}, channels {problem.channels}",
                            rounds,
                            len(problems) * config.rounds,
                            f"rounds, about {rough_duration(left_s)} left",
                        )
                one_device_s = trials[0].compute_s if counts[0] == 1 else None
                for trial in trials:
                    recorder.write(trial.describe(one_device_s, scipy_s))
            for line in table(recorder.of_kind(Conv2dRecord)):
                console.say(line)
        return recorder


def _summarize(
    config: Conv2dConfig, mesh: DataMesh, status: str, records: Sequence[Conv2dRecord]
) -> Conv2dSummary:
    invalid, warnings = [], []
    for record in records:
        limit = flops_limit(mesh.devices[: record.devices])
        flops_per_s = 1e9 * record.gflop_per_s / record.devices
        name = f"kernel {record.kernel}, channels {record.channels}"
        warnings += dependent(f"{name}: rounds", record.samples["compute_s"])
        invalid += [f"{name}: {why}" for why in impossible_arithmetic(flops_per_s, limit)]
        if record.max_relative_error is None or not np.isfinite(record.max_relative_error):
            invalid.append(f"{name}: the result is not finite in {config.precision}")
    return Conv2dSummary(
        status=status,
        cells=len(records),
        findings=findings(records),
        invalid=invalid,
        warnings=warnings,
    )


def describe(config: Conv2dConfig) -> dict[str, Any]:
    """Return the fields that `--mode=describe` shows; nothing is measured."""
    config.validate()
    mesh = create_mesh(config)
    return {
        "experiment": config.name,
        "config": dataclasses.asdict(config),
        "devices": [device.device_kind for device in mesh.devices],
        "device_counts": _device_counts(config, mesh),
        "problems": [
            problem._asdict()
            | {name: getattr(problem, name) for name in ("macs", "input_bytes", "output_bytes")}
            for problem in config.problems()
        ],
    }


def _device_counts(config: Conv2dConfig, mesh: DataMesh) -> list[int]:
    if config.device_counts:
        return check_device_counts("device_counts", config.device_counts, mesh)
    return [count for count in range(1, mesh.num_devices + 1) if config.images % count == 0]


class Conv2dTrial:
    """One problem on the devices of a mesh; creating it does everything for the first time."""

    def __init__(
        self, config: Conv2dConfig, problem: Problem, mesh: DataMesh, inputs: Any, clock: Clock
    ):
        self._problem, self._calls, self._mesh = problem, config.calls, mesh
        self._images_NxHxWxC, self._kernel = inputs
        dtype = get_precision(config.precision).compute_dtype
        self._step = mesh.map_devices(
            functools.partial(convolve, dtype=dtype), sharded=(False, True), sharded_output=True
        )
        self._samples: dict[str, list[float]] = {part: [] for part in (*_PARTS, "calls")}
        watch = Stopwatch()
        arguments = self._place()
        # Compiling is a part of the first use, which a cache would hide.
        with without_cache():
            compiled = compile_step("convolve", self._step, *arguments, clock=clock)
        outputs_DxBxHxWxF = np.asarray(self._step(*arguments))
        first_use_s = watch.elapsed_s()
        outputs_NxHxWxF = outputs_DxBxHxWxF.reshape(-1, *outputs_DxBxHxWxF.shape[2:])
        # A few images from all over the set: some of every device.
        indices = np.unique(np.linspace(0, len(outputs_NxHxWxF) - 1, 16).astype(int))
        expected = convolve_with_scipy(self._kernel, self._images_NxHxWxC[indices])
        difference = np.abs(outputs_NxHxWxF[indices] - expected).max()
        self._first_use: dict[str, Any] = {
            **{name: getattr(compiled, name) for name in ("lower_s", "compile_s", "memory")},
            "first_use_s": first_use_s,
            "max_relative_error": float(difference / np.abs(expected).max()),
        }

    @property
    def compute_s(self) -> float:
        return statistics.median(self._samples["compute_s"])

    def _place(self) -> tuple[jax.Array, jax.Array]:
        images, shape = self._images_NxHxWxC, self._images_NxHxWxC.shape
        images_DxBxHxWxC = images.reshape(self._mesh.num_devices, -1, *shape[1:])
        arguments = (self._mesh.replicate(self._kernel), self._mesh.shard(images_DxBxHxWxC))
        # Blocking: `wait_until` would notice the end late, by up to a tenth of the time.
        return jax.block_until_ready(arguments)

    def measure_round(self) -> None:
        """Add one sample of each part."""

        def timed(part: str, call: Callable[[], Any], calls: int = 1) -> Any:
            watch = Stopwatch()
            # One call after the other on each device: the last is ready when all are.
            for _ in range(calls):
                result = call()
            result = jax.block_until_ready(result)
            self._samples[part].append(watch.elapsed_s() / calls)
            return result

        arguments = timed("host_to_device_s", self._place)
        timed("call_s", lambda: self._step(*arguments))
        calls = max(1, min(self._calls, int(_WINDOW_S / self._samples["call_s"][-1])))
        self._samples["calls"].append(calls)
        outputs = timed("compute_s", lambda: self._step(*arguments), calls)
        timed("device_to_host_s", lambda: np.asarray(outputs))

    def describe(self, one_device_s: float | None, scipy_s: list[float]) -> Conv2dRecord:
        """Return its record, from the times of one device and of SciPy, if they were measured."""
        parts: dict[str, Any] = {part: statistics.median(self._samples[part]) for part in _PARTS}
        compute_s = parts["compute_s"]
        total_s = parts["host_to_device_s"] + compute_s + parts["device_to_host_s"]
        one_thread_s = statistics.median(scipy_s) if scipy_s else None
        return Conv2dRecord(
            devices=self._mesh.num_devices,
            **self._problem._asdict(),
            **self._first_use,
            **parts,
            steady_total_s=total_s,
            images_per_s=self._problem.images / compute_s,
            gflop_per_s=2 * self._problem.macs / compute_s / 1e9,
            speedup=one_device_s / compute_s if one_device_s else None,
            scipy_s=one_thread_s,
            scipy_per_compute=one_thread_s / compute_s if scipy_s else None,
            scipy_per_steady_total=one_thread_s / total_s if scipy_s else None,
            samples=self._samples | {"scipy_s": scipy_s},
        )


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

    def largest(name: str) -> Conv2dRecord:
        """Return the record that differs from the first one in nothing but the most of this."""
        others = operator.attrgetter(*({"devices", "kernel", "channels"} - {name}))
        alike = [record for record in records if others(record) == others(first)]
        return max(alike, key=operator.attrgetter(name))

    last = largest("devices")
    if last is not first and last.speedup:
        lines.append(
            f"from 1 to {last.devices} devices computing becomes {last.speedup:.2f} times "
            "as fast (strong scaling: the same images split over the devices), computing and "
            f"moving {first.steady_total_s / last.steady_total_s:.2f} times"
        )
    for name, power in (("kernel", 2), ("channels", 1)):
        last = largest(name)
        ratio = getattr(last, name) / getattr(first, name)
        if ratio > 1:
            lines.append(
                f"{name} {getattr(first, name)} to {getattr(last, name)}: {ratio**power:.1f} times "
                f"the arithmetic; computing takes {last.compute_s / first.compute_s:.1f} times as "
                "long"
                + (
                    f", SciPy {last.scipy_s / first.scipy_s:.1f} times"
                    if first.scipy_s and last.scipy_s
                    else ""
                )
            )
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.2f} s"


_SPARE = ("first_use_s", "speedup", "compile_s", "steady_total_s", "device_to_host_s")
_COLUMNS = (
    *metric_columns("kernel", "channels", "devices"),
    metric_column("compile_s", lambda record: record.lower_s + record.compile_s),
    *metric_columns("host_to_device_s", "compute_s", "device_to_host_s", "steady_total_s"),
    *metric_columns("first_use_s", "images_per_s", "speedup", "scipy_s"),
)


def table(records: Sequence[Conv2dRecord]) -> list[str]:
    """Return the table of every record's times."""
    table = make_table(_COLUMNS, records)
    cells = [[cell.text for cell in row] for row in table.rows]
    return text_table(table.columns, cells, [METRICS[name].heading for name in _SPARE])
