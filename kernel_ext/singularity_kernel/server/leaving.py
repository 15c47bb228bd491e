"""A server that stops tells the relays so, and hears all that they have sent it before.

Between the end of a subscription and the moment at which a relay learns of it, an output would go
to a socket that nobody reads any more. So the server subscribes to `LEAVE` on every socket that it
has; the relay keeps outputs from then on, for the next server, and its answer on that topic is the
last message that this one is sent (`relay_attend`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from singularity_kernel.provision.reconnect import close_websockets, websockets
from singularity_kernel.relay.clients import LEAVE

from .outputs import Kept, bare

LIMIT_S = 2.0
"""A relay answers in milliseconds, and its answer stands behind what it has sent before. A full
disk, or a client that is not of this server and stays, keep it from answering at all: then the
server stops as it is."""

PAGE_S = 1.0
"""How long a page may take to agree that its websocket is closed."""


async def leave(kernel_id: str, kept: Kept | None) -> bool:
    """Hear all that a kernel's relay has sent this server, let pages have it, and close them. True:
    nothing is lost on the way; False: the relay has not answered in time.

    Called for each kernel when the server stops, when nothing but pages and `kept` hears it."""
    pages = websockets(kernel_id)
    streams = [page.channels.get("iopub") for page in pages]
    streams += [kept.iopub] if kept else []
    whole = await hear_all(bare(stream) for stream in streams if stream is not None)
    for stream in [stream for page in pages for stream in page.channels.values()]:
        if not stream.closed():
            stream.flush()
    await close_websockets(kernel_id, "the server stops", PAGE_S)
    return whole


async def hear_all(streams: Iterable[Any]) -> bool:
    """The same for `streams`, which are all iopub streams (ZMQStream) of one relay in this process;
    what they hear goes where it went before."""
    ends = {stream: _end_of(stream) for stream in streams if not stream.closed()}
    waiting = {stream: end for stream, end in ends.items() if end is not None}
    with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(e.wait() for e in waiting.values())), LIMIT_S)
    for stream, end in waiting.items():
        if not (end.is_set() or stream.closed()):
            stream.flush()  # there was more than could be heard in that time
    return all(end.is_set() for end in waiting.values())


def _end_of(stream: Any) -> asyncio.Event | None:
    """Set once the stream has heard the last message; None: nobody hears it, a page is about to
    take it."""
    hear, end = stream._recv_callback, asyncio.Event()
    if hear is not None:

        def hear_or_end(parts: list[bytes]) -> None:
            if parts[0] == LEAVE:
                end.set()
            else:
                hear(parts)

        stream.on_recv(hear_or_end)
    stream.socket.subscribe(LEAVE)
    return end if hear is not None else None
