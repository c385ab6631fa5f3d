"""What --mode=scaling measures: a training step on some devices, and an all-reduce over them.

A trial has everything on its devices before its windows begin, and keeps its state there until the
replicas have been compared.
"""

import dataclasses
from typing import Any

import jax

from jaxbench.analysis.scaling_model import Interval
from jaxbench.analysis.statistics import median_interval
from jaxbench.data.feeds.feed import create_feed
from jaxbench.distributed.mesh import unequal_copies
from jaxbench.geometry import BatchGeometry
from jaxbench.jobs.setup import Job
from jaxbench.jobs.windows import Stepper, describe_windows
from jaxbench.microbench.collectives import Collective
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
        """Images/s with its interval, None with fewer than two windows."""
        if len(self.windows_s) < 2:
            return None
        images = self.job.program.geometry.images_per_step * self.warmup.calls_per_window
        return median_interval([images / window_s for window_s in self.windows_s])

    def start(self, initial: TrainState) -> CompileRecord:
        """Place the state, compile, take the first step; return the compile record."""
        job, feed = self.job, self.job.feed
        with job.clock.phase("place_data"):
            self._stepper.state = job.program.place_saved_state(initial)
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
        """Return the fields that all records of a trial have; its rate is as `rate` says."""
        config, program = self.job.config, self.job.program
        images_per_step = program.geometry.images_per_step
        rates = dict.fromkeys(("images_per_s", "images_per_s_low", "images_per_s_high"))
        if self.rate:
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


def describe_all_reduce(all_reduce: Collective, weak_step_s: float | None) -> AllReduceRecord:
    """Return an all-reduce's record; `weak_step_s` is the weak trial's on as many devices."""
    time_s, low_s, high_s = all_reduce.call_s()
    bus, bus_low, bus_high = all_reduce.bus_bytes_per_s()
    return AllReduceRecord(
        num_devices=all_reduce.mesh.num_devices,
        bytes=all_reduce.num_bytes,
        all_reduce_s=time_s,
        all_reduce_s_low=low_s,
        all_reduce_s_high=high_s,
        bus_bytes_per_s=bus,
        bus_bytes_per_s_low=bus_low,
        bus_bytes_per_s_high=bus_high,
        share_of_weak_step=time_s / weak_step_s if weak_step_s else None,
        calls_per_window=all_reduce.warmup.calls_per_window,
        windows_s=all_reduce.windows_s,
    )
