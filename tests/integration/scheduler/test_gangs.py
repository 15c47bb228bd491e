"""Runs on several nodes through the service: submitted, started, told of one another, retried."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NoSpace, Unsupported
from singularity_scheduler.service.nodes import gang_cuts, proofs
from singularity_scheduler.service.nodes.gang_barrier import PartAt
from support.scheduler_service import Platform, platform, until

Json = dict[str, Any]

RUN: Json = {"command": "python train.py", "folder": "/home/alice", "max_retries": 1}


def calls(p: Platform, method: str, session: str) -> list[Json]:
    """What agents were told of this session, with this method."""
    return [
        params
        for agent in p.agents.values()
        for name, params in agent.calls
        if name == method and params["session"] == session
    ]


def newest_peers(p: Platform, session: str) -> Json:
    told = calls(p, "session.peers", session)
    return dict(told[-1]["peers"]) if told else {}


@pytest.mark.asyncio
async def test_a_run_on_two_nodes(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        client = p.client()
        made = await client.submit(run=RUN, devices=4, nodes=2, key="k")
        assert (await client.submit(run=RUN, devices=4, nodes=2, key="k"))["id"] == made["id"]
        with pytest.raises(Conflict, match="already used"):
            await client.submit(run=RUN, devices=2, nodes=2, key="k")
        part = made["part"]
        assert (part["number"], part["parts"], part["sessions"][0]) == (0, 2, made["id"])
        first, second = part["sessions"]
        for sid in (first, second):
            await p.state(sid, "ready")
        sessions = [await client.get_session(sid) for sid in (first, second)]
        assert {s["node"] for s in sessions} == {"n1", "n2"}
        assert [s["part"] for s in sessions] == [{**part, "number": n} for n in (0, 1)]
        assert [s["virtual_devices"] for s in sessions] == [2, 2]
        assert len(await client.sessions()) == 2

        gangs = [calls(p, "session.start", sid)[0]["launch"]["gang"] for sid in (first, second)]
        assert [(g["id"], g["number"], g["parts"]) for g in gangs] == [
            (part["gang"], 0, 2),
            (part["gang"], 1, 2),
        ]
        assert gangs[0]["key"] == gangs[1]["key"]
        seen = json.dumps([sessions, await client.why(first), await client.history(first)])
        secret = p.controller.state.sessions[first].part
        assert secret is not None
        assert gangs[0]["key"] not in seen
        assert secret.secret not in seen

        for agent in p.agents.values():
            for sid in agent.sessions:
                agent.need(sid)
        for sid in (first, second):
            await p.state(sid, "running")
        with pytest.raises(Unsupported, match="which is stored only as a whole, by suspend"):
            await client.fork(second)
        await client.park(second)
        for sid in (first, second):
            await p.state(sid, "parked")
        ended = await client.end_session(second)
        assert ended["state"] == "cancelled"
        await p.state(first, "cancelled")


@pytest.mark.asyncio
async def test_more_nodes_than_there_are_are_refused(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        for devices, nodes, sentence in (
            (3, 3, "3 nodes with 1 device each asked, but this cluster has 2 such"),
            (6, 2, "3 devices asked, but this cluster has at most 2 for one session"),
            (3, 2, "3 devices cannot be divided among 2 nodes"),
        ):
            with pytest.raises(BadRequest, match=sentence):
                await p.client().submit(run=RUN, devices=devices, nodes=nodes)
        assert not p.controller.state.sessions


def part_of(p: Platform, session: str) -> Any:
    return next(agent for agent in p.agents.values() if session in agent.sessions)


@pytest.mark.asyncio
async def test_bridges_are_told_of_one_another(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        made = await p.client().submit(run=RUN, devices=2, nodes=2)
        first, second = made["part"]["sessions"]
        for sid in (first, second):
            await p.state(sid, "ready")
        part_of(p, first).event(first, "session.bridge", bridge="10.0.0.1:5000")
        await until(lambda: newest_peers(p, first) == {"0": "10.0.0.1:5000"}, "the first is told")
        assert newest_peers(p, second) == {}
        part_of(p, second).refuse["session.peers"] = Conflict("not yet")
        part_of(p, second).event(second, "session.bridge", bridge="10.0.0.2:5000")
        both = {"0": "10.0.0.1:5000", "1": "10.0.0.2:5000"}
        await until(lambda: newest_peers(p, first) == both, "the first hears of the second")
        await until(lambda: len(calls(p, "session.peers", second)) > 1, "told until it is taken")
        assert newest_peers(p, second) == both

        for sid, address in ((first, "10.0.0.1:6000"), (second, "10.0.0.2:5000")):
            part_of(p, sid).sessions[sid]["bridge"] = address
        await p.stop()
        await p.start()
        await p.ready()
        anew = {**both, "0": "10.0.0.1:6000"}
        for sid in (first, second):
            await until(lambda sid=sid: newest_peers(p, sid) == anew, "told after a restart")


@pytest.mark.asyncio
async def test_all_begin_again_with_another_key(tmp_path: Path) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        client = p.client()
        made = await client.submit(run=RUN, devices=2, nodes=2)
        first, second = made["part"]["sessions"]
        for sid in (first, second):
            await p.state(sid, "ready")
            part_of(p, sid).event(sid, "session.bridge", bridge=f"{sid}:1")
        await until(lambda: len(newest_peers(p, first)) == 2, "both are known")
        part_of(p, first).exit(first, -9)
        for sid in (first, second):
            await until(lambda sid=sid: len(calls(p, "session.start", sid)) == 2, "started again")
            await p.state(sid, "ready")
        starts = {sid: calls(p, "session.start", sid) for sid in (first, second)}
        keys = [[s["launch"]["gang"]["key"] for s in starts[sid]] for sid in (first, second)]
        assert keys[0] == keys[1]
        assert keys[0][0] != keys[0][1]
        part_of(p, first).event(first, "session.bridge", bridge=f"{first}:2")
        await until(
            lambda: newest_peers(p, first) == {"0": f"{first}:2"}, "the old one is forgotten"
        )
        part_of(p, second).exit(second, 3)
        for sid in (first, second):
            await p.state(sid, "failed")
        assert (await client.get_session(first))["reason"] == (
            "part 1 of its gang ended with exit code 3"
        )
        assert {
            s["attempt"] for s in await asyncio.gather(*map(client.get_session, (first, second)))
        } == {2}


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The agents here have no ranks that could be stopped; who was to stand, each time."""
    told: list[list[str]] = []

    @contextlib.asynccontextmanager
    async def standing(parts: Iterable[PartAt], deadline_s: float) -> AsyncIterator[None]:
        told.append(sorted(part.session for part in parts))
        yield

    monkeypatch.setattr(gang_cuts, "standing", standing)
    return told


