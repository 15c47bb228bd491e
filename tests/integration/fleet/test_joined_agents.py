"""The real service with its own node and a real agent that has joined over TLS, as if on another
machine: joined and run by its commands, with a folder of its own, and nothing shared but the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import SingularityError, Unavailable, Unsupported
from singularity_scheduler.fleet import MachineFleet
from singularity_scheduler.fleet.registry import FleetSettings, Registry
from support.agent_trains import STEPS, TRAINING, losses, native_losses
from support.capsules import needs_criu
from support.fleet import Door, FarAgent, free_port, run_cli
from support.scheduler_service import Platform, platform, until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(400)]

FAR = "a-far"
"""Goes before `local` where both have the same room."""


class Machines:
    """What a test gets."""

    def __init__(self, service: Platform, agent: FarAgent, door: Door) -> None:
        self.service, self.agent, self.door = service, agent, door

    @property
    def fleet(self) -> Any:
        return self.service.controller.fleet

    def connected(self) -> bool:
        nodes = self.service.controller.state.nodes
        return FAR in nodes and nodes[FAR].connected

    async def start(self, *argv: str, name: str) -> dict[str, Any]:
        """A session of alice that belongs to no process."""
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
        launch = {"mode": "capsule", "argv": [sys.executable, *argv], "env": env, "cwd": "/"}
        return await self.service.client().create_session(
            kind="interactive", launch=launch, name=name
        )

    async def printed(self, session: str) -> str:
        at = (await self.service.client().get_session(session))["node"]
        if at is not None:
            with contextlib.suppress(SingularityError):  # it has just left, or is cut off
                found = await self.fleet.call(
                    at, "session.log", session=session, offset=0, limit=1 << 20
                )
                return str(found["text"])
        return ""

    async def until_printed(self, session: str, text: str) -> str:
        said = ""

        for _ in range(3000):  # a machine at its limit starts torch for a minute
            if text in (said := await self.printed(session)):
                return said
            await asyncio.sleep(0.05)
        raise AssertionError(f"{said}\n{self.agent.log()[-3000:]}")


@contextlib.asynccontextmanager
async def machines(tmp_path: Path, *options: str) -> AsyncIterator[Machines]:
    """The service, and a machine that has joined; everything is gone afterwards."""
    state, far, store = tmp_path / "state", tmp_path / "far", tmp_path / "store"
    for folder in (state, store):
        folder.mkdir(mode=0o700)
    registry = Registry(str(state))
    uids = f"--NodeAgent.uids_file={tmp_path / 'uids.json'}"

    class Fleet(MachineFleet):
        def __init__(self, **traits: Any) -> None:
            super().__init__(**traits)
            self.local.device_type, self.local.cpu_devices = "cpu", 1
            self.local.agent_args = [
                f"--NodeAgent.checkpoint_store={store}",
                *(uids, "--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"),
            ]

    port = free_port()
    agent = FarAgent(far, uids, *options)
    async with Door(port) as door:
        registry.create(FleetSettings("127.0.0.1", port, "127.0.0.1", store=str(store)))
        async with platform(tmp_path, fleet=Fleet) as service:
            fleet: Any = service.controller.fleet.bare
            try:
                string = replace(registry.make_join_string(FAR), port=door.port)
                words = ("node", "join", "-", "--state", str(far))
                code, said, told = await run_cli(*words, given=str(string))
                assert (code, told) == (0, ""), told
                assert f"the node '{FAR}'" in said
                agent.start()
                box = Machines(service, agent, door)
                await until(box.connected, "the far node is connected")
                yield box
            finally:
                await agent.stop()
                await fleet.stop_agent()


async def test_a_training_on_a_joined_node_outlives_a_cut_line(tmp_path: Path) -> None:
    reference = native_losses()
    async with machines(tmp_path) as box:
        client = box.service.client()
        made = await box.start(TRAINING, "cuda", str(STEPS), str(tmp_path), "0.2", name="train")
        session = made["id"]
        assert made["node"] == FAR
        await box.until_printed(session, "step 3 ")
        parked = await client.park(session)
        assert parked["devices"] == [] or parked["state"] != "running", parked
        await box.until_printed(session, "step 5 ")  # its next call took the device again
        kept = await client.checkpoint(session)
        assert kept["last_checkpoint"] is not None
        came = box.door.came
        box.door.cut()
        await until(lambda: box.door.came > came, "the agent dials again")
        await until(box.connected, "the far node is connected again")
        said = await box.until_printed(session, "done")
        assert losses(said) == reference
        assert (await client.get_session(session))["node"] == FAR
        await client.end_session(session)


async def test_sessions_outlive_their_agent_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    async with machines(tmp_path) as box:
        client = box.service.client()
        made = await box.start("-c", "import time; time.sleep(600)", name="sleeper")
        assert made["node"] == FAR
        with pytest.raises(Unsupported, match="belongs to a process of the service's machine"):
            await box.fleet.call(
                FAR,
                "session.start",
                **{"session": "0" * 12, "user": "alice", "kind": "interactive"},
                **{"tier": "standard", "virtual_devices": 1, "epoch": 0},
                launch={"mode": "capsule", "argv": ["true"], "env": {}, "owner_pid": os.getpid()},
            )
        box.agent.kill()
        await until(lambda: not box.connected(), "the far node is gone")
        with pytest.raises(Unavailable, match=f"node '{FAR}' is not connected now"):
            await box.fleet.call(FAR, "ping")
        box.agent.start()
        await until(box.connected, "the far node is connected again")
        assert (await client.get_session(made["id"]))["state"] == "ready"
        [hello] = [h for h in await box.fleet.hello() if h["node"] == FAR]
        assert [(s["session"], s["alive"]) for s in hello["sessions"]] == [(made["id"], True)]
        await client.end_session(made["id"])


@needs_criu
async def test_a_session_moves_between_the_services_machine_and_a_joined_one(
    tmp_path: Path,
) -> None:
    async with machines(tmp_path) as box:
        client = box.service.client()
        count = "import time\nfor n in range(10**6): print('tick', n, flush=True); time.sleep(0.1)"
        made = await box.start("-u", "-c", count, name="ticks")
        session = made["id"]
        for node in ("local", FAR):
            await box.until_printed(session, "tick 3")
            moved = await client.migrate(session, node=node)
            assert moved["node"] == node, moved
        await box.until_printed(session, "tick")
        await client.end_session(session)
