"""The lease of the whole node: until when its sessions cannot be running anywhere else.

The service may start a session elsewhere that has a checkpoint of its processes, once the node was
silent for long enough. So the node must have stopped those sessions by then, whatever keeps it from
talking: a cut cable, an agent that is stopped, hangs or is dead. Pid 1 of each capsule does it, at
the time that the agent has written for it (`singularity_proxy.capsule.lease_word`), and lets the
session go on when that time is moved.

The agent counts from when it *sent* something of which it knows that it arrived: each answer to a
renewal carries the time (CLOCK_BOOTTIME), and the next renewal says which of them the service has
got. The service counts from when it got that answer, which is later. A renewal that lay in a buffer
for minutes says nothing new and prolongs nothing.

What cannot be started elsewhere never stops: sessions that have no checkpoint of their processes,
and those that are no capsules with namespaces, of which there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from singularity_proxy.capsule.lease_word import ALWAYS_OVER, LeaseWord
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.errors import BadRequest, SingularityError, Unavailable

from singularity_scheduler.agent.sessions.record import Life

from .leases import boot_clock

if TYPE_CHECKING:
    from singularity_scheduler.agent.node import Node
    from singularity_scheduler.agent.sessions.live import LiveSession

log = logging.getLogger("singularity.agent")

LEDGER = ("node", "lease")

SOON_S = 1.0
"""An end that comes within this many seconds may have come before a longer one is written."""

OBEY_S = 5.0
"""Pid 1 of a capsule answers within this many seconds, or is stopped itself."""


@dataclass
class NodeLease:
    """Pure: every method takes `now`, seconds of CLOCK_BOOTTIME."""

    got: float | None = None
    """The newest time that the service has got from this node; None: no service has asked yet, so
    none starts anything elsewhere."""
    after_s: float = 0.0
    """It starts nothing elsewhere until so long after that."""

    @property
    def end(self) -> float | None:
        """From then on sessions of this node may run elsewhere."""
        return None if self.got is None else self.got + self.after_s

    def over(self, now: float) -> bool:
        return self.end is not None and now >= self.end

    def renew(self, got: float, after_s: float, now: float) -> bool:
        """Take over what the service says; False when it says nothing new. A time that has not
        come yet is none of this boot."""
        old = self.got is not None and got < self.got
        if old or got > now or (got, after_s) == (self.got, self.after_s):
            return False
        self.got, self.after_s = got, after_s
        return True


@dataclass(frozen=True)
class Renewal:
    """What a renewal says of the node as a whole."""

    got: float | None
    """The newest time that the service has got from this agent; None: none yet."""
    after_s: float
    here: Mapping[str, int]
    """The sessions that are this node's, each with the epoch below which what the node has of it is
    not that session any more. Others that it may still have stay frozen."""

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Renewal:
        """Raises `BadRequest`."""
        got, after_s, here = told.get("got"), told.get("after_s"), told.get("here")
        timed = got is None or isinstance(got, int | float)
        if not timed or not isinstance(after_s, int | float) or not isinstance(here, Mapping):
            raise BadRequest("the renewal of a node needs 'got', 'after_s' and 'here'")
        return cls(None if got is None else float(got), float(after_s), dict(here))

    def names(self, session: str, epoch: int) -> bool:
        """Whether what the node has of this session, of that epoch, is the session."""
        return session in self.here and epoch >= self.here[session]


class LeaseKeeper:
    """Writes the words of all capsules of the node. One object per agent."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.lease = NodeLease(*(node.ledger.get(*LEDGER) or ()))
        self._told_over = False
        self._newest: Renewal | None = None
        """The newest renewal that said anything new."""

    @property
    def over(self) -> bool:
        return self.lease.over(boot_clock())

    def holds(self, live: LiveSession) -> bool:
        """Whether the session must not run now. One that was frozen stays so until a renewal names
        it: it may be elsewhere."""
        return live.record.restartable and (self.over or live.record.frozen is not None)

    # -- told by the parts that start, save and bring back sessions -------------------------------

    def begin(self, live: LiveSession) -> str:
        """Make the word of a session whose capsule is about to be started; returns its path."""
        path = self._node.settings.lease_word(live.record.session)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        live.word = LeaseWord(path)
        self._write(live)
        return live.word.path

    def adopt(self, live: LiveSession) -> None:
        """The same of a capsule that an agent before this one has started."""
        if isinstance(live.capsule, NamespaceCapsule):
            self.begin(live)

    def remove(self, live: LiveSession) -> None:
        """The session has ended: it needs no word any more. Idempotent."""
        if live.word is not None:
            live.word.close()
            live.word = None  # a renewal may name the session until its folders are gone
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._node.settings.lease_word(live.record.session))

    def arm(self, live: LiveSession) -> None:
        """A checkpoint is about to be listed from which the session could be started elsewhere.
        Raises `Unavailable` when others may think that the node is lost, and what the ledger
        raises."""
        if live.record.restartable:
            return
        if self.over:
            raise Unavailable(
                f"session {live.record.session} was not saved, because the scheduler has not been "
                "heard for too long; it goes on here: try again when the scheduler is back"
            )
        live.record.restartable = True
        try:
            self._node.save(live)
        except BaseException:
            live.record.restartable = False
            raise
        self._write(live)

    async def obeyed(self, live: LiveSession) -> None:
        """Before the session's processes are stopped, or go on: pid 1 of the capsule has let go
        what it had stopped, unless the time is over, so it continues nothing later. Raises
        `Unavailable`."""
        capsule = live.capsule
        if live.word is None or not isinstance(capsule, NamespaceCapsule):
            return
        if not await asyncio.to_thread(live.word.obeyed, capsule.init, OBEY_S):
            raise Unavailable(
                f"process 1 of session {live.record.session} does not answer, so nobody knows what "
                "it has stopped; nothing was changed: try again when it goes on"
            )

    def release(self, live: LiveSession, stopped: list[int] | None) -> bool:
        """Whether a session that a checkpoint had stopped may go on. If it may not, that is done
        with the next renewal. `stopped`: what its user had stopped before."""
        if self.holds(live):
            self._freeze(live, stopped)
            return False
        self._write(live)
        return True

    # -- the lease --------------------------------------------------------------------------------

    def first(self, renewal: Renewal) -> None:
        """A session comes back here, maybe before this node was ever renewed: it must not run
        without an end. Otherwise nothing: what a command says may be old when it is carried out."""
        if self.lease.got is None:
            self.renewed(renewal)

    def renewed(self, renewal: Renewal) -> None:
        """The service was heard."""
        now, new = boot_clock(), replace(self.lease)
        if renewal.got is None or not new.renew(renewal.got, renewal.after_s, now):
            return
        sessions = [x for x in self._node.sessions.values() if x.record.restartable]
        over, soon = self.lease.over(now), self.lease.over(now + SOON_S)
        for live in sessions:  # before the ledger has the new end: the next agent must know, too
            record = live.record
            may_be_stopped = over or (soon and record.saving is not None)  # faster than `look`
            if may_be_stopped and record.life is Life.LIVE and record.frozen is None:
                self._freeze(live, None)
        self.lease, self._newest = new, renewal
        try:
            self._node.ledger.put(*LEDGER, [self.lease.got, self.lease.after_s])
        except SingularityError as error:  # what could not be written runs out
            log.error("%s", error.message)
        if self.over:
            return
        self._told_over = False
        for live in sessions:
            if not self._is_named(live):
                continue
            if live.record.frozen is None:
                try:
                    self._write(live)
                except OSError as error:  # it stops in time; the others are not to stop with it
                    log.error("session %s: its time stays: %s", live.record.session, error)
            elif live.record.saving is None:  # else nothing of it may run before that is done
                self._node.spawn(self._go_on(live), "a session that goes on")

    def _is_named(self, live: LiveSession) -> bool:
        record = live.record
        return self._newest is not None and self._newest.names(record.session, record.epoch)

    async def _go_on(self, live: LiveSession) -> None:
        """Under the session's lock, or it would go on in the middle of a checkpoint. The ledger
        says last that it does: until then the next agent finds it frozen."""
        record = live.record
        async with live.lock:
            wanted = record.life is Life.LIVE and record.saving is None and self._is_named(live)
            if record.frozen is None or not wanted or self.over or live.word is None:
                return
            live.word.write(self.lease.end)
            await self.obeyed(live)
            stopped, capsule = record.frozen["stopped"], live.capsule
            if isinstance(capsule, NamespaceCapsule):
                if stopped is None and await asyncio.to_thread(lambda: capsule.frozen):
                    log.warning(
                        "session %s was stopped by somebody else, too: all of it is continued",
                        record.session,
                    )
                    stopped = []
                if stopped is not None:
                    capsule.stopped_by_user = frozenset(stopped)
                    await asyncio.to_thread(capsule.thaw)
            record.frozen = None
            self._node.try_save(live)
        log.info("session %s goes on: the scheduler is back", record.session)

    def look(self) -> None:
        """Write down what pid 1 of the capsules does when the end has come; called often."""
        if not self.over or self._told_over:
            return
        self._told_over = True
        for live in list(self._node.sessions.values()):
            record = live.record
            if record.life is Life.LIVE and record.restartable and record.frozen is None:
                self._freeze(live, None)

    def _freeze(self, live: LiveSession, stopped: list[int] | None) -> None:
        record, known = live.record, live.record.frozen is not None
        reason = (
            "the scheduler has not been heard for so long that it may start the session elsewhere; "
            "if it did not, the session goes on as soon as the scheduler is back"
        )
        record.frozen = {"reason": reason, "stopped": stopped}
        self._node.try_save(live)
        if not known:
            log.warning("session %s is frozen: %s", record.session, reason)

    def _write(self, live: LiveSession) -> None:
        if live.word is None:
            return
        end = self.lease.end if live.record.restartable else None
        live.word.write(end if live.record.frozen is None else ALWAYS_OVER)
