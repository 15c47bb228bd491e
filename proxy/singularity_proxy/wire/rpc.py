"""Calls between our processes on one machine: JSON lines over a unix socket, both ways.

One connection, two equal peers: each may call the other. A line is one of

    {"id": 7, "method": "park", "params": {...}}     a call
    {"method": "event", "params": {...}}             a notification, never answered
    {"id": 7, "result": ...}                         an answer
    {"id": 7, "error": {"type", "message", "fields"}}

Who calls: the scheduler service and the node agent (`agent.sock`), magics and workers with the
agent (the per-session socket), the agent with its device proxies. Sockets are created 0600 and
every accepted peer's uid is checked with SO_PEERCRED (`Credentials`), because a file mode alone
does not protect against a descriptor that was handed on.
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
    Forbidden,
    NotFound,
    SingularityError,
    Unavailable,
    from_wire,
    to_wire,
)

MAX_LINE_BYTES = 16 << 20
"""A line longer than this ends the connection: no peer of ours sends one."""


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


Handler = Callable[["Peer", dict[str, Any]], Awaitable[Any]]
"""Serves one method: `await handler(peer, params)`; what it returns is the JSON answer."""


class Peer:
    """One end of a connection. Made by `connect` and `serve`; use `call` and `notify`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: dict[str, Handler],
        on_close: Callable[[Peer], None] | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._on_close = on_close
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.credentials = Credentials.of(writer.get_extra_info("socket"))
        self.closed = asyncio.Event()
        self.data: dict[str, Any] = {}
        """Free for the owner: what it knows of this connection."""
        self._loop_task = asyncio.create_task(self._loop())

    async def call(self, method: str, timeout: float | None = 60.0, **params: Any) -> Any:
        """Call the other end and return its answer; raises its typed error, or `Unavailable`
        when the connection ends or `timeout` seconds pass first (None: no limit)."""
        if self.closed.is_set():
            raise Unavailable(f"the connection closed before '{method}' could be sent")
        self._next_id += 1
        call_id = self._next_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = future
        try:
            self._send({"id": call_id, "method": method, "params": params})
            return await asyncio.wait_for(future, timeout)
        except (asyncio.TimeoutError, TimeoutError):
            raise Unavailable(f"'{method}' was not answered within {timeout:g} s") from None
        finally:
            self._waiting.pop(call_id, None)

    def notify(self, method: str, **params: Any) -> None:
        """Tell the other end without waiting; silently dropped when the connection is gone."""
        if not self.closed.is_set():
            self._send({"method": method, "params": params})

    async def close(self) -> None:
        """End the connection and wait until its tasks are gone."""
        self._writer.close()
        self._loop_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._loop_task

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def _loop(self) -> None:
        try:
            while line := await self._reader.readline():
                message = json.loads(line)
                if "method" in message:
                    task = asyncio.create_task(self._serve(message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                elif (future := self._waiting.get(message["id"])) and not future.done():
                    if "error" in message:
                        future.set_exception(from_wire(message["error"]))
                    else:
                        future.set_result(message.get("result"))
        except (ConnectionError, ValueError, asyncio.LimitOverrunError, OSError):
            pass
        finally:
            self.closed.set()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Unavailable("the other process closed the connection"))
            self._writer.close()
            if self._on_close:
                self._on_close(self)

    async def _serve(self, message: dict[str, Any]) -> None:
        method, call_id = message["method"], message.get("id")
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise NotFound(f"there is no method '{method}' on this socket", method=method)
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
                    {"message": f"rpc method '{method}' failed", "exception": error}
                )
        if call_id is not None and not self.closed.is_set():
            self._send(answer)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()


async def connect(
    path: str | os.PathLike[str],
    handlers: dict[str, Handler] | None = None,
    on_close: Callable[[Peer], None] | None = None,
) -> Peer:
    """Connect to the socket at `path`; raises `Unavailable` when nobody listens there."""
    try:
        reader, writer = await asyncio.open_unix_connection(os.fspath(path), limit=MAX_LINE_BYTES)
    except OSError as error:
        raise Unavailable(f"nobody answers at {path} ({error.strerror})", path=str(path)) from None
    return Peer(reader, writer, handlers or {}, on_close)


async def serve(
    path: str | os.PathLike[str],
    handlers: dict[str, Handler],
    *,
    allowed_uids: Collection[int],
    owner: tuple[int, int] | None = None,
    on_connect: Callable[[Peer], None] | None = None,
    on_close: Callable[[Peer], None] | None = None,
) -> asyncio.AbstractServer:
    """Listen at `path` (0600, chowned to `owner` = (uid, gid) if given) and serve `handlers`.

    A peer whose uid is not in `allowed_uids` gets one `Forbidden` error line and is disconnected.
    An existing file at `path` is replaced.
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

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = Credentials.of(writer.get_extra_info("socket"))
        if who.uid not in allowed_uids:
            refusal = Forbidden(
                f"uid {who.uid} may not use this socket: it belongs to another user", uid=who.uid
            )
            writer.write(json.dumps({"id": 1, "error": to_wire(refusal)}).encode() + b"\n")
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()
            return
        peer = Peer(reader, writer, handlers, on_close)
        if on_connect:
            on_connect(peer)

    return await asyncio.start_unix_server(accept, sock=sock, limit=MAX_LINE_BYTES)


class ConnectionCut(Unavailable):
    """The connection ended after the question was sent: whether it was done is not known."""


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
        """Call and wait for the answer; raises the callee's typed error or `Unavailable`, a
        `ConnectionCut` when the connection ended in between."""
        self._next_id += 1
        request = {"id": self._next_id, "method": method, "params": params}
        try:
            with contextlib.suppress(BrokenPipeError):  # a refusal may be waiting to be read
                self._sock.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            while line := self._file.readline():
                answer = json.loads(line)
                if answer.get("id") == self._next_id:
                    if "error" in answer:
                        raise from_wire(answer["error"])
                    return answer.get("result")
        except TimeoutError as error:
            raise Unavailable(f"'{method}' was not answered ({error})") from None
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
