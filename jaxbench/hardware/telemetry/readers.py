"""Readers of the host and of TPUs; `nvml` has the one of GPUs.

A reader has a `name` for messages, `reads_energy` (whether the start and end of a measured window
are sampled too), and `read()`, which yields each device's reading as soon as it is taken. Only one
thread calls it. It may raise any Exception.
"""

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil

from jaxbench.clock import Stopwatch

_TPU_METRICS = {
    "load_percent": "duty_cycle_pct",
    "memory_used_bytes": "hbm_capacity_usage",
    "memory_total_bytes": "hbm_capacity_total",
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """The sensors of one device at one moment."""

    device: str  # gpu0, tpu0, host; the number is the JAX device's id
    kind: str  # gpu, mig (a slice of a GPU; the values are the whole board's), tpu, host
    values: Mapping[str, Any]  # {column of telemetry.csv: value}, of sensors that the device has
    errors: Sequence[str] = ()  # why sensors that the device may have could not be read


class HostReader:
    """Reader of the host: `cpu_percent` since the last reading, `rss_bytes` of this process.

    `other_cpu_percent` is the part of `cpu_percent` that was not this process's, nor that of
    workers it started: other programs, other processes of the same run, other virtual machines.
    Memory of children is not counted: to find it would cost more than all other readings together.
    """

    name = "host"
    reads_energy = False

    def __init__(self):
        self._process = psutil.Process()
        self._watch: Stopwatch | None = None
        self._own_s = 0.0

    def read(self) -> Iterator[Reading]:
        memory = psutil.virtual_memory()
        values: dict[str, float | str] = {
            "memory_used_bytes": memory.used,
            "memory_total_bytes": memory.total,
            "rss_bytes": self._process.memory_info().rss,
            "load_1min": psutil.getloadavg()[0],
        }
        cpu_percent, own_s = psutil.cpu_percent(), self._own_cpu_s()
        # psutil counts from the calling thread's last call; the first has nothing to count from.
        if self._watch is not None:
            available_s = self._watch.elapsed_s() * psutil.cpu_count()
            own_percent = 100 * (own_s - self._own_s) / available_s
            values["cpu_percent"] = cpu_percent
            values["other_cpu_percent"] = max(0.0, cpu_percent - max(0.0, own_percent))
        self._watch, self._own_s = Stopwatch(), own_s
        yield Reading("host", "host", values)

    def _own_cpu_s(self) -> float:
        """Return the processor seconds of this process and its workers, ended or not."""
        own_s = sum(self._process.cpu_times()[:4])  # user, system, and those of ended children
        for worker in multiprocessing.active_children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                own_s += sum(psutil.Process(worker.pid).cpu_times()[:2])
        return own_s


class TpuReader:
    """Reader of this host's TPU chips, with the monitoring library inside libtpu.

    Metrics: https://cloud.google.com/tpu/docs/tpu-monitoring-library. It has no power, clocks or
    temperature, and its values are means over five seconds.

    libtpu's lists have a value for each chip and no names. If JAX has as many local devices, the
    order is taken to be the same, and only the run's devices are kept, by {name: its index among
    the local devices}. If a chip is two devices (TPU v2, v3), every chip of the host is kept.
    """

    name = "libtpu"
    reads_energy = False

    def __init__(self, places: Mapping[str, int], num_local_devices: int):
        self._places = places
        self._num_local_devices = num_local_devices

    def read(self) -> Iterator[Reading]:
        """Yield a reading for each device. Raises OSError if libtpu has no values."""
        from libtpu.sdk import tpumonitoring

        lists: dict[str, Sequence[str]] = {}
        errors = []
        for column, metric in _TPU_METRICS.items():
            try:
                lists[column] = tpumonitoring.get_metric(metric).data()
            except Exception as error:  # which ones is not documented
                errors.append(f"{metric}: {error}")
        num_chips = max(map(len, lists.values()), default=0)
        if not num_chips:
            raise OSError("; ".join(errors) or "it has no values")
        places = self._places
        if num_chips != self._num_local_devices:
            places = {f"tpu{chip}": chip for chip in range(num_chips)}
        for device, place in places.items():
            values = {
                column: float(values_of_chips[place])
                for column, values_of_chips in lists.items()
                if len(values_of_chips) == num_chips
            }
            yield Reading(device, "tpu", values, errors)
