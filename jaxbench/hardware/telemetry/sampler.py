"""Sample every reader at an interval, in threads beside the run, and write `telemetry.csv`.

Nothing here may delay the run or end it. Each reader has a daemon thread of its own, so that a
library that hangs silences its own devices only; exceptions of a reader are counted. The main
thread sends requests through `SimpleQueue`, which a signal's exception cannot leave locked.
"""

import collections
import contextlib
import csv
import math
import pathlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxbench.clock import Clock, Stopwatch, now, process_cpu_s
from jaxbench.files import open_own
from jaxbench.hardware.telemetry.nvml import NvmlReader, cuda_ordinals
from jaxbench.hardware.telemetry.readers import HostReader, Reading, TpuReader
from jaxbench.hardware.telemetry.summary import COLUMNS, Series, Window, read_series, summarize

INTERVAL_S = 1.0
# A sample between two intervals comes at least this share of an interval after the last one.
_SOONEST = 0.2
# A sample that comes so late, while the process took less than this share of a processor, says that
# the process stood still. The share leaves room for what it did before and after.
_LATE_S, _STILL = 2.0, 0.3
# A warning names no more of them.
_MOST_NAMED = 5
# How long the end of a run waits for readers.
_LONGEST_STOP_S = 2.0
_Reader = HostReader | NvmlReader | TpuReader


def create_readers(devices: Sequence[Any]) -> list[_Reader]:
    """Return a reader of the host and one of the JAX devices, if they are GPUs or TPUs."""
    readers: list[_Reader] = [HostReader()]
    platform = devices[0].platform
    if platform == "gpu":
        readers.append(NvmlReader(cuda_ordinals(devices)))
    elif platform == "tpu":
        local = devices[0].client.local_devices()
        places = {f"tpu{device.id}": local.index(device) for device in devices}
        readers.append(TpuReader(places, len(local)))
    return readers


