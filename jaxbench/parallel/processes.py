"""The processes of a run: they agree on values, wait for one another, and end together.

Everything here works before there are devices, and answers signals while it waits.
`jax.experimental.multihost_utils` does neither: its barrier, broadcast and equality check are
collectives on the devices. They block in C++, where neither Ctrl-C nor the watch ends the wait; the
first of them fails with gloo where a process comes 30 s late; and an inequality is not named. Only
arrays are sent that way (`mesh.broadcast_arrays`).

JAX is imported only to connect: a program that runs nothing starts without it.
"""

import contextlib
import dataclasses
import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from jaxbench.clock import Clock, wait_until
from jaxbench.errors import OUT_OF_MEMORY, BadInput, OtherProcessEnded
from jaxbench.parallel.connection import connect, disconnect
from jaxbench.parallel.coordinator import CoordinatorConfig
from jaxbench.parallel.signals import defer_signals
from jaxbench.parallel.watch import ExitStatus, Store, Watch
from jaxbench.terminal import warn

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclasses.dataclass
class _ProcessGroup:
    store: Store
    watch: Watch
    num_broadcasts: int = 0
    cause: BaseException | None = None


_group: _ProcessGroup | None = None


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
    """Return process 0's JSON value in every process; all must call it, in the same order.

    For what depends on a clock or a cache and decides what the devices do next: processes that
    decided differently would wait for one another for ever.
    """
    if _group is None:
        return value
    _group.num_broadcasts += 1
    folder = f"broadcast/{_group.num_broadcasts}"
    if is_primary():
        _group.store.put(folder, json.dumps(value))
        return value
    return json.loads(_wait_for(_group.store, folder, 1)[0])


def barrier(name: str) -> None:
    """Return once every process has called it with this name, which may be used once."""
    if _group:
        _barrier(_group.store, name)


def _barrier(store: Store, name: str) -> None:
    # Only process 0 asks who has come: if all asked, the answers would grow with the square of the
    # number of processes.
    store.put(f"barrier/{name}/each")
    if store.index == 0:
        _wait_for(store, f"barrier/{name}/each", store.count)
        store.put(f"barrier/{name}/all")
    else:
        _wait_for(store, f"barrier/{name}/all", 1)


def _wait_for(store: Store, folder: str, num_texts: int) -> dict[int, str]:
    # By polling: Ctrl-C and the watch could not interrupt JAX's own barrier and blocking get.
    found: dict[int, str] = {}

    def complete() -> bool:
        found.update(store.read(folder))
        return len(found) >= num_texts

    wait_until(complete)
    return found


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
    if _group is None:
        return
    # A function's text holds its address, which differs from process to process.
    text = json.dumps(facts, default=lambda value: _ADDRESS.sub("", str(value)))
    own = json.loads(text)
    primary = broadcast_value(own)
    differing = [
        f"{key}={own.get(key)}, process 0 has {primary.get(key)}"
        for key in {**primary, **own}
        if own.get(key) != primary.get(key)
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise BadInput(f"{'; '.join(differing[:3])}{more}: must be the same in all processes")
    barrier(name)


def on_abort(callback: Callable[[OtherProcessEnded], None]) -> None:
    """Set what is called where another process has ended and this one's main thread hangs."""
    if _group:
        _group.watch.on_abort = callback


def root_cause(error: BaseException) -> BaseException:
    """Return why this process ends: a failed collective may be the end of another process.

    Waits until the watch knows, at most for the heartbeat timeout. From then on the watch no longer
    interrupts the main thread.
    """
    if _group is None:
        return error
    _group.watch.is_main_ending = True
    if _group.cause is None:
        import jax

        if isinstance(error, jax.errors.JaxRuntimeError) and not OUT_OF_MEMORY.search(str(error)):
            error = _group.watch.wait_for_other_end() or error
        _group.cause = error
    return _group.cause


@contextlib.contextmanager
def process_group(
    config: CoordinatorConfig | None, exit_status: Callable[[BaseException], ExitStatus]
) -> Iterator[None]:
    """Connect to the other processes for the body of the `with`, which all end together.

    Where one of them fails or is stopped, the others end too, with its reason and exit code; where
    one dies, they end after the heartbeat timeout and a grace period. A single process has no
    `config`, and nothing is done.

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
        barrier("the end")
        _group.watch.is_main_ending = True
        _group.watch.stop()
        disconnect()
    except BaseException as error:
        with defer_signals():
            cause = root_cause(error)
            _leave(_group, exit_status(cause), cause)


def _leave(group: _ProcessGroup, status: ExitStatus, error: BaseException) -> NoReturn:
    """Tell the other processes how this one ends, and end it."""
    with contextlib.suppress(Exception):
        if not isinstance(error, OtherProcessEnded):
            group.store.put("end", json.dumps(status._asdict()))
    if status.line is None:
        traceback.print_exception(error)
    else:
        warn(f"jaxbench: {status.line}")
    group.watch.stop()
    group.watch.exit(status.code)
