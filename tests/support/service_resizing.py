"""Sessions of four virtual devices under a real service whose node has four devices."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from singularity_scheduler.client import ServiceClient
from support.service_process import ServiceProcess

LIMIT_S = 60.0
"""A few seconds on a machine that has nothing else to do; four interpreters start at once."""


def four() -> ServiceProcess:
    few = ["--NodeAgent.warm_proxies=3", "--NodeAgent.proxy_threads=1"]
    return ServiceProcess(device_type="cpu", cpu_devices=4, agent_args=few)


async def begin(client: ServiceClient, code: str, **spec: Any) -> str:
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
    launch = {"mode": "capsule", "argv": [sys.executable, "-c", code], "env": env, "cwd": "/"}
    made = await client.create_session(kind="interactive", launch=launch, **spec)
    return str(made["id"])


async def word(client: ServiceClient, session: str, wanted: str) -> dict[str, Any]:
    """The session, as soon as its state is `wanted`."""
    found: dict[str, Any] = {}
    for _ in range(int(LIMIT_S / 0.01)):
        found = await client.get_session(session)
        if found["state"] == wanted:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError((wanted, found, await client.history(session)))


async def size(client: ServiceClient, session: str, wanted: int) -> dict[str, Any]:
    """The session, as soon as it runs on so many physical devices."""
    found: dict[str, Any] = {}
    for _ in range(int(LIMIT_S / 0.1)):
        found = await client.get_session(session)
        if (found["state"], found["physical_devices"]) == ("running", wanted):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError((wanted, found, await client.history(session)))
