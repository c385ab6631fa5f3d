"""Where process 0 listens, and what the others say where it does not."""

import socket

import pytest

from jaxbench.distributed import connection
from jaxbench.errors import Unreachable


def test_a_process_0_that_is_missing_is_said_in_bounded_time():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="cannot listen on port"):
            connection._listening_address(address)
    with pytest.raises(Unreachable, match="no process 0 there within 0 s"):
        connection._await_listener(address, 0)


def test_process_0_listens_where_it_was_told_to():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for own in ("localhost", "127.0.0.1"):
        assert connection._listening_address(f"{own}:{port}") == f"{own}:{port}"
    # A name, and an address (for documentation) that this host does not have.
    for other in ("a.b.invalid", "203.0.113.7"):
        assert connection._listening_address(f"{other}:{port}") == f"[::]:{port}"
