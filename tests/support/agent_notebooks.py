"""A notebook that starts ranks: a real kernel with two virtual devices behind an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from jupyter_client.asynchronous import AsyncKernelClient
from support.agent import AgentBox
from support.agent_kernels import NO_HISTORY, client_of, start_kernel

Notebook = tuple[AgentBox, str, AsyncKernelClient]


@asynccontextmanager
async def notebook(files: Mapping[str, str], *devices: str) -> AsyncIterator[Notebook]:
    """(the box, its session, a client), with these files in its folder. It gets the devices, one or
    two physical ones for the virtual ones, when it asks for them."""
    async with AgentBox("--NodeAgent.proxy_threads=1", warm=1) as box:
        for name, text in files.items():
            (box.work / name).write_text(text)
        session, info = await start_kernel(
            box, NO_HISTORY, "--ext", "singularity_kernel", virtual_devices=2
        )
        client = await client_of(info)
        giving = asyncio.create_task(_give(box, session, devices))
        try:
            yield box, session, client
        finally:
            giving.cancel()
            client.stop_channels()
            await box.end(session)


async def _give(box: AgentBox, session: str, devices: tuple[str, ...]) -> None:
    await box.event("device.need", session)
    await box.attach(session, 1, *devices)
