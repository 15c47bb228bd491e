"""Requests over connections that are kept: one for many, and none that is of no use any more."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from singularity_proxy.checkpoint.stores import connections
from singularity_proxy.checkpoint.stores.connections import Answer, Connections

URL = "http://bucket.example/a/b?signed=%2Fx"
GONE = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSAL = b"<Error><Code>PreconditionFailed</Code></Error>"
MOVED = b"HTTP/1.1 412 No\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
LAST = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
CUT, SILENT = b"cut", b"silent"


class Service:
    """Answers requests in the order of `answers`, on as many connections as are made."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.requests: list[tuple[int, str]] = []
        """Number of the connection, and the request."""
        self.made: list[http.client.HTTPConnection] = []
        self.ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def connect(self, connection: http.client.HTTPConnection) -> None:
        """In place of what would open a connection."""
        connection.sock, end = socket.socketpair()
        self.made.append(connection)
        self.ends.append(end)
        thread = threading.Thread(target=self._serve, args=(len(self.made), end))
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        for end in self.ends:
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self.ends:
            end.close()

    def _serve(self, number: int, end: socket.socket) -> None:
        with end.makefile("rb") as stream:
            while request := _head(stream):
                answer = self.answers.pop(0)
                self.requests.append((number, request))
                if answer == CUT:
                    end.shutdown(socket.SHUT_RDWR)
                elif answer != SILENT:
                    end.sendall(answer)


def _head(stream: BinaryIO) -> str:
    """The next request without what ends it; "": there is none."""
    text = b""
    while (line := stream.readline()) not in (b"", b"\r\n"):
        text += line
    return text.decode()


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service()
    for name in [n for n in os.environ if n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for kind in (http.client.HTTPConnection, http.client.HTTPSConnection):
        monkeypatch.setattr(kind, "connect", lambda made: service.connect(made))  # noqa: PLW0108
    yield service
    service.close()


@pytest.fixture
def kept() -> Iterator[Connections]:
    kept = Connections(20.0, 20.0)
    yield kept
    kept.close()


def test_one_connection_serves_many_requests(service: Service, kept: Connections) -> None:
    service.answers = [GONE, MOVED, GONE]
    assert kept.send("DELETE", URL, {"If-Match": '"1"'}) == Answer(204, "")
    assert kept.send("DELETE", URL, {}) == Answer(412, "PreconditionFailed")
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    assert [number for number, _ in service.requests] == [1, 1, 1]
    first = service.requests[0][1]
    assert first.startswith("DELETE /a/b?signed=%2Fx HTTP/1.1\r\nHost: bucket.example\r\n")
    assert 'If-Match: "1"' in first


@pytest.mark.parametrize("how", ["by the service", "as it said", "long ago"])
def test_a_connection_of_no_more_use_is_not_used(
    service: Service, kept: Connections, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers = [LAST if how == "as it said" else GONE, GONE]
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    if how == "by the service":
        service.ends[0].shutdown(socket.SHUT_RDWR)
    elif how == "long ago":
        monkeypatch.setattr(connections, "KEPT_S", -1.0)
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    assert [number for number, _ in service.requests] == [1, 2]
    assert service.made[0].sock is None, "it was closed"


@pytest.mark.parametrize(
    ("answer", "said"), [(CUT, "cannot be reached"), (SILENT, "did not answer in time")]
)
def test_what_is_not_answered_is_sent_once(
    service: Service,
    kept: Connections,
    answer: bytes,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sends it counts the tries; the next goes over a connection of its own."""
    service.answers = [GONE, answer]
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_read_timeout_s", 0.05 if answer == SILENT else 20.0)
        assert kept.send("DELETE", URL, {}) == said
    assert [number for number, _ in service.requests] == [1, 1]
    assert service.made[0].sock is None
    service.answers = [LAST]
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    assert service.requests[-1][0] == 2


def test_requests_at_once_have_connections_of_their_own(
    service: Service, kept: Connections
) -> None:
    service.answers = [SILENT, GONE]
    said: list[object] = []
    first = threading.Thread(target=lambda: said.append(kept.send("DELETE", URL, {})))
    first.start()
    while not service.requests:
        first.join(0.001)
    assert kept.send("DELETE", URL, {}) == Answer(204, "")
    service.ends[0].sendall(GONE)
    first.join()
    assert said == [Answer(204, "")]
    assert [number for number, _ in service.requests] == [1, 2]
    kept.close()
    assert [connection.sock for connection in service.made] == [None, None]


def test_a_proxy_of_the_environment_is_used(
    service: Service, kept: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:p%40ss@proxy.example:3128")
    monkeypatch.setenv("https_proxy", "proxy.example")
    monkeypatch.setenv("no_proxy", "near.example")
    service.answers = [GONE] * 3
    for url in (URL, "https://bucket.example/a", "http://near.example/a"):
        assert kept.send("DELETE", url, {}) == Answer(204, "")
    assert [(made.host, made.port) for made in service.made] == [
        ("proxy.example", 3128),
        ("proxy.example", 80),
        ("near.example", 80),
    ]
    plain, tunnelled, near = (request for _, request in service.requests)
    assert plain.startswith(f"DELETE {URL} HTTP/1.1\r\nHost: bucket.example\r\n")
    assert "Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in plain
    assert tunnelled.startswith("DELETE /a HTTP/1.1\r\nHost: bucket.example\r\n")
    assert near.startswith("DELETE /a HTTP/1.1\r\nHost: near.example\r\n")
