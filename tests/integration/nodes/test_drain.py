"""A real node is drained: a training goes on elsewhere, bit for bit; idle devices are parked."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.agent_trains import STEPS, TRAINING, losses, native_losses
from support.capsules import needs_criu
from support.two_nodes import NODES, two_nodes

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(180)]

FIRST, SECOND = NODES


async def test_a_training_leaves_a_drained_node_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    reference = asyncio.get_running_loop().run_in_executor(None, native_losses)
    async with two_nodes(tmp_path) as nodes:
        admin = nodes.service.client("admin")
        argv = [sys.executable, TRAINING, "cuda", str(STEPS), str(nodes.home), "0.1"]
        session = (await nodes.start(argv, FIRST, name="train"))["id"]
        await nodes.until_printed(session, "step 3 ")
        told = await admin.drain_node(FIRST, "new kernel")
        assert (told["duty"], [s["id"] for s in told["sessions"]]) == ("draining", [session])
        await nodes.until(session, lambda s: (s["node"], s["state"]) == (SECOND, "running"))
        found = {n["id"]: n for n in await admin.nodes()}
        assert (found[FIRST]["duty"], found[FIRST]["sessions"]) == ("drained", [])
        assert found[FIRST]["version"] == found[SECOND]["version"] != ""
        assert nodes.left(session, FIRST) == []
        assert losses(await nodes.until_printed(session, "done")) == await reference
        view = await nodes.session(session)
        assert (view["incarnation"], view["loss"]["rolled_back"]) == (1, False)
        assert "node.drain" in {line["rule"] for line in await nodes.client.history(session)}

        # It calls no device any more, and the agent tells so.
        await admin.set_parameters({"idle_soft_s": 1})
        parked = await nodes.until(session, lambda s: s["state"] == "parked", 20.0)
        assert parked["reason"].startswith("parked by itself: no call reached its devices for ")
        await admin.undrain_node(FIRST)
        assert (await nodes.session(session))["node"] == SECOND
        await nodes.client.end_session(session)
