"""Outputs that come while no client is connected: kept, and given once to whoever comes back.

A browser that is closed is the Jupyter server's business: as long as that runs, it is connected
itself and buffers. This is about a server that stops. From the moment at which nobody subscribes
any more, outputs stay in the store. Once somebody subscribes again they are sent, before anything
newer, and a moment later than that, because a server makes several connections at once and all of
them are to hear the same.

A client that was connected all along keeps this from happening, and hears nothing twice. A server
that stops in order says so first (`LEAVE`): it is told when the last output was sent to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from . import jupyter_wire
from .clients import LEAVE, Clients
from .core import Core

Parts = list[bytes]

GATHER_S = 0.5
"""How long after the first subscription others of the same server are waited for."""


class Attendance:
    """Whether somebody is there. One per relay; called by its loop."""

    def __init__(
        self, core: Core, clients: Clients, signer: jupyter_wire.Signer, *, absent: bool
    ) -> None:
        """`absent`: a relay that is new, but whose session had clients."""
        self._core, self._clients, self._signer = core, clients, signer
        self._had = clients.expected > 0
        self._since: float | None = None
        self._released = False
        core.held = not core.store.fact("attended", not absent)
        core.store.set_fact("attended", not core.held)
        clients.patient = core.held

    @property
    def wait_s(self) -> float | None:
        """Until `give` has something to do; None: not by itself."""
        if not self._core.held or self._since is None:
            return None
        return max(0.0, self._since + GATHER_S - time.monotonic())

    def look(self) -> None:
        """After every turn: has the last client left, or the first one come?"""
        there = self._clients.present > 0
        self._had = self._had or there
        if not there:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        absent = not there and self._had and self._clients.listening
        if absent and not self._core.held and self._core.settle():
            self._turn(held=True)
        self._release()

    def _release(self) -> None:
        """Tell those that are leaving, once, that nothing will come any more."""
        if not (self._clients.leaving and self._core.held):
            self._released = False
        elif not self._released:
            self._released = True
            content = {"subscription": LEAVE.decode()}
            last = self._signer.message([LEAVE], "iopub_welcome", content, {}, {})
            self._clients.send("iopub", last)

    def give(self, send: Callable[[Parts], object]) -> None:
        """Once somebody is back: send what was kept, before anything newer."""
        if self.wait_s != 0.0 or not self._core.settle():
            return
        # Answers are given as well, by `Clients`, which has them already.
        kept = [parts for lane, parts in self._core.store.held() if lane == "iopub"]
        dropped = int(self._core.store.fact("dropped", 0))
        if dropped and kept:
            self._tell(dropped, kept[0], send)
        for parts in kept:
            send(parts)
        self._core.store.give_back()
        self._turn(held=False)

    def _turn(self, *, held: bool) -> None:
        self._core.held = held
        self._clients.patient = held
        self._core.store.set_fact("attended", not held)

    def _tell(self, dropped: int, oldest: Parts, send: Callable[[Parts], object]) -> None:
        text = (
            f"[{dropped} messages of output were dropped here: while nobody is connected only the "
            "newest are kept]\n"
        )
        head = jupyter_wire.header(oldest)
        content = {"name": "stderr", "text": text}
        asked_by = jupyter_wire.parent(oldest)
        send(self._signer.message([b"stream"], "stream", content, asked_by, head))
