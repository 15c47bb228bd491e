"""Whose session it is in terms of processes: the one it belongs to, and how one ended, in words.

A notebook belongs to its Jupyter server. When that is gone (stopped, killed, its Hub with it) the
notebook is suspended by the service; while that cannot be, it goes on here: the next server takes
it over. What cannot wait in a store, such as a script of a terminal, ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch, uid_of
from singularity_proxy.errors import BadRequest, Forbidden, NotFound

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.relays.keeper import RelayKeeper
from singularity_scheduler.agent.sessions.launch import LaunchRequest
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import SessionRecord

ANSWER_S = 5.0
"""How soon the service has to begin with a suspend once it was told of an orphan; doubled after
each time that it did not, or that the suspend failed."""

ANSWER_MAX_S = 60.0


def find_owner(request: LaunchRequest, uid: int) -> ProcessIdentity | None:
    """The process that the session ends with: its Jupyter server, or its first process (joined);
    None when the request names none. Raises `BadRequest` or `Forbidden`."""
    if request.owner_pid is None:
        return None
    try:
        owner = ProcessIdentity.of(request.owner_pid)
        owner_uid = uid_of(request.owner_pid)
    except ProcessLookupError:
        raise BadRequest(
            f"there is no process {request.owner_pid} on this node that the session could "
            "belong to; nothing was started",
            owner_pid=request.owner_pid,
        ) from None
    # The session ends with this process, or this process with it: it must be the user's own.
    if owner_uid != uid:
        where = "start it from that user's terminal"
        if request.mode != "joined":
            where = "nothing was started: ask from a process of that user"
        raise Forbidden(
            f"process {request.owner_pid} runs as uid {owner_uid}, but sessions of "
            f"{request.user} run as uid {uid}; {where}",
            owner_pid=request.owner_pid,
        )
    return owner


GREETING_END = "--existing "
"""How the last line begins that ipykernel prints when it starts: it is there for every kernel that
printed nothing else, and says nothing of an end."""


def how_it_ended(exit_code: int | None, words: str = "") -> str:
    """Return how a process ended, for people. `words`: the last line in its log."""
    if exit_code is None:
        return "its process ended"
    if exit_code < 0:
        how = f"its process was ended by signal {-exit_code}"
    else:
        how = f"its process ended with exit code {exit_code}"
    return f"{how} ({words})" if words and not words.startswith(GREETING_END) else how


def ended_by_itself(exit_code: int | None) -> bool:
    """Return whether a run that has written this exit code down ended of its own accord. Above 128
    it was ended by a signal (POSIX, sh): whoever stops a node may stop all of its processes."""
    return exit_code is not None and exit_code <= 128


class Owners:
    """Watches the Jupyter servers of this node's sessions. One object per agent.

    `end(live, reason)` ends a session that nobody can own any more.
    """

    def __init__(
        self, node: Node, relays: RelayKeeper, end: Callable[[LiveSession, str], None]
    ) -> None:
        self._node = node
        self._relays = relays
        self._end = end

    def watch(self, live: LiveSession) -> None:
        """Notice when the session's owner ends, if it has one."""
        owner = live.record.owner
        if owner is not None:
            live.owner = ProcessWatch(owner, lambda _: self._gone(live, owner))

    def waiting(self, session: str) -> ProcessIdentity | None:
        """The owner of a session of which only the relay is here, if that process still runs."""
        kept = self._relays.kept.get(session)
        return kept.record.owner if kept is not None and _runs(kept.record.owner) else None

    def watch_again(
        self, live: LiveSession, owner_pid: int | None, waited: ProcessIdentity | None
    ) -> None:
        """The owner of a resumed session: the process named, or the one before if that still runs
        or did so when the return began (`waited`): a server that has stopped meanwhile leaves an
        orphan. Without one it belongs to nobody here until a server takes it over."""
        record = live.record
        if owner_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                record.owner = ProcessIdentity.of(owner_pid)
        if record.owner is not None and (record.owner == waited or _runs(record.owner)):
            self.watch(live)
        else:
            record.owner = None

    async def own(self, session: str, owner_pid: int) -> None:
        """Process `owner_pid`, a server that was started again, takes the session over; where only
        its relay is here, from when the session comes back. Raises `NotFound`, `BadRequest` or
        `Forbidden`, and nothing is changed then."""
        live, kept = self._node.sessions.get(session), self._relays.kept.get(session)
        holder = live if live is not None and live.record.alive else kept
        if holder is None:
            raise NotFound(f"this node has nothing of session '{session}'", session=session)
        holder.record.owner = _server(owner_pid, holder.record)
        if isinstance(holder, LiveSession):
            if holder.owner is not None:
                holder.owner.close()
            self.watch(holder)
            self._node.save(holder)
        else:
            self._relays.save(holder)

    def _gone(self, live: LiveSession, owner: ProcessIdentity) -> None:
        if live.record.alive and not self._node.stopping:
            self._node.spawn(self._orphaned(live, owner), "an orphaned session")

    async def _orphaned(self, live: LiveSession, owner: ProcessIdentity) -> None:
        record, grace_s = live.record, self._node.settings.orphan_grace_s
        await asyncio.sleep(grace_s)
        reason = f"its Jupyter server (process {owner.pid}) is gone since {grace_s:g} s"
        able = record.connected and (await self._node.images.capability())["available"]
        patience = ANSWER_S
        while record.alive and record.owner == owner:
            told = record.connected and self._node.service is not None
            if told:
                self._node.emit(record.session, "session.orphaned", reason=reason)
            if told or able:
                await self._decided(record, owner, patience)
                patience = min(2 * patience, ANSWER_MAX_S)
            if not able:
                break
        if record.alive and record.owner == owner:
            self._end(live, reason)

    async def _decided(self, record: SessionRecord, owner: ProcessIdentity, seconds: float) -> None:
        """Until it has left, has another owner, or nothing was done about it for `seconds`. Where
        no service is, until one comes."""
        service, deadline = self._node.service, time.monotonic() + seconds
        while record.alive and record.owner == owner and time.monotonic() < deadline:
            if record.saving is not None:
                deadline = time.monotonic() + seconds
            if self._node.service is not service:
                return
            await asyncio.sleep(0.1)


def _runs(owner: ProcessIdentity | None) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return owner is not None and ProcessIdentity.of(owner.pid) == owner
    return False


def _server(pid: int, record: SessionRecord) -> ProcessIdentity:
    """A process that may own the session: its user's."""
    try:
        owner, uid = ProcessIdentity.of(pid), uid_of(pid)
    except ProcessLookupError:
        raise BadRequest(
            f"there is no process {pid} on this node that the session could belong to; "
            "nothing was changed",
            owner_pid=pid,
        ) from None
    if uid != record.uid:
        raise Forbidden(
            f"process {pid} runs as uid {uid}, but sessions of {record.user} run as uid "
            f"{record.uid}; nothing was changed",
            owner_pid=pid,
        )
    return owner
