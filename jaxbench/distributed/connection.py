"""Connect to the coordination service of `jax.distributed`, which only this module names.

JAX aborts a process (LOG(FATAL), a stack trace, exit code 134) that cannot connect or that loses
process 0. Here such a process prints one line and exits with 1.
"""

import contextlib
import ctypes
import errno
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.clock import Stopwatch, pause
from jaxbench.distributed.coordinator import CoordinatorConfig
from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import Unreachable

_POLL_S = 0.5
# JAX aborts so long after our own heartbeat timeout: only where our watch has failed.
_JAX_MARGIN_S = 45
_SHUTDOWN_TIMEOUT_S = 15

_on_abort: Any = None


def connect(config: CoordinatorConfig) -> Any:
    """Connect this process to the others.

    Returns:
      JAX's state: `client` (of the key-value store), `process_id`, `num_processes` and
      `coordinator_address`.

    Raises:
      Unreachable: the processes do not come together in time.
    """
    # The coordination service prints errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with defer_signals():
        import jax
    # JAX's preemption service would take SIGTERM from our handler.
    jax.config.update("jax_enable_preemption_service", False)
    own = f"process {config.index}" if config.index is not None else "this process"
    where = f" at {config.address}" if config.address else ""
    of_all = f" all {config.count}" if config.count else ""
    timeout_s = config.initialization_timeout_s
    if config.address and config.index:
        _await_listener(config.address, timeout_s)
    listening = None
    if config.index == 0 and config.address:
        listening = _listening_address(config.address)
    with _aborting_with(
        f"{own}: not{of_all} processes connected{where} within {timeout_s} s "
        "(--initialization_timeout_s); start the same command on each of them"
        + (", with a --process_id of its own" if config.address else "")
    ):
        try:
            jax.distributed.initialize(
                config.address,
                config.count,
                config.index,
                coordinator_bind_address=listening,
                initialization_timeout=timeout_s,
                heartbeat_timeout_seconds=config.heartbeat_timeout_s + _JAX_MARGIN_S,
                shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise Unreachable(f"{own}: cannot connect to the others{where}: {reason}") from error
    from jax._src import distributed  # the store has no public name

    state = distributed.global_state
    if state.process_id:
        # Where the connection to process 0 breaks, JAX aborts before our watch looks.
        address = state.coordinator_address
        _exit_on_abort(
            lambda: (
                f"process 0 was lost: nothing answers at {address}"
                if _unreachable_reason(address)
                else "JAX aborted this process (above)"
            ),
            2,
        )
    return state


def disconnect() -> None:
    """End the connection; all processes must."""
    import jax

    with defer_signals():
        jax.distributed.shutdown()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)


def _await_listener(address: str, timeout_s: float) -> None:
    """Return once a process listens at this address; raise Unreachable after the timeout."""
    watch = Stopwatch()
    while reason := _unreachable_reason(address):
        if watch.elapsed_s() > timeout_s:
            raise Unreachable(
                f"--coordinator_address={address}: no process 0 there within {timeout_s} s "
                f"({reason})"
            )
        pause(_POLL_S)


def _unreachable_reason(address: str) -> str | None:
    """Return why nothing answers at an address, None where something listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _listening_address(address: str) -> str:
    """Return where process 0 is to listen: at this address alone, where it is this host's own.

    A name may stand for another address on the other hosts (Debian resolves a host's own name to
    127.0.1.1), and an address may belong to a router that forwards to this host: then everywhere.

    Raises:
      Unreachable: another program listens there, where JAX would crash.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with contextlib.suppress(OSError):
        if host == "localhost" or _is_ip_address(host):
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            if any(_can_bind(address, family, place) for family, *_, place in found):
                return address
    for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        _can_bind(address, family, (place, int(port)))
    return f"[::]:{port}"


def _is_ip_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _can_bind(address: str, family: int, place: tuple) -> bool:
    """Return whether this host has that address; raise Unreachable where its port is taken."""
    try:
        probe = socket.socket(family)
    except OSError:  # this host has no addresses of this family
        return False
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise Unreachable(
                f"--coordinator_address={address}: process 0 cannot listen on port {place[1]}: "
                f"{error.strerror}"
            ) from None
    return True


@contextlib.contextmanager
def _aborting_with(line: str) -> Iterator[None]:
    """Have an abort by C++ inside the `with` print this line in place of its stack trace."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    _exit_on_abort(lambda: line, kept)
    os.dup2(nowhere, 2)
    # Python cannot answer signals while C++ waits; nothing has been recorded yet.
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)


def _exit_on_abort(line: Callable[[], str], descriptor: int) -> None:
    """Have an abort, in any thread, print a line to a file descriptor and exit with 1."""
    global _on_abort

    def end(number: int) -> None:
        os.write(descriptor, f"jaxbench: {line()}\n".encode())
        os._exit(1)

    # A handler of C: Python's own would run after the abort. The global keeps it alive.
    _on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(_on_abort, ctypes.c_void_p))
