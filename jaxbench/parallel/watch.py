"""Notice the end of other processes, and end this one with the same reason and exit code.

JAX's own answer to a lost process is to abort the others; the watch of each process, a thread, is
quicker.
"""

import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from jaxbench.clock import Stopwatch, pause, wait_until
from jaxbench.errors import OtherProcessEnded
from jaxbench.parallel.signals import (
    instead_of_raising,
    raise_in_main_thread,
    stop_main_thread,
)
from jaxbench.terminal import warn

# How often a process says that it is alive, and looks at the others.
_HEARTBEAT_S = 0.5
# How long the main thread may take to end after another process has, before the watch ends the
# process: in process 0, which closes the records, and in the others.
_GRACE_S, _GRACE_OF_OTHERS_S = 15.0, 2.0


class ExitStatus(NamedTuple):
    """How a process ends: the run's status and reason, the exit code, the line to print."""

    status: str
    reason: str
    code: int
    line: str | None


class Store:
    """The key-value store that all processes reach: in each folder a text for each process."""

    def __init__(self, client: Any, index: int, count: int):
        self._client = client
        self.index, self.count = index, count

    def put(
        self, folder: str, text: str = "", *, index: int | None = None, replace: bool = False
    ) -> None:
        """Set a process's text in a folder, this one's by default; only `replace` sets it again."""
        key = f"jaxbench/{folder}/{self.index if index is None else index}"
        self._client.key_value_set(key, text, allow_overwrite=replace)

    def read(self, folder: str) -> dict[int, str]:
        """Return {process: text} of a folder."""
        found = self._client.key_value_dir_get(f"jaxbench/{folder}/")
        return {int(key.rpartition("/")[2]): text for key, text in found}


class Watch:
    """A thread that exchanges heartbeats with the other processes, and ends this one with them.

    Only process 0 ends a run on a signal, with a checkpoint. Another process that gets one asks
    process 0 to stop and trains on until it has: process 0 would wait for its steps.
    """

    def __init__(self, store: Store, heartbeat_timeout_s: float):
        # Called where this process must end while its main thread hangs.
        self.on_abort: Callable[[OtherProcessEnded], None] = lambda error: None
        # Whether the main thread ends already, and must not be interrupted.
        self.is_main_ending = False
        self._store = store
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._stopped = threading.Event()
        self._lost: frozenset[int] = frozenset()
        self._other: OtherProcessEnded | None = None
        self._stop_requests: list[int] = []  # the signals that came
        self._has_stopped = False
        if store.index:
            instead_of_raising(self._stop_requests.append)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def wait_for_other_end(self) -> OtherProcessEnded | None:
        """Return how another process has ended; None if none has within the heartbeat timeout."""
        watch, timeout_s = Stopwatch(), self._heartbeat_timeout_s + 4 * _HEARTBEAT_S
        wait_until(lambda: self._other is not None or watch.elapsed_s() > timeout_s)
        return self._other

    def exit(self, code: int) -> NoReturn:
        """Exit at once: an ordinary exit would wait for steps on the devices that never end."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        watch, store = Stopwatch(), self._store
        with contextlib.suppress(Exception):
            store.put("left", replace=True)
            # The store ends with process 0: the others could no longer learn why.
            while (
                store.index == 0
                and watch.elapsed_s() < _GRACE_S
                and len(store.read("left")) < store.count - len(self._lost)
            ):
                pause(_HEARTBEAT_S / 5)
        os._exit(code)

    def _run(self) -> None:
        # By process, its last heartbeat and the time since.
        seen = {index: ("", Stopwatch()) for index in range(self._store.count)}
        for number in itertools.count(1):
            if self._stopped.wait(_HEARTBEAT_S):
                return
            try:
                self._store.put("alive", str(number), replace=True)
                if self._stop_requests:
                    self._store.put("stop", str(int(self._stop_requests[0])), replace=True)
                if self._store.index == 0:
                    for index, text in self._store.read("alive").items():
                        if seen[index][0] != text:
                            seen[index] = text, Stopwatch()
                    self._lost = frozenset(
                        index
                        for index, (_, watch) in seen.items()
                        if watch.elapsed_s() > self._heartbeat_timeout_s
                    )
                    self._report_lost()
                    # The main thread answers a signal that another process got, once.
                    if not self._has_stopped and (stops := self._store.read("stop")):
                        self._has_stopped = True
                        stop_main_thread(int(stops[min(stops)]))
                ends = self._store.read("end")
            except Exception:  # process 0 is gone, or cannot answer yet: JAX will say
                continue
            others = [index for index in ends if index != self._store.index]
            if others:
                self._end_with(min(others), json.loads(ends[min(others)]))
                return

    def _report_lost(self) -> None:
        """Say in the place of processes that died how they ended."""
        for index in self._lost:
            timeout_s = f"{self._heartbeat_timeout_s:g} s"
            reason = f"process {index} was lost: it has not been heard of for {timeout_s}"
            notice = ExitStatus("failed", reason, 1, None)._asdict() | {"lost": True}
            with contextlib.suppress(Exception):  # it may have said so itself before
                self._store.put("end", json.dumps(notice), index=index)

    def _end_with(self, index: int, notice: Mapping[str, Any]) -> None:
        """End this process as another did, without its main thread if that hangs."""
        reason = notice["reason"] if notice.get("lost") else f"process {index}: {notice['reason']}"
        self._other = OtherProcessEnded(reason, notice["status"], notice["code"])
        if not self.is_main_ending:
            raise_in_main_thread(self._other)
        if self._stopped.wait(_GRACE_OF_OTHERS_S if self._store.index else _GRACE_S):
            return
        # The main thread hangs in a collective that the other process does not answer.
        with contextlib.suppress(Exception):
            self.on_abort(self._other)
        warn(f"jaxbench: {self._other}")
        self.exit(self._other.code)
