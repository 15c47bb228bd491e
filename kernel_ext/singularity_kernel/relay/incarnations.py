"""What a rollback means for the kernel connection: incarnations, as pure bookkeeping.

A session that goes back to an older checkpoint (or is forked, or lost its node) starts a new
*incarnation*. Its capsule says in its greeting how far its image had come; from that follows which
requests are queued again (those that this image had not received) and which outputs are rolled
back (those that this image had not produced). Called by `relay_store`, which keeps it on disk.

Numbers of outputs go on from where the image stood, so a number can occur in several incarnations;
the *line* of an incarnation says which of them are its own past. Requests are counted by their
arrival at the relay, and an incarnation's numbers are arrivals plus a fixed shift per lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .tunnel import LANES, Hello, TunnelError

Counts = dict[str, int]


def zeros() -> Counts:
    """0 for every lane."""
    return dict.fromkeys(LANES, 0)


@dataclass(frozen=True)
class Positions:
    """Where a session's connection stood at a checkpoint; part of its manifest. Lower bounds: the
    image knows better, and says so when it joins."""

    incarnation: int
    requests: Counts
    outputs: Counts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Positions:
        """Raises `ValueError` for anything that is not what `to_json` gave."""
        try:
            requests = {lane: int(data["requests"][lane]) for lane in LANES}
            outputs = {lane: int(data["outputs"][lane]) for lane in LANES}
            return cls(int(data["incarnation"]), requests, outputs)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"these are not positions of a kernel connection ({type(error).__name__}: {error})"
            ) from None


@dataclass
class Incarnation:
    """One incarnation: where it began and how far it came."""

    number: int
    parent: int
    """The incarnation of the image it began with; its own number for a kernel started anew."""
    began: Counts = field(default_factory=zeros)
    """Outputs up to this number are of the past it began with, whenever they reach the relay."""
    received: Counts = field(default_factory=zeros)
    """Outputs that reached the relay, up to this number."""
    joined_with: Counts = field(default_factory=zeros)
    """`received` when its capsule joined."""
    shift: Counts = field(default_factory=zeros)
    """Number of a request minus its arrival."""
    joined: bool = False
    """A capsule has joined it."""
    again: int = 0
    """Requests queued again when it began."""
    lost: int = 0
    """Requests that should have been, and are not kept any more."""
    rolled_back: int = 0
    """Outputs that the relay had and its image had not produced."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Incarnation:
        return cls(**data)


@dataclass(frozen=True)
class Join:
    """What a greeting that begins an incarnation changes."""

    after: Counts
    """Per lane: requests that arrived after this one are queued, again or for the first time."""
    received: Counts
    """Per lane: number of the newest output of its past that the relay has."""
    kept: Counts
    """Per lane: outputs of the line before it with higher numbers are rolled back."""
    rolled_back: Counts
    """Per lane: how many those are."""
    line: tuple[tuple[str, int, int], ...] = ()
    """(lane, incarnation, newest output) of that line: an earlier way back may have undone some of
    them, which a newer image brought back."""


