"""The guards of conftest.py guard: a test cannot reach another machine."""

import socket
from collections.abc import Callable

import pytest

OUTSIDE = ("192.0.2.1", 9)  # reserved for documentation, RFC 5737: nobody is there


def lookup() -> None:
    socket.getaddrinfo("atlas.example", 443)


def stream() -> None:
    with socket.socket() as opened:
        opened.connect(OUTSIDE)


def datagram() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        opened.sendto(b"x", OUTSIDE)


@pytest.mark.parametrize("attempt", [lookup, stream, datagram])
def test_another_machine_is_out_of_reach(attempt: Callable[[], None]) -> None:
    with pytest.raises(pytest.fail.Exception, match="tests reach this machine only"):
        attempt()


def test_this_machine_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
