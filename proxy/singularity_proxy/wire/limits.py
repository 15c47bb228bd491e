"""How much of a process's memory and time its peers may take on a socket. Declared here once.

`wire.rpc` enforces it, and so does the relay's control socket. What peers hold is counted in a
`Held`, which may be a part of a larger one: a session's in that of its user. A peer that
asks for more than there is gets one sentence and is disconnected; the others go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from singularity_proxy.errors import BadRequest, TooLarge, Unavailable

CALL_BYTES = 4096
"""What a call in hand costs besides what it says: a task, and what its handler makes."""

PARSED = 8
"""JSON takes about so much more memory as Python objects than as text."""


@dataclass(frozen=True)
class Limits:
    """Of one socket."""

    line_bytes: int
    """The longest line, in bytes."""
    peers: int
    """Connections at a time."""
    held_bytes: int
    """Begun lines, calls in hand and answers that nobody reads, of all its peers together."""
    unsent_bytes: int
    """A peer that leaves more than this unread is disconnected."""
    calls: int
    """Calls of one peer in hand at a time; further ones wait in the socket."""
    depth: int = 64
    """Nested lists and objects in one line."""
    line_s: float = 0.0
    """Seconds from the first byte of a line to its last; 0: no limit."""
    calls_per_s: float = 0.0
    """Calls of all its peers together, on average; further ones wait. 0: no limit."""
    burst: int = 0
    """So many calls may come at once before `calls_per_s` counts."""


TRUSTED = Limits(
    line_bytes=16 << 20,
    peers=256,
    held_bytes=1 << 30,
    unsent_bytes=256 << 20,
    calls=1 << 16,
)
"""Between processes of the platform itself: service and agent, agent and device proxies."""

SESSION = Limits(
    line_bytes=1 << 20,
    peers=64,
    held_bytes=16 << 20,
    unsent_bytes=2 << 20,
    calls=16,
    line_s=60.0,
    calls_per_s=200.0,
    burst=1000,
)
"""The socket in a session's folder. The longest line of magics is a `submit` with its variables."""

USER = Limits(
    line_bytes=SESSION.line_bytes,
    peers=1024,
    held_bytes=4 * SESSION.held_bytes,
    unsent_bytes=SESSION.unsent_bytes,
    calls=SESSION.calls,
)
"""All sessions of one user on a node together: `peers` and `held_bytes` count."""

RELAY = Limits(
    line_bytes=4 << 20,
    peers=8,
    held_bytes=16 << 20,
    unsent_bytes=4 << 20,
    calls=64,
    line_s=60.0,
    calls_per_s=50.0,
    burst=500,
)
"""Between an agent and a relay, which runs as its session's user."""


NODE = Limits(
    line_bytes=TRUSTED.line_bytes,
    peers=1,
    held_bytes=64 << 20,
    unsent_bytes=64 << 20,
    calls=1024,
    line_s=60.0,
)
"""A connection between the service and an agent of another machine, at either end."""

FLEET = replace(NODE, peers=4096, held_bytes=512 << 20)
"""All of them together at the service: `peers` and `held_bytes` count."""

JOINING = Limits(
    line_bytes=64 << 10,
    peers=32,
    held_bytes=4 << 20,
    unsent_bytes=256 << 10,
    calls=1,
    depth=8,
    line_s=10.0,
    calls_per_s=50.0,
    burst=100,
)
"""At the same port, for who shows no certificate."""


class Held:
    """What the peers of a socket hold just now; counts in `whole` too, if there is one."""

    def __init__(self, limits: Limits, whole: Held | None = None) -> None:
        self.limits = limits
        self.peers = 0
        self.bytes = 0
        self._whole = whole

    def admit(self) -> bool:
        """Count one more peer; False, and nothing is counted, when there are too many."""
        if self.peers >= self.limits.peers or (self._whole and not self._whole.admit()):
            return False
        self.peers += 1
        return True

    def leave(self) -> None:
        """A peer that was admitted has gone."""
        self.peers -= 1
        if self._whole:
            self._whole.leave()

    def take(self, size: int) -> bool:
        """Count `size` more bytes; False, and nothing is counted, when they would be too many."""
        if self.bytes + size > self.limits.held_bytes or (
            self._whole is not None and not self._whole.take(size)
        ):
            return False
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        """`size` bytes are held no more."""
        self.bytes -= size
        if self._whole:
            self._whole.give_back(size)


class Pace:
    """Holds callers to `calls_per_s` of `limits` on average. `clock` is in seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._left = float(limits.burst)
        self._at = clock()

    def wait_s(self) -> float:
        """Count a call and return 0; or return the seconds until the next one may come."""
        rate = self._limits.calls_per_s
        if not rate:
            return 0.0
        now = self._clock()
        self._left = min(self._limits.burst, self._left + (now - self._at) * rate)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / rate
        self._left -= 1.0
        return 0.0


def read_message(line: bytes | bytearray, limits: Limits) -> dict[str, Any]:
    """The message that a line holds, with the types that the protocol has. Raises `BadRequest`
    with what is wrong with it: whoever sent it is none of ours."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise BadRequest("the line is not JSON, or nested too deeply") from None
    if not isinstance(message, dict):
        raise BadRequest("a line must be a JSON object with a method, or an answer")
    call_id = message.get("id")
    if not isinstance(call_id, int | str | None):
        raise BadRequest("the id of a call is a number or a text")
    if "method" in message:
        if not isinstance(message["method"], str):
            raise BadRequest("'method' must be a text")
        if not isinstance(message.setdefault("params", {}), dict):
            raise BadRequest("'params' must be an object")
    elif not isinstance(message.get("error", {}), dict):
        raise BadRequest("'error' must be an object")
    brackets = line.count(b"[") + line.count(b"{")
    if brackets > limits.depth and is_deeper(message, limits.depth):
        raise BadRequest(f"the line has more than {limits.depth} lists or objects in each other")
    return message


def is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than this. Level by level, so that it needs no
    stack of its own."""
    level = [value]
    for _ in range(depth):
        below: list[Any] = []
        for one in level:
            below.extend(one.values() if isinstance(one, dict) else one)
        level = [one for one in below if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def line_too_long(limits: Limits) -> TooLarge:
    """For who sends a line without an end."""
    return TooLarge(
        f"a line on this socket has at most {limits.line_bytes} bytes, so nothing of this one was "
        "looked at: send less, and put large things into files",
        largest_bytes=limits.line_bytes,
    )


def line_too_slow(limits: Limits) -> Unavailable:
    """For who begins a line and does not end it."""
    return Unavailable(
        f"the line that was begun was not ended within {limits.line_s:g} s, so nothing of it was "
        "looked at: try again"
    )


def too_many_peers(limits: Limits) -> Unavailable:
    """For who connects to a socket that is full."""
    return Unavailable(
        f"this socket has {limits.peers} connections already, or those of its user are too many; "
        "nothing was done: close some, or try again in a moment",
        connections=limits.peers,
    )


def too_much_held(limits: Limits) -> Unavailable:
    """For who sends while others have not ended what they began."""
    return Unavailable(
        f"unfinished calls on this socket hold {limits.held_bytes >> 20} MiB already; nothing was "
        "done: wait for their answers, and try again",
        held_bytes=limits.held_bytes,
    )
