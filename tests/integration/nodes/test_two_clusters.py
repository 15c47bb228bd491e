"""Two clusters in two regions on one machine: a notebook moves between them with everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict
from support.agent_kernels import run
from support.capsules import needs_criu
from support.two_nodes import NODES, two_nodes

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(120)]

EAST, WEST = "east-1", "west-1"
REGIONS = {EAST: "eastus", WEST: "westus", "eastus": "us", "westus": "us"}

SETUP = """
import torch
value = {"words": ["kept", "in", "memory"]}
tensor = torch.arange(6.0, device="cuda").reshape(2, 3)
tensor *= 2
"""
LOOK = "print(value['words'], tensor.sum().item(), id(value) == before)"


async def test_a_running_notebook_moves_between_clusters(tmp_path: Path) -> None:
    clusters = dict(zip(NODES, (EAST, WEST), strict=True))
    async with two_nodes(tmp_path, clusters=clusters, regions=REGIONS) as nodes:
        session, client = await nodes.kernel(name="move.ipynb", locations=["us"])
        try:
            assert (await nodes.session(session))["cluster"] == EAST
            await run(client, f"{SETUP}before = id(value)")
            counting = client.execute(
                "import time\nfor n in range(150):\n    tensor += 1\n    time.sleep(0.02)"
            )
            moved = await nodes.client.migrate(session, cluster=WEST)
            assert (moved["node"], moved["cluster"], moved["region"]) == (NODES[1], WEST, "westus")
            assert moved["loss"]["rolled_back"] is False
            assert nodes.left(session, NODES[0]) == []
            reasons = [line["reason"] for line in await nodes.client.history(session)]
            assert f"moving to cluster {WEST} for alice: nothing is lost; " in "".join(reasons)
            # The cell went on in the middle; every one of its steps was made once.
            assert (await client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] == counting
            assert await run(client, LOOK) == "['kept', 'in', 'memory'] 930.0 True\n"

            # And back, asked for by a cell that is frozen in the middle of its question.
            said = await run(
                client, f"%singularity migrate --cluster {EAST}\nvalue['words'] += '!'"
            )
            assert f"goes on, now on node {NODES[0]}" in said
            back = await nodes.session(session)
            assert (back["cluster"], back["incarnation"]) == (EAST, 1)
            look = "['kept', 'in', 'memory', '!'] 930.0 True\n"
            assert await run(client, LOOK) == look

            told = {c["name"]: c for c in (await nodes.client.clusters())["clusters"]}
            assert [told[c]["sessions"] for c in (EAST, WEST)] == [1, 0]
            stays = await nodes.start(["sleep", "600"], NODES[0], name="b", locations=["eastus"])
            with pytest.raises(Conflict, match="it may only be in eastus"):
                await nodes.client.migrate(stays["id"], cluster=WEST)
            for one in (session, stays["id"]):
                await nodes.client.end_session(one)
        finally:
            client.stop_channels()
