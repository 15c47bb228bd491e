"""One service with nodes of several clusters: where sessions are placed, and how they move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound
from singularity_scheduler.service.controller import Controller
from support.scheduler_service import Platform, platform, until
from traitlets import TraitError
from traitlets.config import Config

pytestmark = pytest.mark.asyncio

WHERE = {"node-1": "west-1", "node-2": "east-1"}
REGIONS = {"west-1": "westus", "east-1": "eastus", "westus": "us", "eastus": "us"}


def two(tmp_path: Path, **settings: Any) -> Any:
    """Two clusters of one node each, in two regions, and the embedded one, without a node."""
    return platform(
        tmp_path, nodes=tuple(WHERE), clusters=WHERE, controller={"regions": REGIONS}, **settings
    )


async def computing(p: Platform, **spec: Any) -> str:
    session = await p.kernel(**spec)
    agent = p.agents[(await p.client().get_session(session))["node"]]
    agent.busy(session, True)
    agent.need(session)
    await p.state(session, "running")
    return session


async def test_a_session_moves_between_clusters_and_what_it_may_outlasts_a_restart(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        session = await computing(p, name="a", locations=["us"])
        told = await client.get_session(session)
        here, region = told["cluster"], told["region"]
        assert (told["locations"], REGIONS[here]) == (["us"], region)
        there = next(c for c in WHERE.values() if c != here)
        moved = await client.migrate(session, cluster=there)
        assert (moved["cluster"], moved["region"]) == (there, REGIONS[there])
        assert (moved["state"], moved["incarnation"]) == ("running", 1)
        reasons = [line["reason"] for line in await client.history(session)]
        assert any(r.startswith(f"moving to cluster {there} for alice") for r in reasons)
        with pytest.raises(Conflict, match=f"is in cluster {there} already"):
            await client.migrate(session, cluster=there)
        agent = p.agents[moved["node"]]
        with pytest.raises(NotFound, match="there is no cluster 'mars'"):
            await agent.command(session, "migrate", cluster="mars")
        await client.suspend(session)

        await p.stop()
        await p.start()
        await p.ready()
        kept = await client.get_session(session)
        assert (kept["cluster"], kept["locations"]) == (there, ["us"])
        await client.migrate(session, cluster=here)
        await p.state(session, "running")
        assert (await client.get_session(session))["cluster"] == here
        why = await client.why(session)
        assert why["facts"]["cluster"] == here


async def test_locations_decide_where_sessions_are(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        client = p.client()
        for number in range(3):
            session = await p.kernel(name=f"e{number}", locations=["eastus"])
            assert (await client.get_session(session))["node"] == "node-2"
        with pytest.raises(Conflict, match="it may only be in eastus"):
            await client.migrate(session, cluster="west-1")
        with pytest.raises(BadRequest, match=r"there is no location 'wesus': .* there are east-1"):
            await p.kernel(locations=["wesus"])
        with pytest.raises(BadRequest, match="locations names 'us' twice"):
            await p.kernel(locations=["us", "us"])
        with pytest.raises(BadRequest, match="not two of them"):
            await client._verb(
                session, "migrate", {"cluster": "west-1", "node": "node-1"}, timeout=60
            )
        told = await p.client("admin").nodes()
        assert {n["id"]: n["cluster"] for n in told} == WHERE
        cluster = await client.cluster()
        assert {n["id"]: (n["cluster"], n["region"]) for n in cluster["nodes"]} == {
            "node-1": ("west-1", "westus"),
            "node-2": ("east-1", "eastus"),
        }


async def test_clusters_are_told_by_their_sums(tmp_path: Path) -> None:
    async with two(tmp_path) as p:
        first = await computing(p, locations=["west-1"])
        second = await computing(p, locations=["west-1"])
        waits = await p.kernel(locations=["west-1"], tier="basic")
        p.agents["node-1"].need(waits)
        await p.state(waits, "waiting")
        found = await p.client("bob").clusters()
        assert found["home"] == "local"
        assert found["locations"] == ["east-1", "eastus", "local", "us", "west-1", "westus"]
        by_name = {one["name"]: one for one in found["clusters"]}
        west = by_name["west-1"]
        keys = ("region", "nodes", "connected", "devices", "free", "largest", "sessions")
        assert [west[k] for k in keys] == ["westus", 1, 1, 2, 0, 2, 3]
        assert west["waiting"] == {"premium": 0, "standard": 0, "basic": 1}
        assert by_name["east-1"]["free"] == 2
        assert (by_name["local"]["nodes"], by_name["local"]["devices"]) == (0, 0)
        regions = {one["name"]: one for one in found["regions"]}
        assert (regions["westus"]["within"], regions["westus"]["sessions"]) == ("us", 3)
        text = p.services.metrics.text().decode()
        assert (
            'singularity_cluster_devices{cluster="west-1",region="westus",use="total"} 2.0' in text
        )
        await p.agents["node-1"].stop()
        await until(lambda: not p.controller.state.node("node-1").connected, "away")
        gone = {c["name"]: c for c in (await p.client().clusters())["clusters"]}["west-1"]
        assert (gone["nodes"], gone["connected"], gone["free"], gone["sessions"]) == (1, 0, 0, 3)
        for session in (first, second):
            assert (await p.client().get_session(session))["cluster"] == "west-1"


async def test_a_service_without_clusters_has_one(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"home_cluster": "here"}) as p:
        session = await p.kernel()
        told = await p.client().get_session(session)
        assert (told["cluster"], told["region"], told["locations"]) == ("here", "here", [])
        [cluster] = (await p.client().clusters())["clusters"]
        assert (cluster["name"], cluster["nodes"], cluster["sessions"]) == ("here", 1, 1)
        assert p.controller.state.node("local").abilities.cluster == "here"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"regions": {"a": "b", "b": "a"}}, "the places go in a circle"),
        ({"regions": {"a": "b c"}}, "'b c' cannot be the name of a cluster or region"),
        ({"home_cluster": ""}, "'' cannot be the name"),
    ],
)
async def test_places_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TraitError, match=sentence):
        Controller(None, None, None, config=Config(Controller=settings))
