"""Checkpoints that the service has proved: by itself, and because somebody asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Forbidden, NotFound, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service.nodes import proofs
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio

WHY = "checkpoint k0001 is damaged in image/pages-1.img: its hash differs"


def one_node(tmp_path: Path, every_s: float) -> Any:
    return platform(tmp_path, nodes=("node-1",), controller={"prove_every_s": every_s})


def asked(p: Platform) -> list[str]:
    """The checkpoints that the node was to prove."""
    return [params["id"] for method, params in p.agent.calls if method == "checkpoints.prove"]


async def of(client: ServiceClient, session: str, name: str) -> dict[str, Any]:
    found = await client.checkpoints(session)
    return next(one for one in found if one["name"] == name)


def counted(p: Platform) -> dict[str, float]:
    """`checkpoint_proofs`, by outcome."""
    lines = p.services.metrics.text().decode().splitlines()
    name = "singularity_checkpoint_proofs_total"
    found = [line.split() for line in lines if line.startswith(name)]
    return {labels.split('"')[1]: float(value) for labels, value in found}


async def test_somebody_asks(tmp_path: Path) -> None:
    async with one_node(tmp_path, 0.0) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session, "good")
        await client.checkpoint(session, "bad")
        good, bad = [await of(client, session, name) for name in ("good", "bad")]
        assert (good["proved_at"], good["unproved"]) == (None, None)
        p.agent.faults[bad["id"]] = WHY
        told = await client.prove_checkpoint(session, "good")
        assert [c["name"] for c in told if c["proved_at"]] == ["good"]
        await client.prove_checkpoint(session, bad["id"])
        failed = await of(client, session, "bad")
        assert (failed["proved_at"], failed["unproved"]) == (None, WHY)
        assert failed["restorable"], "it is kept, and can be tried"
        assert counted(p) == {"proved": 1.0, "failed": 1.0, "put_off": 0.0}
        with pytest.raises(NotFound):
            await client.prove_checkpoint(session, "no such one")
        with pytest.raises((Forbidden, NotFound)):
            await p.client("bob").prove_checkpoint(session, "good")
        p.agent.refuse["checkpoints.prove"] = Unavailable("this node proves another checkpoint")
        with pytest.raises(Unavailable, match="proves another"):
            await client.prove_checkpoint(session, "good")
        assert counted(p)["put_off"] == 1.0
        assert (await of(client, session, "good"))["proved_at"], "what was known stays"
        del p.agent.faults[bad["id"]]
        await client.prove_checkpoint(session, "bad")
        assert (await of(client, session, "bad"))["unproved"] is None
        # It stands in the ledger, also when the session has ended.
        await client.end_session(session)
        await p.stop()
        await p.start()
        await p.ready()
        assert (await of(client, session, "good"))["proved_at"]
        await client.prove_checkpoint(session, "good")
        with pytest.raises((BadRequest, NotFound)):
            await client.prove_checkpoint(session, "")


async def test_by_itself_once_and_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "LOOK_S", 0.01)
    monkeypatch.setattr(proofs, "SETTLED_S", -60.0)
    async with one_node(tmp_path, 0.02) as p:
        client = p.client()
        p.agent.refuse["checkpoints.prove"] = Unavailable("its session is just moved")
        session = await p.holder(name="a")
        await client.checkpoint(session, "one")
        await until(lambda: asked(p) == ["k0001"], "asked")
        await client.checkpoint(session, "weights", "device")
        await client.checkpoint(session, "two")
        await until(lambda: "k0003" in asked(p), "the newest")
        await until(lambda: counted(p)["proved"] == 1.0, "noted")
        assert (await of(client, session, "two"))["proved_at"]
        assert asked(p) == ["k0001", "k0003"], "device state alone comes back with nothing"
        p.agent.faults["k0004"] = WHY
        await client.suspend(session, "three")
        await until(lambda: counted(p)["failed"] == 1.0, "a session that is away")
        assert (await of(client, session, "three"))["unproved"] == WHY
        p.controller.proofs.start_due()
        assert asked(p) == ["k0001", "k0003", "k0004"], "what was put off rests"


async def test_one_that_is_deleted_meanwhile_has_not_failed(tmp_path: Path) -> None:
    async with one_node(tmp_path, 0.0) as p:
        client = p.client()
        session = await p.holder(name="a")
        for name in ("one", "two"):
            await client.checkpoint(session, name)
        p.agent.faults["k0001"] = WHY
        gate = p.agent.hold["checkpoints.prove"] = asyncio.Event()
        proving = asyncio.ensure_future(client.prove_checkpoint(session, "one"))
        await until(lambda: asked(p) == ["k0001"], "asked")
        await client.delete_checkpoint(session, "one")
        gate.set()
        with pytest.raises(Unavailable, match="was deleted while it was proved"):
            await proving
        assert counted(p) == {"proved": 0.0, "failed": 0.0, "put_off": 1.0}


async def test_never_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "LOOK_S", 0.01)
    monkeypatch.setattr(proofs, "SETTLED_S", -60.0)
    async with one_node(tmp_path, 0.0) as p:
        session = await p.holder(name="a")
        await p.client().checkpoint(session, "one")
        await p.client().checkpoint(session, "two")
        assert list(p.controller.proofs.due())
        assert asked(p) == []


async def test_nothing_is_due_of_a_session_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "SETTLED_S", -60.0)
    async with one_node(tmp_path, 0.0) as p:
        client = p.client()
        session = await p.holder(name="a")
        await client.checkpoint(session, "one")
        assert [one.name for _, one in p.controller.proofs.due()] == ["one"]
        p.agent.refuse["session.suspend"] = Unavailable("the disk is full")
        with pytest.raises(Unavailable):
            await client.suspend(session)
        assert [one.name for _, one in p.controller.proofs.due()] == ["one"]
        await client.suspend(session, "two")
        assert [one.name for _, one in p.controller.proofs.due()] == ["two", "one"]
