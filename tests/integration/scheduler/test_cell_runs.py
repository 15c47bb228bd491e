"""Runs that a session starts from a cell: its user's, once, and shown to nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, NotFound
from support.scheduler_service import Platform, platform

pytestmark = pytest.mark.asyncio

SPEC = {
    "kind": "batch",
    "name": "cell",
    "tier": "basic",
    "run": {"notebook": "/home/alice/c.ipynb", "metadata": {"tags": {"a": "b"}}},
}


async def submit(p: Platform, session: str, key: str = "k") -> Any:
    return await p.agent.command(session, "submit", spec=SPEC, key=key)


async def test_a_cell_starts_a_run_of_its_user_once(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        told = await submit(p, session)
        again = await submit(p, session)
        assert told["run"]["id"] == again["run"]["id"]
        document = await p.client().get_session(told["run"]["id"])
        assert (document["user"], document["tier"], document["kind"]) == ("alice", "basic", "batch")
        assert document["run"]["metadata"] == {"tags": {"a": "b"}, "submitted_from": session}
        with pytest.raises(BadRequest, match="only starts batch runs"):
            await p.agent.command(session, "submit", spec={"kind": "interactive"}, key="x")
        with pytest.raises(BadRequest, match="with its spec"):
            await p.agent.command(session, "submit", spec=[], key="x")


async def test_it_hears_of_each_change_at_once_and_of_no_other_run(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session, other = await p.kernel(), await p.kernel()
        theirs = await p.kernel("bob")
        told = await submit(p, session)
        run = told["run"]["id"]
        await p.state(run, "ready")

        async def look(seen: str, wait_s: float = 30.0) -> Any:
            wanted = {"run": run, "seen": seen, "wait_s": wait_s}
            return await p.agent.command(session, "run", **wanted)

        told = await look(told["seen"], 0)
        assert told["run"]["state"] == "ready"
        assert (await look(told["seen"], 0.05))["seen"] == told["seen"]  # nothing has changed
        waiting = asyncio.ensure_future(look(told["seen"]))
        await asyncio.sleep(0)
        p.agent.exit(run, 0)
        async with asyncio.timeout(20.0):
            told = await waiting
            while told["run"]["state"] != "completed":
                told = await look(told["seen"])
        for asker in (other, theirs):
            with pytest.raises(NotFound, match="that this session started"):
                await p.agent.command(asker, "run", run=run, seen="", wait_s=0)
        for wrong in (
            {"run": 5},
            {"run": run, "wait_s": 1e9},
            {"run": run, "wait_s": True},
        ):
            with pytest.raises(BadRequest):
                await p.agent.command(session, "run", **wrong)
