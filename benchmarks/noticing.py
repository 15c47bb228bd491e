"""How soon the node agent notices that a device proxy was killed, was stopped or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .figures import Figure

BOUNDS = {"noticed_killed_s": 1.0, "noticed_stopped_s": 1.0, "noticed_hung_s": 1.0}

LIMIT_S = 30.0
SETTLED_S = 0.7
"""Some beats of a proxy's heart, after which the agent knows it."""

USES_A_DEVICE = """
import time, torch
x = torch.ones(10, device="cuda")
print("used", float(x.sum()), flush=True)
time.sleep(600)
"""


async def _seconds_until(noticed: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not noticed():
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"the agent noticed nothing within {LIMIT_S:g} s")
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def measure(times: int) -> dict[str, Figure]:
    """Seconds from the fault to the agent's first deed, `times` times each. The proxy that hangs
    is a stand-in, because a real one does not do that on request."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from singularity_proxy.wire.ring import RingFile, RingState
    from support.agent import AgentBox, alive

    killed, stopped, hung = [], [], []
    for _ in range(times):
        async with AgentBox(double=False, warm=1) as box:
            session = await box.start([sys.executable, "-c", USES_A_DEVICE])
            await box.event("device.need", session)
            await box.attach(session, 1)
            await box.logged(session, "used 10.0")
            await asyncio.sleep(SETTLED_S)
            [pid] = box.proxies_of(session)
            ring = RingFile.open(box.shm / session / "r1.ring")
            served = ring.read().generation
            os.kill(pid, signal.SIGKILL)

            def replaced(ring: RingFile = ring, served: int = served) -> bool:
                return ring.state is not RingState.ATTACHED or ring.read().generation != served

            killed.append(await _seconds_until(replaced))
            await box.event("proxy.recovered", session)
            await asyncio.sleep(SETTLED_S)
            [second] = box.proxies_of(session)
            os.kill(second, signal.SIGSTOP)
            stopped.append(await _seconds_until(lambda pid=second: not alive(pid)))  # type: ignore[misc]
            ring.close()
        async with AgentBox("--NodeAgent.hung_proxy_s=2", double=True) as box:
            session = await box.worker("open", "need", "sleep")
            await box.event("device.need", session)
            await box.attach(session, 1)
            await box.logged(session, "attached r1")
            await asyncio.sleep(SETTLED_S)
            [pid] = box.proxies_of(session)
            (box.work / f"hush-{pid}").touch()

            def said(box: AgentBox = box) -> bool:
                return any(kind == "proxy.silent" for _, kind, _ in box.events)

            hung.append(await _seconds_until(said))
    return {
        "noticed_killed_s": Figure(killed),
        "noticed_stopped_s": Figure(stopped),
        "noticed_hung_s": Figure(hung),
    }
