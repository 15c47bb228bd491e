"""Random faults, one after another, while sessions train on devices they share.

Every seed gives a sequence of moves: devices given and taken, device proxies and the agent killed,
checkpoints taken. Afterwards each session has printed the losses of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict
from support import matrix
from support.agent import AgentBox, until
from support.agent_trains import TRAINING, losses, native_losses

MOVES, STEPS = (30, 120) if matrix.is_full() else (10, 60)
SESSIONS = 2


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    return native_losses(STEPS)


class Chaos:
    """Makes the moves; knows which session should hold what."""

    def __init__(self, box: AgentBox, seed: int) -> None:
        self.box = box
        self.random = random.Random(seed)
        self.sessions: list[str] = []
        self.epoch: dict[str, int] = {}
        self.done: list[str] = []

    async def move(self) -> None:
        session = self.random.choice(self.sessions)
        kinds = ("attach", "park", "kill proxy", "kill agent", "checkpoint", "wait", "wait")
        kind = self.random.choice(kinds)
        self.done.append(f"{kind} {self.sessions.index(session)}")
        device = f"cpu:{self.random.randrange(2)}"
        if kind == "attach":
            self.epoch[session] += 1
            await self.box.attach(session, self.epoch[session], device)
        elif kind == "park":
            await self.box.park(session, self.epoch[session])
        elif kind == "kill proxy":
            for pid in self.box.proxies_of(session):
                os.kill(pid, signal.SIGKILL)
        elif kind == "kill agent":
            await self.box.kill_agent()
        elif kind == "checkpoint":
            try:
                await self.box.call("device.checkpoint", session=session, name="", seq=None)
            except Conflict:
                assert self.epoch[session] == 0
        await asyncio.sleep(self.random.random() * 0.3)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", matrix.some_of(range(4), 1))
async def test_any_sequence_of_faults_ends_bitwise_equal(
    seed: int, reference: dict[int, str]
) -> None:
    async with AgentBox("--NodeAgent.lease_ttl_s=600", warm=1) as box:
        chaos = Chaos(box, seed)
        for number in range(SESSIONS):
            # A log that outlives the session, should it end.
            into = ["/bin/sh", "-c", 'exec "$@" >"$0" 2>&1', str(box.work / f"log-{number}")]
            training = [sys.executable, TRAINING, "cuda", str(STEPS), "/", "0.05"]
            session = await box.start([*into, *training])
            chaos.sessions.append(session)
            chaos.epoch[session] = 0
            await box.event("device.need", session)
        for _ in range(MOVES):
            try:
                await chaos.move()
            except Exception as error:
                logs = [(box.work / f"log-{n}").read_text()[-3000:] for n in range(SESSIONS)]
                raise AssertionError(f"{chaos.done}\n" + "\n".join(logs)) from error
        for number, session in enumerate(chaos.sessions):
            log = box.work / f"log-{number}"
            chaos.epoch[session] += 1
            await box.attach(session, chaos.epoch[session], "cpu:0")

            def why(session: str = session, log: Path = log) -> str:
                return f"{chaos.done}\n{_headers(box, session)}\n{log.read_text()[-3000:]}"

            await until(lambda log=log: "done" in log.read_text(), why)  # type: ignore[misc]
            assert losses(log.read_text()) == reference, chaos.done


def _headers(box: AgentBox, session: str) -> list[str]:
    from singularity_proxy.wire.ring import RingFile

    found = []
    for path in Path(box.shm / session).glob("*.ring"):
        ring = RingFile.open(path)
        found.append(f"{path.name} {ring.read()} {ring.failure()}")
        ring.close()
    return found
