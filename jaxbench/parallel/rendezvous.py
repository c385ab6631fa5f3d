"""Where the processes of a run meet before JAX connects them: at the coordinator's address.

JAX's service takes a port that another one listens on, and aborts processes whose number it knows
already or that have another count. So process 0 listens there first, alone, until all the others
have said who they are; then JAX's service takes its place.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import BadInput, Unreachable

Message = TypeVar("Message")
# A message has fewer bytes, so no more missing processes are named.
_MOST_BYTES, _MOST_NAMED = 1000, 10
# A stranger that connects and says nothing is left after so long; how often a process tries again.
_SILENT_S, _RETRY_S = 2.0, 0.2


class _Hello(msgspec.Struct):
    """What a process says of itself."""

    process: int
    count: int


class _Answer(msgspec.Struct):
    """What process 0 answers: why the process cannot take part, None if it does."""

    refusal: str | None
    is_input: bool  # whether the user can mend it


def meet(address: str, bind_host: str | None, index: int, count: int, timeout_s: float) -> None:
    """Return once all processes have met at process 0's HOST:PORT; each number is taken once.

    Process 0 listens at `bind_host`, or at all of its addresses.

    Raises:
      BadInput: the number is taken, the counts differ, or process 0 cannot listen.
      Unreachable: they do not come together in time.
    """
    host, _, port = address.rpartition(":")
    at = f"at {address} within {timeout_s:g} s (--initialization_timeout_s)"
    if index:
        _join(host.strip("[]"), int(port), _Hello(index, count), timeout_s, at)
        return
    try:
        with _listen(bind_host, int(port)) as listener:
            _gather(listener, count, timeout_s, at)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise BadInput(
            f"process 0 cannot listen at {address}: {reason}; --coordinator_address must be one of "
            "its host, with a port that no other run uses; with --distributed=auto set "
            "JAX_COORDINATOR_PORT"
        ) from error


def _listen(host: str | None, port: int) -> socket.socket:
    if host is not None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _gather(listener: socket.socket, count: int, timeout_s: float, at: str) -> None:
    """Wait in process 0 for all others, and tell them."""
    joined: dict[int, socket.socket] = {}
    watch = Stopwatch()
    with contextlib.ExitStack() as stack:
        while len(joined) < count - 1:
            absent = [str(one) for one in range(1, count) if one not in joined]
            more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
            missing = ", ".join(absent[:_MOST_NAMED]) + more
            try:
                listener.settimeout(max(0.01, timeout_s - watch.elapsed_s()))
                connection = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                reason = f"not all {count} processes connected {at}: missing {missing}"
                answer = _Answer(f"{reason}; start the same command on each of them", False)
                for one in joined.values():
                    _send(one, answer)
                raise Unreachable(f"process 0: {answer.refusal}") from None
            hello = _receive(connection, _Hello, _SILENT_S)
            joined = {number: one for number, one in joined.items() if not _is_closed(one)}
            if hello is None:
                connection.close()
            elif reason := _refusal(hello, count, joined):
                _send(connection, _Answer(reason, True))
            else:
                joined[hello.process] = connection
        for one in joined.values():
            _send(one, _Answer(None, False))


def _refusal(hello: _Hello, count: int, joined: Mapping[int, object]) -> str | None:
    if hello.count != count:
        return f"--num_processes={hello.count}: process 0 has {count}"
    if hello.process in joined or not 0 < hello.process < count:
        return f"--process_id={hello.process}: another process has it; give each its own"
    return None


def _join(host: str, port: int, hello: _Hello, timeout_s: float, at: str) -> None:
    """Tell process 0 which process this is, and wait for its answer."""
    watch, reason = Stopwatch(), ""
    while (left_s := timeout_s - watch.elapsed_s()) > 0:
        try:
            with socket.create_connection((host, port), left_s) as connection:
                _send(connection, hello)
                # Process 0 knows better why time is up.
                answer = _receive(connection, _Answer, left_s + _SILENT_S)
            if answer and answer.is_input:
                raise BadInput(answer.refusal)
            if answer and answer.refusal:
                raise Unreachable(f"process {hello.process}: {answer.refusal}")
            if answer:
                return
            reason = "what listens there is no process 0 that waits"
        except OSError as error:
            reason = error.strerror or str(error)
        pause(_RETRY_S)
    raise Unreachable(
        f"process {hello.process}: no process 0 answered {at}: {reason}; start the same command on "
        "each host, with different --process_id"
    )


def _send(connection: socket.socket, message: _Hello | _Answer) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        connection.sendall(msgspec.json.encode(message) + b"\n")


def _receive(
    connection: socket.socket, kind: Callable[..., Message], timeout_s: float
) -> Message | None:
    """Return a message; None if there is none in time, or another one."""
    connection.settimeout(timeout_s)
    try:
        # Once: a message is a single packet, and a stranger that drips bytes would hold all up.
        return msgspec.json.decode(connection.recv(_MOST_BYTES), type=kind)
    except (OSError, ValueError):
        return None


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
