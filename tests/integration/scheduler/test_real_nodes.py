"""The service with two real node agents on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import SingularityError
from singularity_scheduler.fleet import LocalFleet
from singularity_scheduler.service.nodes import proofs
from support.agent import ScriptFleet
from support.agent_trains import STEPS, TRAINING, losses, native_losses
from support.capsules import needs_criu
from support.scheduler_service import Platform, platform

NODES = ("node-1", "node-2")
SCRIPT = Path(__file__).parents[2] / "support" / "agent_with_double.py"


class Nodes(ScriptFleet):
    """Two agents whose device proxies are the tests' stand-in."""

    def __init__(self, **traits: Any) -> None:
        few = ["--NodeAgent.warm_proxies=0"]
        super().__init__(
            SCRIPT, nodes=list(NODES), device_type="cpu", cpu_devices=1, agent_args=few, **traits
        )


async def sleeper(p: Platform, name: str) -> dict[str, Any]:
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    launch = {"mode": "capsule", "argv": program, "env": {}, "cwd": "/tmp"}
    return await p.client().create_session(kind="interactive", launch=launch, name=name)


@pytest.mark.asyncio
async def test_sessions_spread_and_each_node_says_what_it_can(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=NODES, fleet=Nodes) as p:
        fleet: Any = p.controller.fleet.bare
        try:
            client = p.client()
            cluster = await client.cluster()
            assert [(n["id"], n["devices"]) for n in cluster["nodes"]] == [(n, 1) for n in NODES]
            first, second = await sleeper(p, "one"), await sleeper(p, "two")
            assert {first["node"], second["node"]} == set(NODES)
            images = {n["id"]: n["images"] for n in cluster["nodes"]}
            for session in (first, second):
                able = images[session["node"]]
                if not able["available"]:
                    assert able["reason"]
                    with pytest.raises(SingularityError) as refused:
                        await client.suspend(session["id"])
                    assert refused.value.http_status == 501
                    assert able["reason"] in refused.value.message
                else:
                    away = await client.suspend(session["id"])
                    assert away["state"] == "suspended", away["reason"]
                    await client.resume(session["id"])
                assert (await client.get_session(session["id"]))["state"] == "ready"
                await client.end_session(session["id"])
        finally:
            await fleet.stop_agent()


@needs_criu
@pytest.mark.asyncio
async def test_checkpoints_are_proved_in_the_background_here_and_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session works in /tmp itself, so its folder keeps its place among the machine's."""
    monkeypatch.setattr(proofs, "LOOK_S", 0.05)
    monkeypatch.setattr(proofs, "SETTLED_S", 0.0)
    settings: Any = {"nodes": NODES, "fleet": Nodes, "controller": {"prove_every_s": 0.1}}
    async with platform(tmp_path, **settings) as p:
        fleet: Any = p.controller.fleet.bare
        client = p.client()

        async def proved() -> bool:
            found = await client.checkpoints(session)
            assert [c["unproved"] for c in found if c["unproved"]] == []
            return all(c["proved_at"] for c in found)

        try:
            session = (await sleeper(p, "one"))["id"]
            await client.checkpoint(session, "first")
            await until_async(proved)
            assert (await client.get_session(session))["state"] == "ready"
            await client.suspend(session, "second")
            await until_async(proved)
            assert (await client.get_session(session))["state"] == "suspended"
            back = await client.resume(session)
            assert (back["state"], back["loss"]["lost"]) == ("ready", [])
            await client.prove_checkpoint(session, "first")
            await client.end_session(session)
        finally:
            await fleet.stop_agent()


async def until_async(true: Callable[[], Awaitable[bool]], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await true():
            await asyncio.sleep(0.05)


class Trainers(LocalFleet):
    """Two agents with real device proxies."""

    def __init__(self, **traits: Any) -> None:
        few = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
        super().__init__(
            nodes=list(NODES), device_type="cpu", cpu_devices=1, agent_args=few, **traits
        )


@needs_criu
@pytest.mark.asyncio
@pytest.mark.timeout(400)
async def test_a_training_migrates_and_loses_nothing(tmp_path: Path) -> None:
    reference = native_losses()
    async with platform(tmp_path, nodes=NODES, fleet=Trainers) as p:
        fleet: Any = p.controller.fleet.bare
        try:
            client = p.client()
            program = [sys.executable, TRAINING, "cuda", str(STEPS), str(tmp_path), "0.2"]
            env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
            launch = {"mode": "capsule", "argv": program, "env": env, "cwd": "/"}
            made = await client.create_session(kind="interactive", launch=launch, name="train")
            session, node = made["id"], made["node"]

            async def printed() -> str:
                at = (await client.get_session(session))["node"]
                if at is None:
                    return ""
                with contextlib.suppress(SingularityError):  # it has just left
                    found = await fleet.call(
                        at, "session.log", session=session, offset=0, limit=1 << 20
                    )
                    return str(found["text"])
                return ""

            async def until_printed(text: str) -> str:
                for _ in range(3000):  # a machine at its limit starts torch for a minute
                    if text in (said := await printed()):
                        return said
                    await asyncio.sleep(0.05)
                raise AssertionError(f"{await printed()}\n{await client.get_session(session)}")

            await until_printed("step 4 ")
            other = next(name for name in NODES if name != node)
            moved = await client.migrate(session, node=other)
            assert moved["node"] == other
            said = await until_printed("done")
            assert losses(said) == reference
            [kept] = await client.checkpoints(session)
            assert kept["level"] == "process"
            await client.end_session(session)
        finally:
            await fleet.stop_agent()
