"""The processes of a run: they agree on values, wait for one another, and end together.

Everything here works before there are devices, and answers signals while it waits.
`jax.experimental.multihost_utils` does neither: its barrier, broadcast and equality check are
collectives on the devices. They block in C++, where neither Ctrl-C nor the watch ends the wait; the
first of them fails with gloo where a process comes 30 s late; and an inequality is not named. Only
arrays are sent that way (`mesh.broadcast_arrays`).

JAX is imported only to connect: a program that runs nothing starts without it.
"""

import contextlib
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from jaxbench.clock import Clock, wait_until
from jaxbench.distributed.connection import connect, disconnect
from jaxbench.distributed.coordinator import CoordinatorConfig
from jaxbench.distributed.signals import defer_signals
from jaxbench.distributed.watch import ExitStatus, Store, Watch
from jaxbench.errors import OUT_OF_MEMORY, BadInput, OtherProcessEnded

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_group: "_ProcessGroup | None" = None


def index() -> int:
    """Return the index of this process; process 0 is the primary one."""
    return _group.store.index if _group else 0


def count() -> int:
    """Return the number of processes."""
    return _group.store.count if _group else 1


def is_primary() -> bool:
    """Return whether this is process 0, which alone writes records and prints progress."""
    return index() == 0


def broadcast_value(value: Any) -> Any:
    """Return process 0's value in every process; all must call it, in the same order.

    For what depends on a clock or a cache and decides what the devices do next: processes that
    decided differently would wait for one another for ever.

    Args:
      value: a JSON value.
    """
    return _group.broadcast_value(value) if _group else value


def barrier(name: str) -> None:
    """Return once every process has called it with this name, which may be used once."""
    if _group:
        _group.barrier(name)


def barrier_before_first_step(clock: Clock) -> None:
    """Wait for the process that compiles longest, in the clock's phase `barrier`.

    gloo's first collective fails where a process comes 30 s late, and of two hosts one may have its
    programs from a cache.
    """
    if count() > 1:
        with clock.phase("barrier"):
            barrier("the first step")


def check_same(name: str, facts: Mapping[str, Any]) -> None:
    """Return once all processes have called it; check that their facts are process 0's.

    Processes that train different networks would sum gradients that do not belong together.

    Args:
      name: may be used once.
      facts: {name for the user: value}; a value that JSON cannot hold counts as its text.

    Raises:
      BadInput: a value differs from process 0's; the message names it.
    """
    if _group:
        _group.check_same(name, facts)


def on_abort(callback: Callable[[OtherProcessEnded], None]) -> None:
    """Set what is called where another process has ended and this one's main thread hangs."""
    if _group:
        _group.watch.on_abort = callback


def root_cause(error: BaseException) -> BaseException:
    """Return why this process ends: a failed collective may be the end of another process.

    Waits until the watch knows, at most for the heartbeat timeout. From then on the watch no longer
    interrupts the main thread.
    """
    return _group.root_cause(error) if _group else error


@contextlib.contextmanager
def process_group(
    config: CoordinatorConfig | None, exit_status: Callable[[BaseException], ExitStatus]
) -> Iterator[None]:
    """Connect to the other processes for the body of the `with`, which all end together.

    Where one of them fails or is stopped, the others end too, with its reason and exit code; where
    one dies, they end after the heartbeat timeout and a grace period.

    Args:
      config: how to join them; None for a single process, for which nothing is done.
      exit_status: exception -> how a process ends that it ends.

    Raises:
      Unreachable: the processes do not come together in time.
    """
    if config is None:
        yield
        return
    global _group
    state = connect(config)
    store = Store(state.client, state.process_id, state.num_processes)
    _group = _ProcessGroup(store, Watch(store, config.heartbeat_timeout_s))
    try:
        yield
        _group.finish()
    except BaseException as error:
        with defer_signals():
            cause = _group.root_cause(error)
            _group.leave(exit_status(cause), cause)


class _ProcessGroup:
    """All processes of a run, from within one of them."""

    def __init__(self, store: Store, watch: Watch):
        self.store, self.watch = store, watch
        self._num_broadcasts = 0
        self._cause: BaseException | None = None

    def broadcast_value(self, value: Any) -> Any:
        self._num_broadcasts += 1
        folder = f"broadcast/{self._num_broadcasts}"
        if self.store.index == 0:
            self.store.put(folder, json.dumps(value))
            return value
        return json.loads(self._wait_for(folder, 1)[0])

    def barrier(self, name: str) -> None:
        # Only process 0 asks who has come: if all asked, the answers would grow with the square of
        # the number of processes.
        self.store.put(f"barrier/{name}/each")
        if self.store.index == 0:
            self._wait_for(f"barrier/{name}/each", self.store.count)
            self.store.put(f"barrier/{name}/all")
        else:
            self._wait_for(f"barrier/{name}/all", 1)

    def _wait_for(self, folder: str, num_texts: int) -> dict[int, str]:
        # By polling: Ctrl-C and the watch could not interrupt JAX's own barrier and blocking get.
        found: dict[int, str] = {}

        def complete() -> bool:
            found.update(self.store.read(folder))
            return len(found) >= num_texts

        wait_until(complete)
        return found

    def check_same(self, name: str, facts: Mapping[str, Any]) -> None:
        # A function's text holds its address, which differs from process to process.
        text = json.dumps(facts, default=lambda value: _ADDRESS.sub("", str(value)))
        own = json.loads(text)
        primary = self.broadcast_value(own)
        differing = [
            f"{key}={own.get(key)}, process 0 has {primary.get(key)}"
            for key in {**primary, **own}
            if own.get(key) != primary.get(key)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise BadInput(f"{'; '.join(differing[:3])}{more}: must be the same in all processes")
        self.barrier(name)

    def root_cause(self, error: BaseException) -> BaseException:
        self.watch.is_main_ending = True
        if self._cause is None:
            if _may_be_of_another(error):
                error = self.watch.wait_for_other_end() or error
            self._cause = error
        return self._cause

    def finish(self) -> None:
        """End the connection, once every process has finished."""
        self.barrier("the end")
        self.watch.is_main_ending = True
        self.watch.stop()
        disconnect()

    def leave(self, status: ExitStatus, error: BaseException) -> NoReturn:
        """Tell the other processes how this one ends, and end it."""
        self.watch.is_main_ending = True
        with contextlib.suppress(Exception):
            if not isinstance(error, OtherProcessEnded):
                self.store.put("end", json.dumps(status._asdict()))
        if status.line is None:
            traceback.print_exception(error)
        else:
            print(f"jaxbench: {status.line}", file=sys.stderr)
        self.watch.stop()
        self.watch.exit(status.code)


def _may_be_of_another(error: BaseException) -> bool:
    """Return whether the end of another process may have caused an error: not out of memory."""
    import jax

    return isinstance(error, jax.errors.JaxRuntimeError) and not OUT_OF_MEMORY.search(str(error))
