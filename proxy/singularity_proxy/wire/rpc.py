"""Calls between our processes: JSON lines over a unix socket, or mutual TLS (`tls`), both ways.

One connection, two equal peers: each may call the other. A line is one of

    {"id": 7, "method": "park", "params": {...}}     a call
    {"method": "event", "params": {...}}             a notification, never answered
    {"id": 7, "result": ...}                         an answer
    {"id": 7, "error": {"type", "message", "fields"}}

Who calls: the scheduler service and the node agent (`agent.sock`), magics and workers with the
agent (the per-session socket), the agent with its device proxies. What a peer may take is in
`limits`; an error without an id refuses the whole connection. Sockets are created 0600 and every
accepted peer's uid is checked with SO_PEERCRED (`Credentials`), because a file mode alone does not
protect against a descriptor that was handed on. On a TCP socket SO_PEERCRED says uid 0 without an
error, so only what accepts unix sockets asks for it; over TLS a certificate says who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    SingularityError,
    Unavailable,
    Unreached,
    from_wire,
    to_wire,
)

from .limits import (
    CALL_BYTES,
    PARSED,
    TRUSTED,
    Held,
    Limits,
    Pace,
    line_too_long,
    line_too_slow,
    read_message,
    too_many_peers,
    too_much_held,
)

CLOSE_S = 5.0
"""What was said last may take so long to be read, before a closed connection is cut."""

READ_BYTES = 16 << 10


@dataclass(frozen=True)
class Credentials:
    """Who is at the other end, told by the kernel (SO_PEERCRED, unix(7)); `pid` is a host pid."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: socket.socket) -> Credentials:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return cls(*struct.unpack("3i", data))


@dataclass(frozen=True)
class Certified:
    """Who is at the other end, by its certificate, which our own authority has signed."""

    name: str
    serial: str
    """Of the certificate, in hexadecimal digits."""


@dataclass(frozen=True)
class Anonymous:
    """Somebody who shows nothing: a machine that is about to join, at `address`."""

    address: str


Who = Credentials | Certified | Anonymous

Handler = Callable[["Peer", dict[str, Any]], Awaitable[Any]]
"""Serves one method: `await handler(peer, params)`; what it returns is the JSON answer."""


