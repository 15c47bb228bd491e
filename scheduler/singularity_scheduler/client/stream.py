"""Reading what the service streams: server-sent events and logs."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from singularity_proxy.errors import Unavailable

from .http import SILENCE_S, Answer, Broken, request
from .problems import to_error

WITHOUT_SERVICE_S = 30.0
"""How long a followed log waits for a service that is away."""

RETRY_S = 0.5


def parse_events(buffer: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Complete events of `buffer` as ``{"event", "data", "id"}`` and the rest that is still
    incomplete. Comments (heartbeats) and events without data give nothing."""
    *blocks, rest = buffer.split(b"\n\n")
    events = []
    for block in blocks:
        name, number, data = "message", None, []
        for line in block.decode().split("\n"):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.strip()
            elif field == "id":
                number = value.strip()
            elif field == "data":
                data.append(value.removeprefix(" "))
        if data:
            events.append({"event": name, "data": json.loads("\n".join(data)), "id": number})
    return events, rest


async def event_stream(
    url: str, headers: Mapping[str, str], last_event_id: str | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of the stream at `url`; raises the service's typed error when it refuses
    and `Unavailable` when the stream ends. Closing the iterator closes the connection."""
    sent = {**headers, "Accept": "text/event-stream"}
    if last_event_id:
        sent["Last-Event-ID"] = last_event_id
    try:
        async with request("GET", url, sent) as answer:
            await refuse_others(answer)
            buffer = b""
            async for chunk in answer.chunks(SILENCE_S):
                events, buffer = parse_events(buffer + chunk)
                for event in events:
                    yield event
    except Broken as error:
        raise Unavailable(
            f"the scheduler's event stream ended ({error}): it will be there again shortly",
            url=url,
        ) from None
    raise Unavailable("the scheduler's event stream ended: it will be there again shortly", url=url)


async def log_stream(
    url: str, headers: Mapping[str, str], offset: int, follow: bool
) -> AsyncIterator[str]:
    """Yield the text of a log from `offset` (bytes) on as it comes. With `follow` a broken
    connection is made again, from where it broke; `Unavailable` after `WITHOUT_SERVICE_S`."""
    away_since: float | None = None
    while True:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        query = f"{url}?offset={offset}{'&follow=true' if follow else ''}"
        try:
            async with request("GET", query, {**headers, "Accept": "text/plain"}) as answer:
                await refuse_others(answer)
                away_since = None
                offset = int(answer.headers.get("singularity-log-offset", offset))
                async for chunk in answer.chunks(SILENCE_S if follow else None):
                    pending = len(decoder.getstate()[0])
                    text = decoder.decode(chunk)
                    # What is not a whole character yet is asked for again after a break.
                    offset += len(chunk) + pending - len(decoder.getstate()[0])
                    if text:
                        yield text
                if rest := decoder.decode(b"", final=True):
                    yield rest
                return
        except (Broken, Unavailable) as error:
            away_since = away_since or time.monotonic()
            if not follow or time.monotonic() - away_since > WITHOUT_SERVICE_S:
                raise Unavailable(
                    f"the log cannot be read now ({error}); the session is not touched by this: "
                    "try again in a moment",
                    offset=offset,
                ) from None
            await asyncio.sleep(RETRY_S)


async def refuse_others(answer: Answer) -> None:
    """Raise the typed error of an answer that is no stream."""
    if answer.status != 200:
        raise to_error(answer.status, answer.reason, await answer.body())
