"""The tunnel between relay and shim as a state machine: no sockets, no files, no clock.

Jupyter's messages pass between the relay (outside, never moves) and the shim (inside the capsule,
dumped and moved with it) over connections that break at any moment. Each channel has one *lane*
each way; its messages are numbered from 1, kept until the other side acknowledges them, and sent
again after every new connection. So each message arrives exactly once and in the order of its
lane, whatever happens to connections, and whenever the shim was frozen.

A frame is a list of byte strings (one ZeroMQ multipart message): a header of 20 bytes, then
the parts of the Jupyter message unchanged, or the body of a greeting. `HEADER` and `Kind` are the
whole format; docs/reference/tunnel.md is generated from them.

Who calls: `shim` makes a `Dialer`, `app` an `Answerer`; both hand over what was received and ask
with `take` what may be sent now.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

VERSION = 1
"""Of the frame format. A side that reads another one refuses the connection and says so."""

LANES = ("shell", "control", "stdin", "iopub")
"""Jupyter's channels; the place is the lane's number in a frame. The heartbeat has none: the relay
answers it."""

HEADER = struct.Struct("!4sBBBxIQ")
"""magic, version, kind, lane, pad, incarnation, number; network byte order."""

MAGIC = b"SGTN"

LANE_STATE = struct.Struct("!QQQ")
"""Of one lane in a greeting: received, acknowledged, sent."""

WINDOW_BYTES = 4 << 20
WINDOW_MESSAGES = 1024
"""How much of a lane may be on its way without an acknowledgement: bounds what ZeroMQ buffers."""

QUEUE_BYTES = 32 << 20
QUEUE_MESSAGES = 50_000
"""A lane's outbox takes no more beyond either; one message may exceed the first."""

MAX_PART_BYTES = 256 << 20
"""The relay closes a connection that brings a longer part before that takes memory, whoever it is
from: also one that has not shown its key yet. A shim leaves such a message out and says so."""

Parts = Sequence[bytes]


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    """Shim, first on every connection: the incarnation it joins is in the header; its session, the
    incarnation of its own state and the state of each lane follow."""
    WELCOME = 2
    """Relay, the answer: the incarnation that holds from now on, and the state of each lane."""
    DATA = 3
    """Either side: message `number` of a lane; without parts the number is not used."""
    ACK = 4
    """Either side: every message of the lane up to `number` is safe with the receiver."""
    REFUSE = 5
    """Relay: this connection may not go on; one sentence says why."""
    ASK = 6
    """The agent of the capsule's node, on a connection of its own: question `number`; the session
    and the question (JSON: method, params) follow. Only in the present incarnation."""
    TOLD = 7
    """Relay: the answer to question `number` (JSON: result or error)."""


class TunnelError(Exception):
    """The other side broke the protocol or may not join; the message is one sentence. The
    connection must be closed and opened anew."""


@dataclass(frozen=True)
class Frame:
    """One frame, decoded. `parts` holds what follows the header."""

    kind: Kind
    incarnation: int
    lane: str = LANES[0]
    number: int = 0
    parts: tuple[bytes, ...] = ()

    def encode(self) -> list[bytes]:
        """The byte strings to send as one multipart message."""
        head = HEADER.pack(
            MAGIC, VERSION, self.kind, LANES.index(self.lane), self.incarnation, self.number
        )
        return [head, *self.parts]

    @classmethod
    def decode(cls, parts: Parts) -> Frame:
        """From a received multipart message; raises `TunnelError` for anything but ours."""
        if not parts or len(parts[0]) != HEADER.size:
            raise TunnelError("what was received is not a frame of the tunnel")
        magic, version, kind, lane, incarnation, number = HEADER.unpack(parts[0])
        if magic != MAGIC:
            raise TunnelError("what was received is not a frame of the tunnel")
        if version != VERSION:
            raise TunnelError(
                f"the other side speaks version {version} of the tunnel, this one {VERSION}: "
                "use the same jupyter-singularity on both nodes"
            )
        if lane >= len(LANES) or kind not in iter(Kind):
            raise TunnelError(f"a frame of kind {kind} and lane {lane} is unknown")
        return cls(Kind(kind), incarnation, LANES[lane], number, tuple(parts[1:]))


@dataclass(frozen=True)
class LaneState:
    """Where a lane stands on the side that says so."""

    received: int = 0
    """Every message from the other side up to this number is safe here."""
    acked: int = 0
    """Messages of this side that the other one acknowledged; the next ones are still kept."""
    sent: int = 0
    """Number of this side's newest message."""


Lanes = Mapping[str, LaneState]


@dataclass(frozen=True)
class Hello:
    """What a shim says first: who it is and where it stands."""

    session: str
    joins: int
    """The incarnation that its tunnel file names."""
    incarnation: int
    """The one its own state belongs to; lower than `joins` right after a rollback."""
    lanes: Lanes


def _pack_lanes(lanes: Lanes) -> bytes:
    states = (lanes.get(name, LaneState()) for name in LANES)
    return b"".join(LANE_STATE.pack(s.received, s.acked, s.sent) for s in states)


