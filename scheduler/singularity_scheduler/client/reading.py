"""What is read of sessions, once or as it changes. Part of `ServiceClient`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Collection
from urllib.parse import quote, urlencode

from singularity_proxy.errors import BadRequest, Conflict, Unavailable

from .calls import Calls, Json
from .stream import RETRY_S, WITHOUT_SERVICE_S, EventStream, LogStream

USAGE_S = 300.0
"""How long sums over everything that the ledger has may take."""


PAGE = 1000
"""Sessions per page when all of them are wanted."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""Words of sessions that have ended; as `core.states.FINAL`."""

Until = str | Collection[str] | Callable[[Json], bool]
"""What is waited for: "ended", another word, one of several, or what a document fulfils."""


class Reading(Calls):
    """Base of `ServiceClient`."""

    async def get_session(self, session: str) -> Json:
        """One session. `NotFound` for an unknown one and for another user's."""
        return await self._json("GET", f"sessions/{quote(session, safe='')}")

    async def sessions(
        self, state: str | None = None, kind: str | None = None, user: str | None = None
    ) -> list[Json]:
        """Own sessions (an admin: all), newest first; `state` keeps those with that word, or
        "active" for those that have not ended; `kind` and `user` as `sessions_page`."""
        found: list[Json] = []
        cursor = None
        while True:
            page = await self.sessions_page(
                state=state, kind=kind, user=user, limit=PAGE, cursor=cursor
            )
            found += page["sessions"]
            if not (cursor := page.get("next")):
                return found

    async def sessions_page(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        user: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Json:
        """``{"sessions", "next"}``: at most `limit` (1 to 1000) sessions, newest first; pass
        `next` as `cursor` for those after them, it is None at the end. `kind` is "interactive" or
        "batch", `user` another user's name (for admins). Long parameters and variables of runs are
        None here; `get_session` has them."""
        asked = {"state": state, "kind": kind, "user": user, "limit": limit, "cursor": cursor}
        query = urlencode({k: v for k, v in asked.items() if v is not None and v != ""})
        return await self._json("GET", f"sessions?{query}")

    def logs(self, session: str, *, offset: int = 0, follow: bool = False) -> LogStream:
        """What the session's process wrote, from byte `offset` on, as text as it comes; with
        `follow` until the session has ended. A connection that breaks is made again from where it
        broke, `Unavailable` after 30 s without service. `Conflict` for a joined session: it
        writes to its own terminal. `offset` of what is returned says where to go on."""
        path = f"sessions/{quote(session, safe='')}/log"
        return LogStream(f"{self.url}api/v1/{path}", self._headers(), offset, follow)

    def events(self, last_event_id: str | None = None) -> EventStream:
        """The live stream, each ``{"event", "data", "id"}``: "session" with the document of a
        changed session, "queue" with ``{"places": {session: place}}`` of those whose place in the
        queue changed, "progress" of a transfer, "devices" (as `devices`) of those whose memory or
        utilisation changed. First comes a "snapshot" with all sessions one may see, or, with the
        `id` of the last event that was read, exactly what came after it while the service still
        knows.
        Ends with `Unavailable` when the service goes away; call again with the `last_id` of what
        was returned to go on."""
        return EventStream(f"{self.url}api/v1/events", self._headers(), last_event_id)

    async def stream_events(
        self, last_event_id: str | None = None, away_s: float = WITHOUT_SERVICE_S
    ) -> AsyncGenerator[Json]:
        """As `events`, and for ever: a stream that breaks is made again and goes on where it broke,
        or begins anew with a "snapshot" when that is too long ago. `Unavailable` when the service
        is away for `away_s` seconds."""
        last, away_since = last_event_id, None
        while True:
            events = self.events(last)
            try:
                async with contextlib.aclosing(events):
                    async for event in events:
                        away_since = None
                        yield event
            except Unavailable:
                if events.last_id != last:  # it was there in between
                    last, away_since = events.last_id, None
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since >= away_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def wait(
        self,
        session: str,
        until: Until = "ended",
        timeout: float | None = None,
        away_s: float = WITHOUT_SERVICE_S,
    ) -> Json:
        """The session's document as soon as it is as wanted (see `Until`), as the event stream
        tells it. `Conflict` when it ended otherwise, `TimeoutError` after `timeout` seconds,
        `Unavailable` when the service is away for `away_s` seconds; the session is not touched by
        either."""
        fulfils = _wanted(until)
        async with (
            asyncio.timeout(timeout),
            contextlib.aclosing(self.stream_events(away_s=away_s)) as events,
        ):
            async for event in events:
                document = await self._of(session, event)
                if document is None:
                    continue
                if fulfils(document):
                    return document
                if document["state"] in ENDED:
                    raise Conflict(
                        f"session {session} is {document['state']} and will not be what was waited "
                        f"for: {document['reason']}",
                        session=session,
                        state=document["state"],
                    )
        raise AssertionError("the stream goes on for ever")

    async def _of(self, session: str, event: Json) -> Json | None:
        """What an event says of the session; None: nothing."""
        name, data = event["event"], event["data"]
        if name == "snapshot":
            found = (one for one in data["sessions"] if one["id"] == session)
            return next(found, None) or await self.get_session(session)  # it may have ended
        return data if name == "session" and data["id"] == session else None

    async def usage(
        self,
        by: str = "user",
        since: str | float | None = None,
        until: str | float | None = None,
        user: str | None = None,
    ) -> Json:
        """What own sessions (an admin: all) used: ``{"by", "since", "until", "usage"}`` with all
        lines. `by` is a key of `client.usage.BY`, the figures of a line are those of
        `client.usage.FIGURES`; `since` and `until` are ISO 8601 or UNIX seconds, None: the last 7
        days; `user`: only this one's, for admins."""
        asked = {"by": by, "since": since, "until": until, "user": user, "limit": PAGE}
        whole: Json | None = None
        cursor = None
        while whole is None or cursor:
            query = {k: v for k, v in {**asked, "cursor": cursor}.items() if v is not None}
            page = await self._json("GET", f"usage?{urlencode(query)}", timeout=USAGE_S)
            cursor = page.pop("next")
            if whole is None:
                whole = page
            else:
                whole["usage"] += page["usage"]
        return whole


def _wanted(until: Until) -> Callable[[Json], bool]:
    if callable(until):
        return until
    from singularity_scheduler.core.values.states import WORDS  # not before somebody waits

    words = {until} if isinstance(until, str) else set(until)
    if unknown := sorted(words - {*WORDS, "ended"}):
        raise BadRequest(
            f"there is no state '{unknown[0]}' to wait for; it is ended or one of "
            f"{', '.join(WORDS)}"
        )
    if "ended" in words:
        words |= ENDED
    return lambda document: document["state"] in words
