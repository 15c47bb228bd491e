"""Another tier or priority for a session, and the tiers that are open to a user: over the API."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest, Forbidden, NotFound
from support.scheduler_service import platform


@pytest.mark.asyncio
async def test_a_session_gets_another_tier_and_priority(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session, client = await p.holder("alice", name="a"), p.client()
        done = await client.tier(session, "premium")
        assert (done["tier"], done["state"]) == ("premium", "running")
        assert done["sla"]["promised_fraction"] == 0.95
        assert (await client.priority(session, "high"))["priority"] == "high"
        lines = [h["reason"] for h in await client.history(session) if h["rule"] == "user.tier"]
        assert lines == [
            "alice changed its tier from standard to premium: nothing else of it changed",
            "alice changed its priority from medium to high: nothing else of it changed",
        ]
        assert (await p.client("admin").tier(session, "basic"))["tier"] == "basic"
        for call, word in ((client.tier, "gold"), (client.priority, "urgent")):
            with pytest.raises(BadRequest, match=word):
                await call(session, word)
        with pytest.raises(NotFound):
            await p.client("bob").tier(session, "premium")
        await p.stop()
        await p.start()
        await p.ready()
        found = await client.get_session(session)
        assert (found["tier"], found["priority"]) == ("basic", "high")


@pytest.mark.asyncio
async def test_what_is_open_to_a_user_holds_everywhere_and_after_a_restart(
    tmp_path: Path,
) -> None:
    async with platform(tmp_path) as p:
        session, client = await p.kernel("alice", name="a"), p.client()
        assert await client.tiers("alice") == ["premium", "standard", "basic"]
        found = await p.client("spawner").set_tiers("alice", ["basic", "standard"])
        assert found == ["standard", "basic"]
        with pytest.raises(Forbidden, match="takes an administrator"):
            await client.set_tiers("alice", ["premium"])
        with pytest.raises(Forbidden, match="only the user and administrators"):
            await p.client("bob").tiers("alice")
        with pytest.raises(BadRequest):
            await p.client("spawner").set_tiers("alice", [])
        await p.stop()
        await p.start()
        await p.ready()
        assert await client.tiers("alice") == ["standard", "basic"]
        sentence = "the tier premium is not open to alice"
        with pytest.raises(Forbidden, match=sentence):
            await client.tier(session, "premium")
        with pytest.raises(Forbidden, match=sentence):
            await p.agent.command(session, "tier", tier="premium")
        with pytest.raises(Forbidden, match=sentence):
            await p.kernel("alice", name="b", tier="premium")
        assert [s["name"] for s in await client.sessions("active")] == ["a"]
        await p.agent.command(session, "tier", tier="basic")
        assert (await client.get_session(session))["tier"] == "basic"
        [line, *_] = await p.client("admin").admin_log("alice")
        assert (line["verb"], line["by"]) == ("tiers", "spawner")
        assert line["after"] == ["standard", "basic"]
        difference = await p.controller.ledger.compare()
        assert difference.sessions == ()
