"""Whether a training that moves computes the same, and how much of a second image is new."""

from __future__ import annotations

import asyncio
from typing import Any

from .figures import Figure
from .tools import see_support

FLOORS = {"migrations_bitwise_equal": 1.0, "second_image_shrink": 20.0}

KERNEL = """
import torch
weights = torch.randn(1000, 1000)
words = [str(n) for n in range(200_000)]
print("made")
"""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "migrations": 2 if quick else 5,
        "migration_steps": 24 if quick else 120,
        "migration_rounds": 1 if quick else 3,
        "image_rounds": 1 if quick else 3,
    }


async def migrations_bitwise_equal(size: dict[str, Any]) -> Figure:
    """1.0 when a GPT with dropout has the same losses, as exact numbers, whether its kernel is
    moved in the middle of the cell, at other moments in every round, or not at all; else 0.0."""
    see_support()
    from support.agent_gpt import migrated, uninterrupted

    found = [
        await migrated(size["migration_steps"], size["migrations"], seed)
        for seed in range(size["migration_rounds"])
    ]
    plain = await asyncio.to_thread(uninterrupted, max(map(len, found)))
    return Figure([float(losses == plain[: len(losses)]) for losses in found], quote=min)


async def second_image_shrink(size: dict[str, Any]) -> Figure:
    """How many times fewer bytes are sent for the second checkpoint of a kernel with torch that was
    asked nothing since the first."""
    see_support()
    from support.agent import AgentBox
    from support.agent_kernels import client_of, run, start_kernel
    from support.agent_moves import checkpoint

    shrinks = []
    for _ in range(size["image_rounds"]):
        async with AgentBox() as box:
            session, info = await start_kernel(box)
            client = await client_of(info)
            try:
                said = await run(client, KERNEL)
                if said != "made\n":
                    raise RuntimeError(said)
                first = await checkpoint(box, session, 1, "one", seq=1)
                second = await checkpoint(box, session, 1, "two", seq=2)
            finally:
                client.stop_channels()
            await box.end(session)
        shrinks.append(first["sent_bytes"] / second["sent_bytes"])
    return Figure(shrinks)
