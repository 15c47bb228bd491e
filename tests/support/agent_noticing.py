"""How soon the agent notices what happens to a device proxy, for tests and the benchmark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from singularity_proxy.wire.ring import RingFile, RingState
from support.agent import AgentBox, alive

SETTLED_S = 0.7
"""Some beats of a proxy's heart, after which the agent knows it."""

USES_A_DEVICE = """
import time, torch
x = torch.ones(10, device="cuda")
print("used", float(x.sum()), flush=True)
time.sleep(14400)
"""


async def seconds_until(noticed: Callable[[], bool], limit_s: float) -> float:
    """Seconds from now until `noticed()`; fails after `limit_s`."""
    began = time.monotonic()
    while not noticed():
        assert time.monotonic() - began < limit_s, f"it was not noticed within {limit_s:g} s"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


@dataclass
class Served:
    """A session whose proxy serves a ring, with some beats of its heart behind it. Each fault
    returns the seconds until the agent's first deed."""

    box: AgentBox
    session: str
    ring: RingFile
    limit_s: float

    @classmethod
    async def start(cls, box: AgentBox, limit_s: float, *, double: bool) -> Served:
        """`double`: `box` has the stand-in for device proxies."""
        if double:
            session = await box.worker("open", "need", "sleep")
        else:
            session = await box.start([sys.executable, "-c", USES_A_DEVICE])
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "attached r1" if double else "used 10.0")
        await asyncio.sleep(SETTLED_S)
        return cls(box, session, RingFile.open(box.shm / session / "r1.ring"), limit_s)

    @property
    def pid(self) -> int:
        [pid] = self.box.proxies_of(self.session)
        return pid

    async def killed(self) -> float:
        """SIGKILL; returns when another proxy has served for a while."""
        generation = self.ring.read().generation
        os.kill(self.pid, signal.SIGKILL)

        def noticed() -> bool:  # the next proxy may serve it between two looks
            ring = self.ring
            return ring.state is not RingState.ATTACHED or ring.read().generation != generation

        seconds = await seconds_until(noticed, self.limit_s)
        await self.box.event("proxy.recovered", self.session)
        await asyncio.sleep(SETTLED_S)
        return seconds

    async def stopped(self) -> float:
        """SIGSTOP, after which the agent kills it."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        return await seconds_until(lambda: not alive(pid), self.limit_s)

    async def hung(self) -> float:
        """Its heart beats no more; only the stand-in does that on request."""
        (self.box.work / f"hush-{self.pid}").touch()
        said = lambda: any(kind == "proxy.silent" for _, kind, _ in self.box.events)  # noqa: E731
        return await seconds_until(said, self.limit_s)
