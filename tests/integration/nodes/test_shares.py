"""Two trainings share one device by turns, with a real agent and real device proxies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.agent_trains import STEPS, TRAINING, logged, losses, native_losses
from support.capsules import needs_criu
from support.service_process import ServiceProcess

pytestmark = [needs_criu, pytest.mark.timeout(180)]


@pytest.mark.asyncio
async def test_two_trainings_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    reference = native_losses()
    few = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
    async with ServiceProcess(device_type="cpu", cpu_devices=1, agent_args=few) as service:
        await service.client("admin").set_parameters({"slice_s": 4.0}, reason="short turns")
        client = service.client()
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
        program = [sys.executable, TRAINING, "cuda", str(STEPS), str(tmp_path), "0.4"]
        launch = {"mode": "capsule", "argv": program, "env": env, "cwd": "/"}
        made = [
            await client.create_session(
                kind="interactive", launch=launch, name=name, device_share=0.5
            )
            for name in ("first", "second")
        ]
        for session in made:
            assert losses(await logged(client, session["id"], "done")) == reference
            rules = [line["rule"] for line in await client.history(session["id"])]
            told = await client.get_session(session["id"])
            assert told["device_share"] == 0.5
            assert told["sla"]["attained_device_s"] > 0
            assert "preempt.slice" in rules, rules
