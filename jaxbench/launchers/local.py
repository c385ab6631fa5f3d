"""Run trials on this machine, one at a time; on Linux each ends with the sweep."""

import platform
from collections.abc import Callable

from jaxbench.launchers.launcher import Ended, Launcher, Limits, TrialJob
from jaxbench.parallel.child import Child, last_line


class LocalLauncher(Launcher):
    """See `Launcher`."""

    slots = 1
    hardware = ()

    def __init__(self, limits: Limits, say: Callable[[str], None]):
        self._limits = limits
        self._running: dict[str, Child] = {}

    def start(self, job: TrialJob) -> None:
        self._running[job.key] = Child(job.command, job.log, **self._limits._asdict())

    def wait(self) -> list[Ended]:
        ended = []
        for key, child in [*self._running.items()]:
            if (result := child.wait()) is not None:
                del self._running[key]
                ended.append(Ended(key, result, platform.node()))
        return ended

    def last_line(self, key: str) -> str:
        return last_line(self._running[key].log)

    def close(self) -> None:
        for child in self._running.values():
            child.end()
        self._running.clear()
