"""Outputs that no page has shown: kept, also on disk, until the page that asked for them is back.

Jupyter's own server keeps them in memory, so they end with it. Here they are in a file too, and a
server that is started again goes on collecting where the one before was stopped or killed.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from singularity_kernel.relay import jupyter_wire

log = logging.getLogger("singularity.server")

Message = tuple[str, list[bytes]]
"""Channel and the parts as they came from the kernel."""

Callback = Callable[[list[bytes]], Any]


@dataclass(frozen=True)
class _Output:
    """One message that waits."""

    channel: str
    parts: list[bytes]
    identity: str
    asker: str

    @classmethod
    def of(cls, channel: str, parts: Sequence[bytes]) -> _Output:
        frames = [bytes(part) for part in parts]
        identity = str(jupyter_wire.header(frames).get("msg_id") or "")
        return cls(channel, frames, identity, asker_of(frames))

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    def record(self) -> bytes:
        """As it stands in the file."""
        head = json.dumps([self.channel, [len(part) for part in self.parts]])
        return b"".join([head.encode(), b"\n", *self.parts])


class Waiting:
    """The outputs of one kernel. `limit` bytes are kept; beyond it the oldest are dropped, and that
    is said."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._bytes = 0
        self._dropping = False
        self._kept: deque[_Output] = deque()
        self._ids: set[str] = set()
        self._file: io.FileIO | None = None
        self._end = 0
        """Where the last whole record of the file ends; what is behind it is cut off."""
        for kept, self._end in _read(path):
            self._remember(kept)

    @property
    def messages(self) -> list[Message]:
        """All of them, the oldest first."""
        return [(kept.channel, kept.parts) for kept in self._kept]

    @property
    def askers(self) -> set[str]:
        """Ids of the pages whose requests they answer."""
        return {kept.asker for kept in self._kept if kept.asker}

    def add(self, channel: str, parts: Sequence[bytes]) -> None:
        """Keep one more, once: a relay that was not sure gives a message a second time."""
        kept = _Output.of(channel, parts)
        if kept.identity in self._ids:
            return
        if self._remember(kept):
            self._append(kept.record())

    def _remember(self, kept: _Output) -> bool:
        """False when it alone is more than the limit."""
        if not self._dropping and self._bytes + kept.size > self._limit:
            self._dropping = True
            log.warning(
                "%s: more than %d bytes of output wait for their page; the oldest are dropped",
                self._path.stem,
                self._limit,
            )
        if kept.size > self._limit:
            return False
        self._kept.append(kept)
        self._bytes += kept.size
        if kept.identity:
            self._ids.add(kept.identity)
        while self._bytes > self._limit:
            oldest = self._kept.popleft()
            self._bytes -= oldest.size
            self._ids.discard(oldest.identity)
        return True

    def take(self, page: str) -> list[Message]:
        """Those that a page asked for, and those that nobody did; they wait no longer."""
        return self._part(lambda kept: kept.asker in ("", page))

    def keep_only(self, pages: Collection[str]) -> None:
        """No other page than these comes back: nobody will take what others asked for."""
        self._part(lambda kept: bool(kept.asker) and kept.asker not in pages)

    def _part(self, goes: Callable[[_Output], bool]) -> list[Message]:
        """Remove those that go, and return them."""
        gone: list[Message] = []
        left: list[_Output] = []
        for kept in self._kept:
            if goes(kept):
                gone.append((kept.channel, kept.parts))
            else:
                left.append(kept)
        if gone:
            self._clear()
            for kept in left:
                self._remember(kept)
            self._rewrite()
        return gone

    def forget(self) -> None:
        """The pages have them, or the kernel has ended."""
        self._clear()
        self._rewrite()

    def _clear(self) -> None:
        self._kept.clear()
        self._ids.clear()
        self._bytes, self._dropping = 0, False

    # -- the file ---------------------------------------------------------------------------

    def _append(self, record: bytes) -> None:
        """A record that cannot be written is in memory alone; those before and after it stay
        readable."""
        if self._end + len(record) > 2 * self._limit:  # half of it was dropped
            self._rewrite()
            return
        with contextlib.suppress(OSError):
            if self._file is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = _open(self._path)
            # Also where a writer was killed, or a disk was full, in the middle of a record.
            self._file.truncate(self._end)
            self._file.seek(self._end)
            if self._file.write(record) == len(record):
                self._end += len(record)

    def _rewrite(self) -> None:
        """The file holds what is kept, in one step; when that fails, nothing, rather than what
        pages have shown."""
        self.close()
        data = b"".join(kept.record() for kept in self._kept)
        new = self._path.with_name(f"{self._path.name}-new")
        self._end = 0
        try:
            if data:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _open(new) as file:
                    file.truncate(0)
                    if file.write(data) != len(data):
                        raise OSError("the disk is full")
                os.replace(new, self._path)
                self._end = len(data)
                return
        except OSError:
            _remove(new)
        _remove(self._path)

    def close(self) -> None:
        """The file is left as it is; it is opened again when need be."""
        if self._file is not None:
            self._file.close()
            self._file = None