def _unpack_lanes(body: bytes) -> dict[str, LaneState]:
    if len(body) != LANE_STATE.size * len(LANES):
        raise TunnelError("a greeting has another length than its lanes need")
    found = [LaneState(*values) for values in LANE_STATE.iter_unpack(body)]
    if any(max(s.received, s.acked, s.sent) >= 1 << 62 or s.acked > s.sent for s in found):
        raise TunnelError("a greeting has numbers that cannot be")
    return dict(zip(LANES, found, strict=True))


def hello_frame(hello: Hello) -> Frame:
    """The HELLO that says `hello`."""
    own = struct.pack("!I", hello.incarnation)
    parts = (hello.session.encode(), own, _pack_lanes(hello.lanes))
    return Frame(Kind.HELLO, hello.joins, parts=parts)


def read_hello(frame: Frame) -> Hello:
    """The greeting in a HELLO; raises `TunnelError` when it is malformed."""
    try:
        session, own, lanes = frame.parts
        (incarnation,) = struct.unpack("!I", own)
    except (ValueError, struct.error):
        raise TunnelError("a greeting has other parts than it should") from None
    name = session.decode("utf-8", "replace")
    return Hello(name, frame.incarnation, incarnation, _unpack_lanes(lanes))


@dataclass
class _Kept:
    number: int
    parts: tuple[bytes, ...]
    size: int


class Outbox:
    """One lane's messages to the other side, kept until it acknowledges them."""

    def __init__(
        self,
        acked: int = 0,
        *,
        queue_bytes: int = QUEUE_BYTES,
        queue_messages: int = QUEUE_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
        window_messages: int = WINDOW_MESSAGES,
    ) -> None:
        self.acked = acked
        self.bytes = 0
        self._kept: deque[_Kept] = deque()
        self._flown = 0  # how many of the kept ones are on their way
        self._flown_bytes = 0
        self._queue = (queue_bytes, queue_messages)
        self._window = (window_bytes, window_messages)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def sent(self) -> int:
        """The number of the newest message."""
        return self.acked + len(self._kept)

    @property
    def room(self) -> bool:
        """False: take nothing more from the source until acknowledgements come."""
        return self.bytes < self._queue[0] and len(self._kept) < self._queue[1]

    def add(self, parts: Parts) -> int:
        """Keep a message and return its number."""
        kept = _Kept(self.sent + 1, tuple(parts), sum(map(len, parts)))
        self._kept.append(kept)
        self.bytes += kept.size
        return kept.number

    def kept(self) -> list[tuple[bytes, ...]]:
        """Every message that is not acknowledged, oldest first."""
        return [kept.parts for kept in self._kept]

    def take(self) -> Iterator[tuple[int, tuple[bytes, ...]]]:
        """The messages that may be sent now; each is given once per connection."""
        while self._flown < len(self._kept):
            kept = self._kept[self._flown]
            full = self._flown_bytes + kept.size > self._window[0] or self._flown >= self._window[1]
            if self._flown and full:
                return
            self._flown += 1
            self._flown_bytes += kept.size
            yield kept.number, kept.parts

    def ack(self, number: int) -> int:
        """The other side has everything up to `number`; returns how many that settles. Raises
        `TunnelError` for a message that was never sent."""
        if number > self.sent:
            raise TunnelError(f"message {number} was acknowledged, the newest is {self.sent}")
        count = 0
        while self._kept and self._kept[0].number <= number:
            kept = self._kept.popleft()
            self.bytes -= kept.size
            if self._flown:
                self._flown -= 1
                self._flown_bytes -= kept.size
            self.acked = kept.number
            count += 1
        return count

    def rewind(self) -> None:
        """The connection is gone: everything kept is to be sent again."""
        self._flown = self._flown_bytes = 0


class Inbox:
    """One lane's messages from the other side: which number comes next, which are safe here."""

    def __init__(self, received: int = 0) -> None:
        self.received = received
        """Safe here: durable in the relay, handed to the kernel in the shim."""
        self._seen = received
        self._told = received

    def accept(self, number: int) -> bool:
        """True: message `number` is new and the next one; the caller calls `done` when it is
        safe. False: it was here before, drop it. Raises `TunnelError` when one is missing."""
        if number <= self._seen:
            return False
        if number != self._seen + 1:
            raise TunnelError(f"message {number} came after message {self._seen}")
        self._seen = number
        return True

    def done(self, number: int) -> None:
        """Everything up to `number` is safe here and may be acknowledged."""
        if not self.received <= number <= self._seen:
            raise ValueError(f"message {number} is not among {self.received}..{self._seen}")
        self.received = number

    def take_ack(self) -> int | None:
        """The number to acknowledge now, None when the other side knows it already."""
        if self._told == self.received:
            return None
        self._told = self.received
        return self.received

    def rewind(self) -> None:
        """The connection is gone: what was seen and is not safe comes again."""
        self._seen = self._told = self.received


