"""Connect to the coordination service of `jax.distributed`, which only this module names.

JAX aborts a process (LOG(FATAL), a stack trace, exit code 134) that cannot connect or that loses
process 0. Here such a process prints one line and exits with 1.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.distributed.coordinator import CoordinatorConfig
from jaxbench.distributed.meeting import (
    gather,
    incomplete,
    join,
    listening_address,
    unreachable_reason,
)
from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import Unreachable

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
    own = f"process {config.index}"
    where = f" at {config.address}" if config.address else ""
    timeout_s = config.initialization_timeout_s
    listening = None
    if config.address and config.index == 0:
        listening = listening_address(config.address)
        gather(config, listening)
    elif config.address:
        join(config)
    with _aborting_with(incomplete(config)):
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
        def line() -> str:
            address = state.coordinator_address
            if unreachable_reason(address):
                return f"process 0 was lost: nothing answers at {address}"
            return "JAX aborted this process (above)"

        _exit_on_abort(line, 2)
    return state


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
