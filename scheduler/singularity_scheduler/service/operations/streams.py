"""The operations that stream: events (server-sent events), logs, and the metrics' text."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from singularity_proxy.errors import Conflict, NotFound, SingularityError, Unavailable
from tornado.iostream import StreamClosedError

from singularity_scheduler.core.values.states import ProcessState
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.events.feed import Listener, lines

from .table import Parameter, Reply, Who, operation

log = logging.getLogger("singularity.service")

HEARTBEAT_S = 15.0
"""A line this often, so that everything in between keeps the connection open; and whether the
token still counts is asked this often."""

MAX_OFFSET = (1 << 53) - 1
"""The largest number that every JSON reader keeps."""

MIN_LIMIT = 4
"""Bytes of the longest character."""

LOG_CHUNK_BYTES = 256 << 10
LOG_POLL_S = 0.25
"""How often a followed log is looked at; half as often after each look in vain, up to 8 times."""


@operation(
    "GET",
    "events",
    "Server-sent events: `snapshot` with all sessions one may see, then `session` for each that "
    "changed, `queue` with the places (`{places: {session: place}}`) that changed, and `progress` "
    "(`{session, progress}`, null when it is over) of transfers to and from the store, and "
    "`devices` (as `GET sessions/{session}/devices`) at most every few seconds when memory or "
    "utilisation of a session's devices changed, without devices when it gave them back; to admins "
    "also `cluster` (`{}`) when nodes, devices, quotas or parameters changed. With "
    "`Last-Event-ID` exactly what was missed comes instead of the snapshot, while it is still "
    "known. Sessions are as in `GET sessions`: what is long in their runs is null. The stream ends "
    "when the token does not count any more.",
    answer="text/event-stream",
    query=(
        Parameter(
            "Last-Event-ID",
            {"type": "string", "maxLength": 100},
            "Id of the last event that was read.",
            where="header",
        ),
    ),
    stream=True,
)
async def stream_events(call: Endpoint) -> None:
    """Ends when the client leaves, falls too far behind, may not listen any more or the service
    stops."""
    call.set_header("Content-Type", "text/event-stream")
    call.set_header("Cache-Control", "no-cache")
    call.set_header("X-Accel-Buffering", "no")
    if call.request.method == "HEAD":
        return
    feed, user = call.services.feed, call.caller.sees
    listener, goes_on = feed.listen(user, call.request.headers.get("Last-Event-ID"))
    call.when_left(listener.end)
    try:
        if not goes_on:
            views = [v for v in call.controller.state.sessions.values() if user in (None, v.user)]
            text = f'{{"sessions": {call.services.texts.sessions(views)}}}'
            call.write(b"id: %b\n" % feed.id_of(listener.position).encode())
            call.write(lines("snapshot", text) + b"\n")
        await call.push()
        await _tell(call, listener)
    except StreamClosedError:
        pass
    finally:
        feed.leave(listener)


async def _tell(call: Endpoint, listener: Listener) -> None:
    beats = Beats()
    while True:
        await listener.wait(beats.left)
        due = beats.due()
        if due and not await call.still_allowed():
            return
        text = listener.take()
        if text is None:
            return
        if due and not text:
            text = b": heartbeat\n" + listener.place
        if text:  # else it was for others
            call.write(text)
            await call.push()


class Beats:
    """Says when `HEARTBEAT_S` have gone by, however much is sent meanwhile."""

    def __init__(self) -> None:
        self._next = time.monotonic() + HEARTBEAT_S

    @property
    def left(self) -> float:
        """Seconds to the next one."""
        return max(0.0, self._next - time.monotonic())

    def due(self) -> bool:
        """Whether it is time; then it counts from now on."""
        if self.left:
            return False
        self._next = time.monotonic() + HEARTBEAT_S
        return True


@operation(
    "GET",
    "sessions/{session}/log",
    "What its process printed, as text. Only what is still kept: the header says where it begins.",
    answer="text/plain",
    query=(
        Parameter(
            "offset",
            {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET},
            "Byte to begin at, counted from the beginning of everything that was ever printed.",
            0,
        ),
        Parameter(
            "follow",
            {"type": "boolean"},
            "Stay until the session has ended.",
            False,
        ),
        Parameter(
            "limit",
            {"type": "integer", "minimum": MIN_LIMIT, "maximum": MAX_OFFSET},
            "Most bytes to send; at least 4, because no character is cut.",
        ),
    ),
    stream=True,
    errors=(Conflict,),
    headers={"Singularity-Log-Offset": "Offset of the first byte of the answer."},
)
async def stream_log(call: Endpoint) -> None:
    view = await call.session()
    offset, follow, left = (call.query[name] for name in ("offset", "follow", "limit"))
    part = await _part(call, view.id, offset, _most(left), follow)
    call.set_header("Content-Type", "text/plain; charset=utf-8")
    call.set_header("Singularity-Log-Offset", str(part["offset"]))
    call.set_header("X-Accel-Buffering", "no")
    if call.request.method == "HEAD":
        return
    pause, beats = LOG_POLL_S, Beats()
    try:
        while True:
            text = same_length(part["text"], part["next_offset"] - part["offset"])
            if text:
                call.write(text)
                pause = LOG_POLL_S
                call.services.metrics.log_bytes.inc(len(text))
            await call.push()
            if left is not None:
                left -= part["next_offset"] - part["offset"]
            if part["ended"] or (left is not None and left < MIN_LIMIT) or not (text or follow):
                return
            if not text:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 8 * LOG_POLL_S)
            if call.services.feed.closed or (beats.due() and not await call.still_allowed()):
                break
            following = part["next_offset"]
            part = await _part(call, view.id, following, _most(left), follow)
            if part["offset"] != following:
                break  # what was to come next is not kept any more
    except StreamClosedError:
        return
    except SingularityError as error:
        log.warning("the log could not be sent to its end: %s", error.message)
    call.cut()  # so that nobody takes what came for all of it


async def _part(
    call: Endpoint, session: str, offset: int, most: int, follow: bool
) -> dict[str, Any]:
    """The log from `offset` on. For who follows it is empty while the node does not answer, and
    while a session that is just starting has none."""
    view = await call.controller.find(session)
    try:
        return await call.controller.read_log(view, offset, most)
    except (Unavailable, NotFound) as error:
        starting = view.process_state is ProcessState.STARTING
        if not follow or (isinstance(error, NotFound) and not starting):
            raise
        return {"text": "", "offset": offset, "next_offset": offset, "ended": False}


def same_length(text: str, size: int) -> bytes:
    """`text` in UTF-8 in exactly as many bytes as were printed, so that a reader who counts them
    can go on anywhere: what was no UTF-8 becomes question marks."""
    data = text.encode()
    if len(data) == size:
        return data
    first, *others = text.split("\N{REPLACEMENT CHARACTER}")
    marks = size - len(data) + 3 * len(others)
    each, more = divmod(marks, len(others)) if others else (0, 0)
    found = first.encode()
    for number, piece in enumerate(others):
        found += b"?" * (each + (number < more)) + piece.encode()
    return found


def _most(left: int | None) -> int:
    return LOG_CHUNK_BYTES if left is None else min(left, LOG_CHUNK_BYTES)


@operation(
    "GET",
    "metrics",
    "Metrics for Prometheus; below the service's own address.",
    answer=CONTENT_TYPE_LATEST,
    who=Who.METRICS,
)
async def get_metrics(call: Endpoint) -> Reply:
    return Reply(call.services.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
