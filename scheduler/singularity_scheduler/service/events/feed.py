"""What happened, for the event streams: a numbered list of the newest events, kept for a while.

A listener is a position in that list, so one that comes back reads on where it stopped, and a slow
one costs nothing. A session's text is made once, whoever reads it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import uuid4

MAX_EVENTS = 10_000
MAX_BYTES = 16 << 20
MAX_AGE_S = 300.0
"""The oldest events are forgotten beyond this; who has not read them starts anew."""

PIECE_BYTES = 256 << 10
"""A listener that is far behind takes about so much at a time."""

_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


@dataclass(frozen=True)
class _Event:
    """`user`: whose it is. A queue event has `places` (user -> session -> place) instead."""

    user: str
    text: bytes
    size: int
    """What it counts for in memory, in bytes."""
    at: float
    """When it was told, on the feed's clock."""
    places: Mapping[str, Mapping[str, int]] | None = None

    def seen_by(self, user: str | None) -> bytes:
        """Its lines without the id, as this user may see it; b"" for nothing. None: an admin."""
        if self.places is None:
            return self.text if user is None or user == self.user else b""
        if user is None:
            seen = {s: n for places in self.places.values() for s, n in places.items()}
        else:
            seen = dict(self.places.get(user, {}))
        return lines("queue", json.dumps({"places": seen})) if seen else b""


def lines(event: str, data: str) -> bytes:
    """An event as the stream has it, without its id and the blank line at its end."""
    return f"event: {event}\ndata: {data}\n".encode()


class Listener:
    """One event stream: `await wait(...)`, then `take()`."""

    def __init__(self, feed: Feed, user: str | None, position: int) -> None:
        self.user = user
        self.position = position
        self.over = False
        self._feed = feed
        self._news = asyncio.Event()

    def end(self) -> None:
        """Its reader left."""
        self.over = True
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def wait(self, seconds: float) -> bool:
        """True as soon as there may be something to take; False after `seconds`."""
        if self.position < self._feed.newest or self._feed.closed or self.over:
            return True
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> bytes | None:
        """What came since, ready to be sent, or the first of it when it is much; None when the
        stream is over: its reader left, the service stops, or what it has not read is forgotten
        already."""
        feed = self._feed
        if self.over or feed.closed or not feed.covers(self.position):
            return None
        text, self.position = feed.piece(self.position, self.user)
        return text

    @property
    def place(self) -> bytes:
        """A line that moves the reader's last event id to here."""
        return f"id: {self._feed.id_of(self.position)}\n\n".encode()


class Feed:
    """The list; one per service. `instance` tells its numbers from those before a restart; `clock`
    says how old events are, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.instance = uuid4().hex[:8]
        self.newest = 0
        self.closed = False
        self._events: list[_Event] = []
        self._bytes = 0
        self._listeners: set[Listener] = set()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def id_of(self, number: int) -> str:
        return f"{self.instance}-{number}"

    def covers(self, number: int) -> bool:
        """Whether everything after this number is still here."""
        return self.newest - len(self._events) <= number <= self.newest

    def listen(self, user: str | None, last_event_id: str | None) -> tuple[Listener, bool]:
        """A listener, and whether it reads on after `last_event_id`; when not it stands at the
        end and needs a snapshot of now."""
        match = _ID.fullmatch(last_event_id or "")
        goes_on = bool(match and match[1] == self.instance and self.covers(int(match[2])))
        position = int(match[2]) if match and goes_on else self.newest
        listener = Listener(self, user, position)
        self._listeners.add(listener)
        return listener, goes_on

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def add(self, user: str, event: str, data: str) -> None:
        """Something of this user's happened; `data` is one line of JSON."""
        text = lines(event, data)
        self._add(_Event(user, text, len(text), self._clock()))

    def add_places(self, places: Mapping[str, tuple[str, int]]) -> None:
        """These sessions' places in the queue changed: session -> (user, place)."""
        by_user: dict[str, dict[str, int]] = {}
        for session, (user, place) in places.items():
            by_user.setdefault(user, {})[session] = place
        size = 100 * len(places) + 300 * len(by_user)
        self._add(_Event("", b"", size, self._clock(), by_user))

    def since(self, number: int, user: str | None) -> bytes:
        """What this user may see of everything after `number`."""
        return self.piece(number, user, MAX_BYTES)[0]

    def piece(self, number: int, user: str | None, most: int = PIECE_BYTES) -> tuple[bytes, int]:
        """(what this user may see of what came after `number`, the number of the last event of
        it): no more events once it has `most` bytes."""
        parts, size = [], 0
        first = self.newest - len(self._events) + 1
        for n in range(number + 1, self.newest + 1):
            if text := self._events[n - first].seen_by(user):
                parts.append(b"id: %b\n%b\n" % (self.id_of(n).encode(), text))
                size += len(text)
                if size >= most:
                    return b"".join(parts), n
        return b"".join(parts), self.newest

    def close(self) -> None:
        """End all streams; the service stops."""
        self.closed = True
        for listener in self._listeners:
            listener.wake()

    def _add(self, event: _Event) -> None:
        self.newest += 1
        self._events.append(event)
        self._bytes += event.size
        if len(self._events) > MAX_EVENTS or self._bytes > MAX_BYTES:
            self._forget(max(1, len(self._events) // 8))
        elif event.at - self._events[0].at > 1.25 * MAX_AGE_S:
            self._forget(bisect_left(self._events, event.at - MAX_AGE_S, key=lambda e: e.at))
        for listener in self._listeners:
            listener.wake()

    def _forget(self, count: int) -> None:
        """Drop the `count` oldest: many at once, so that this is done rarely."""
        self._bytes -= sum(event.size for event in self._events[:count])
        del self._events[:count]
