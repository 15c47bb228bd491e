"""Connections that the rendezvous of part 0 carries for ranks of others."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from singularity_proxy.elastic.bridge.lanes import Lane
from singularity_proxy.elastic.bridge.rendezvous import LOOPBACK, Rendezvous
from support.agent import until

OPEN, DATA = 1, 2
MESSAGE = struct.Struct("!BI")


def test_a_connection_of_a_new_era_has_nothing_of_one_before_it() -> None:
    """Part 1 came back as it was before it had made its connection 1, and makes it again."""

    async def go() -> None:
        came: list[bytes] = []
        over = 0

        async def store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal over
            while data := await reader.read(100):
                came.append(data)
            over += 1
            writer.close()

        server = await asyncio.start_server(store, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        meeting = Rendezvous(0, port, Path("/nowhere"))
        before, after = Lane(), Lane()
        before.put(MESSAGE.pack(OPEN, 1))
        before.put(MESSAGE.pack(DATA, 1) + b"before")
        for frame in before.take():
            meeting._came(1, frame)
        await until(lambda: came == [b"before"])
        after._begin_anew(1)
        after.put(MESSAGE.pack(OPEN, 1))
        for frame in after.take():
            meeting._came(1, frame)
        await until(lambda: over == 1)
        after.put(MESSAGE.pack(DATA, 1) + b"after")
        for frame in after.take():
            meeting._came(1, frame)
        await until(lambda: came == [b"before", b"after"])
        await meeting.stop()
        server.close()
        await until(lambda: over == 2)

    asyncio.run(go())
