"""What administrators say to the running service: it counts at once, is kept and written down."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from singularity_proxy.errors import BadRequest, Conflict, Forbidden, NotFound, Unavailable
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def service(tmp_path: Path) -> AsyncIterator[Platform]:
    careful = {"parameters": {"idle_soft_s": 0, "idle_grace_s": 1e6}, "lease_ttl_s": 1.2}
    app = {"event_log": str(tmp_path / "events.jsonl")}
    async with platform(tmp_path, controller=careful, app=app) as made:
        yield made


async def values(service: Platform) -> dict[str, float]:
    return {p["name"]: p["value"] for p in await service.client("admin").parameters()}


async def test_parameters_count_without_a_restart_and_outlast_one(service: Platform) -> None:
    admin = service.client("admin")
    idle = await service.holder("alice", name="idle")
    await service.holder("bob", name="other")
    service.agent.busy(idle, False)
    waiter = await service.kernel("bob", name="waits")
    service.agent.need(waiter)
    await service.state(waiter, "waiting")
    found = {p["name"]: p for p in await admin.parameters()}
    assert found["idle_grace_s"]["value"] == found["idle_grace_s"]["default"] == 1e6
    assert not found["idle_grace_s"]["set"]

    changed = await admin.set_parameters({"idle_grace_s": 0, "min_run_s": 0}, "a demonstration")
    assert {p["name"] for p in changed if p["set"]} == {"idle_grace_s", "min_run_s"}
    await service.state(waiter, "running")
    assert (await service.client().get_session(idle))["state"] == "parked"

    await service.stop()
    await service.start()
    await service.ready()
    assert (await values(service))["idle_grace_s"] == 0
    await admin.reset_parameter("idle_grace_s")
    assert (await values(service))["idle_grace_s"] == 1e6
    log = await admin.admin_log()
    assert [(x["by"], x["verb"], x["subject"], x["before"], x["after"]) for x in log] == [
        ("root", "reset", "idle_grace_s", 0, 1e6),
        ("root", "set", "min_run_s", 60, 0),
        ("root", "set", "idle_grace_s", 1e6, 0),
    ]
    assert log[1]["reason"] == "a demonstration"
    assert len(await admin.admin_log("min_run_s")) == 1
    lines = (service.tmp_path / "events.jsonl").read_text().splitlines()
    told = [e for e in map(json.loads, lines) if "admin-change" in e["__schema__"]]
    assert [e["subject"] for e in told] == ["idle_grace_s", "min_run_s", "idle_grace_s"]


async def test_devices_that_are_idle_are_parked_by_themselves(service: Platform) -> None:
    session = await service.holder("alice", name="quiet")
    service.agent.event(session, "device.use", quiet_s=400.0)
    await service.client("admin").set_parameters({"idle_soft_s": 300, "min_run_s": 0})
    view = service.controller.state.sessions
    await until(lambda: view[session].word in ("running", "parked"), "told")
    service.agent.event(session, "device.use", quiet_s=400.0)
    # It counts from when it got its devices, not from what was before.
    assert view[session].quiet_since == view[session].held_since
    await service.client("admin").set_parameters({"idle_soft_s": 0.5})
    await service.state(session, "parked")
    assert "idle_soft_s is 0.5" in (await service.client().get_session(session))["reason"]


async def test_what_cannot_be_is_one_sentence_and_changes_nothing(service: Platform) -> None:
    admin = service.client("admin")
    before = await values(service)
    with pytest.raises(BadRequest, match="there is no parameter 'idle_soft': did you mean"):
        await admin.set_parameters({"idle_soft": 5})
    with pytest.raises(NotFound, match="did you mean 'quantum_s'"):
        await admin.reset_parameter("quantum")
    with pytest.raises(BadRequest, match=r"quantum_s must be a number from 1 to .*, not -1"):
        await admin.set_parameters({"idle_soft_s": 5, "quantum_s": -1})
    with pytest.raises(BadRequest, match=r"quantum_s must be a number from 1 to .*, not 'fast'"):
        await admin.set_parameters({"quantum_s": "fast"})
    with pytest.raises(Forbidden):
        await service.client("alice").set_parameters({"idle_soft_s": 5})
    with pytest.raises(Forbidden):
        await service.client("alice").parameters()
    assert await values(service) == before
    assert await admin.admin_log() == []


# -- nodes ----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def two(tmp_path: Path, **settings: Any) -> AsyncIterator[Platform]:
    async with platform(tmp_path, nodes=("node-1", "node-2"), **settings) as made:
        yield made


async def holder(p: Platform, **spec: Any) -> str:
    """A busy session with its devices, on whichever node it was placed."""
    session = await p.kernel(**spec)
    agent = p.agents[(await p.client().get_session(session))["node"]]
    agent.busy(session, True)
    agent.need(session)
    await p.state(session, "running")
    return session


async def duty(p: Platform, node: str) -> str:
    return {n["id"]: n["duty"] for n in await p.client("admin").nodes()}[node]


async def until_duty(p: Platform, node: str, word: str) -> None:
    await until(lambda: p.controller.state.node(node).duty.duty.value == word, f"{node} {word}")


async def test_a_cordon_outlasts_a_restart(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        admin = p.client("admin")
        stays = await holder(p, name="stays")
        home = (await p.client().get_session(stays))["node"]
        told = await admin.cordon(home, "new disks")
        assert (told["duty"], told["by"], told["reason"]) == ("cordoned", "root", "new disks")
        assert [s["id"] for s in told["sessions"]] == [stays]
        await p.stop()
        await p.start()
        await p.ready()
        assert await duty(p, home) == "cordoned"
        for name in ("x", "y", "z"):
            placed = await p.client().get_session(await p.kernel(name=name))
            assert placed["node"] != home
        assert (await p.client().get_session(stays))["state"] == "running"
        cluster = await p.client().cluster()
        assert {n["id"]: n["duty"] for n in cluster["nodes"]}[home] == "cordoned"
        await admin.uncordon(home)
        with pytest.raises(Conflict, match=r"is open .*: there is nothing to uncordon"):
            await admin.uncordon(home)
        log = await admin.admin_log(home)
        assert [x["rule"] for x in log] == ["node.opened", "node.cordoned"]


async def test_a_drain_and_an_upgrade_of_two_nodes(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        admin = p.client("admin")
        session = await holder(p, name="a")
        home = (await p.client().get_session(session))["node"]
        away = next(n for n in p.agents if n != home)
        await admin.drain_node(home, "new kernel", deadline_s=600)
        await until_duty(p, home, "drained")
        view = await p.client().get_session(session)
        assert (view["node"], view["incarnation"]) == (away, 1)
        history = await p.client().history(session)
        assert "node.drain" in {line["rule"] for line in history}
        [left] = [n for n in await admin.nodes() if n["id"] == home]
        assert (left["sessions"], left["connections"], left["overdue"]) == ([], 1, False)
        await admin.undrain_node(home)

        begun = await admin.begin_upgrade(["node-1", "node-2"], reason="version 2")
        assert begun["state"] == "running"
        for node in ("node-1", "node-2"):
            await until(
                lambda n=node: steps(p)[n] == "out",  # type: ignore[misc]
                f"{node} out",
            )
            if node == "node-1":
                agent = p.agents[node]
                agent.version, agent.instance = "2", "another"
                await agent.stop()
                await agent.start()
            else:
                await admin.upgraded(node)
            await until(
                lambda n=node: steps(p)[n] == "back",  # type: ignore[misc]
                f"{node} back",
            )
        done = await admin.upgrade()
        assert done["state"] == "done"
        assert {n["node"]: n["version"] for n in done["nodes"]} == {"node-1": "2", "node-2": ""}
        with pytest.raises(NotFound, match="no upgrade is under way"):
            await admin.cancel_upgrade()


def steps(p: Platform) -> dict[str, str]:
    upgrade = p.controller.state.admin.upgrade
    return {s.node: s.state.value for s in upgrade.steps} if upgrade else {}


async def test_an_upgrade_that_waits_outlasts_a_restart(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        admin = p.client("admin")
        await admin.begin_upgrade()
        assert (await admin.change_upgrade("paused"))["state"] == "paused"
        await p.stop()
        await p.start()
        await p.ready()
        found = await admin.upgrade()
        assert (found["state"], [n["state"] for n in found["nodes"]]) == (
            "paused",
            ["out", "waiting"],
        )
        assert (await admin.cancel_upgrade())["state"] == "cancelled"
        assert await duty(p, "node-1") == "open"


async def test_a_notice_comes_from_an_administrator_or_the_machine(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        told = await p.client("admin").notice("node-1", 30.0)
        assert (told["duty"], told["notice"], told["spot"]) == ("drained", True, True)
        assert (await p.client("admin").admin_log("node-1"))[-1]["rule"] == "node.notice"
        p.agents["node-2"].event("", "node.notice", in_s=30.0)
        await until_duty(p, "node-2", "drained")
        with pytest.raises(Unavailable, match="no node takes new sessions now"):
            await p.kernel()


async def test_what_nodes_cannot_be_told(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        admin = p.client("admin")
        with pytest.raises(NotFound, match="there is no node 'node1': did you mean 'node-"):
            await admin.cordon("node1")
        with pytest.raises(BadRequest, match="deadline_s"):
            await admin.drain_node("node-1", deadline_s=-5)
        with pytest.raises(BadRequest, match="at_once must be a whole number from 1 to 2"):
            await admin.begin_upgrade(at_once=3)
        with pytest.raises(Forbidden):
            await p.client("alice").drain_node("node-1")
        assert await duty(p, "node-1") == "open"


# -- virtual clusters -----------------------------------------------------------------------


async def test_a_quota_counts_at_once_and_outlasts_a_restart(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        admin = p.client("admin")
        with pytest.raises(BadRequest, match="there is no virtual cluster 'vision'"):
            await p.kernel(virtual_cluster="vision")
        await admin.set_quota("vision", 1, may_borrow=False)
        first = await p.holder(name="a", virtual_cluster="vision", priority="high")
        second = await p.kernel(name="b", virtual_cluster="/subscriptions/1/vc/vision")
        p.agent.need(second)
        await p.state(second, "waiting")
        told = await p.client().get_session(second)
        assert (told["virtual_cluster"], told["priority"]) == ("vision", "medium")
        assert told["reason"].endswith("uses 1 of its 1 device and may not borrow")
        [cluster] = await admin.virtual_clusters()
        assert [cluster[k] for k in ("used", "borrowed", "waiting", "sessions")] == [1, 0, 1, 2]
        await p.stop()
        await p.start()
        await p.ready()
        assert (await p.client().get_session(first))["priority"] == "high"
        await p.state(second, "waiting")
        await admin.set_quota("vision", 2, may_borrow=False)
        await p.state(second, "running")
        with pytest.raises(Conflict, match="2 sessions of it would be nobody's"):
            await admin.remove_virtual_cluster("vision")
        with pytest.raises(Forbidden):
            await p.client().virtual_clusters()
        log = await admin.admin_log("vision")
        assert [(x["before"], x["after"]["quota_devices"]) for x in log] == [
            ({"quota_devices": 1, "may_borrow": False}, 2),
            (None, 1),
        ]
