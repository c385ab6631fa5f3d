"""Measures what more devices are worth: --mode=scaling.

A cell is one training step on some devices with one batch, everything on the devices already. Cells
and all-reduces of the gradient's size take turns, so that what drifts hits all alike. Every cell
keeps its state on its devices until the end (parameters, statistics, the optimizer's; activations
are there only while it runs), so that its replicas can be compared after all of its steps; one that
does not fit in memory is recorded as such, and the others go on.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.scaling_model import (
    efficiency,
    efficiency_warnings,
    label,
    predict,
    ring_bytes,
    split,
)
from jaxbench.analysis.statistics import median_interval
from jaxbench.clock import Stopwatch, duration
from jaxbench.config import Config
from jaxbench.data.feeds.feed import create_feed
from jaxbench.distributed.mesh import (
    AXIS,
    DataMesh,
    create_mesh,
    mixed_devices,
    peak_memory_bytes,
    unequal_copies,
)
from jaxbench.errors import BadInput, MixedDevices
from jaxbench.geometry import BatchGeometry
from jaxbench.hardware.environment import available_cores, host_peak_memory_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.hardware.utilization import utilization
from jaxbench.jobs.setup import Job, StagesResult, setup_job, with_feed
from jaxbench.jobs.windows import (
    DispatchLimiter,
    WarmUp,
    check_window_s,
    describe_windows,
    falling_loss_warnings,
    unsettled_warnings,
    wait_for_steps,
    warm_up,
)
from jaxbench.records.recorder import classify, recording
from jaxbench.records.schema import ScalingRecord, record_from_json
from jaxbench.records.validity import impossible
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.describe import scaling_table
from jaxbench.records.writers.files import CsvWriter
from jaxbench.training.program import build_program
from jaxbench.training.train_step import TrainState
from jaxbench.xla.flops import TRAINING_FLOPS_PER_MAC

PREDICTED_DEVICES = (8, 64, 256, 1024)
# More steps than are ever taken.
_ENDLESS = 2**40


def measure_scaling(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    scaling: str = "both",
    device_counts: Sequence[int] = (),
    link_gb_per_s: float | None = None,
    rounds: int = 11,
    window_s: float = 1.0,
    telemetry_s: float = INTERVAL_S,
) -> StagesResult:
    """Measures an experiment's training step on 1 to N devices.

    Args:
      config: the experiment; its `batch_size` is the global batch on N devices, and on any number
        under strong scaling.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      scaling: weak: each device has `batch_size / N` images, however many take part. strong: all
        together have `batch_size`. both.
      device_counts: how many of the local devices, the first ones; the largest is N. Empty takes 1,
        2, 4 ... and all.
      link_gb_per_s: the bandwidth of the links that predictions reckon with, in 1e9 bytes a second;
        None takes what the all-reduce over most devices was measured to use.
      rounds: measurements of each cell.
      window_s: each holds as many steps as take about so long.
      telemetry_s: seconds between readings of the hardware, 0 for none.

    Raises:
      BadInput: before anything is written.
      Diverged: a loss is no longer finite.
      MixedDevices: the devices are of several kinds and the backend does not run them together;
        each one alone has been measured by then.
    """
    config = with_feed(config, "synthetic")
    check_window_s(window_s)
    if config.replicas == "independent":
        raise BadInput(
            "--mode=scaling with replicas='independent': models that exchange nothing have nothing "
            "to scale; replicas=data_parallel goes with it"
        )
    check_link(link_gb_per_s)
    counts = _device_counts(device_counts, create_mesh(config))
    config = dataclasses.replace(config, num_devices=counts[-1])
    if scaling != "weak":
        for count in counts:
            BatchGeometry.create(config, count)
    with setup_job(config, workdir, console) as job:
        meter = _Meter(job, scaling, counts, link_gb_per_s, window_s, rounds)
        document = job.document() | {
            "mode": "scaling",
            "rounds": rounds,
            "scaling": scaling,
            "device_counts": counts,
            "link_gb_per_s": link_gb_per_s,
        }
        with recording(
            workdir, config, job.mesh, document, job.console, job.clock, telemetry_s
        ) as recorder:
            recorder.summarize = meter.summarize
            path = recorder.run_dir.path / "scaling.csv"
            recorder.writers.add(CsvWriter(path, ScalingRecord))
            for record in meter.start():
                recorder.writers.write(record)
            try:
                meter.warm_up()
                meter.measure()
                meter.compare_replicas()
            finally:
                # However it ends: what has been measured until then.
                meter.describe()
                records = [record_from_json(record) for record in meter.records]
                scaled = [record for record in records if isinstance(record, ScalingRecord)]
                for line in scaling_table(scaled) if scaled else ():
                    job.console.say(line)
                for record in records:
                    recorder.writers.write(record)
            if meter.mixed:
                raise meter.mixed
        return StagesResult(meter.records, recorder.summary, recorder.run_dir)


def check_link(link_gb_per_s: float | None) -> None:
    """Raises BadInput for what is no bandwidth."""
    if link_gb_per_s is not None and not 0 < link_gb_per_s < math.inf:
        raise BadInput(f"--link_gb_per_s={link_gb_per_s}: must be more than 0")


def _device_counts(given: Sequence[int], mesh: DataMesh) -> list[int]:
    """Returns how many devices take part, from few to many."""
    most = mesh.num_devices
    if not given:
        return sorted({most, *(2**power for power in range(most.bit_length()))} - {0})
    if min(given) < 1 or max(given) > most:
        raise BadInput(
            f"--device_counts={','.join(map(str, given))}: must lie within 1 and {most}, the "
            f"{mesh.devices[0].device_kind} device(s) that take part"
        )
    return sorted(set(given))


class _Interleaved(abc.ABC):
    """What takes turns with others: how much a window holds, and how long each took."""

    def __init__(self, window_s: float):
        self.windows_s: list[float] = []
        self.warmup: WarmUp | None = None
        self._window_s = window_s

    @abc.abstractmethod
    def run(self, calls: int) -> None:
        """Returns once all that so many calls compute is there."""

    def _time(self, calls: int) -> float:
        watch = Stopwatch()
        self.run(calls)
        return watch.elapsed_s()

    def warm_up(self, rounds: int) -> None:
        self.warmup = warm_up(self._time, self._window_s, rounds)

    def measure(self) -> None:
        self.windows_s.append(self._time(self.warmup.calls_per_window))


class _Cell(_Interleaved):
    """One training step on some devices, its state on its way through the windows."""

    def __init__(self, job: Job, window_s: float):
        super().__init__(window_s)
        self.job = job
        self.devices = job.mesh.devices
        self.batch_size = job.config.batch_size
        self.batch_per_device = self.batch_size // len(self.devices)
        self.collectives: dict[str, dict[str, int]] | None = None
        self.losses: list[float] = []
        self.images_counted: int | None = None
        self._limiter = DispatchLimiter(self.devices)
        self.steps = 0
        self.unequal: list[str] | None = None
        self.status, self.reason = "done", None
        self._state: Any = None
        self._batch: Any = None

    @property
    def name(self) -> str:
        ids = [device.id for device in self.devices]
        which = f"device {ids[0]}" if len(ids) == 1 else f"{len(ids)} devices"
        return f"batch {self.batch_size} on {which}"

    def start(self, initial: TrainState) -> dict[str, Any]:
        """Places the state, compiles, takes the first step; returns the compile record."""
        program, feed = self.job.program, self.job.feed
        with self.job.clock.phase("place_data"):
            self._state = self.job.mesh.replicate(initial)
            self._batch = next(feed.train_batches(0, 1))
        record = self.job.compile(
            "train_step",
            program.train_step,
            self._state,
            feed.train_data,
            self._batch,
            f", {self.name}",
        )
        self.collectives = record["collectives"]
        with self.job.clock.phase("first_step"):
            self.run(1)
        return record | {
            "num_devices": len(self.devices),
            "device_ids": [device.id for device in self.devices],
            "batch_size": self.batch_size,
        }

    def give_up(self, status: str, reason: str) -> None:
        """Frees what it holds on the devices."""
        self.status, self.reason = status, reason
        self._state = None

    def run(self, calls: int) -> None:
        step, data = self.job.program.train_step, self.job.feed.train_data
        for _ in range(calls):
            self._state, metrics = step(self._state, data, self._batch)
            self._limiter.add(metrics)
        self.steps += calls
        loss, self.images_counted = wait_for_steps(self._state, metrics)
        self.losses.append(loss)

    def compare_replicas(self) -> None:
        """Looks whether all devices have the same state, and lets it go."""
        if len(self.devices) > 1:
            self.unequal = unequal_copies(self._state)
        self._state = None

    def describe(self) -> dict[str, Any]:
        """What every record of a cell says; rates are null until a window has been measured."""
        rates: dict[str, Any] = dict.fromkeys(
            ("images_per_s", "images_per_s_low", "images_per_s_high", "step_s")
        )
        if self.windows_s:
            steps = self.warmup.calls_per_window
            rates = describe_windows(self.batch_size * steps, self.windows_s)
            rates["step_s"] = self.batch_size / rates["images_per_s"]
            rates["steps_per_window"] = steps
            flops = sum(self.job.program.forward_macs().values()) * TRAINING_FLOPS_PER_MAC
            rates |= utilization(
                self.job.program.mesh,
                self.job.program.config.precision,
                rates["images_per_s"],
                flops,
            )
        return {
            "precision": self.job.config.precision,
            "num_devices": len(self.devices),
            "batch_size": self.batch_size,
            "batch_per_device": self.batch_per_device,
            "images_per_step": self.batch_size,
            "images_counted": self.images_counted,
            **rates,
            "steps": self.steps,
            "warmup_steps": self.warmup.calls if self.warmup else None,
            "warmup_settled": self.warmup.settled if self.warmup else None,
            "status": self.status,
            "reason": self.reason,
        }


class _AllReduce(_Interleaved):
    """The sum, over some devices, of a buffer as large as the gradient."""

    def __init__(self, mesh: DataMesh, gradient_bytes: int, window_s: float):
        super().__init__(window_s)
        self.num_devices = mesh.num_devices
        self.name = f"all-reduce over {self.num_devices} devices"
        self.elements = max(1, gradient_bytes // np.dtype(np.float32).itemsize)
        # Simulated devices share a pool of threads, in which all-reduces queued one after the other
        # wait for one another for ever (seen with 4 devices on 2 cores).
        self._one_by_one = mesh.devices[0].platform == "cpu"
        self._mesh = mesh
        self._call = mesh.parallelize(
            lambda buffer: jax.lax.psum(buffer, AXIS),
            sharded=(True,),
            sharded_output=True,
            donate=(0,),
        )

    def start(self) -> None:
        # Zeros stay zeros, however often they are summed.
        self._buffers_Dx = self._mesh.shard(np.zeros((self.num_devices, self.elements), np.float32))
        self.run(1)

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._buffers_Dx = self._call(self._buffers_Dx)
            if self._one_by_one:
                self._buffers_Dx.block_until_ready()
        self._buffers_Dx.block_until_ready()

    def describe(self, weak_step_s: float | None) -> dict[str, Any]:
        calls = self.warmup.calls_per_window
        times_R = [window_s / calls for window_s in self.windows_s]
        time_s, low_s, high_s = median_interval(times_R)
        size = self.elements * np.dtype(np.float32).itemsize
        moved = ring_bytes(self.num_devices, size)
        return {
            "kind": "all_reduce",
            "num_devices": self.num_devices,
            "bytes": size,
            "all_reduce_s": time_s,
            "all_reduce_s_low": low_s,
            "all_reduce_s_high": high_s,
            "bus_bytes_per_s": moved / time_s,
            "bus_bytes_per_s_low": moved / high_s,
            "bus_bytes_per_s_high": moved / low_s,
            "share_of_weak_step": time_s / weak_step_s if weak_step_s else None,
            "calls_per_window": calls,
            "windows_s": self.windows_s,
        }


class _Meter:
    """All cells and all-reduces, and what was seen of them."""

    def __init__(
        self,
        job: Job,
        scaling: str,
        counts: Sequence[int],
        link_gb_per_s: float | None,
        window_s: float,
        rounds: int,
    ):
        self._job = job
        self._link_gb_per_s = link_gb_per_s
        self._window_s = window_s
        self._rounds = rounds
        self._compile_s = 0.0
        self._devices = job.mesh.devices
        self._share = job.config.batch_size // len(self._devices)
        params = job.program.abstract_train_state().params
        self._gradient_bytes = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)
        )
        # Weak and strong meet on all devices, weak and alone on the first: measured once.
        self._cells: dict[tuple, _Cell] = {}
        self._scaled = {
            (kind, count): self._cell(
                self._devices[:count],
                self._share * count if kind == "weak" else job.config.batch_size,
            )
            for kind in ("weak", "strong")
            if scaling in (kind, "both")
            for count in counts
        }
        self._alone = [self._cell((device,), self._share) for device in self._devices]
        self._all_reduces = [
            _AllReduce(
                dataclasses.replace(job.mesh, devices=self._devices[:count]),
                self._gradient_bytes,
                window_s,
            )
            for count in counts
            if count > 1
        ]
        self.mixed: MixedDevices | None = None
        self.records: list[dict[str, Any]] = []

    def _cell(self, devices: tuple, batch_size: int) -> _Cell:
        key = (devices, batch_size)
        if key not in self._cells:
            self._cells[key] = _Cell(_resized(self._job, devices, batch_size), self._window_s)
        return self._cells[key]

    def start(self) -> Iterator[dict[str, Any]]:
        """Compiles everything and takes first steps; yields the compile records."""
        with self._job.clock.phase("init"), self._job.console.phase("initialising the parameters"):
            initial = jax.device_get(self._job.program.create_train_state())
        for cell in self._cells.values():
            record = self._unless_lost(cell, functools.partial(cell.start, initial))
            if record:
                self._compile_s += record["lower_s"] + record["compile_s"]
                yield record
        if self.mixed:
            self._all_reduces = []
        for all_reduce in self._all_reduces:
            with self._job.console.phase(f"compiling the {all_reduce.name}"):
                all_reduce.start()

    def _unless_lost(self, cell: _Cell, act: Callable[[], Any]) -> Any:
        """Gives a cell up that does not fit in memory, or whose devices do not run together."""
        try:
            return act()
        except Exception as error:
            mixed = mixed_devices(cell.devices, error)
            self.mixed = self.mixed or mixed
            status, reason = classify(mixed or error)
            if status != "oom" and not mixed:
                raise
            cell.give_up(status, reason)
            self._job.console.say(f"{cell.name}: {status}")
            return None

    def _turns(self) -> list[_Interleaved]:
        cells = [cell for cell in self._cells.values() if cell.status == "done"]
        return [*cells, *self._all_reduces]

    def warm_up(self) -> None:
        with self._job.clock.phase("warm_up"):
            turns = self._turns()
            for place, turn in enumerate(turns):
                self._job.console.progress("warming up", place, len(turns), turn.name)
                if isinstance(turn, _Cell):
                    self._unless_lost(turn, functools.partial(turn.warm_up, self._rounds))
                else:
                    turn.warm_up(self._rounds)

    def measure(self) -> None:
        turns = self._turns()
        total, watch = self._rounds * len(turns), Stopwatch()
        with self._job.clock.phase("measure"):
            for number in range(self._rounds):
                # Forwards, then backwards.
                for place, turn in enumerate(turns if number % 2 == 0 else turns[::-1], 1):
                    turn.measure()
                    done = number * len(turns) + place
                    left_s = watch.elapsed_s() / done * (total - done)
                    status = f"windows  {duration(left_s)} left"
                    self._job.console.progress("measuring", done, total, status)

    def compare_replicas(self) -> None:
        with self._job.clock.phase("compare"), self._job.console.phase("comparing the replicas"):
            for cell in self._cells.values():
                if cell.status == "done":
                    cell.compare_replicas()

    def describe(self) -> None:
        """Makes the records of what has been measured."""
        for (kind, _), cell in self._scaled.items():
            if not cell.windows_s and cell.status == "done":
                continue  # broken off before its turn
            one = self._scaled.get((kind, 1)) or (self._alone[0] if kind == "weak" else None)
            record = cell.describe()
            base = one.describe() if one and one.windows_s else None
            self.records.append(
                {
                    "kind": "scaling",
                    "scaling": kind,
                    **record,
                    **efficiency(record, base),
                    "gradient_bytes": self._gradient_bytes,
                    "collectives": cell.collectives,
                    # Null on one device, and where it was not looked at.
                    "replicas_equal_after_steps": (
                        None if cell.unequal is None else not cell.unequal
                    ),
                    "unequal": cell.unequal,
                }
            )
        for cell in self._alone:
            if cell.windows_s:
                [device] = cell.devices
                self.records.append(
                    {
                        "kind": "device",
                        "device_id": device.id,
                        "device_kind": device.device_kind,
                        **cell.describe(),
                    }
                )
        for all_reduce in self._all_reduces:
            if all_reduce.windows_s:
                weak = self._scaled.get(("weak", all_reduce.num_devices))
                step_s = weak.describe()["step_s"] if weak else None
                self.records.append(all_reduce.describe(step_s))

    def summarize(self, status: str) -> dict[str, Any]:
        phases_s = self._job.clock.totals_s()
        scaled, alone, all_reduces = (
            [record for record in self.records if record["kind"] == kind]
            for kind in ("scaling", "device", "all_reduce")
        )
        return {
            "kind": "summary",
            "status": status,
            "compile_s": self._compile_s or None,  # broken off before
            "efficiencies": [
                {
                    name: record[name]
                    for name in ("scaling", "num_devices", "batch_size", "images_per_s")
                    + ("efficiency", "efficiency_low", "efficiency_high")
                }
                for record in scaled
            ],
            "exchange": self._exchange(),
            "devices": split(alone, self._share) if len(alone) == len(self._devices) else None,
            "predictions": self._predict(alone, all_reduces),
            "peak_memory_bytes": peak_memory_bytes(self._devices),
            "host_peak_memory_bytes": host_peak_memory_bytes(),
            "phases_s": phases_s,
            "wall_s": self._job.clock.wall_s(),
            "invalid": self._invalid(scaled, alone),
            "warnings": self._warnings(scaled),
        }

    def _exchange(self) -> dict[str, Any] | None:
        """What the compiled step on most devices exchanges, beside the gradient that it must."""
        cells = [cell for cell in self._scaled.values() if cell.collectives is not None]
        if not cells:
            return None
        cell = max(cells, key=lambda cell: len(cell.devices))
        return {
            "num_devices": len(cell.devices),
            "gradient_bytes": self._gradient_bytes,
            "collectives": cell.collectives,
        }

    def _predict(
        self, alone: Sequence[Mapping[str, Any]], all_reduces: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        if self._link_gb_per_s is not None:
            link_bytes_per_s = self._link_gb_per_s * 1e9
            source = "stated (--link_gb_per_s)"
        elif all_reduces:
            link_bytes_per_s = all_reduces[-1]["bus_bytes_per_s"]
            source = (
                f"measured: bus bandwidth of an all-reduce over "
                f"{all_reduces[-1]['num_devices']} {self._devices[0].device_kind} devices"
            )
        else:
            return []  # nothing says how fast the links are
        if not alone or alone[0]["device_id"] != self._devices[0].id:
            return []
        return [
            predict(
                count,
                step_s=alone[0]["step_s"],
                batch_per_device=self._share,
                gradient_bytes=self._gradient_bytes,
                link_bytes_per_s=link_bytes_per_s,
                link_source=source,
            )
            for count in PREDICTED_DEVICES
        ]

    def _invalid(
        self, scaled: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        told = [
            f"{label(record)}: {reason}"
            for record in (*scaled, *alone)
            if record["images_per_s"] is not None
            for reason in impossible(record_from_json(record))
        ]
        for record in scaled:
            if record["unequal"]:
                told.append(
                    f"{label(record)}: after {record['steps']} steps the replicas differ in "
                    f"{len(record['unequal'])} arrays, the first of them {record['unequal'][0]}"
                )
        return told

    def _warnings(self, scaled: Sequence[Mapping[str, Any]]) -> list[str]:
        """What a reader must know before believing the figures."""
        told = efficiency_warnings(scaled)
        if self._devices[0].platform == "cpu" and len(self._devices) > 1:
            told.append(
                f"these {len(self._devices)} devices are simulated and share "
                f"{available_cores()} processor core(s): efficiencies, bandwidths and predictions "
                "say nothing about accelerators"
            )
        if len(self._devices) == 1:
            told.append("one device: nothing was scaled")
        turns = [*self._cells.values(), *self._all_reduces]
        told += unsettled_warnings(
            {turn.name: (turn.warmup, turn.warmup.calls) for turn in turns if turn.warmup}
        )
        for cell in self._cells.values():
            told += falling_loss_warnings(cell.losses, cell.name)
        return told


def _resized(job: Job, devices: tuple, batch_size: int) -> Job:
    """The same network on these devices, with a made-up batch of this size."""
    mesh = dataclasses.replace(job.mesh, devices=devices)
    config = dataclasses.replace(job.config, num_devices=len(devices), batch_size=batch_size)
    feed = create_feed(config, None, mesh, job.program.precision.param_dtype)
    program = build_program(config, mesh, feed.steps_per_epoch)
    return dataclasses.replace(job, config=config, mesh=mesh, feed=feed, program=program)
