"""The end of a session is taken back over the API, and what that needs is collected in the end."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict, NotFound
from support.scheduler_service import platform, until


@pytest.mark.asyncio
async def test_a_closed_notebook_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        session = await p.holder(name="a.ipynb", kernel_id="k")
        stored = (await client.checkpoint(session))["last_checkpoint"]["id"]
        assert (await client.get_session(session))["undo_end"] is None
        ended = await client.end_session(session, "shutdown of the kernel")
        assert ended["state"] == "completed"
        assert ended["reason"].startswith(
            "closed by alice: shutdown of the kernel; its newest checkpoint, 0 s old, is kept for "
            "24.0 h: reopen brings it back from there"
        )
        undo = ended["undo_end"]
        assert (undo["checkpoint"], undo["name"]) == (stored, "")
        left_s = datetime.fromisoformat(undo["until"]).timestamp() - time.time()
        assert 86_000 < left_s <= 86_400
        with pytest.raises(NotFound):
            await p.client("bob").reopen(session)
        back = await client.reopen(session)
        assert (back["id"], back["state"], back["undo_end"]) == (session, "suspended", None)
        assert back["reason"].startswith("alice took its end back: it is as of checkpoint")
        with pytest.raises(Conflict, match="has not ended"):
            await client.reopen(session)
        [waits] = await client.suspended("alice")
        assert (waits["session"]["id"], waits["kernel_id"]) == (session, "k")
        live = await client.resume(session)
        assert (live["process_state"], live["incarnation"]) == ("live", 2)
        resume = next(c for m, c in p.agents[live["node"]].calls if m == "session.resume")
        assert (resume["checkpoint"], resume["from_session"]) == (stored, session)
        said = [c["reason"].partition(":")[0] for c in await client.history(session)]
        back_at = next(n for n, word in enumerate(said) if word == "alice took its end back")
        assert back_at > said.index("closed by alice")
        again = await client.end_session(session)
        assert again["state"] == "completed"
        assert (await client.get_session(session))["state"] == "completed", "not as it ended before"
        assert (await client.reopen(session))["state"] == "suspended"


@pytest.mark.asyncio
async def test_one_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session)
        agent, may_end = p.agents[(await p.controller.find(session)).node], asyncio.Event()
        agent.hold = {"session.end": may_end}
        ending = asyncio.ensure_future(client.end_session(session))
        await until(lambda: p.controller.state.sessions[session].final, "ending")
        back = asyncio.ensure_future(client.reopen(session))
        await until(lambda: len(p.controller._changed._waiters) > 1, "both wait")
        may_end.set()
        assert (await back)["state"] == "suspended"
        await ending


@pytest.mark.asyncio
async def test_what_was_kept_for_that_is_collected_when_its_time_is_over(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        closed, named, taken_back = [await p.kernel(name=n) for n in ("c", "n", "t")]
        for session, name in ((closed, None), (closed, None), (named, "best"), (taken_back, None)):
            await client.checkpoint(session, name)
        for session in (closed, named, taken_back):
            await client.end_session(session)
        await client.reopen(taken_back)
        await until(lambda: len(p.store.checkpoints) == 3, "older ones go with their session")
        await p.controller.store.sweep()
        assert {s for s, _ in p.store.checkpoints} == {closed, named, taken_back}
        [kept] = await client.checkpoints(closed)
        assert (await client.get_session(closed))["undo_end"]["checkpoint"] == kept["id"]

        p.controller._clock = lambda: time.time() + 86_401.0
        await p.controller.store.sweep()
        assert {s for s, _ in p.store.checkpoints} == {named, taken_back}
        over = await client.get_session(closed)
        assert (over["undo_end"], over["checkpoints"]) == (None, 0)
        with pytest.raises(Conflict, match="start it again"):
            await client.reopen(closed)
        assert (await client.get_session(named))["undo_end"]["until"] is None
        assert (await client.reopen(named))["state"] == "suspended"
        assert (await client.resume(taken_back))["process_state"] == "live"


@pytest.mark.asyncio
async def test_a_second_session_that_waits_for_it_keeps_it(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        session = await p.kernel(name="a")
        await client.checkpoint(session)
        await client.end_session(session)
        for agent in p.agents.values():
            await agent.stop()
        await until(
            lambda: not any(n.connected for n in p.controller.state.nodes.values()), "all away"
        )
        fork = await client.fork(session)
        assert fork["called_back"]
        await p.controller.ledger.drop_ended(time.time() + 1e6)
        assert await p.controller.ledger.dropped() == []


@pytest.mark.asyncio
async def test_a_person_deletes_at_once_and_for_good(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        session = await p.kernel(name="a")
        stored = (await client.checkpoint(session))["last_checkpoint"]["id"]
        await client.end_session(session)
        assert await client.delete_checkpoint(session, stored) == []
        await until(lambda: not p.store.checkpoints, "deleted")
        assert (await client.get_session(session))["undo_end"] is None
        with pytest.raises(Conflict):
            await client.reopen(session)


@pytest.mark.asyncio
async def test_a_restarted_service_knows_what_is_kept_and_what_came_back(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("node-1", "node-2")) as p:
        client = p.client()
        ended, back = [await p.kernel(name=n) for n in "ab"]
        for session in (ended, back):
            await client.checkpoint(session)
            await client.end_session(session)
        await client.reopen(back)
        undo = (await client.get_session(ended))["undo_end"]
        assert (await p.controller.ledger.compare()).sessions == ()
        await p.stop()
        await p.start()
        await p.ready()
        assert (await client.get_session(ended))["undo_end"] == undo
        assert (await client.get_session(back))["state"] == "suspended"
        assert (await client.resume(back))["process_state"] == "live"
        assert (await client.reopen(ended))["state"] == "suspended"


@pytest.mark.asyncio
async def test_nothing_is_kept_where_that_is_configured(tmp_path: Path) -> None:
    settings = {"undo_end_s": 0.0}
    async with platform(tmp_path, nodes=("node-1", "node-2"), controller=settings) as p:
        client = p.client()
        session = await p.kernel(name="a")
        await client.checkpoint(session)
        ended = await client.end_session(session)
        assert ended["undo_end"] is None
        await until(lambda: not p.store.checkpoints, "deleted")
