"""The service with two real node agents on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import SingularityError
from support.agent import ScriptFleet
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
        fleet: Any = p.controller.fleet
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
