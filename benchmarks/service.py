"""How soon the scheduler service is back after `kill -9`, below `jupyter singularity up`.

A real platform with a notebook that holds a device. From SIGKILL until the API answers again, until
each node agent is connected to the new service, and whether a lease ran out meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from singularity_proxy.capsule.supervisor import RestartPolicy
from singularity_proxy.errors import SingularityError
from singularity_spawner.platform import Platform
from singularity_spawner.platform.notebook import Notebook
from singularity_spawner.platform.ports import free_ports

from .figures import Figure
from .tools import see_support

DESCRIPTION = "how soon the scheduler service, the Hub and its proxy are back after kill -9"
BOUNDS = {
    "service_back_s_p95": 3.0,
    "service_back_s": 3.0,
    "leases_lapsed": 0.0,
    "hub_back_s": 10.0,
    "hub_proxy_back_s": 3.0,
}
CALM_S = 4.0
"""Pause between two kills: the service has renewed the leases, and a kill at any moment of its
rounds is measured."""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {"service_kills": 5 if quick else 30, "other_kills": 2 if quick else 5, "nodes": 2}


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def until(holds: Callable[[], Any]) -> None:
    """Wait until the awaited `holds()` is true; what does not answer yet is asked again."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(SingularityError):
                if await holds():
                    return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(nodes: int) -> AsyncIterator[tuple[Platform, Notebook]]:
    """A platform with a notebook whose tensor is on a device."""
    see_support()
    from support.hub_platform import state_folder

    folder = state_folder()
    try:
        async with Platform(
            folder,
            devices=1,
            nodes=nodes,
            port=free_ports(1)[0],
            restarts=RestartPolicy(limit=1000),
            tell=lambda _: None,
        ) as platform:
            url = await platform.start_server("ada", {"devices": 1})
            notebook = Notebook(url, await platform.user_token("ada"), "ada")
            await notebook.open()
            await notebook.run("import torch; x = torch.arange(5., device='cuda')")
            yield platform, notebook
    finally:
        shutil.rmtree(folder)


async def time_kill(platform: Platform, name: str, back: Callable[[], Any]) -> float:
    """Seconds from SIGKILL of the part until `back()` holds."""
    [part] = [part for part in platform.parts if part.name == name]
    assert part.pid is not None
    killed = part.pid
    begun = time.perf_counter()
    os.kill(killed, signal.SIGKILL)

    async def is_back() -> bool:
        return part.pid not in (None, killed) and bool(await back())

    await until(is_back)
    return time.perf_counter() - begun


async def lapses(platform: Platform) -> int:
    """How often a lease of a session ran out, by the sessions' histories."""
    client, count = platform.operator(), 0
    for session in await client.sessions("active"):
        rules = [line["rule"] for line in await client.history(session["id"])]
        count += sum("lease" in rule for rule in rules)
    return count


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    took: list[float] = []
    figures = {key: Figure() for key in BOUNDS}
    figures["service_back_s"].quote = max
    async with running(size["nodes"]) as (platform, notebook):

        async def connected() -> bool:
            cluster = await platform.operator(timeout=5.0).cluster()
            nodes = cluster["nodes"]
            return len(nodes) == size["nodes"] and all(node["connected"] for node in nodes)

        for number in range(size["service_kills"]):
            await asyncio.sleep(CALM_S + 5.0 * number / size["service_kills"])
            took.append(await time_kill(platform, "the scheduler service", connected))
            say(f"kill {number + 1} of {size['service_kills']}: {took[-1]:.2f} s")

        async def complete() -> bool:
            return not await platform.missing()

        for key, name in (("hub_back_s", "JupyterHub"), ("hub_proxy_back_s", "JupyterHub's proxy")):
            for _ in range(size["other_kills"]):
                await asyncio.sleep(CALM_S)
                figures[key].values.append(await time_kill(platform, name, complete))
            say(f"{name}: {max(figures[key].values):.2f} s at most")
        figures["leases_lapsed"].values.append(await lapses(platform))
        await notebook.connect()  # through the proxy, which was killed
        if await notebook.run("print(x.sum().item())") != "10.0\n":
            raise SystemExit("the notebook's tensor is not what it was")
    figures["service_back_s"].values = took
    figures["service_back_s_p95"].values = [p95(took)]
    return figures
