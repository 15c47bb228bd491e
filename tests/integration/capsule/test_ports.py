"""Ports that a restore needs: whose they are, and what ended connections leave of them."""

from __future__ import annotations

import os
import socket

import pytest
from singularity_proxy.capsule import sockets
from singularity_proxy.capsule.sockets import (
    TcpSocket,
    busy_ports,
    end_without_trace,
    foreign_listeners,
    socket_inodes,
)

TCP_REPAIR = 19


def pair() -> tuple[socket.socket, socket.socket, socket.socket]:
    """A listener that shares its port with nobody, and both ends of a connection to it."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    near = socket.create_connection(server.getsockname())
    return server, near, server.accept()[0]


def wanted(port: int) -> list[TcpSocket]:
    return [TcpSocket(f"127.0.0.1:{port}", "", port)]


def end(far: socket.socket, near: socket.socket) -> None:
    """Its own end first: that one waits for a minute."""
    far.close()
    assert near.recv(1) == b""
    near.close()


def test_a_port_of_an_ended_connection_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server, near, far = pair()
    port = server.getsockname()[1]
    server.close()
    end(far, near)
    assert busy_ports(wanted(port), wait_s=0) == [f"127.0.0.1:{port}"]  # it is really not free
    looks: list[int] = []

    def is_free(host: str, number: int) -> bool:
        looks.append(number)
        return len(looks) > 3  # the system lets go of it

    monkeypatch.setattr(sockets, "_is_free", is_free)
    assert busy_ports(wanted(port)) == []
    assert looks == [port] * 4


@pytest.mark.root
def test_a_connection_that_has_ended_can_be_made_again_after_a_moment() -> None:
    """Its own end had bound its port without SO_REUSEADDR, as clients do."""
    server, near, far = pair()
    near_port, far_port = near.getsockname()[1], far.getsockname()[1]
    server.close()
    end(near, far)
    kept = [
        TcpSocket(f"127.0.0.1:{near_port}", f"127.0.0.1:{far_port}", near_port, kept=True),
        TcpSocket(f"127.0.0.1:{far_port}", f"127.0.0.1:{near_port}", far_port, kept=True),
    ]
    assert busy_ports(kept, wait_s=0) == [f"127.0.0.1:{near_port}"], "it has just ended"
    assert busy_ports(kept, wait_s=10) == []
    with socket.socket() as again:  # as CRIU does it
        again.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        again.bind(("127.0.0.1", near_port))
        again.connect(("127.0.0.1", far_port))


def test_a_port_of_another_program_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.time, "sleep", lambda _: pytest.fail("nobody gives it back"))
    server, near, far = pair()
    with server, near, far:
        port = server.getsockname()[1]
        assert busy_ports(wanted(port)) == [f"127.0.0.1:{port}"]
        everywhere = [TcpSocket(f"0.0.0.0:{port}", "", port)]
        assert busy_ports(everywhere) == [f"0.0.0.0:{port}"]
        outgoing = near.getsockname()[1]
        kept = [TcpSocket(f"10.1.2.3:{outgoing}", "10.1.2.3:1", outgoing, kept=True)]
        assert busy_ports(kept) == [f"10.1.2.3:{outgoing}"], "it comes back on the loopback address"
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        with bound:
            number = bound.getsockname()[1]
            assert busy_ports(wanted(number)) == [f"127.0.0.1:{number}"]


def test_the_ports_of_a_session_that_still_runs_are_its_own() -> None:
    server, near, far = pair()
    with server, near, far:
        port = server.getsockname()[1]
        own = socket_inodes([os.getpid()])
        assert foreign_listeners(wanted(port), own) == []
        others = {inode for inode in own if inode != os.fstat(server.fileno()).st_ino}
        assert foreign_listeners(wanted(port), others) == [f"127.0.0.1:{port}"]
        assert foreign_listeners(wanted(near.getsockname()[1]), others) == []


def test_connections_inside_end_without_a_trace() -> None:
    server, near, far = pair()
    port = server.getsockname()[1]
    end_without_trace([os.getpid()])
    server.close()
    far.close()
    near.close()
    assert busy_ports(wanted(port), wait_s=0) == []
    assert not [row for row in sockets._all_rows() if row.local.endswith(f":{port:04X}")]
