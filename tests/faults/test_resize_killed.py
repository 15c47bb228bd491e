"""kill -9 of a node agent, the service and a device proxy in the middle of a resize, all of them
real: the resize is finished, no device is left with nobody, and the numbers stay the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from support import agent_resizing
from support.agent_resizing import printed, training
from support.agent_trains import logged
from support.processes import stop_process
from support.service_process import ServiceProcess
from support.service_resizing import begin, four, size, word

pytestmark = pytest.mark.timeout(400)

STEPS = 400
PAUSE_S = 0.1
HANGS_S = 10.0
"""Beyond what it takes to start the processes that are missing."""


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    return agent_resizing.undisturbed(STEPS)


def seconds_to_start() -> float:
    """How long this machine takes just now until a device proxy has been imported."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, singularity_proxy.device"], check=True)
    return time.monotonic() - began


async def kill_agent(service: ServiceProcess, _: int) -> None:
    before = service.agent
    os.kill(int(before["process"][0]), signal.SIGKILL)
    while service.agent["instance"] == before["instance"]:
        await asyncio.sleep(0.02)


async def kill_service(service: ServiceProcess, _: int) -> None:
    service.kill()
    await service.start()


async def kill_proxy(_: ServiceProcess, proxy: int) -> None:
    os.kill(proxy, signal.SIGKILL)


async def resized_meanwhile(
    service: ServiceProcess,
    client: ServiceClient,
    session: str,
    wanted: int,
    kill: Callable[[ServiceProcess, int], Awaitable[None]],
) -> float:
    """Kill in the middle of a resize to `wanted`, which one device proxy that is stopped holds up.
    Returns the seconds from there until the session runs on so many devices."""
    held_up = service.proxies_of(session)[-1]
    stop_process(held_up)
    asked = asyncio.ensure_future(client.resize(session, wanted))
    try:
        await word(client, session, "resizing")
        await kill(service, held_up)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(held_up, signal.SIGCONT)
    began = time.monotonic()
    with contextlib.suppress(SingularityError, OSError):
        await asked
    found = await size(client, session, wanted)
    took = time.monotonic() - began
    assert len(set(found["devices"])) == wanted
    devices = (await client.cluster())["devices"]
    assert {d["id"] for d in devices if d["session"] == session} == set(found["devices"])
    assert not [d for d in devices if d["session"] not in (session, None)]
    assert len(service.proxies_of(session)) == wanted
    return took


@pytest.mark.asyncio
async def test_kill_minus_9_in_the_middle_of_a_resize(undisturbed: list[str]) -> None:
    start_s = seconds_to_start()
    async with four() as service:
        client = service.client()
        session = await begin(client, training(STEPS, PAUSE_S), name="nb", devices=4)
        await logged(client, session, "step 2 ")
        await size(client, session, 4)
        for kill, wanted in (
            (kill_agent, 1),
            (kill_service, 4),
            (kill_proxy, 2),
            (kill_agent, 4),
        ):
            took = await resized_meanwhile(service, client, session, wanted, kill)
            # An agent and three device proxies may have to start, all at once.
            assert took < HANGS_S + 4 * start_s, kill.__name__
            now = len(printed(await logged(client, session, "step 2 ")))
            await logged(client, session, f"step {now + 1} ")  # it goes on
        await client.signal(session, signal.SIGUSR1)
        assert printed(await logged(client, session, "done")) == undisturbed
        await word(client, session, "completed")
        ended = time.monotonic()
        while any(d["session"] for d in (await client.cluster())["devices"]):
            assert time.monotonic() < ended + HANGS_S
            await asyncio.sleep(0.05)
        assert service.proxies_of(session) == []
