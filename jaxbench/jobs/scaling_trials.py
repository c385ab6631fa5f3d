"""What --mode=scaling measures: a training step on some devices, and an all-reduce over them.

A trial has everything on its devices before its windows begin, and keeps its state there until the
replicas have been compared.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxbench.analysis.scaling_model import Interval, ring_bytes
from jaxbench.analysis.statistics import median_interval
from jaxbench.data.feeds.feed import create_feed
from jaxbench.distributed.mesh import AXIS, DataMesh, unequal_copies
from jaxbench.geometry import BatchGeometry
from jaxbench.jobs.setup import Job
from jaxbench.jobs.windows import Stepper, describe_windows
from jaxbench.microbench.interleaved import Interleaved
from jaxbench.records.schema import AllReduceRecord, CompileRecord
from jaxbench.training.program import build_program
from jaxbench.training.train_step import TrainState


def job_on(devices: tuple[jax.Device, ...], batch_size: int, job: Job) -> Job:
    """Return a job's network on these devices, with a synthetic batch of this global size."""
    mesh = dataclasses.replace(job.mesh, devices=devices)
    config = dataclasses.replace(job.config, num_devices=len(devices), batch_size=batch_size)
    geometry = BatchGeometry.create(config, len(devices))
    feed = create_feed(config, None, mesh, geometry, job.program.precision.param_dtype)
    program = build_program(config, mesh, geometry, feed.steps_per_epoch)
    return dataclasses.replace(job, config=config, mesh=mesh, feed=feed, program=program)


class ScalingTrial(Interleaved):
    """One training step on some devices with one batch."""

    def __init__(self, job: Job, window_s: float):
        self.job = job
        # What the compiled step exchanges; None before it is compiled.
        self.collectives: dict[str, dict[str, int]] | None = None
        # The arrays that differ between replicas; None unless they were compared.
        self.unequal: list[str] | None = None
        # done, or how it was lost, and why.
        self.status, self.reason = "done", None
        self._stepper = Stepper(job, None)
        self._batch, self._steps = None, 0
        ids = [device.id for device in self.devices]
        where = f"device {ids[0]}" if len(ids) == 1 else f"{len(ids)} devices"
        super().__init__(f"batch {job.config.batch_size} on {where}", window_s)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        return self.job.mesh.devices

    @property
    def losses(self) -> list[float]:
        return self._stepper.losses

    @property
    def rate(self) -> Interval | None:
        """Images/s with its interval, None without windows."""
        if not self.windows_s:
            return None
        images = self.job.program.geometry.images_per_step * self.warmup.calls_per_window
        return median_interval([images / window_s for window_s in self.windows_s])

    def start(self, initial: TrainState) -> CompileRecord:
        """Place the state, compile, take the first step; return the compile record."""
        job, feed = self.job, self.job.feed
        with job.clock.phase("place_data"):
            self._stepper.state = job.mesh.replicate(initial)
            self._batch = next(feed.train_batches(0, 1))
        args = (self._stepper.state, feed.train_data, self._batch)
        record = job.compile("train_step", job.program.train_step, *args, f", {self.name}")
        self.collectives = record.collectives
        with job.clock.phase("first_step"):
            self.run(1)
        ids, batch_size = [device.id for device in self.devices], job.config.batch_size
        how = {"num_devices": len(ids), "device_ids": ids, "batch_size": batch_size}
        return dataclasses.replace(record, **how)

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._stepper.queue(self.job.program.train_step, self._batch)
        self._steps += calls
        self._stepper.wait()

    def give_up(self, status: str, reason: str) -> None:
        """Note why it was lost, and free what it holds on the devices."""
        self.status, self.reason = status, reason
        self._stepper.state = None

    def compare_replicas(self) -> None:
        """Compare the state on all devices, and free it."""
        if len(self.devices) > 1:
            self.unequal = unequal_copies(self._stepper.state)
        self._stepper.state = None

    def describe(self) -> dict[str, Any]:
        """Return the fields that all records of a trial have; its rate is None without windows."""
        config, program = self.job.config, self.job.program
        images_per_step = program.geometry.images_per_step
        rates = dict.fromkeys(("images_per_s", "images_per_s_low", "images_per_s_high"))
        if self.windows_s:
            steps = self.warmup.calls_per_window
            rates = describe_windows(images_per_step * steps, self.windows_s)
            rate = rates["images_per_s"]
            rates |= program.utilization(rate)
            rates |= {"step_s": images_per_step / rate, "steps_per_window": steps}
        return rates | {
            "precision": config.precision,
            "num_devices": len(self.devices),
            "batch_size": config.batch_size,
            "batch_per_device": program.geometry.batch_per_device,
            "images_per_step": images_per_step,
            "images_counted": self._stepper.images_counted,
            "steps": self._steps,
            "warmup_steps": self.warmup.calls if self.warmup else None,
            "warmup_settled": self.warmup.settled if self.warmup else None,
            "status": self.status,
            "reason": self.reason,
        }


class AllReduce(Interleaved):
    """The sum, over some devices, of a buffer as large as the gradient."""

    def __init__(self, mesh: DataMesh, gradient_bytes: int, window_s: float):
        self.num_devices = mesh.num_devices
        super().__init__(f"all-reduce over {self.num_devices} devices", window_s)
        self._elements = max(1, gradient_bytes // np.dtype(np.float32).itemsize)
        # Simulated devices share a pool of threads, in which all-reduces queued one after the other
        # wait for one another for ever (seen with 4 devices on 2 cores).
        self._one_by_one = mesh.devices[0].platform == "cpu"
        self._mesh = mesh
        self._buffers_Dx: Any = None
        how = {"sharded": (True,), "sharded_output": True, "donate": (0,)}
        self._call = mesh.parallelize(lambda buffer: jax.lax.psum(buffer, AXIS), **how)

    def start(self) -> None:
        """Place the buffers and compile."""
        # Zeros stay zeros, however often they are summed.
        zeros_Dx = np.zeros((self.num_devices, self._elements), np.float32)
        self._buffers_Dx = self._mesh.shard(zeros_Dx)
        self.run(1)

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self._buffers_Dx = self._call(self._buffers_Dx)
            if self._one_by_one:
                self._buffers_Dx.block_until_ready()
        self._buffers_Dx.block_until_ready()

    def describe(self, weak_step_s: float | None) -> AllReduceRecord:
        """Return its record; `weak_step_s` is the weak trial's on as many devices, if measured."""
        calls = self.warmup.calls_per_window
        time_s, low_s, high_s = median_interval([window_s / calls for window_s in self.windows_s])
        size = self._elements * np.dtype(np.float32).itemsize
        moved = ring_bytes(self.num_devices, size)
        return AllReduceRecord(
            num_devices=self.num_devices,
            bytes=size,
            all_reduce_s=time_s,
            all_reduce_s_low=low_s,
            all_reduce_s_high=high_s,
            bus_bytes_per_s=moved / time_s,
            bus_bytes_per_s_low=moved / high_s,
            bus_bytes_per_s_high=moved / low_s,
            share_of_weak_step=time_s / weak_step_s if weak_step_s else None,
            calls_per_window=calls,
            windows_s=self.windows_s,
        )
