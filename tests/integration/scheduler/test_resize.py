"""`resize` and scale policies over the API: the real service and ledger, an agent of paper."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, LayoutRefused, NoSpace, NotFound
from support.scheduler_service import platform

FAST = {"scale_interval_s": 1.0, "idle_soft_s": 0, "idle_grace_s": 0, "min_run_s": 0}


def four(tmp_path: Path, **settings: Any) -> Any:
    return platform(tmp_path, devices=4, controller={"parameters": FAST}, **settings)


@pytest.mark.asyncio
async def test_somebody_resizes_a_session_and_its_events_say_so(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        client = p.client()
        session = await p.holder(devices=4)
        before = await client.get_session(session)
        assert before["resizable"] == {"min": 1, "max": 4, "counts": [1, 2, 3, 4]}
        assert (before["physical_devices"], before["scale_policy"]) == (4, None)
        events = client.events()
        await anext(events)
        done = await client.resize(session, 1)
        assert (done["state"], done["devices"]) == ("running", ["cpu:0"] * 4)
        assert (done["virtual_devices"], done["physical_devices"]) == (4, 1)
        heard = [await anext(events) for _ in range(2)]
        await events.aclose()
        resizing, resized = (event["data"] for event in heard if event["event"] == "session")
        assert (resizing["state"], resized["state"]) == ("resizing", "running")
        assert resizing["reason"].startswith("runs its 4 virtual devices on 1 physical for alice")
        assert p.agent.sessions[session]["devices"] == ["cpu:0"] * 4
        cluster = await client.cluster()
        free = [d["id"] for d in cluster["devices"] if d["session"] is None]
        assert free == ["cpu:1", "cpu:2", "cpu:3"]
        again = await client.resize(session, 4)
        assert again["devices"] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
        rules = [c["rule"] for c in await client.history(session)][-4:]
        assert rules == ["user.resize", "device.resized"] * 2


@pytest.mark.asyncio
async def test_bad_sizes_are_refused_by_one_sentence_each(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        client = p.client()
        plain = await p.holder(devices=2)
        for size, why in (
            (0, "0 devices asked, but a session runs on at least 1"),
            (3, "has 2 virtual devices, so it runs on 1 to 2 physical ones, not on 3"),
            ("two", "devices must be the number of physical devices"),
            (None, "devices must be the number of physical devices"),
        ):
            with pytest.raises(BadRequest, match=why):
                await client.resize(plain, size)
        policy = {"auto_scale_instance_type_count_set": [1, 2]}
        scaled = await p.kernel(devices=4, scale_policy=policy)
        with pytest.raises(BadRequest, match="does not allow 3 devices: pick from 1, 2"):
            await client.resize(scaled, 3)
        with pytest.raises(NotFound):  # it is somebody else's
            await p.client("bob").resize(plain, 1)
        with pytest.raises(NotFound):
            await client.resize("nothing", 1)
        gate = p.agent.hold["device.resize"] = asyncio.Event()
        first = asyncio.ensure_future(client.resize(plain, 1))
        await p.state(plain, "resizing")
        with pytest.raises(Conflict, match="is being resized right now: try again in a moment"):
            await client.resize(plain, 2)
        gate.set()
        del p.agent.hold["device.resize"]
        assert (await first)["physical_devices"] == 1
        assert (await p.client("admin").resize(plain, 2))["physical_devices"] == 2


@pytest.mark.asyncio
async def test_a_refusal_of_the_node_is_told_and_nothing_stays_leased(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        session = await p.holder(devices=4)
        p.agent.refuse["device.resize"] = NoSpace("its state does not fit on one device")
        with pytest.raises(NoSpace, match="does not fit"):
            await p.client().resize(session, 1)
        after = await p.client().get_session(session)
        assert (after["state"], after["physical_devices"]) == ("running", 4)
        await p.client().resize(session, 2)
        p.agent.refuse["device.resize"] = NoSpace("no room")
        with pytest.raises(NoSpace):
            await p.client().resize(session, 4)
        assert (await p.client().get_session(session))["devices"] == [
            *("cpu:0", "cpu:0", "cpu:2", "cpu:2")
        ]
        assert set(p.controller.state.nodes["local"].leases) == {"cpu:0", "cpu:2"}
        shards = "the ranks of this session hold 2 different shards"
        p.agent.refuse["device.resize"] = LayoutRefused(shards, devices=1, least=2)
        with pytest.raises(LayoutRefused, match=shards) as refused:
            await p.client().resize(session, 1)
        assert refused.value.fields["least"] == 2
        last = (await p.client().history(session))[-1]
        assert (last["rule"], shards in last["reason"]) == ("device.resize_failed", True)
        assert set(p.controller.state.nodes["local"].leases) == {"cpu:0", "cpu:2"}


@pytest.mark.asyncio
async def test_an_elastic_notebook_makes_room_and_grows_back(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        notebook = await p.holder(devices=4, elastic=True)
        shown = await p.client().get_session(notebook)
        assert shown["scale_policy"] == {"min_instance_type_count": 1, "max_instance_type_count": 4}
        await asyncio.sleep(1.1)
        train = await p.kernel("bob", devices=3, tier="premium")
        p.agent.busy(train, True)
        p.agent.need(train)
        await p.state(train, "running")
        shrunk = await p.client().get_session(notebook)
        assert (shrunk["state"], shrunk["physical_devices"]) == ("running", 1)
        why = (await p.client().why(notebook))["sentence"]
        assert "runs its 4 virtual devices on 1 physical: bob/" in why
        assert "needs 3 devices; nothing is lost; it grows back when devices are free" in why
        await p.client("bob").end_session(train)
        for _ in range(600):
            if (await p.client().get_session(notebook))["physical_devices"] == 4:
                break
            await asyncio.sleep(0.1)
        grown = await p.client().get_session(notebook)
        assert (grown["state"], sorted(grown["devices"])) == (
            "running",
            ["cpu:0", "cpu:1", "cpu:2", "cpu:3"],
        )


@pytest.mark.asyncio
async def test_a_restart_of_the_service_in_the_middle(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        session = await p.holder(devices=4, scale_policy={"min_instance_type_count": 1})
        await p.client().resize(session, 2)
        p.agent.hold["device.resize"] = asyncio.Event()
        resize = asyncio.ensure_future(p.client().resize(session, 1))
        await p.state(session, "resizing")
        before = await p.controller.find(session)
        await p.stop()
        await asyncio.gather(resize, return_exceptions=True)
        await p.start()
        after = await p.controller.find(session)
        assert (after.devices, after.resizing) == (before.devices, before.resizing)
        assert (after.scale, after.wish, after.epoch) == (before.scale, before.wish, before.epoch)
        p.agent.hold.pop("device.resize").set()
        await p.state(session, "running")
        assert (await p.client().get_session(session))["devices"] == ["cpu:0"] * 4


@pytest.mark.asyncio
async def test_accounting_counts_physical_devices(tmp_path: Path) -> None:
    async with four(tmp_path) as p:

        async def used() -> float:
            return float(sum(row["device_s"] for row in (await p.client().usage())["usage"]))

        session = await p.holder(devices=4)
        await p.client().resize(session, 1)
        began = time.monotonic()
        before = await used()
        await asyncio.sleep(1.0)
        more = await used() - before
        assert 0.9 <= more <= time.monotonic() - began + 0.1


@pytest.mark.asyncio
async def test_a_scale_policy_is_checked(tmp_path: Path) -> None:
    async with four(tmp_path) as p:
        made = await p.kernel(scale_policy={"auto_scale_instance_type_count_set": [1, 2, 4]})
        assert (await p.client().get_session(made))["virtual_devices"] == 4
        few = {"auto_scale_instance_type_count_set": [1, 2, 4]}
        capped = await p.client().get_session(await p.kernel(devices=2, scale_policy=few))
        assert capped["resizable"] == {"min": 1, "max": 2, "counts": [1, 2]}
        larger = await p.kernel(devices=8, elastic=True)  # no node has so many
        p.agent.busy(larger, True)
        p.agent.need(larger)
        await p.state(larger, "running")
        assert (await p.client().get_session(larger))["physical_devices"] == 4
        for spec, why in (
            ({"devices": 2, "scale_policy": {"min_instance_type_count": 3}}, "at least 3 devices"),
            ({"devices": 8, "scale_policy": {"min_instance_type_count": 5}}, "at most 4"),
            ({"elastic": False, "scale_policy": {}}, "say one of them"),
            ({"elastic": True, "device_share": 0.5}, "has no scale policy"),
        ):
            with pytest.raises(BadRequest, match=why):
                await p.kernel(**spec)
