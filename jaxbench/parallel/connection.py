"""Connect to the coordination service of `jax.distributed`, which only this module names.

JAX aborts a process (LOG(FATAL), a stack trace, exit code 134) that cannot connect or that loses
process 0. Here such a process prints one line and exits with 1.
"""

import contextlib
import ctypes
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.errors import Unreachable
from jaxbench.parallel.coordinator import CoordinatorConfig
from jaxbench.parallel.signals import defer_signals

# JAX aborts so long after our own heartbeat timeout: only where our watch has failed.
_JAX_MARGIN_S = 45
_SHUTDOWN_TIMEOUT_S = 15

_on_abort: Any = None


def connect(config: CoordinatorConfig) -> Any:
    """Connect this process to the others; return JAX's state.

    Raises:
      Unreachable: the processes do not come together in time.
    """
    # The coordination service prints errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with defer_signals():
        import jax
    # JAX's preemption service would take SIGTERM from our handler.
    jax.config.update("jax_enable_preemption_service", False)
    where = f" at {config.address}" if config.address else ""
    with _aborting_with(_incomplete(config)):
        try:
            jax.distributed.initialize(
                config.address,
                config.count,
                config.index,
                coordinator_bind_address=_listening_address(config.address),
                initialization_timeout=config.initialization_timeout_s,
                heartbeat_timeout_seconds=config.heartbeat_timeout_s + _JAX_MARGIN_S,
                shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S,
            )
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise Unreachable(
                f"process {config.index}: cannot connect to the others{where}: {reason}"
            ) from error
    from jax._src import distributed  # the store has no public name

    state = distributed.global_state
    if state.process_id:
        # Where the connection to process 0 breaks, JAX aborts before our watch looks.
        def line() -> str:
            address = state.coordinator_address
            if not _answers(address):
                return f"process 0 was lost: nothing answers at {address}"
            return "JAX aborted this process (above)"

        _exit_on_abort(line, 2)
    return state


def _incomplete(config: CoordinatorConfig) -> str:
    """Return the line for a process that JAX aborts while it connects."""
    where = f" at {config.address}" if config.address else ""
    causes = "two may have one --process_id, or another program the port; " if where else ""
    return (
        f"process {config.index}: not all {config.count} processes connected{where} within "
        f"{config.initialization_timeout_s} s (--initialization_timeout_s); {causes}"
        f"start the same command on each of them{', with different --process_id' if where else ''}"
    )


def _listening_address(address: str | None) -> str | None:
    """Return where process 0 listens: at its address only; None lets JAX listen everywhere.

    A name may stand for another address on the other hosts (Debian resolves a host's name to
    127.0.1.1).
    """
    host = address.rpartition(":")[0].strip("[]") if address else ""
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host):
            return address
    return None


def _answers(address: str) -> bool:
    """Return whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def disconnect() -> None:
    """End the connection; all processes must."""
    import jax

    with defer_signals():
        jax.distributed.shutdown()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)


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
