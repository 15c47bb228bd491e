"""Changes of this user's sessions as events of the Jupyter server (jupyter_events)."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from jupyter_events import EventLogger
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.client.schemas import SCHEMAS, SESSION_STATE

log = logging.getLogger("singularity.labext")

RETRY_S = 5.0
"""Pause before the scheduler's event stream is opened, or a fork is looked for, again."""

STATE = ("state", "process_state", "device_state", "reason")
"""What makes two documents of a session the same state."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""Process states without a way out."""

KEEP_ENDED = 500
"""Ended sessions whose last state is remembered: something small may still change in them."""

SHOWN = ("user", "name", "kind", "tier", "node", "reason_code", "reason_args", *STATE)


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
            # A scheduler that was not upgraded yet may know fewer.
            data = {key: session[key] for key in SHOWN if key in session}
            self._logger.emit(
                schema_id=SESSION_STATE,
                data={"session": session["id"], **data, "at": session["updated_at"]},
            )


class ForkFinder:
    """Tells the server's kernel manager of each fork, whoever asked for it, until it knows whether
    it is one of its own notebooks: those it lists, each with a notebook."""

    def __init__(self, find_fork: Callable[[str], Awaitable[Any]]) -> None:
        self._find_fork = find_fork
        self._told: OrderedDict[str, asyncio.Task[None]] = OrderedDict()

    def take(self, event: dict[str, Any]) -> None:
        """One event of `ServiceClient.events`."""
        one = [event["data"]] if event["event"] == "session" else []
        for session in event["data"]["sessions"] if event["event"] == "snapshot" else one:
            over = session["process_state"] in ENDED
            if session.get("forked_from") and not over and session["id"] not in self._told:
                self._told[session["id"]] = asyncio.create_task(self._find(session["id"]))
                if len(self._told) > KEEP_ENDED and next(iter(self._told.values())).done():
                    self._told.popitem(last=False)

    async def _find(self, session: str) -> None:
        told = False
        while True:
            try:
                await self._find_fork(session)
                return
            except Unavailable as error:  # nothing may happen to it for hours: no event tells again
                if not told:
                    log.warning("the fork %s is not listed yet: %s", session, error.message)
                told = True
            except Exception as error:
                log.warning("the fork %s is not listed by this server: %s", session, error)
                self._told.pop(session, None)  # its next event, or the next snapshot, tells it
                return
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Look for no fork any more: the server stops, and the next one hears of them all."""
        for task in self._told.values():
            task.cancel()
        await asyncio.gather(*self._told.values(), return_exceptions=True)


class Taker(Protocol):
    """Takes the events of the scheduler."""

    def take(self, event: dict[str, Any]) -> None: ...


def _give(taker: Taker, event: dict[str, Any]) -> None:
    """Have `taker` take an event; what fails there keeps it from no other one."""
    try:
        taker.take(event)
    except Exception as error:  # of this event, or of somebody who listens to ours
        log.error("an event of the scheduler could not be passed on", exc_info=error)


async def follow(client: ServiceClient, *takers: Taker) -> None:
    """Read the scheduler's events until cancelled; what happened while it was away is read later,
    as far as the scheduler still knows it."""
    last: str | None = None
    while True:
        events = client.events(last)
        try:
            async for event in events:
                for taker in takers:
                    _give(taker, event)
        except SingularityError as error:
            log.info("no events of the scheduler for the moment: %s", error.message)
        except Exception as error:
            log.error("the events of the scheduler could not be read", exc_info=error)
        finally:
            last = events.last_id
            await events.aclose()
        await asyncio.sleep(RETRY_S)