class Peer:
    """One end of a connection. Made by `connect` and `serve`; use `call` and `notify`."""

    def __init__(
        self,
        transport: asyncio.Transport,
        handlers: dict[str, Handler],
        on_close: Callable[[Peer], None] | None,
        held: Held,
        pace: Pace,
        who: Who,
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._on_close = on_close
        self._held = held
        self._pace = pace
        self._next_id = 0
        self._waiting: dict[int | str | None, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = bytearray()
        """What came and was not looked at: a line that goes on, or lines that wait their turn."""
        self._searched = 0
        """So much of it has no line's end."""
        self._slow: asyncio.TimerHandle | None = None
        """Ends the connection unless the line that was begun is ended in time."""
        self._later: asyncio.TimerHandle | None = None
        """Looks at lines that came too fast."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.who = who
        self.closed = asyncio.Event()
        self.error: Exception | None = None
        """What ended the connection, where the other end, the system or TLS says so."""
        self.data: dict[str, Any] = {}
        """Free for the owner: what it knows of this connection."""

    @property
    def credentials(self) -> Credentials:
        """The process at the other end; `Forbidden` when it is not one of this machine."""
        if not isinstance(self.who, Credentials):
            raise Forbidden("only a process of this machine can ask this; nothing was done")
        return self.who

    async def call(self, method: str, timeout: float | None = 60.0, **params: Any) -> Any:
        """Call the other end and return its answer; raises its typed error, `Unavailable` when the
        connection is closed, and `Unreached` when it ends, or `timeout` seconds pass (None: no
        limit), before the answer is there."""
        if self.closed.is_set():
            raise Unavailable(f"the connection closed before '{method}' could be sent")
        self._next_id += 1
        call_id = self._next_id
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting[call_id] = future

        def give_up() -> None:
            if not future.done():
                future.set_exception(Unreached(f"'{method}' was not answered within {timeout:g} s"))

        # No `wait_for`, which may swallow a cancellation up to Python 3.11, and no `timeout`, which
        # a kernel's Python 3.10 does not have.
        limit = None if timeout is None else loop.call_later(timeout, give_up)
        try:
            self._send({"id": call_id, "method": method, "params": params})
            return await future
        finally:
            self._waiting.pop(call_id, None)
            if limit is not None:
                limit.cancel()

    def notify(self, method: str, **params: Any) -> None:
        """Tell the other end without waiting; silently dropped when the connection is gone."""
        if not self.closed.is_set():
            self._send({"method": method, "params": params})

    async def close(self) -> None:
        """End the connection; what was said before still goes out. Calls in hand go on."""
        self._end()

    def abort(self) -> None:
        """End the connection at once: the other end may not be there to read anything."""
        if not self.closed.is_set():
            self._end()
            self._transport.abort()

    def refuse(self, error: SingularityError) -> None:
        """Say why, and end the connection: every call of the other end gets this error."""
        self._refuse(error)

    # ---- what goes out

    def _send(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        self._transport.write(line)
        if self._transport.get_write_buffer_size() > self._held.limits.unsent_bytes:
            self.abort()

    def _refuse(self, error: SingularityError, call_id: int | str | None = None) -> None:
        """Say why, and end the connection."""
        if not self.closed.is_set():
            self._send({"id": call_id, "error": to_wire(error)})
            self._end()

    def _end(self) -> None:
        """The connection is over: called for every end, once."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._writable.set()
        for timer in (self._slow, self._later):
            if timer is not None:
                timer.cancel()
        self._held.give_back(len(self._begun))
        self._begun = bytearray()
        self._held.leave()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unreached("the other process closed the connection"))
        if not self._transport.is_closing():  # a TLS transport that is closed twice is broken
            self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)
        if self._on_close:
            self._on_close(self)

    # ---- what comes in

    def _came(self, data: memoryview) -> None:
        if self.closed.is_set():
            return
        if not self._held.take(len(data)):
            self._refuse(too_much_held(self._held.limits))
            return
        self._begun += data
        self._look()

    def _look(self) -> None:
        """Take every whole line, as far as calls in hand and pace allow."""
        limits = self._held.limits
        self._later = None
        while not self.closed.is_set():
            end = self._begun.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._begun)
                break
            if len(self._tasks) >= limits.calls:
                self._transport.pause_reading()  # `_ended` looks again
                return
            if wait_s := self._pace.wait_s():
                self._transport.pause_reading()
                loop = asyncio.get_running_loop()
                self._later = self._later or loop.call_later(wait_s, self._look)
                return
            line = bytes(memoryview(self._begun)[:end])
            self._drop(end + 1)
            if end > limits.line_bytes:
                self._refuse(line_too_long(limits))
            else:
                self._take(line)
        if self.closed.is_set():
            return
        if len(self._begun) > limits.line_bytes:
            self._refuse(line_too_long(limits))
            return
        self._transport.resume_reading()
        self._watch_line()

    def _drop(self, count: int) -> None:
        """The first bytes of what came are taken."""
        del self._begun[:count]
        self._searched = 0
        self._held.give_back(count)
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _watch_line(self) -> None:
        limits = self._held.limits
        if limits.line_s and self._begun and self._slow is None:
            loop = asyncio.get_running_loop()
            self._slow = loop.call_later(limits.line_s, self._refuse, line_too_slow(limits))

    def _take(self, line: bytes) -> None:
        try:
            message = read_message(line, self._held.limits)
        except BadRequest as wrong:
            self._refuse(wrong)
            return
        if "method" in message:
            cost = CALL_BYTES + PARSED * len(line)
            if not self._held.take(cost):
                self._refuse(too_much_held(self._held.limits), message.get("id"))
                return
            task = asyncio.create_task(self._serve(message))
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._ended(done, cost))
            return
        error, call_id = message.get("error"), message.get("id")
        if error is not None and call_id is None:
            self.error = from_wire(error)
        asked = list(self._waiting.values()) if call_id is None else [self._waiting.get(call_id)]
        for future in asked:  # a refusal of the connection is one of every call
            if future is None or future.done():
                continue
            if error is not None:
                future.set_exception(from_wire(error))
            elif call_id is not None:
                future.set_result(message.get("result"))

    def _ended(self, task: asyncio.Task[None], cost: int) -> None:
        """A call was answered."""
        full = len(self._tasks) >= self._held.limits.calls
        self._tasks.discard(task)
        self._held.give_back(cost)
        if full and not self.closed.is_set() and self._later is None:
            self._look()

    async def _serve(self, message: dict[str, Any]) -> None:
        method, call_id = message["method"], message.get("id")
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise NotFound(
                    f"there is no method '{method[:64]}' on this socket", method=method[:64]
                )
            answer: dict[str, Any] = {
                "id": call_id,
                "result": await handler(self, message["params"]),
            }
        except asyncio.CancelledError:
            raise
        except Exception as error:
            answer = {"id": call_id, "error": to_wire(error)}
            if not isinstance(error, SingularityError):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"rpc method '{method[:64]}' failed", "exception": error}
                )
        if call_id is not None and not self.closed.is_set():
            await self._answer(answer)

    async def _answer(self, answer: dict[str, Any]) -> None:
        """Send it, and count it as held until the other end has read what there is to read."""
        line = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        if not self._held.take(len(line)):
            self._end()  # others of its socket do not read theirs
            return
        try:
            self._write(line)
            await self._writable.wait()
        finally:
            self._held.give_back(len(line))


