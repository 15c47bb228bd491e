"""What ranks on one device share, through a real node agent and real device proxies: it is told,
and a rule that is wrong turns it off before it has done any harm."""

from __future__ import annotations

import sys

import pytest
from support.agent import AgentBox, until
from support.sharing_ranks import CODE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

RANK = f"{CODE}\ntime.sleep(1000)\n"

BOTH = f"""
import os, subprocess, sys
env = {{**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29633", "WORLD_SIZE": "2"}}
ranks = [
    subprocess.Popen([sys.executable, "-c", {RANK!r}], env={{**env, "RANK": str(rank)}})
    for rank in range(2)
]
for rank in ranks:
    rank.wait()
"""


async def trained(box: AgentBox) -> str:
    """A session whose two ranks have computed on one device, and hold it; its id."""
    session = await box.start([sys.executable, "-c", BOTH], virtual_devices=2)
    await box.event("device.need", session)
    await box.attach(session, 1, "cpu:0", "cpu:0")
    for rank in range(2):
        await box.logged(session, f"right {rank}")
    return session


async def test_what_ranks_share_is_reported() -> None:
    async with AgentBox("--NodeAgent.check_squashing_every=2", warm=1) as box:
        session = await trained(box)

        def states() -> list[str]:
            return [(d["squashing"] or {}).get("state", "") for d in box.used.get(session, ())]

        await until(lambda: states() == ["on", "on"], 60)
        report = box.used[session][0]["squashing"]
        assert report["why_off"] == ""
        assert report["steps"] > 0
        assert report["spared"] == report["executed"] > 0
        assert report["compared"] > 0
        assert not [type for one, type, _ in box.events if type == "squashing.off"]


async def test_a_wrong_identity_is_told_and_does_no_harm() -> None:
    async with AgentBox(
        "--NodeAgent.check_squashing_every=1", script="agent_with_wrong_identity.py", warm=1
    ) as box:
        session = await trained(box)  # with the right numbers
        why = (await box.event("squashing.off", session))["why"]
        assert "should be equal and are not" in why
        assert "nothing was lost" in why
        await until(lambda: session in box.used and box.used[session][0]["squashing"], 60)
        report = box.used[session][0]["squashing"]
        assert (report["state"], report["why_off"], report["spared"]) == ("off", why, 0)
