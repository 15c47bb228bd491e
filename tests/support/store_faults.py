"""A proxy in front of a store's port that can answer 503, hang, cut the line, or lose an answer."""

from __future__ import annotations

import contextlib
import socket
import threading

_BUSY = (
    b"HTTP/1.1 503 The server is busy.\r\nx-ms-error-code: ServerBusy\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class FaultProxy:
    """`with FaultProxy(port) as proxy:` listens on `proxy.port`; `proxy.mode` is one of

    "pass", "busy" (503), "hang" (never answers), "refuse" (closes at once), "lose" (passes the next
    request on and cuts the line instead of passing its answer back, then is "pass" again). With
    `proxy.left`, only so many requests are treated like that.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.mode = "pass"
        self.left: int | None = None
        self.seen = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> FaultProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(client)
            self._start(self._serve, client)

    def _take(self) -> str:
        """The fault of one request."""
        with self._lock:
            self.seen += 1
            mode = self.mode
            if mode != "pass" and self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    self.mode, self.left = "pass", None
            return mode

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        self._open.add(server)
        try:
            with (
                client,
                server,
                client.makefile("rb") as requests,
                server.makefile("rb") as answers,
            ):
                while self._exchange(client, server, requests, answers):
                    pass
        except (OSError, ValueError):
            pass
        finally:
            self._open -= {client, server}

    def _exchange(self, client, server, requests, answers) -> bool:  # type: ignore[no-untyped-def]
        request = _message(requests, answer=False)
        if not request:
            return False
        mode = self._take()
        if mode == "refuse":
            return False
        if mode == "busy":
            client.sendall(_BUSY)
            return False
        if mode == "hang":
            client.recv(1)  # until the other side gives up
            return False
        server.sendall(request)
        answer = _message(answers, answer=True, head=request.startswith(b"HEAD"))
        if mode == "lose":
            return False
        client.sendall(answer)
        return bool(answer)


def _message(stream, *, answer: bool, head: bool = False) -> bytes:  # type: ignore[no-untyped-def]
    """One HTTP/1.1 message with its body."""
    lines, length, chunked = [], 0, False
    while line := stream.readline():
        lines.append(line)
        name, _, value = line.lower().partition(b":")
        if name == b"content-length":
            length = int(value)
        chunked |= name == b"transfer-encoding" and b"chunked" in value
        if line == b"\r\n":
            break
    if not lines or head:
        return b"".join(lines)
    if not chunked:
        return b"".join(lines) + stream.read(length)
    while True:
        size = stream.readline()
        lines += [size, stream.read(int(size, 16) + 2)]
        if int(size, 16) == 0:
            return b"".join(lines)