class Wire(asyncio.BufferedProtocol):
    """Reads for a peer with one small buffer; `made` makes the peer, or None after it refused."""

    def __init__(self, made: Callable[[asyncio.Transport], Peer | None]) -> None:
        self._made = made
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.peer: Peer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.peer = self._made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.peer is not None:
            self.peer._came(self._buffer[:nbytes])

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self.peer.error = self.peer.error or exc
            self.peer._end()

    def pause_writing(self) -> None:
        if self.peer is not None and not self.peer.closed.is_set():
            self.peer._writable.clear()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer._writable.set()


async def connect(
    path: str | os.PathLike[str],
    handlers: dict[str, Handler] | None = None,
    on_close: Callable[[Peer], None] | None = None,
    limits: Limits = TRUSTED,
) -> Peer:
    """Connect to the socket at `path`; raises `Unavailable` when nobody listens there."""
    held, pace = Held(limits), Pace(limits)
    held.admit()

    def made(transport: asyncio.Transport) -> Peer:
        who = Credentials.of(transport.get_extra_info("socket"))
        return Peer(transport, handlers or {}, on_close, held, pace, who)

    try:
        _, wire = await asyncio.get_running_loop().create_unix_connection(
            lambda: Wire(made), os.fspath(path)
        )
    except OSError as error:
        raise Unavailable(f"nobody answers at {path} ({error.strerror})", path=str(path)) from None
    assert wire.peer is not None
    return wire.peer


async def serve(
    path: str | os.PathLike[str],
    handlers: dict[str, Handler],
    *,
    allowed_uids: Collection[int],
    owner: tuple[int, int] | None = None,
    on_connect: Callable[[Peer], None] | None = None,
    on_close: Callable[[Peer], None] | None = None,
    limits: Limits = TRUSTED,
    within: Held | None = None,
) -> asyncio.AbstractServer:
    """Listen at `path` (0600, chowned to `owner` = (uid, gid) if given) and serve `handlers`.

    A peer whose uid is not in `allowed_uids` gets one `Forbidden` error line and is disconnected;
    so is, with a sentence of its own, one that goes beyond `limits`, or beyond what is left
    `within` a larger one. An existing file at `path` is replaced.
    """
    path = os.fspath(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_mask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(old_mask)
    if owner:
        os.lchown(path, *owner)  # never what a link points to
    sock.setblocking(False)
    held, pace = Held(limits, within), Pace(limits)

    def made(transport: asyncio.Transport) -> Peer | None:
        who = Credentials.of(transport.get_extra_info("socket"))
        refusal: SingularityError
        if who.uid not in allowed_uids:
            refusal = Forbidden(
                f"uid {who.uid} may not use this socket: it belongs to another user", uid=who.uid
            )
        elif not held.admit():
            refusal = too_many_peers(limits)
        else:
            peer = Peer(transport, handlers, on_close, held, pace, who)
            if on_connect:
                on_connect(peer)
            return peer
        transport.write(json.dumps({"id": 1, "error": to_wire(refusal)}).encode() + b"\n")
        transport.close()
        return None

    return await asyncio.get_running_loop().create_unix_server(lambda: Wire(made), sock=sock)


class ConnectionCut(Unreached):
    """The connection ended after the question was sent."""


class SyncPeer:
    """A blocking client for code without an event loop: magics, the worker's import hook.

    Not thread-safe: one per thread, or guard it. Calls only; it serves nothing.
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float | None = 30.0) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(timeout)
        try:
            self._sock.connect(os.fspath(path))
        except OSError as error:
            self._sock.close()
            raise Unavailable(
                f"nobody answers at {path} ({error.strerror})", path=str(path)
            ) from None
        self._file = self._sock.makefile("rb")
        self._next_id = 0

    def call(self, method: str, **params: Any) -> Any:
        """Call and wait for the answer; raises the callee's typed error, `Unreached` when none came
        in time, and its `ConnectionCut` when the connection ended in between."""
        self._next_id += 1
        request = {"id": self._next_id, "method": method, "params": params}
        try:
            with contextlib.suppress(BrokenPipeError):  # a refusal may be waiting to be read
                self._sock.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            while line := self._file.readline():
                answer = json.loads(line)
                refused = answer.get("id") is None and "error" in answer  # of the connection
                if refused or answer.get("id") == self._next_id:
                    if "error" in answer:
                        raise from_wire(answer["error"])
                    return answer.get("result")
        except TimeoutError as error:
            raise Unreached(f"'{method}' was not answered ({error})") from None
        except ConnectionError as error:
            raise ConnectionCut(f"'{method}' was not answered ({error})") from None
        raise ConnectionCut(f"the other process closed the connection during '{method}'")

    def close(self) -> None:
        self._file.close()
        self._sock.close()

    def __enter__(self) -> SyncPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
