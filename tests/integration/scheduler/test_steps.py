"""A training on a real node is stored by itself every few optimizer steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.fleet import LocalFleet
from support.agent import until
from support.agent_trains import STEPS, TRAINING
from support.capsules import needs_criu
from support.scheduler_service import platform

EVERY = 6


class Trainer(LocalFleet):
    """One agent with a real device proxy."""

    def __init__(self, **traits: Any) -> None:
        few = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
        super().__init__(device_type="cpu", cpu_devices=1, agent_args=few, **traits)


@needs_criu
@pytest.mark.asyncio
async def test_checkpoints_come_by_themselves_with_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from singularity_scheduler.service.nodes import store

    monkeypatch.setattr(store, "LOOK_S", 0.2)
    steps = {"checkpoint_every_steps": EVERY}
    async with platform(tmp_path, fleet=Trainer, controller=steps) as p:
        fleet: Any = p.controller.fleet.bare
        try:
            program = [sys.executable, TRAINING, "cuda", str(STEPS), str(tmp_path), "0.3"]
            env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": "/tmp"}
            launch = {"mode": "capsule", "argv": program, "env": env, "cwd": "/"}
            made = await p.client().create_session(kind="interactive", launch=launch, name="train")
            view = lambda: p.controller.state.sessions[made["id"]]  # noqa: E731
            await until(lambda: len(view().checkpoints) >= 2, lambda: str(view()), timeout=120)
            assert {c.level for c in view().checkpoints} == {"process"}
            assert len(view().checkpoints) <= STEPS // EVERY
            await p.client().end_session(made["id"])
        finally:
            await fleet.stop_agent()
