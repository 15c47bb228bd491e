"""Where the parts of a gang reach one another: each node tells where the bridge of its part
listens, and is told where those of the others do. Never stored: nodes tell it again when they come
back.

Part of the controller.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import SingularityError

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessState

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

Json = dict[str, Any]

log = logging.getLogger("singularity.service")

RETRY_S = 2.0
"""Pause before a node that could not be told is told again."""


def gang_launch(view: SessionView) -> Json | None:
    """What the agent of a part needs to know of its gang; None: it is no part. The key is the same
    for all parts and whenever the command is repeated, and another one for each attempt and each
    time that the gang has gone back."""
    part = view.part
    if part is None:
        return None
    what = f"{part.gang} attempt {view.attempt}"
    if view.incarnation > 1:
        what += f" incarnation {view.incarnation}"
    key = hmac.new(part.secret.encode(), what.encode(), hashlib.sha256).hexdigest()
    return {"id": part.gang, "number": part.number, "parts": part.parts, "key": key}


def _has_none(view: SessionView) -> bool:
    return view.final or view.pending or view.process_state is ProcessState.SUSPENDED


class Peers:
    """One per controller; observes its decisions."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller
        self._bridges: dict[str, tuple[tuple[int, int], str]] = {}
        """session -> the attempt and incarnation of which it is, "host:port" of its bridge"""
        self._telling: dict[str, asyncio.Task[None]] = {}
        """session -> what tells its node until it is told."""

    def told(self, session: str, address: str) -> None:
        """A node says where the bridge of a part listens; "": nowhere."""
        view = self._c.state.sessions.get(session)
        if view is None or view.part is None or _has_none(view):
            return
        known = ((view.attempt, view.incarnation), address)
        if not address or self._bridges.get(session) == known:
            return
        self._bridges[session] = known
        for other in view.part.sessions:
            self._tell(other)

    def joined(self, node: str, sessions: Mapping[str, str]) -> None:
        """A node is back and says so of these sessions. It may be new, so it is told anew. What it
        still has of sessions that have begun again elsewhere meanwhile concerns nobody."""
        for session, address in sessions.items():
            view = self._c.state.sessions.get(session)
            if view is not None and view.node == node:
                self.told(session, address)
                self._tell(session)

    def __call__(self, decision: Decision) -> None:
        """Whoever has ended, is in the store, or begins again has no bridge any more."""
        for view in decision.sessions:
            if view.part is None or view.id not in self._bridges:
                continue
            if _has_none(view):
                del self._bridges[view.id]

    async def close(self) -> None:
        """Stop telling; the next service begins anew."""
        tasks = list(self._telling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _peers(self, session: str) -> dict[str, str]:
        """number -> address, of the parts of its gang that are known; {}: there is nobody to tell
        it."""
        view = self._c.state.sessions.get(session)
        if view is None or view.part is None or session not in self._bridges:
            return {}
        when = self._bridges[session][0]
        found = {}
        for number, other in enumerate(view.part.sessions):
            known = self._bridges.get(other)
            if known is not None and known[0] == when:
                found[str(number)] = known[1]
        return found

    def _tell(self, session: str) -> None:
        if before := self._telling.pop(session, None):
            before.cancel()
        if self._peers(session):
            task = self._telling[session] = asyncio.ensure_future(self._until_told(session))
            task.add_done_callback(lambda done: self._done(session, done))

    def _done(self, session: str, task: asyncio.Task[None]) -> None:
        if self._telling.get(session) is task:
            del self._telling[session]
        if not task.cancelled() and (error := task.exception()):
            log.error("the peers of session %s were not told", session, exc_info=error)

    async def _until_told(self, session: str) -> None:
        while peers := self._peers(session):
            node = self._c.state.sessions[session].node
            if not self._c.state.node(node).connected:
                return  # it is told when it is back
            try:
                await self._c.fleet.call(node, "session.peers", session=session, peers=peers)
                return
            except SingularityError as error:
                log.warning("node %s was not told of peers yet: %s", node, error.message)
            await asyncio.sleep(RETRY_S)