class Telemetry:
    """Write `telemetry.csv`, a row for each device and sample, and summarize it at the end.

    Args:
      interval_s: between samples; 0 for no samples and no file.
      clock: the run's, so that `elapsed_s` is comparable with the other records'.
      share: the share of all images that this process's devices compute.
      device_kind: of the devices, by which impossible readings are known; None if it is unknown.
    """

    def __init__(
        self,
        path: pathlib.Path,
        interval_s: float,
        clock: Clock,
        readers: Sequence[_Reader],
        share: float = 1.0,
        device_kind: str | None = None,
    ):
        self._device_kind = device_kind
        self._path, self._interval_s, self._clock, self._share = path, interval_s, clock, share
        self._requests = {reader: queue.SimpleQueue() for reader in readers}
        self._threads = {
            reader: threading.Thread(
                target=self._run, args=(reader,), name=f"telemetry-{reader.name}", daemon=True
            )
            for reader in readers
        }
        self._lock = threading.Lock()
        self._file: Any = None
        self._rows: Any = None
        self._series: dict[str, Series] = {}
        # What was measured; a resumed run begins with those of its earlier processes.
        self.windows: list[Window] = []
        self._errors: collections.Counter[str] = collections.Counter()
        self._stops: list[str] = []

    def start(self) -> None:
        """Open the file and start the threads; a resumed run goes on with its earlier readings."""
        if not self._interval_s:
            return
        # Line-buffered: every row is in the file as soon as it is written.
        self._file = open_own(self._path, "a", buffering=1, encoding="utf-8", newline="")
        self._rows = csv.DictWriter(self._file, COLUMNS)
        if self._file.tell():
            self._series = read_series(self._path, self._device_kind, self._errors)
        else:
            self._rows.writeheader()
        for thread in self._threads.values():
            thread.start()

    @contextlib.contextmanager
    def measured(self, images: int | Callable[[], int]) -> Iterator[None]:
        """Mark the body of the `with` as a measured window.

        Both ends of it must wait for the devices. Means and energy are taken over all such windows;
        one that ends with an exception does not count. A function returns its images at the end.
        """
        start_s = self._elapsed_s()
        self._sample_edge()
        yield
        end_s = self._elapsed_s()
        count = images() if callable(images) else images
        self.windows.append(Window(start_s, end_s, round(count * self._share)))
        self._sample_edge()

    def _elapsed_s(self) -> float:
        """Return the time as the file has it: what is computed from the file is the same."""
        return round(self._clock.wall_s(), 3)

    def _sample_edge(self) -> None:
        for reader, requests in self._requests.items():
            if reader.reads_energy:
                requests.put("edge")

    def stop(self) -> None:
        """Take the last samples and end the threads, in bounded time even if one hangs.

        May be called at any time, and more than once.
        """
        if self._file is None:
            return
        for requests in self._requests.values():
            requests.put("stop")
        watch = Stopwatch()
        for reader, thread in self._threads.items():
            if thread.is_alive():
                thread.join(max(0.0, _LONGEST_STOP_S - watch.elapsed_s()))
            if thread.is_alive():
                self._count_error(f"{reader.name}: did not answer any more")
        with self._lock:
            file, self._file = self._file, None
        try:
            file.close()
        except OSError as error:  # a full disk
            self._count_error(f"{self._path.name}: {error.strerror}")

    def _run(self, reader: _Reader) -> None:
        """Sample a reader, at multiples of the interval and at edges, until it is stopped."""
        watch, is_running = Stopwatch(), True
        while is_running:
            soonest_s = watch.elapsed_s() + _SOONEST * self._interval_s
            self._sample(reader)
            is_running = self._wait(reader, watch, soonest_s)
        self._sample(reader)

    def _sample(self, reader: _Reader) -> None:
        try:
            for reading in reader.read():
                self._keep(reading)
        except Exception as error:
            words = str(error).strip() or type(error).__name__
            self._count_error(f"{reader.name}: {words}")

    def _wait(self, reader: _Reader, watch: Stopwatch, soonest_s: float) -> bool:
        """Wait until the next sample is due; return False if it is the last."""
        # The next multiple of the interval: samples that are missed are not caught up.
        due_s = (math.floor(watch.elapsed_s() / self._interval_s) + 1) * self._interval_s
        cpu_s = process_cpu_s()
        while True:
            try:
                request = self._requests[reader].get(timeout=max(0.0, due_s - watch.elapsed_s()))
            except queue.Empty:
                request = "sample"
            if reader.name == HostReader.name:  # one of the threads is enough
                self.note_wait(watch.elapsed_s() - due_s, process_cpu_s() - cpu_s)
            if request == "stop":
                return False
            if request == "sample" or watch.elapsed_s() >= soonest_s:
                return True

    def _keep(self, reading: Reading) -> None:
        """Write a reading to the file and keep it for the summary."""
        elapsed_s = self._elapsed_s()
        row = {
            "time": now().isoformat(timespec="milliseconds"),
            "elapsed_s": elapsed_s,
            "device": reading.device,
            "kind": reading.kind,
            **reading.values,
        }
        for error in reading.errors:
            self._count_error(f"{reading.device}: {error}")
        with self._lock:
            if self._file is None:  # a reading that came after the end
                return
            new = Series(reading.kind, self._device_kind)
            series = self._series.setdefault(reading.device, new)
            series.add(elapsed_s, reading.values)
            self._rows.writerow(row)

    def _count_error(self, message: str) -> None:
        with self._lock:
            self._errors[message] += 1

    def note_wait(self, late_s: float, cpu_s: float) -> None:
        """Note how late a sample comes, and the processor seconds that passed. For a thread."""
        if late_s > _LATE_S and cpu_s < _STILL * late_s:
            began_s = self._clock.wall_s() - late_s
            self._stops.append(f"for {late_s:.1f} s from {began_s:.1f} s on")

    def summarize(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the summary's `telemetry` (None if there is none), and warnings."""
        if not self._interval_s:
            return None, []
        with self._lock:
            telemetry, warnings = summarize(
                self._series, self.windows, self._interval_s, self._errors
            )
        if self._stops:
            stops = ", ".join(self._stops[:_MOST_NAMED])
            warnings.insert(0, f"the process stood still, as if stopped: {stops}")
        return telemetry, warnings


def no_telemetry() -> Telemetry:
    """Return telemetry that reads nothing."""
    return Telemetry(pathlib.Path(), 0.0, Clock(), [])


def merge(summary: dict[str, Any], telemetry: Telemetry) -> None:
    """Add the telemetry's summary and warnings to a summary record; never raise."""
    try:
        summary["telemetry"], warnings = telemetry.summarize()
    except Exception as error:  # it must not cost a long run its summary
        summary["telemetry"], warnings = None, [f"telemetry cannot be summed up: {error!r}"]
    summary["warnings"] = [*summary.get("warnings", ()), *warnings]
