"""Changes of this user's sessions as events of the Jupyter server (jupyter_events)."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any

from jupyter_events import EventLogger
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.client.schemas import SCHEMAS, SESSION_STATE

log = logging.getLogger("singularity.labext")

RETRY_S = 5.0
"""Pause before the scheduler's event stream is opened again."""

STATE = ("state", "process_state", "device_state", "reason")
"""What makes two documents of a session the same state."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""Process states without a way out."""

KEEP_ENDED = 500
"""Ended sessions whose last state is remembered: something small may still change in them."""

SHOWN = ("user", "name", "kind", "tier", "node", *STATE)


class Emitter:
    """Turns the scheduler's events into "session-state" events; what was the same before, and what
    a snapshot tells about sessions seen for the first time, is no change."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._known: dict[str, tuple[Any, ...]] = {}
        self._ended: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        logger.register_event_schema(SCHEMAS[SESSION_STATE])

    def take(self, event: dict[str, Any]) -> None:
        """One event of `ServiceClient.events`."""
        if event["event"] == "snapshot":
            before = {**self._ended, **self._known}
            self._known = {}
            for session in event["data"]["sessions"]:
                self._take(session, session["id"] in before, before.get(session["id"]))
        elif event["event"] == "session":
            session, sid = event["data"], event["data"]["id"]
            self._take(session, True, self._known.get(sid) or self._ended.get(sid))

    def _take(self, session: dict[str, Any], new: bool, before: tuple[Any, ...] | None) -> None:
        state = tuple(session[key] for key in STATE)
        self._known.pop(session["id"], None)
        if session["process_state"] in ENDED:
            self._ended[session["id"]] = state
            if len(self._ended) > KEEP_ENDED:
                self._ended.popitem(last=False)
        else:
            self._known[session["id"]] = state
        if new and state != before:
            data = {key: session[key] for key in SHOWN}
            self._logger.emit(
                schema_id=SESSION_STATE,
                data={"session": session["id"], **data, "at": session["updated_at"]},
            )


async def follow(client: ServiceClient, emitter: Emitter) -> None:
    """Read the scheduler's events until cancelled; what happened while it was away is read later,
    as far as the scheduler still knows it."""
    last: str | None = None
    while True:
        events = client.events(last)
        try:
            async for event in events:
                emitter.take(event)
        except SingularityError as error:
            log.info("no events of the scheduler for the moment: %s", error.message)
        except Exception as error:  # of one event, or of somebody who listens to ours
            log.error("an event of the scheduler could not be passed on", exc_info=error)
        finally:
            last = events.last_id
            await events.aclose()
        await asyncio.sleep(RETRY_S)