@dataclass
class _Side:
    """What both sides have: lanes both ways and whether a greeting was exchanged."""

    session: str
    incarnation: int
    out: dict[str, Outbox] = field(default_factory=lambda: {lane: Outbox() for lane in LANES})
    into: dict[str, Inbox] = field(default_factory=lambda: {lane: Inbox() for lane in LANES})
    open: bool = False

    def lanes(self) -> dict[str, LaneState]:
        """The state of every lane on this side."""
        return {
            lane: LaneState(self.into[lane].received, self.out[lane].acked, self.out[lane].sent)
            for lane in LANES
        }

    def closed(self) -> None:
        """The connection is gone, or is about to be closed."""
        self.open = False
        for lane in LANES:
            self.out[lane].rewind()
            self.into[lane].rewind()

    def take(self) -> Iterator[Frame]:
        """The frames to send now: acknowledgements, then what the windows allow."""
        if not self.open:
            return
        for lane in LANES:
            number = self.into[lane].take_ack()
            if number is not None:
                yield Frame(Kind.ACK, self.incarnation, lane, number)
        for lane in LANES:
            for number, parts in self.out[lane].take():
                yield Frame(Kind.DATA, self.incarnation, lane, number, parts)

    def receive(self, frame: Frame) -> Frame | None:
        """Take in a DATA or ACK frame; the DATA frame back when it holds a new message. Raises
        `TunnelError`: close the connection."""
        if not self.open:
            raise TunnelError("a message came before the greeting")
        if frame.incarnation != self.incarnation:
            raise TunnelError(
                f"a frame of incarnation {frame.incarnation} came, the session is in incarnation "
                f"{self.incarnation}"
            )
        if frame.kind is Kind.ACK:
            self.out[frame.lane].ack(frame.number)
            return None
        if frame.kind is not Kind.DATA:
            raise TunnelError(f"a frame of kind {frame.kind.name} came after the greeting")
        return frame if self.into[frame.lane].accept(frame.number) else None


class Dialer(_Side):
    """The shim's side: it opens every connection and is dumped and restored with the kernel."""

    def start_at(self, received: Mapping[str, int], sent: Mapping[str, int]) -> None:
        """Begin where an earlier kernel's numbers ended; before the first connection only. What
        the kernel said already is kept."""
        for lane in LANES:
            self.into[lane] = Inbox(received.get(lane, 0))
            said, self.out[lane] = self.out[lane], Outbox(sent.get(lane, 0))
            for parts in said.kept():
                self.out[lane].add(parts)

    def hello(self, joins: int) -> Frame:
        """The first frame of a new connection; `joins` is the incarnation in the tunnel file."""
        self.closed()
        return hello_frame(Hello(self.session, joins, self.incarnation, self.lanes()))

    def welcome(self, frame: Frame) -> None:
        """Take in the answer; raises `TunnelError` when it does not fit what was said."""
        if frame.kind is not Kind.WELCOME or len(frame.parts) != 1:
            raise TunnelError(f"the answer to the greeting is of kind {frame.kind.name}")
        if frame.incarnation < self.incarnation:
            raise TunnelError(
                f"the relay is in incarnation {frame.incarnation}, this session in "
                f"{self.incarnation} already"
            )
        states = _unpack_lanes(frame.parts[0])
        for lane, state in states.items():
            if state.acked > self.into[lane].received:
                raise TunnelError(
                    f"the relay has dropped requests of {lane} up to {state.acked}, this session "
                    f"has {self.into[lane].received}"
                )
            self.out[lane].ack(state.received)
        self.incarnation = frame.incarnation
        self.open = True


class Answerer(_Side):
    """The relay's side. Who may join, and what a rollback means, is decided by `incarnations`."""

    def answer(self, hello: Hello) -> Frame:
        """Open the connection that said `hello`, in the present incarnation. Raises `TunnelError`
        when its numbers do not fit: then it is another history than the one known here."""
        self.closed()
        for lane, state in hello.lanes.items():
            box, inbox = self.out[lane], self.into[lane]
            if not box.acked <= state.received <= box.sent:
                raise TunnelError(
                    f"the session has {state.received} requests of {lane}, the relay sent "
                    f"{box.acked} to {box.sent}: begin an incarnation for a rollback"
                )
            if not state.acked <= inbox.received <= state.sent:
                raise TunnelError(
                    f"the session has outputs {state.acked + 1} to {state.sent} of {lane}, the "
                    f"relay expects {inbox.received + 1}: begin an incarnation for a rollback"
                )
        for lane, state in hello.lanes.items():
            self.out[lane].ack(state.received)
        self.open = True
        return Frame(Kind.WELCOME, self.incarnation, parts=(_pack_lanes(self.lanes()),))


def refuse_frame(incarnation: int, why: str) -> Frame:
    """The REFUSE that says `why`."""
    return Frame(Kind.REFUSE, incarnation, parts=(why.encode(),))


def refusal(frame: Frame) -> str:
    """The sentence of a REFUSE."""
    return b" ".join(frame.parts).decode("utf-8", "replace")
