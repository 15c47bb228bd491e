"""The ledger on a real disk: what goes in comes out, all or nothing, and its troubles in words."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from singularity_proxy.errors import Unavailable
from singularity_scheduler.core import events as ev
from singularity_scheduler.core.model import CheckpointRef, Kind, SessionSpec, Tier
from singularity_scheduler.service import ledger as ledger_module
from singularity_scheduler.service.ledger import Command, Ledger
from singularity_scheduler.service.tables import metadata
from support.scheduler_core import World


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


async def written(ledger: Ledger, world: World, *events: Any) -> None:
    for event in events:
        await ledger.write(world.do(event))


@pytest.mark.asyncio
async def test_migrations_make_exactly_the_tables_we_use(tmp_path: Path) -> None:
    ledger = await Ledger.open(url(tmp_path))
    engine = ledger._engine
    assert engine is not None

    def differences() -> list[Any]:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection), metadata))

    try:
        assert await ledger._run(differences) == []
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_sessions_come_back_as_they_were(tmp_path: Path) -> None:
    ledger = await Ledger.open(url(tmp_path))
    world = World(4)

    spec = SessionSpec(Kind.INTERACTIVE, Tier.PREMIUM, 3, "näme")
    await written(
        ledger,
        world,
        ev.SessionCreated("a", "alice", spec, "server"),
        ev.Started("a"),
        ev.Activity("a", False, 12.5),
        ev.DeviceNeeded("a"),
        ev.Attached("a", 1),
        ev.CheckpointTaken("a", CheckpointRef("c", 3.5, 10**12, "device")),
        ev.SessionCreated("b", "bob", replace(spec, tier=Tier.BASIC, name="")),
        ev.Started("b"),
        ev.MigrateAsked("b", "bob", ("cpu:3", "cpu:1", "cpu:0")),
    )
    await ledger.close()
    ledger = await Ledger.open(url(tmp_path))
    try:
        found = {view.id: view for view in await ledger.active()}
        assert found == world.state.sessions
        assert found["b"].preferred == ("cpu:3", "cpu:1", "cpu:0")
        assert found["a"].devices == ("cpu:0", "cpu:1", "cpu:2")
        lines = await ledger.history("a", 3)
        assert [line.rule for _, line in lines] == [
            c.rule for c in world.history if c.session == "a"
        ][-3:]
        assert await ledger.sessions_of(["nobody"]) == []
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_the_database_itself_refuses_to_lease_a_device_twice(tmp_path: Path) -> None:
    ledger = await Ledger.open(url(tmp_path))
    try:
        world = World(1)

        spec = SessionSpec(Kind.BATCH, Tier.BASIC, 1, "")
        await written(ledger, world, ev.SessionCreated("a", "alice", spec), ev.DeviceNeeded("a"))
        thief = replace(world["a"], id="b")
        with pytest.raises(Unavailable, match="UNIQUE constraint failed"):
            await ledger.write(ev.Decision(sessions=(thief,)))
        assert [view.id for view in await ledger.active()] == ["a"]
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_a_locked_ledger_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "BUSY_TIMEOUT_S", 0.2)
    ledger = await Ledger.open(url(tmp_path))
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked by another program"):
            await ledger.active()
        other.execute("ROLLBACK")
        assert await ledger.active() == []
    finally:
        other.close()
        await ledger.close()


@pytest.mark.asyncio
async def test_a_ledger_that_is_no_database_or_is_closed(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("this is no database " * 100)
    with pytest.raises(Unavailable, match=r"cannot be used .file is not a database"):
        await Ledger.open(url(tmp_path))
    with pytest.raises(Unavailable, match="unable to open database file"):
        await Ledger.open("sqlite:////nowhere/ledger.sqlite")
    (tmp_path / "ledger.sqlite").unlink()
    ledger = await Ledger.open(url(tmp_path))
    await ledger.close()
    await ledger.close()


@pytest.mark.asyncio
async def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        ledger = await Ledger.open(url(tmp_path))
        await ledger.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "ledger.sqlite").stat().st_mode) == 0o600


@pytest.mark.asyncio
async def test_old_sessions_are_forgotten_live_ones_never(tmp_path: Path) -> None:
    ledger = await Ledger.open(url(tmp_path))
    try:
        world = World()

        spec = SessionSpec(Kind.BATCH, Tier.BASIC, 1, "")
        decision = world.do(ev.SessionCreated("old", "alice", spec))
        await ledger.write(decision, Command("alice", "k", "create", "old", world.now))
        await written(ledger, world, ev.ProcessExited("old", 0), ev.Ended("old", 0))
        await written(ledger, world, ev.SessionCreated("live", "alice", spec))
        assert (await ledger.command("alice", "k")) is not None
        assert await ledger.ended_among(["old", "live", "x"]) == {"old"}
        assert await ledger.trim(world.now + 1) == 1
        assert [sid for _, sid in await ledger.page(None, limit=9)] == ["live"]
        assert await ledger.history("old", 10) == []
        assert await ledger.command("alice", "k") is None
    finally:
        await ledger.close()
