"""What else the machine did while the card was measured."""

import contextlib
from collections.abc import Sequence

import jax
import psutil

from jaxbench.cards.card import HostLoad
from jaxbench.clock import Stopwatch
from jaxbench.hardware.telemetry.nvml import cuda_ordinals, other_gpu_processes


class LoadWatch:
    """Counts from its creation on the processor time that other processes take."""

    def __init__(self):
        self._watch, self._busy_s, self._own_s = Stopwatch(), _busy_s(), _own_s()
        self._gpu_processes: int | None = None

    def count_gpu_processes(self, devices: Sequence[jax.Device]) -> None:
        """Count the processes of others on GPUs now; the most of all counts is kept."""
        count = other_gpu_processes(cuda_ordinals(devices))
        if count is not None:
            self._gpu_processes = max(count, self._gpu_processes or 0)

    def load(self) -> HostLoad:
        available_s = self._watch.elapsed_s() * (psutil.cpu_count() or 1)
        others_s = _busy_s() - self._busy_s - max(0.0, _own_s() - self._own_s)
        percent = min(100.0, max(0.0, 100 * others_s / available_s))
        return HostLoad(other_cpu_percent=percent, other_gpu_processes=self._gpu_processes)


def _busy_s() -> float:
    """Return the processor seconds that all processes have taken, other virtual machines' too."""
    times = psutil.cpu_times()
    # Linux counts a guest's time as its host's user time, too.
    counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - counted_twice - times.idle - getattr(times, "iowait", 0.0)


def _own_s() -> float:
    """Return those of this process and all that it has started, ended or not."""
    this_process = psutil.Process()
    taken_s = 0.0
    for process in (this_process, *this_process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has just ended
            taken_s += sum(process.cpu_times()[:4])  # user, system, and those of ended children
    return taken_s