class History:
    """All incarnations of a session; the last one is the present."""

    def __init__(self, incarnations: list[Incarnation] | None = None) -> None:
        self.all = incarnations or [Incarnation(1, 1)]

    @property
    def now(self) -> Incarnation:
        return self.all[-1]

    def of(self, number: int) -> Incarnation | None:
        """The incarnation `number`; None when this relay never saw it (the image of a fork)."""
        return next((one for one in self.all if one.number == number), None)

    def begin(self, number: int, start: Positions | None) -> None:
        """Start incarnation `number`; nobody has joined it yet. `start` is where a kernel that is
        started anew begins. Raises `ValueError` for a number that is not new."""
        if number < self.now.number or (number == self.now.number and self.now.joined):
            raise ValueError(
                f"incarnation {number} is not new: the session is in incarnation {self.now.number}"
            )
        if number == self.now.number:
            return
        before = self.now
        fresh = Incarnation(number, number, shift=dict(before.shift))
        if start is not None:
            fresh.began, fresh.received = dict(start.outputs), dict(start.outputs)
        self.all.append(fresh)

    def check(self, hello: Hello) -> bool:
        """True when the greeting begins the present incarnation, False when it goes on with it;
        raises `TunnelError` when it may do neither."""
        now = self.now
        if hello.joins != now.number:
            raise TunnelError(
                f"a session of incarnation {hello.joins} may not join: this one is in incarnation "
                f"{now.number}"
            )
        if hello.incarnation > now.number:
            raise TunnelError(
                f"the state of incarnation {hello.incarnation} is newer than incarnation "
                f"{now.number} that it joins"
            )
        if not now.joined:
            return True
        if hello.incarnation == now.number:
            return False
        # The same image again, because its first start failed before anything came of it.
        same = now.parent == hello.incarnation and all(
            now.received[lane] == now.joined_with[lane] for lane in LANES
        )
        if same:
            return True
        raise TunnelError(
            f"another capsule has joined incarnation {now.number} before: begin the next one"
        )

    def join(self, hello: Hello) -> Join:
        """Carry out what `check` allowed: the present incarnation begins with this greeting."""
        now = self.now
        fresh = hello.incarnation == now.number
        parent = None if fresh else self.of(hello.incarnation)
        if parent is not None and not parent.joined:  # only has the number of another session's
            parent = None
        before = self._before()
        received, after, kept, rolled = zeros(), zeros(), zeros(), zeros()
        line: list[tuple[str, int, int]] = []
        for lane in LANES:
            state = hello.lanes[lane]
            if fresh:
                received[lane] = state.acked
                after[lane] = state.received - now.shift[lane]
                common = state.acked
            elif parent is None:
                received[lane] = state.acked
                after[lane] = 0
                common = state.sent if before is None else 0
            else:
                received[lane] = min(parent.received[lane], state.sent)
                after[lane] = state.received - parent.shift[lane]
                common = self._common(before, parent, lane, state.sent)
            now.shift[lane] = state.received - after[lane]
            kept[lane] = common
            if before is not None:
                rolled[lane] = max(0, before.received[lane] - common)
                line += [(lane, *part) for part in self._parts(before, lane)]
        now.parent = hello.incarnation
        now.received, now.joined_with = dict(received), dict(received)
        now.began = {
            lane: hello.lanes[lane].acked if fresh else hello.lanes[lane].sent for lane in LANES
        }
        now.joined = True
        now.rolled_back = sum(rolled.values())
        return Join(after, received, kept, rolled, tuple(line))

    def receive(self, lane: str, number: int) -> None:
        """Output `number` of the present incarnation reached the relay. One that its image had said
        already is an output of that image's incarnation too: another start of the same image must
        not give it to the clients again."""
        one: Incarnation | None = self.now
        while one is not None:
            one.received[lane] = max(one.received[lane], number)
            of_its_past = number <= one.began[lane] and one.parent != one.number
            one = self.of(one.parent) if of_its_past else None

    def _before(self) -> Incarnation | None:
        """The incarnation whose outputs the clients saw last."""
        return next((one for one in reversed(self.all[:-1]) if one.joined), None)

    def _common(self, before: Incarnation | None, parent: Incarnation, lane: str, sent: int) -> int:
        """Up to which output the line of `parent`, cut at `sent`, is the line of `before`."""
        if before is None:
            return sent
        mine = {one.number: end for one, end in self._line(parent, lane, sent)}
        for one, end in self._line(before, lane, before.received[lane]):
            if one.number in mine:
                return min(end, mine[one.number])
        return 0

    def _line(self, last: Incarnation, lane: str, end: int) -> list[tuple[Incarnation, int]]:
        """The past of `last`, newest first: each incarnation and its newest output in the line."""
        line = []
        while True:
            line.append((last, end))
            parent = self.of(last.parent)
            if parent is None or parent is last:
                return line
            end, last = min(end, last.began[lane]), parent

    def _parts(self, last: Incarnation, lane: str) -> list[tuple[int, int]]:
        """(incarnation, number): its outputs up to that number are all of the line of `last`. Those
        of the past that another start of an image received are among them."""
        parts, todo = [], self._line(last, lane, last.received[lane])
        while todo:
            one, end = todo.pop()
            parts.append((one.number, end))
            starts = (c for c in self.all if c is not one and c.parent == one.number)
            todo += [(start, min(end, start.began[lane])) for start in starts]
        return parts

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.all]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> History:
        return cls([Incarnation.from_json(one) for one in data])
