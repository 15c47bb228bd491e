"""A relay without its sockets: what is kept, numbered, acknowledged and given to the clients.

`app` hands over what came from the clients and from the shim; `commit` writes it to disk, and
only then does it count: requests go to the shim, outputs to the clients, acknowledgements out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from . import jupyter_wire, tunnel
from .incarnations import Positions
from .store import Full, Output, Store
from .tunnel import Answerer, Frame, Hello, Inbox, Kind, Outbox, TunnelError
from .undone import Answers

MARK_S = 0.005
"""How long ZeroMQ has to write an output to its clients' connections, at least, before it is noted
as sent. Those of a relay that is killed within are sent again, and the clients drop a message
whose signature they have seen; without this they would be lost."""

PRUNE_S = 5.0


class Core:
    """The relay's state, in memory and on disk. One per relay process."""

    def __init__(self, session: str, store: Store, answers: Answers | None = None) -> None:
        self.session = session
        self._answers = answers
        self.store = store
        self.tunnel = Answerer(session, 0)
        self.outputs: list[Output] = store.unpublished()
        """What the clients are to be sent, oldest first."""
        self.held = False
        """Whether outputs are kept after they were sent, because there is no client."""
        self.stuck = ""
        """Why nothing can be written to disk; then nothing may be taken in."""
        self._arrived: list[tuple[str, Sequence[bytes]]] = []
        self._done: dict[str, int] = {}  # newest output of each lane that is not on disk yet
        self._sent: dict[str, tuple[int, int, int]] = {}  # lane -> (newest id, bytes, count)
        self._settling: dict[str, tuple[int, int, int]] = {}  # those before, not noted yet either
        self._mark_at = self._prune_at = 0.0
        self._load()

    def _load(self) -> None:
        """The lanes as the store has them."""
        now = self.store.history.now
        self.tunnel.incarnation = now.number
        self.tunnel.open = False
        for lane in tunnel.LANES:
            box = Outbox(self.store.taken[lane] + now.shift[lane])
            for parts in self.store.waiting(lane):
                box.add(parts)
            self.tunnel.out[lane] = box
            self.tunnel.into[lane] = Inbox(now.received[lane])

    # -- what came --------------------------------------------------------------------------------

    def request(self, lane: str, kind: str, parts: Sequence[bytes]) -> None:
        """A client's request, for the kernel."""
        self.store.add_request(lane, kind, parts)
        self._arrived.append((lane, parts))

    def receive(self, frame: Frame) -> None:
        """A frame of the connection that was greeted; raises `TunnelError`."""
        data = self.tunnel.receive(frame)
        if data is not None:
            self._output(data)
        elif frame.kind is Kind.ACK:
            self.store.take_requests(frame.lane, self.tunnel.out[frame.lane].acked)

    def _output(self, frame: Frame) -> None:
        parts, lane = list(frame.parts), frame.lane
        head = jupyter_wire.header(parts)
        kind = str(head.get("msg_type", ""))
        if kind == "iopub_welcome":
            # It was meant for the shim; it says what the relay's own subscribers may expect.
            self.store.set_fact("welcome", {k: v for k, v in head.items() if k != "msg_id"})
        elif kind == "kernel_info_reply":
            found = jupyter_wire.split(parts)
            known = self.store.fact("kernel_info")
            content = found[1][4].decode("utf-8", "replace") if found else ""
            if known is None or known["content"] != content:
                self.store.set_fact("kernel_info", {"header": head, "content": content})
        parent = str(jupyter_wire.parent(parts).get("msg_id", ""))
        row, size = self.store.add_output(lane, frame.number, kind, parent, parts)
        self.outputs.append(Output(row, lane, parts, size))
        self._done[lane] = frame.number

    def greet(self, hello: Hello) -> tuple[Frame, dict[str, Any] | None]:
        """Answer a capsule that says hello: (WELCOME, what its joining changed, if it began an
        incarnation). Raises `TunnelError` when it may not join."""
        if hello.session != self.session:
            raise TunnelError(f"this is the relay of session {self.session}")
        if not self.commit():
            raise TunnelError("the relay's disk is full; nothing was lost")
        history = self.store.history
        begins = history.check(hello)
        if begins:
            self._mark()
            self._mark()
            try:
                self.store.flush()
                self.store.join(history.join(hello), self._answers)
            except Full as error:
                self._undo(str(error))
                raise TunnelError("the relay's disk is full; nothing was lost") from None
            self.outputs = self.store.unpublished()
            self._load()
        answer = self.tunnel.answer(hello)
        for lane in tunnel.LANES:
            self.store.take_requests(lane, self.tunnel.out[lane].acked)
        return answer, self.begun() if begins else None

    def _undo(self, why: str) -> None:
        """Go on from what is on disk; the clients may get again what was not noted as sent."""
        self.stuck = why
        self._settling, self._sent = {}, {}
        self.store.revert()
        self.outputs = self.store.unpublished()
        self._load()

    def lost(self) -> None:
        """The connection of the shim is gone."""
        # The lanes are rewound by the next greeting, after what came was written.
        self.tunnel.open = False

    # -- what goes on -----------------------------------------------------------------------------

    def commit(self) -> bool:
        """Write what came to disk; True: from now on it counts. False: see `stuck`."""
        now = time.monotonic()
        if now >= self._mark_at and self.owing:
            self._mark()
        try:
            if now >= self._prune_at:
                self._prune_at = now + PRUNE_S
                self.store.prune_requests()
            self.store.flush()
        except Full as error:
            self.stuck = str(error)
            return False
        self.stuck = ""
        for lane, parts in self._arrived:
            self.tunnel.out[lane].add(parts)
        self._arrived.clear()
        for lane, number in self._done.items():
            self.tunnel.into[lane].done(number)
        self._done.clear()
        return True

    def take_outputs(self) -> list[Output]:
        """The outputs that are on disk, to be sent to the clients now; after `commit`. The caller
        tells with `sent`."""
        taken, self.outputs = self.outputs, []
        return taken

    def sent(self, outputs: Sequence[Output]) -> None:
        """The clients were sent `outputs`; noted on disk a moment later (`MARK_S`)."""
        for output in outputs:
            _, size, count = self._sent.get(output.lane, (0, 0, 0))
            self._sent[output.lane] = (output.id, size + output.size, count + 1)

    @property
    def owing(self) -> bool:
        """`commit` has to be called again within `MARK_S`."""
        return bool(self._sent or self._settling)

    def _mark(self) -> None:
        for lane, (last, size, count) in self._settling.items():
            self.store.published(last, lane, size, count, self.held and lane == "iopub")
        self._settling, self._sent = self._sent, {}
        self._mark_at = time.monotonic() + MARK_S

    def settle(self) -> bool:
        """Note at once what was sent; False: see `stuck`."""
        self._mark()
        self._mark()
        return self.commit()

    def close(self) -> None:
        """Write what is noted, and close the file."""
        self.settle()
        self.store.close()

    # -- incarnations -----------------------------------------------------------------------------

    def begin(self, number: int, fresh: bool, undo: bool = False) -> bool:
        """Begin incarnation `number`: the capsule that joins next says how far its image came.
        `fresh`: no image, a kernel is started anew and goes on where the numbers stand. `undo`:
        somebody wants that older image, so requests that a kernel has had already are not queued
        again (the one that asked for it is among them); those that wait are. False when
        it was begun before and nobody has joined. Raises `ValueError` or `Full`."""
        history = self.store.history
        if number == history.now.number and not history.now.joined:
            return False
        if number <= history.now.number:
            raise ValueError(
                f"incarnation {number} is not new: the session is in incarnation "
                f"{history.now.number}"
            )
        if not self.commit():
            raise Full(self.stuck)
        start = self.store.positions() if fresh else None
        history.begin(number, start)
        if start is not None:
            start = Positions(number, start.requests, start.outputs)
        self.store.set_fact("undo", number if undo else None)
        self.store.set_fact("start", start.to_json() if start else None)
        self.store.begun()
        self._load()
        return True

    def begun(self) -> dict[str, Any]:
        """What the begin of the present incarnation changed."""
        now = self.store.history.now
        return {
            "incarnation": now.number,
            "requests_again": now.again,
            "requests_lost": now.lost,
            "outputs_rolled_back": now.rolled_back,
        }
