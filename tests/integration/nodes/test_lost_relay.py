"""The node of a notebook's relay dies: the session goes on elsewhere, with another relay."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_kernels import client_of, run
from support.capsules import needs_criu
from support.two_nodes import NODES, two_nodes

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(180)]

FIRST, SECOND = NODES


async def test_a_notebook_whose_node_died_is_reached_at_the_other_one(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        session, client = await nodes.kernel(name="notes.ipynb")
        try:
            before = await nodes.client.connection(session)
            await run(client, "x = ['stored']")
            await nodes.client.checkpoint(session, name="here")
            await run(client, "x.append('lost')")
            nodes.kill(FIRST)
            back = await nodes.until(
                session, lambda s: (s["node"], s["process_state"]) == (SECOND, "live")
            )
            assert back["loss"]["rolled_back"] is True
            assert "what Jupyter's clients had sent and not seen answered" in back["loss"]["lost"]
            after = await nodes.client.connection(session)
            assert after["key"] == before["key"]
            moved = {name: after[name] for name in ("ip", "shell_port")} != {
                name: before[name] for name in ("ip", "shell_port")
            }
            assert any("connect to the new ones" in x for x in back["loss"]["lost"]) is moved
            if moved:
                client.stop_channels()
                client = await client_of(after)
            assert await run(client, "print(x)") == "['stored']\n"
            # It is a session like any other: its new relay answers while it is away.
            await nodes.client.suspend(session)
            assert await nodes.client.connection(session) == after
            assert await run(client, "print(len(x))") == "1\n", "a request brings it back"
            fork = await nodes.client.fork(session, None, "notes-b")
            other = await client_of(await nodes.client.connection(fork["id"]))
            assert await run(other, "x.append('fork'); print(x)") == "['stored', 'fork']\n"
            assert await run(client, "print(x)") == "['stored']\n"
            other.stop_channels()
            await nodes.client.end_session(fork["id"])
            await nodes.client.end_session(session)
        finally:
            client.stop_channels()