def asker_of(parts: Sequence[bytes]) -> str:
    """Id of the page whose request a message answers; "" when it answers none."""
    return str(jupyter_wire.parent(list(parts)).get("session") or "")


def _open(path: Path) -> io.FileIO:
    """For writing, unbuffered, made if it is not there; with what it holds."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return io.FileIO(os.open(path, flags, 0o600), "r+")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Iterator[tuple[_Output, int]]:
    """What is whole in the file, each with its end; its writer may have been killed in the
    middle."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        try:
            channel, sizes = json.loads(data[at:end])
            sizes = [int(size) for size in sizes]
        except (ValueError, TypeError, RecursionError):
            return
        at, parts = end + 1, []
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        if at > len(data) or any(size < 0 for size in sizes):
            return
        yield _Output.of(str(channel), parts), at


class Replay:
    """The messages that a page is sent when its connection is ready, which may take a while after
    it was asked for them: they are looked up then. Jupyter limits how much output a kernel may send
    in a second and drops the rest; these came in their own time and are not limited."""

    def __init__(self, look_up: Callable[[], Sequence[Message]], session_key: str) -> None:
        self._look_up = look_up
        self._key = session_key
        self._messages: Sequence[Message] | None = None

    def __len__(self) -> int:
        if self._messages is None:
            self._messages = self._look_up()
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        messages = self._messages if len(self) else ()
        handler = ZMQChannelsWebsocketConnection._open_sessions.get(self._key)
        connection = getattr(handler, "connection", None)
        limited = getattr(connection, "limit_rate", False)
        if connection is not None:
            connection.limit_rate = False
        try:
            yield from messages or ()
        finally:
            if connection is not None:
                connection.limit_rate = limited


class KeptStream:
    """An iopub stream that is subscribed before any page is there, and then handed to one.

    Jupyter looks for one message on a stream before it uses it, and throws that away: until
    `on_recv_stream`, which is the hand-over, everything goes to `collect`, and who looks gets a
    copy.
    """

    channel = "iopub"

    def __init__(self, stream: Any, collect: Callback) -> None:
        self._stream: Any = bare(stream)
        self._look: Callback | None = None
        self._given = False

        def taken(parts: list[bytes]) -> None:
            collect(parts)
            if self._look is not None:
                self._look(parts)

        self._stream.on_recv(taken)

    def on_recv(self, callback: Callback | None, copy: bool = True) -> None:
        if self._given:
            self._stream.on_recv(callback, copy)
        else:
            self._look = callback

    def stop_on_recv(self) -> None:
        self.on_recv(None)

    def on_recv_stream(self, callback: Callable[[Any, list[bytes]], Any]) -> None:
        self._given = True
        self._stream.on_recv(lambda parts: callback(self, parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class Kept:
    """The streams of one kernel that collect while pages are away."""

    iopub: Any
    """A ZMQStream or `KeptStream`; None while a page has it."""
    pages: dict[str, dict[str, Any]]
    """Page -> channel -> stream, of the channels on which it alone is answered."""

    def take(self, page: str) -> dict[str, Any]:
        """Channel -> stream, for a page that is back."""
        channels = self.pages.pop(page, {})
        if self.iopub is not None:
            channels["iopub"], self.iopub = self.iopub, None
        return channels

    def leave_only(self, pages: Collection[str]) -> list[Any]:
        """The streams of other pages, which do not come back; they are to be closed."""
        gone = [self.pages.pop(page) for page in set(self.pages) - set(pages)]
        return [stream for streams in gone for stream in streams.values()]

    def streams(self) -> list[Any]:
        mine = [] if self.iopub is None else [self.iopub]
        return mine + [stream for streams in self.pages.values() for stream in streams.values()]


def bare(stream: Any) -> Any:
    """The ZMQStream below a `KeptStream`, or itself."""
    return stream._stream if isinstance(stream, KeptStream) else stream


def is_connected(session_key: str) -> bool:
    """Whether a page has streams of its own now, so that it is sent what it asked for."""
    handler = ZMQChannelsWebsocketConnection._open_sessions.get(session_key)
    return bool(getattr(getattr(handler, "connection", None), "channels", None))
