"""Idempotency keys: what happened is not done twice, what failed is not taken for done."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_proxy.errors import NoSpace, Unavailable
from support.scheduler_service import platform


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["checkpoint", "park", "preempt"])
async def test_a_verb_that_failed_at_the_node_is_tried_again(tmp_path: Path, verb: str) -> None:
    async with platform(tmp_path) as p:
        session = await p.holder()
        client = p.client()
        ask = lambda: client._json("POST", f"sessions/{session}/{verb}", {}, key="k")  # noqa: E731
        method = "device.checkpoint" if verb == "checkpoint" else "device.park"
        p.agent.refuse[method] = NoSpace("the disk is full")
        with pytest.raises(NoSpace):
            await ask()
        assert (await client.get_session(session))["held_back"] is False
        assert [m for m, _ in p.agent.calls].count(method) == 1
        done = await ask()
        assert [m for m, _ in p.agent.calls].count(method) == 2
        assert await ask() == done  # and now it is not done again
        assert [m for m, _ in p.agent.calls].count(method) == 2


@pytest.mark.asyncio
async def test_a_signal_that_was_not_sent_is_sent_by_the_repeat(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.kernel()
        client = p.client()
        path, method = f"sessions/{session}/signal", "session.signal"
        p.agent.refuse[method] = Unavailable("the node is away")
        with pytest.raises(Unavailable):
            await client._json("POST", path, {"signum": 2}, key="k")
        await client._json("POST", path, {"signum": 2}, key="k")
        await client._json("POST", path, {"signum": 2}, key="k")
        assert [m for m, _ in p.agent.calls].count(method) == 2
