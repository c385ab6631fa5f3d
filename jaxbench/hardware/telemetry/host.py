"""Read the host and this process with psutil."""

from collections.abc import Iterator

import psutil

from jaxbench.hardware.telemetry.reading import Reading


class HostReader:
    """Reader of the host: `cpu_percent` since the last reading, `rss_bytes` of this process.

    Children are not counted: to find them would cost more than all other readings together.
    """

    name = "host"
    reads_energy = False

    def __init__(self):
        self._process = psutil.Process()
        self._asked_before = False

    def read(self) -> Iterator[Reading]:
        memory = psutil.virtual_memory()
        values: dict[str, float | str] = {
            "memory_used_bytes": memory.used,
            "memory_total_bytes": memory.total,
            "rss_bytes": self._process.memory_info().rss,
            "load_1min": psutil.getloadavg()[0],
        }
        cpu_percent = psutil.cpu_percent()
        # psutil counts from the calling thread's last call; the first has nothing to count from.
        if self._asked_before:
            values["cpu_percent"] = cpu_percent
        self._asked_before = True
        yield Reading("host", "host", values)
