"""The processes of a run, here threads, meet at an address or each gets one line in time."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxbench.errors import BadInput, Unreachable
from jaxbench.parallel import rendezvous
from jaxbench.parallel.rendezvous import meet


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ends(port, *processes, timeout_s=1.0, host="localhost"):
    """How the `meet` of each (index, count) ends, all at once."""

    def end(process):
        try:
            return meet(f"{host}:{port}", host, *process, timeout_s)
        except (BadInput, Unreachable) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(processes)) as pool:
        return [*pool.map(end, processes)]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_processes_meet_whoever_is_first(port, host):
    assert ends(port, (2, 3), (0, 3), (1, 3), timeout_s=30, host=host) == [None] * 3
    # At once again: nothing is left on the port, which JAX's service takes.
    assert ends(port, (0, 2), (1, 2), timeout_s=30, host=host) == [None] * 2
    assert ends(port, (0, 1)) == [None]


def test_a_number_that_is_given_twice_is_refused(port):
    first, *twice = ends(port, (0, 3), (1, 3), (1, 3))
    missing = "not all 3 processes connected at localhost:{} within 1 s (--initialization_timeout_s"
    missing = missing.format(port) + "): missing 2; start the same command on each of them"
    taken = "BadInput: --process_id=1: another process has it; give each its own"
    assert first == f"Unreachable: process 0: {missing}"
    assert {*twice} == {taken, f"Unreachable: process 1: {missing}"}
    # Who has it may be gone since.
    with socket.create_server(("localhost", port)) as listener, socket.socket() as gone:
        gone.connect(("localhost", port))
        joined = {1: listener.accept()[0]}
        assert not rendezvous._is_closed(joined[1])
        gone.close()
        assert rendezvous._is_closed(joined[1])
        joined[1].close()


def test_all_are_told_who_of_many_is_missing(port):
    for line in ends(port, (0, 4000), (1, 4000)):
        assert "missing 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3988 more; start the same" in line


def test_counts_that_differ_are_refused(port):
    _, other = ends(port, (0, 2), (1, 3))
    assert other == "BadInput: --num_processes=3: process 0 has 2"


def test_nobody_waits_longer_than_stated(port):
    told = f"at localhost:{port} within 1 s (--initialization_timeout_s): "
    [alone] = ends(port, (0, 2))
    assert alone.startswith(
        f"Unreachable: process 0: not all 2 processes connected {told}missing 1"
    )
    [alone] = ends(port, (1, 2))
    assert alone.startswith(f"Unreachable: process 1: no process 0 answered {told}Connection refus")


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(10**5), b"{}", None]
)
def test_another_program_on_the_port_is_told(port, said):
    """One run does not take the port of another, and says nothing to what listens there."""
    with socket.create_server(("localhost", port)) as listener, ThreadPoolExecutor() as pool:
        waiting = pool.submit(ends, port, (1, 2))
        connection, _ = listener.accept()
        if said is not None:
            connection.sendall(said)
            connection.close()
        [primary] = ends(port, (0, 2))
        assert primary.startswith(f"BadInput: process 0 cannot listen at localhost:{port}: ")
        assert "Address already in use; --coordinator_address must be" in primary
        listener.close()
        [other] = waiting.result()
        connection.close()
    assert other.startswith("Unreachable: process 1: no process 0 answered at localhost")


def test_strangers_do_not_end_a_run(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SILENT_S", 0.1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ends, port, (0, 2), timeout_s=30)
        strangers = []
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[" * 10**4, b'{"process": "1"}\n'):
            strangers.append(_connect(port))
            strangers[-1].sendall(said)
        assert ends(port, (1, 2), timeout_s=30) == [None]
        assert waiting.result() == [None]
        for stranger in strangers:
            stranger.close()


def test_who_drips_bytes_holds_nobody_up(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SILENT_S", 0.5)
    has_begun, is_over = threading.Event(), threading.Event()

    def drip():
        with contextlib.suppress(OSError), _connect(port) as stranger:
            while not is_over.wait(0.1):
                stranger.sendall(b"x")
                has_begun.set()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ends, port, (0, 2), timeout_s=60)
        pool.submit(drip)
        try:
            assert has_begun.wait(60)
            assert ends(port, (1, 2), timeout_s=60) == waiting.result() == [None]
        finally:
            is_over.set()


def _connect(port):
    while True:
        try:
            return socket.create_connection(("localhost", port))
        except ConnectionRefusedError:
            pass
