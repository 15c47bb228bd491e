"""kill -9 of the scheduler service while a session is on its way: the next one brings it there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest
from singularity_proxy.errors import SingularityError
from support.agent_trains import STEPS, TRAINING, logged, losses, native_losses
from support.capsules import needs_criu
from support.matrix import some_of
from support.service_process import ServiceProcess

pytestmark = [needs_criu, pytest.mark.timeout(240)]

NODES = ("node-1", "node-2")
MOMENTS = ["asked", "suspending", "resuming", "checkpoint"]


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", some_of(MOMENTS, 2))
async def test_a_session_on_its_way_arrives(moment: str, tmp_path: Path) -> None:
    reference = native_losses()
    few = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
    async with ServiceProcess(
        nodes=list(NODES), device_type="cpu", cpu_devices=1, agent_args=few
    ) as service:
        client = service.client()
        program = [sys.executable, TRAINING, "cuda", str(STEPS), str(tmp_path), "0.2"]
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
        launch = {"mode": "capsule", "argv": program, "env": env, "cwd": "/"}
        made = await client.create_session(kind="interactive", launch=launch, name="train")
        session = made["id"]
        other = next(name for name in NODES if name != made["node"])
        await logged(client, session, "step 4 ")
        verb = client.checkpoint(session) if moment == "checkpoint" else None
        asked = asyncio.ensure_future(verb or client.migrate(session, node=other))
        while moment in ("suspending", "resuming") and not asked.done():
            if (await client.get_session(session))["process_state"] == moment:
                break
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        assert not asked.done()
        service.kill()
        with contextlib.suppress(SingularityError, OSError):
            await asked
        await service.start()
        client = service.client()
        assert losses(await logged(client, session, "done")) == reference
        # What was asked just before the end may not have been taken in: then it stays.
        rules = {line["rule"] for line in await client.history(session)}
        assert "user.migrate" in rules or moment in ("asked", "checkpoint")
        if "user.migrate" in rules:
            assert (await client.get_session(session))["node"] == other
        for reference_ in await client.checkpoints(session):
            assert reference_["level"] == "process"
            assert not reference_["damaged"]
        await client.end_session(session)
