"""Reading sessions and their histories: what is active from memory, what has ended from the ledger.

Part of the controller; the REST handlers and the magics read through it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from singularity_proxy.errors import NotFound

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import FINAL, WORDS
from singularity_scheduler.service.ledger.ledger import Ledger, Position
from singularity_scheduler.service.schemas import documents

Json = dict[str, Any]

ACTIVE_WORDS = frozenset(WORDS) - {state.value for state in FINAL}

KEEP_OVER = 5000
"""Ended sessions kept in memory."""


class Archive:
    """`state` is the newest truth about active sessions; `ledger` has all of them."""

    def __init__(self, state: ClusterState, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self._over: OrderedDict[str, SessionView] = OrderedDict()
        """Sessions that ended and were asked for lately; they never change again."""

    async def find(self, session: str) -> SessionView:
        """A session, ended ones included; raises `NotFound`."""
        found = await self.views([session])
        if not found:
            raise NotFound(f"there is no session {session}", session=session)
        return found[0]

    async def views(self, ids: list[str]) -> list[SessionView]:
        """These sessions in this order; unknown ones are left out."""
        known = {sid: self._state.sessions.get(sid) or self._over.get(sid) for sid in ids}
        missing = [sid for sid, view in known.items() if view is None]
        if missing:
            for stored in await self._ledger.sessions_of(missing):
                # What was just written may be in memory by now, and newer.
                known[stored.id] = self._state.sessions.get(stored.id) or stored
                if stored.ended:
                    self._over[stored.id] = stored
        for sid in ids:
            if sid in self._over:
                self._over.move_to_end(sid)
        while len(self._over) > KEEP_OVER:
            self._over.popitem(last=False)
        return [view for sid in ids if (view := known[sid]) is not None]

    def forget(self, session: str) -> None:
        """Something of an ended session changed in the ledger: read it anew."""
        self._over.pop(session, None)

    async def page(
        self,
        user: str | None,
        *,
        state: str | None = None,
        kind: str | None = None,
        owner: str | None = None,
        limit: int,
        after: Position | None = None,
    ) -> tuple[list[SessionView], Position | None]:
        """At most `limit` sessions that `user` may see (None: everybody's), newest first, and what
        to give as `after` for the ones behind them (None: there are none). `state`: with this word,
        or "active": not ended; `kind` and `owner` (a user) narrow down."""
        if user is not None and owner not in (None, user):
            return [], None
        words = ACTIVE_WORDS if state == "active" else frozenset({state}) if state else None
        positions = await self._ledger.page(
            user or owner, kind=kind, words=words, limit=limit + 1, after=after
        )
        more = len(positions) > limit
        views = await self.views([sid for _, sid in positions[:limit]])
        return views, positions[limit - 1] if more else None

    async def history(self, view: SessionView, limit: int) -> list[Json]:
        """Its newest `limit` changes, oldest first."""
        return (await self.history_page(view, limit))[0]

    async def history_page(
        self, view: SessionView, limit: int, before: int | None = None
    ) -> tuple[list[Json], int | None]:
        """The newest `limit` changes with numbers below `before` (None: of all), oldest first, and
        what to give as `before` for the older ones (None: there are none)."""
        lines = await self._ledger.history(view.id, limit + 1, before)
        more = len(lines) > limit
        lines = lines[-limit:]
        return (
            [documents.change_document(change) for _, change in lines],
            lines[0][0] if more else None,
        )
