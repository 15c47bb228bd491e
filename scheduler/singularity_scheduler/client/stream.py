"""Reading what the service streams: server-sent events and logs."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from singularity_proxy.errors import Unavailable

from .http import SILENCE_S, Answer, Broken, request
from .problems import to_error

WITHOUT_SERVICE_S = 30.0
"""How long a followed log waits for a service that is away."""

RETRY_S = 0.5

Item = TypeVar("Item")
Where = TypeVar("Where")


def parse_events(buffer: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Complete events of `buffer` as ``{"event", "data", "id"}`` and the rest that is still
    incomplete. A heartbeat, which only has an id, is an event "" with the data None; comments and
    events without data give nothing."""
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
        elif number:
            events.append({"event": "", "data": None, "id": number})
    return events, rest


@dataclass
class _Mark(Generic[Where]):
    """How far a stream was read. Apart from the stream, so that the generator does not hold what
    holds it: a stream that nobody reads any more is closed at once."""

    at: Where


class _Stream(AsyncIterator[Item]):
    """An async iterator over `parts`; `aclose` closes the connection."""

    def __init__(self, parts: AsyncGenerator[Item]) -> None:
        self._parts = parts

    async def __anext__(self) -> Item:
        return await anext(self._parts)

    async def aclose(self) -> None:
        await self._parts.aclose()


class EventStream(_Stream[dict[str, Any]]):
    """The events of the stream at `url`; raises the service's typed error when it refuses and
    `Unavailable` when the stream ends."""

    def __init__(self, url: str, headers: Mapping[str, str], last_event_id: str | None) -> None:
        self._mark = _Mark(last_event_id)
        super().__init__(_events(url, headers, self._mark))

    @property
    def last_id(self) -> str | None:
        """Where to go on: the newest id that was read, of heartbeats too."""
        return self._mark.at


class LogStream(_Stream[str]):
    """The text of a log from `offset` (bytes) on as it comes. With `follow` a broken connection is
    made again, from where it broke; `Unavailable` after `WITHOUT_SERVICE_S`."""

    def __init__(self, url: str, headers: Mapping[str, str], offset: int, follow: bool) -> None:
        self._mark = _Mark(offset)
        super().__init__(_log(url, headers, self._mark, follow))

    @property
    def offset(self) -> int:
        """Byte behind what was read: where to go on."""
        return self._mark.at


async def _events(
    url: str, headers: Mapping[str, str], mark: _Mark[str | None]
) -> AsyncGenerator[dict[str, Any]]:
    sent = {**headers, "Accept": "text/event-stream"}
    if mark.at:
        sent["Last-Event-ID"] = mark.at
    try:
        async with request("GET", url, sent) as answer:
            await refuse_others(answer)
            buffer = b""
            async for chunk in answer.chunks(SILENCE_S):
                events, buffer = parse_events(buffer + chunk)
                for event in events:
                    mark.at = event["id"] or mark.at
                    if event["event"]:
                        yield event
    except Broken as error:
        raise Unavailable(
            f"the scheduler's event stream ended ({error}): it will be there again shortly",
            url=url,
        ) from None
    raise Unavailable("the scheduler's event stream ended: it will be there again shortly", url=url)


async def _log(
    url: str, headers: Mapping[str, str], mark: _Mark[int], follow: bool
) -> AsyncGenerator[str]:
    away_since: float | None = None
    while True:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        query = f"{url}?offset={mark.at}{'&follow=true' if follow else ''}"
        try:
            async with request("GET", query, {**headers, "Accept": "text/plain"}) as answer:
                await refuse_others(answer)
                away_since = None
                mark.at = int(answer.headers.get("singularity-log-offset", mark.at))
                async for chunk in answer.chunks(SILENCE_S):
                    pending = len(decoder.getstate()[0])
                    text = decoder.decode(chunk)
                    # What is not a whole character yet is asked for again after a break.
                    mark.at += len(chunk) + pending - len(decoder.getstate()[0])
                    if text:
                        yield text
                pending = len(decoder.getstate()[0])
                if rest := decoder.decode(b"", final=True):
                    mark.at += pending
                    yield rest
                return
        except (Broken, Unavailable) as error:
            away_since = away_since or time.monotonic()
            if not follow or time.monotonic() - away_since > WITHOUT_SERVICE_S:
                raise Unavailable(
                    f"the log cannot be read now ({error}); the session is not touched by this: "
                    "try again in a moment",
                    offset=mark.at,
                ) from None
            await asyncio.sleep(RETRY_S)


async def refuse_others(answer: Answer) -> None:
    """Raise the typed error of an answer that is no stream."""
    if answer.status != 200:
        raise to_error(answer.status, answer.reason, await answer.body())
