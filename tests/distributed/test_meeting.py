"""Where process 0 listens, who may come, and what the others say."""

import concurrent.futures
import contextlib
import socket
import threading

import pytest

from jaxbench.distributed import meeting
from jaxbench.distributed.coordinator import CoordinatorConfig
from jaxbench.errors import BadInput, Unreachable


def test_a_process_0_that_is_missing_is_said_in_bounded_time():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="cannot listen on port"):
            meeting.listening_address(address)
    with pytest.raises(Unreachable, match="no process 0 there within 0 s"):
        meeting._await_listener(address, 0, 0)


def test_process_0_listens_where_it_was_told_to():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for own in ("localhost", "127.0.0.1"):
        assert meeting.listening_address(f"{own}:{port}") == f"{own}:{port}"
    # A name, and an address (for documentation) that this host does not have.
    for other in ("a.b.invalid", "203.0.113.7"):
        assert meeting.listening_address(f"{other}:{port}") == f"[::]:{port}"


@pytest.fixture
def address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"127.0.0.1:{port}"


def process(address, index, count=3, timeout_s=20):
    return CoordinatorConfig(address, count, index, timeout_s, 30)


@contextlib.contextmanager
def the_service(address):
    """Stands for JAX's service: listens, and answers in its own way."""
    host, port = address.split(":")
    with socket.create_server((host, int(port))) as server:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"\0\0\x12\4")

        threading.Thread(target=answer, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)


def test_of_two_processes_with_one_index_the_second_is_refused(address):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        gathered = pool.submit(meeting.gather, process(address, 0), address)
        # A probe, a stranger, and a process that ends before all have come, leave nothing behind.
        while meeting.unreachable_reason(address):
            pass
        stranger = meeting._connect(address)
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with meeting._connect(address) as early:
            early.sendall(b"jaxbench 2\n")
        first = pool.submit(meeting.join, process(address, 1))
        with pytest.raises(BadInput, match="--process_id=3: process 0 has a smaller"):
            meeting.join(process(address, 3, count=4))
        # Of two that come at once, one is refused.
        second = pool.submit(meeting.join, process(address, 1))
        refused, _ = concurrent.futures.wait([first, second], 10, "FIRST_COMPLETED")
        assert [str(one.exception()) for one in refused] == [
            "--process_id=1: another process has it, give each its own"
        ]
        third = pool.submit(meeting.join, process(address, 2))
        gathered.result(10)
        with the_service(address):
            third.result(10)
            assert {one.exception(10) is None for one in (first, second)} == {True, False}
            # From then on everybody is refused, and JAX hears nothing of it.
            with pytest.raises(BadInput, match="a run has begun at .* without this process"):
                meeting.join(process(address, 1))
    stranger.close()


def test_who_has_not_come_is_said(address):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        gathered = pool.submit(meeting.gather, process(address, 0, timeout_s=0.5), address)
        while meeting.unreachable_reason(address):
            pass
        with pytest.raises(Unreachable, match="process 1: not all 3 processes connected"):
            meeting.join(process(address, 1, timeout_s=0.2))
        with pytest.raises(Unreachable, match="within 0.5 s .*, not 1, 2; start the same command"):
            gathered.result(10)
