"""Nodes that are cordoned, drained, noticed and upgraded: the real service, agents of paper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import Conflict
from support.scheduler_core import reads
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio

THREE = ("node-1", "node-2", "node-3")


@contextlib.asynccontextmanager
async def nodes(tmp_path: Path, *names: str, **settings: Any) -> AsyncIterator[Platform]:
    async with platform(tmp_path, nodes=names, **settings) as made:
        yield made


async def holder(p: Platform, name: str, who: str = "alice", **spec: Any) -> str:
    """A busy session with its devices, on whichever node it was placed."""
    session = await p.kernel(who, name=name, **spec)
    agent = p.agents[where(p, session)]
    agent.busy(session, True)
    agent.need(session)
    await p.state(session, "running")
    return session


def where(p: Platform, session: str) -> str:
    return p.controller.state.sessions[session].node


def duties(p: Platform) -> dict[str, str]:
    return {n: p.controller.state.node(n).duty.duty.value for n in p.agents}


async def until_duty(p: Platform, node: str, word: str) -> None:
    await until(lambda: duties(p)[node] == word, f"{node} {word}")


async def test_a_cordoned_node_gets_nothing_new_and_keeps_its_holders(tmp_path: Path) -> None:
    async with nodes(tmp_path, "node-1", "node-2", devices=1) as p:
        stays, other = await holder(p, "stays"), await holder(p, "other")
        home, epoch = where(p, stays), p.controller.state.sessions[stays].epoch
        await p.client("admin").cordon(home, "new disks")
        waits = await p.kernel("bob", name="waits", tier="premium")
        assert where(p, waits) == where(p, other) != home
        assert (await p.client().get_session(stays))["state"] == "running"
        with pytest.raises(Conflict, match=rf"node {home} is cordoned by root \(new disks\)"):
            await p.client().migrate(other, node=home)
        assert where(p, other) != home
        assert p.controller.state.sessions[stays].epoch == epoch
        commands = {m for m, _ in p.agents[home].calls if m != "renew"}
        assert not commands & {"device.park", "session.suspend", "session.end"}


async def test_a_drained_node_gives_its_sessions_away(tmp_path: Path) -> None:
    async with nodes(tmp_path, "node-1", "node-2", devices=3) as p:
        admin = p.client("admin")
        await admin.cordon("node-2")
        held = [await holder(p, f"s{n}") for n in range(2)]
        rests = await p.kernel(name="rests")
        p.agents["node-1"].busy(rests, False)
        await admin.uncordon("node-2")
        told = await admin.drain_node("node-1", "a fan")
        assert told["by"] == "root"
        await until_duty(p, "node-1", "drained")
        for session in held:
            await p.state(session, "running")
            assert where(p, session) == "node-2"
            lines = await p.client().history(session)
            [left] = [line for line in lines if line["rule"] == "node.drain"]
            assert left["reason"].startswith(
                "leaves node node-1, which is being drained by root (a fan): it moves to another "
                "node; nothing is lost; running code just waits; rule node.drain; "
            )
            assert session not in p.agents["node-1"].sessions
        assert where(p, rests) == "node-2", "its kernel is alive: it moves as well"
        assert set(p.agents["node-2"].sessions) == {*held, rests}
        [node] = [n for n in await admin.nodes() if n["id"] == "node-1"]
        assert node["sessions"] == []


async def test_a_drain_that_nothing_could_take_is_one_sentence(tmp_path: Path) -> None:
    async with nodes(tmp_path, "node-1", "node-2", devices=2) as p:
        admin = p.client("admin")
        await admin.cordon("node-2")
        session = await holder(p, "big", devices=2)
        with pytest.raises(Conflict) as refused:
            await admin.drain_node("node-1")
        assert refused.value.message == (
            "node node-1 was not drained and goes on: no other node can take alice/big (node "
            "node-2 is cordoned by root); make room first, or let them wait in the store (store)"
        )
        assert refused.value.fields["sessions"] == [session]
        assert duties(p)["node-1"] == "open"
        assert [x["subject"] for x in await admin.admin_log()] == ["node-2"]
        await admin.drain_node("node-1", store=True)
        await until_duty(p, "node-1", "drained")
        await p.state(session, "suspended")
        await admin.uncordon("node-2")
        await p.state(session, "running")
        assert where(p, session) == "node-2"


async def test_what_cannot_be_stored_stays_and_the_drain_is_not_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, "node-1", "node-2") as p:
        session = await holder(p, "a")
        home = where(p, session)
        p.agents[home].image_trouble = "criu is missing"
        await p.agents[home].stop()
        await p.agents[home].start()
        able = p.controller.state.node(home)
        await until(lambda: able.abilities.image_trouble != "" and able.connected, "told")
        await p.state(session, "running")
        told = await p.client("admin").drain_node(home)
        assert told["duty"] == "draining"
        await until(lambda: p.agents[home].sessions[session]["devices"] == [], "parked")
        [left] = next(n for n in await p.client("admin").nodes() if n["id"] == home)["sessions"]
        assert left["id"] == session
        lines = [x["reason"] for x in await p.client().history(session)]
        assert any("because it cannot be stored (criu is missing)" in line for line in lines)
        assert duties(p)[home] == "draining"


# -- upgrades -------------------------------------------------------------------------------


def steps(p: Platform) -> dict[str, str]:
    upgrade = p.controller.state.admin.upgrade
    return {s.node: s.state.value for s in upgrade.steps} if upgrade else {}


class Watch:
    """Looks after each durable decision how many nodes are out, and where each session is."""

    def __init__(self, p: Platform) -> None:
        self.most = 0
        self.orders: list[str] = []
        self._p = p
        self.begin()

    def begin(self) -> None:
        """Again after a restart of the service: there is another controller."""
        self._p.controller.observers.append(self._look)

    def _look(self, decision: Any) -> None:
        out = [node for node, duty in duties(self._p).items() if duty != "open"]
        self.most = max(self.most, len(out))
        self.orders += [f"{o.verb} {o.subject}" for o in decision.orders if o.verb == "drain"]


async def upgraded(p: Platform, node: str) -> None:
    """What whoever upgrades a node does: its agent is another one, of another version."""
    agent = p.agents[node]
    assert not [s for s in agent.sessions.values() if not s.get("suspended")], "not empty"
    await agent.stop()
    agent.version, agent.instance = "2", f"{node}-2"
    await agent.start()
    await until(lambda: steps(p)[node] == "back", f"{node} is back")


@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_rolling_upgrade_goes_on_after_a_restart(tmp_path: Path, at_once: int) -> None:
    async with nodes(tmp_path, *THREE, devices=4) as p:
        for agent in p.agents.values():
            agent.version = "1"
            await agent.stop()
            await agent.start()
        known = [p.controller.state.node(n) for n in THREE]
        await until(lambda: all(n.abilities.version == "1" and n.connected for n in known), "1")
        held = [await holder(p, f"s{n}") for n in range(3)]
        assert {where(p, s) for s in held} == set(THREE)
        watch = Watch(p)
        admin = p.client("admin")
        await admin.begin_upgrade(at_once=at_once, reason="driver 580")
        out = THREE[:at_once]
        await until(lambda: all(steps(p)[n] == "out" for n in out), "the first are out")
        await upgraded(p, THREE[0])

        await p.stop()
        await p.start()
        await p.ready()
        watch.begin()
        for node in THREE[1:]:
            await until(lambda n=node: steps(p)[n] == "out", f"{node} is out")  # type: ignore[misc]
            await upgraded(p, node)
        done = await admin.upgrade()
        assert (done["state"], {n["version"] for n in done["nodes"]}) == ("done", {"2"})
        assert watch.most == at_once
        assert watch.orders == [f"drain {node}" for node in THREE]
        assert set(duties(p).values()) == {"open"}
        assert all(p.controller.state.node(n).abilities.version == "2" for n in THREE)
        for session in held:
            await p.state(session, "running")
            view = await p.client().get_session(session)
            assert view["incarnation"] == 1, "nothing was undone"


# -- spot machines --------------------------------------------------------------------------


async def test_sessions_leave_a_spot_machine_before_its_deadline(tmp_path: Path) -> None:
    async with nodes(tmp_path, "node-1", "node-2", devices=2) as p:
        await p.client("admin").cordon("node-2")
        sessions = [await holder(p, f"s{n}") for n in range(2)]
        await p.client("admin").uncordon("node-2")
        agent = p.agents["node-1"]
        agent.event("", "node.notice", in_s=20.0)
        await until_duty(p, "node-1", "drained")
        mark = p.controller.state.node("node-1").duty
        assert mark.deadline is not None
        assert p.controller.now() < mark.deadline
        for session in sessions:
            await p.state(session, "running")
            assert where(p, session) == "node-2"
            lines = await p.client().history(session)
            [left] = [x["reason"] for x in lines if x["rule"] == "node.notice"]
            assert "which is being drained (its machine is taken back)" in left
            assert "its variables are lost, because it has no checkpoint to go on from" in left
        # The machine goes, another one of that name comes after the deadline.
        await agent.stop()
        await until(lambda: not p.controller.state.node("node-1").connected, "gone")
        assert [s for s in sessions if where(p, s) != "node-2"] == []


async def test_a_notice_that_comes_too_late_says_what_was_kept(tmp_path: Path) -> None:
    quick = {"lease_ttl_s": 1.0, "lease_margin_s": 0.0, "lost_patience_s": 0.0}
    async with nodes(tmp_path, "node-1", "node-2", devices=2, controller=quick) as p:
        await p.client("admin").cordon("node-2")
        kept, lost = await holder(p, "kept"), await holder(p, "lost")
        await p.client().checkpoint(kept, "epoch 3")
        await p.client("admin").uncordon("node-2")
        agent = p.agents["node-1"]
        agent.hold["session.suspend"] = asyncio.Event()
        agent.event("", "node.notice", in_s=0.3)
        await until_duty(p, "node-1", "draining")
        view = p.controller.state.sessions
        await until(lambda: view[kept].process_state.value == "suspending", "leaves")
        said = reads(view[kept]).partition("should the machine go away in ")[2]
        assert "before everything is there, it goes on from checkpoint 'epoch 3', " in said
        await asyncio.sleep(0.3)
        [node] = [n for n in await p.client("admin").nodes() if n["id"] == "node-1"]
        assert (node["overdue"], node["notice"]) == (True, True)
        await agent.stop()  # the machine is gone with what was not in the store yet
        await until(lambda: view[kept].node == "node-2", "elsewhere")
        await p.state(kept, "parked")
        p.agents["node-2"].need(kept)
        await p.state(kept, "running")
        assert where(p, kept) == "node-2"
        lines = await p.client().history(kept)
        [gone] = [x["reason"] for x in lines if x["rule"] == "node.lost"]
        assert "it goes on from checkpoint 'epoch 3', " in gone
        assert gone.endswith("old, and what it did since is lost")
        await p.state(lost, "failed")
        why = (await p.client().why(lost))["sentence"]
        assert "with its process and variables" in why
        agent.hold["session.suspend"].set()