async def computing(p: Platform, **more: Any) -> list[str]:
    """The parts of a run that has devices."""
    made = await p.client().submit(run=RUN, devices=2, nodes=2, **more)
    sessions = list(made["part"]["sessions"])
    for sid in sessions:
        await p.state(sid, "ready")
        part_of(p, sid).need(sid)
    for sid in sessions:
        await p.state(sid, "running")
    return sessions


def sets_of(p: Platform, session: str) -> list[str]:
    """The sets that are kept of a part, oldest first."""
    return [c.set_id for c in p.controller.state.sessions[session].checkpoints if not c.dropped]


@pytest.mark.asyncio
async def test_parts_are_stored_together_or_not_at_all(
    tmp_path: Path, stands: list[list[str]]
) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        first, second = await computing(p)
        await p.client().checkpoint(second, "best")
        assert stands == [sorted((first, second))]
        assert calls(p, "session.checkpoint", first)[0]["standing"] is True
        for sid in (first, second):
            [stored] = await p.client().checkpoints(sid)
            assert (stored["name"], stored["restorable"]) == ("best", False)
        assert sets_of(p, first) == sets_of(p, second) != [""]

        part_of(p, second).refuse["session.checkpoint"] = NoSpace("the disk of n2 is full")
        with pytest.raises(NoSpace, match="the disk of n2 is full"):
            await p.client().checkpoint(first)
        assert [(await p.client().get_session(sid))["state"] for sid in (first, second)] == [
            "running",
            "running",
        ]
        store = p.store.checkpoints
        await until(lambda: len(store) == 2, "what was stored of one part alone is deleted")
        assert sets_of(p, first) == sets_of(p, second)
        assert len(sets_of(p, first)) == 1

        part_of(p, first).exit(first, -9)
        for sid in (first, second):
            await until(lambda sid=sid: calls(p, "session.resume", sid), "all come back")
            [back] = calls(p, "session.resume", sid)
            assert back["checkpoint"] == (await p.client().checkpoints(sid))[0]["id"]
        keys = {calls(p, "session.resume", sid)[0]["gang"]["key"] for sid in (first, second)}
        assert len(keys) == 1
        assert calls(p, "session.start", first)[0]["launch"]["gang"]["key"] not in keys


@pytest.mark.asyncio
async def test_a_gang_is_stored_by_itself_as_one(tmp_path: Path, stands: list[list[str]]) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        first, second = await computing(p, checkpoint_every_s=1.0)
        await until(lambda: len(sets_of(p, second)) == 2, "stored twice")
        assert stands[:2] == [sorted((first, second))] * 2
        assert sets_of(p, first)[:2] == sets_of(p, second)[:2]


@pytest.mark.asyncio
async def test_a_set_is_kept_over_a_restart(tmp_path: Path, stands: list[list[str]]) -> None:
    async with platform(tmp_path, nodes=("n1", "n2")) as p:
        sessions = await computing(p)
        await p.client().checkpoint(sessions[0])
        before = [sets_of(p, sid) for sid in sessions]
        await p.stop()
        await p.start()
        await p.ready()
        assert [sets_of(p, sid) for sid in sessions] == before


@pytest.mark.asyncio
async def test_the_parts_of_a_set_are_proved_each_where_it_is(
    tmp_path: Path, stands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "LOOK_S", 0.01)
    monkeypatch.setattr(proofs, "SETTLED_S", -60.0)
    controller = {"prove_every_s": 0.02}
    async with platform(tmp_path, nodes=("n1", "n2"), controller=controller) as p:
        sessions = await computing(p)
        await p.client().checkpoint(sessions[0], "best")
        for sid in sessions:
            await until(lambda sid=sid: calls(p, "checkpoints.prove", sid), "proved by itself")
        for sid in sessions:
            where = [m for m, told in part_of(p, sid).calls if told.get("session") == sid]
            assert "checkpoints.prove" in where, "on the node of its part"
        await until(
            lambda: all(
                c.proved_at
                for sid in sessions
                for c in p.controller.state.sessions[sid].checkpoints
            ),
            "noted",
        )
        assert sets_of(p, sessions[0]) == sets_of(p, sessions[1]) != [""], "still one set"
        for sid in sessions:
            [stored] = await p.client().checkpoints(sid)
            assert (bool(stored["proved_at"]), stored["unproved"]) == (True, None)
