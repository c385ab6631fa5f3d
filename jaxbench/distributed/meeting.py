"""The processes of a run meet at process 0's port before JAX connects them.

JAX's coordination service aborts all processes, process 0 too, where two come with one index. So
each tells its index here first. When all have come, process 0 leaves its port to that service; what
comes later meets the service there, and sees by its answer that the run has begun without it.
"""

import contextlib
import errno
import ipaddress
import socket

from jaxbench.clock import Stopwatch, pause
from jaxbench.distributed.coordinator import CoordinatorConfig
from jaxbench.errors import BadInput, Unreachable

_POLL_S = 0.5
_QUICK_POLL_S = 0.02
_COMPLETE, _TAKEN, _TOO_HIGH = b"complete\n", b"taken\n", b"too high\n"
_LONGEST_LINE = 40


def incomplete(config: CoordinatorConfig, missing: str = "") -> str:
    """Return the line for a run whose processes did not all come in time."""
    where = f" at {config.address}" if config.address else ""
    return (
        f"process {config.index}: not all {config.count} processes connected{where} within "
        f"{config.initialization_timeout_s} s (--initialization_timeout_s){missing}; "
        "start the same command on each of them"
        + (", with a --process_id of its own" if config.address else "")
    )


def gather(config: CoordinatorConfig, listening: str) -> None:
    """Wait in process 0 until every other index has come; refuse one that comes twice.

    Raises:
      Unreachable: they do not come in time.
    """
    watch, come = Stopwatch(), {}
    with contextlib.ExitStack() as sockets:
        servers = [sockets.enter_context(server) for server in _servers(listening, config.count)]
        guests: list[_Guest] = []
        while len(come) < config.count - 1:
            if watch.elapsed_s() > config.initialization_timeout_s:
                missing = sorted({*range(1, config.count)} - {*come})
                raise Unreachable(incomplete(config, f", not {', '.join(map(str, missing[:9]))}"))
            for server in servers:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        guests.append(_Guest(sockets.enter_context(server.accept()[0])))
            # One that has ended leaves its index free.
            guests = [guest for guest in guests if guest.listen()]
            come = {}
            for guest in guests:
                if guest.index is not None and not 0 < guest.index < config.count:
                    guest.refuse(_TOO_HIGH)
                elif guest.index is not None and come.setdefault(guest.index, guest) is not guest:
                    guest.refuse(_TAKEN)
            pause(_QUICK_POLL_S)
        for server in servers:
            server.close()
        for guest in come.values():
            guest.answer(_COMPLETE)


class _Guest:
    """A connection to process 0, and the index that the process at its other end has told."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.index: int | None = None
        self._connection, self._heard = connection, b""

    def listen(self) -> bool:
        """Read what it has told; return False for one that has ended or is none of ours."""
        try:
            while len(self._heard) <= _LONGEST_LINE:
                heard = self._connection.recv(_LONGEST_LINE)
                if not heard:
                    return False
                self._heard += heard
                index = self._heard.removeprefix(b"jaxbench ").strip()
                if heard.endswith(b"\n") and index.isdigit():
                    self.index = int(index)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def refuse(self, words: bytes) -> None:
        self.index = None
        self.answer(words)

    def answer(self, words: bytes) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(words)
            self._connection.shutdown(socket.SHUT_WR)


def join(config: CoordinatorConfig) -> None:
    """Tell process 0 the index of this process; return when JAX's service listens there.

    Raises:
      BadInput: another process has this index.
      Unreachable: the processes do not come together in time.
    """
    watch, answer = Stopwatch(), b""
    timeout_s = config.initialization_timeout_s
    while not answer:
        left_s = timeout_s - watch.elapsed_s()
        _await_listener(config.address, left_s, timeout_s)
        # A process 0 that has ended may be started again.
        with contextlib.suppress(ConnectionError), _connect(config.address) as connection:
            connection.sendall(f"jaxbench {config.index}\n".encode())
            connection.settimeout(max(0.1, left_s))
            try:
                answer = connection.recv(_LONGEST_LINE)
            except TimeoutError:
                raise Unreachable(incomplete(config)) from None
        if not answer:
            pause(_POLL_S)
    if answer == _TAKEN:
        raise BadInput(f"--process_id={config.index}: another process has it, give each its own")
    if answer == _TOO_HIGH:
        raise BadInput(f"--process_id={config.index}: process 0 has a smaller --num_processes")
    if answer != _COMPLETE:
        raise BadInput(
            f"--process_id={config.index}: a run has begun at {config.address} without this "
            "process (another one has its index), or another program listens there"
        )
    while unreachable_reason(config.address) and watch.elapsed_s() < timeout_s:
        pause(_QUICK_POLL_S)


def _await_listener(address: str, left_s: float, timeout_s: float) -> None:
    """Return once a process listens at this address; raise Unreachable after `left_s`."""
    watch = Stopwatch()
    while reason := unreachable_reason(address):
        if watch.elapsed_s() > left_s:
            raise Unreachable(
                f"--coordinator_address={address}: no process 0 there within {timeout_s} s "
                f"({reason})"
            )
        pause(_POLL_S)


def unreachable_reason(address: str) -> str | None:
    """Return why nothing answers at an address, None where something listens there."""
    try:
        _connect(address).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=5)


def _servers(listening: str, count: int) -> list[socket.socket]:
    """Return sockets that listen there; a name may stand for several addresses."""
    host, _, port = listening.rpartition(":")
    host, servers = host.strip("[]"), []
    places = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    if host == "::":
        places.append((socket.AF_INET, None, None, None, ("0.0.0.0", int(port))))
    for family, *_, place in places:
        # This host may have no such address; one that listens for both kinds has no need of two.
        with contextlib.suppress(OSError):
            both = host == "::" and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            server = socket.create_server(
                place[:2], family=family, backlog=count, dualstack_ipv6=both
            )
            server.setblocking(False)
            servers.append(server)
    return servers


def listening_address(address: str) -> str:
    """Return where process 0 is to listen: at this address alone, where it is this host's own.

    A name may stand for another address on the other hosts (Debian resolves a host's own name to
    127.0.1.1), and an address may belong to a router that forwards to this host: then everywhere.

    Raises:
      Unreachable: another program listens there, where JAX would crash.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # ValueError: a name.
    with contextlib.suppress(OSError, ValueError):
        if host != "localhost":
            ipaddress.ip_address(host)
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        if any(_can_bind(address, family, place) for family, *_, place in found):
            return address
    for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        _can_bind(address, family, (place, int(port)))
    return f"[::]:{port}"


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
