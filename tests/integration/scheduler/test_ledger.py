"""The ledger on a real disk, in SQLite and in a real PostgreSQL server: what goes in comes out, all
or nothing, and its troubles in words."""

from __future__ import annotations

import functools
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
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.state.experience import Experience, Step, Wait
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.service.ledger import database
from singularity_scheduler.service.ledger.database import parse
from singularity_scheduler.service.ledger.ledger import Command, Ledger
from singularity_scheduler.service.ledger.tables import metadata
from sqlalchemy import create_engine, inspect, text
from support.scheduler_core import World, whole


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


async def written(ledger: Ledger, world: World, *events: Any) -> None:
    for event in events:
        await ledger.write(world.do(event))


@pytest.mark.asyncio
async def test_migrations_make_exactly_the_tables_we_use(place: str) -> None:
    ledger = await Ledger.open(place)
    engine = ledger._database.engine
    assert engine is not None

    def differences() -> list[Any]:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection), metadata))

    try:
        assert await ledger._run(differences) == []
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_a_ledger_of_the_first_version_is_taken_over(place: str) -> None:
    await (await Ledger.open(place)).close()
    engine = create_engine(parse(place))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0023'"))
        for column in ("proof_at", "proof_fault", "cause"):
            connection.execute(text(f"ALTER TABLE checkpoints DROP COLUMN {column}"))
    ledger = await Ledger.open(place)
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    finally:
        await ledger.close()
        engine.dispose()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("version", "whose"),
    [("0022", "an unreleased version from before"), ("0026", "a newer version")],
)
async def test_a_ledger_of_another_version_is_refused_and_stays_as_it_is(
    place: str, version: str, whose: str
) -> None:
    await (await Ledger.open(place)).close()
    engine = create_engine(parse(place))

    def everything() -> list[Any]:
        tables = inspect(engine)
        return [
            (name, [column["name"] for column in tables.get_columns(name)])
            for name in sorted(tables.get_table_names())
        ]

    try:
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
            connection.execute(text("ALTER TABLE sessions ADD COLUMN other INTEGER"))
        before = everything()
        with pytest.raises(Unavailable) as caught:
            await Ledger.open(place)
        said = caught.value.message
        assert f"was written by {whose}" in said
        assert f"its tables are of version {version}, this one reads 0023 to 0025" in said
        assert "nothing was changed" in said
        assert everything() == before
    finally:
        engine.dispose()


@pytest.mark.asyncio
async def test_checkpoints_and_reports_come_back_as_they_were(place: str) -> None:
    ledger = await Ledger.open(place)
    world = World(1)
    write = functools.partial(written, ledger, world)
    spec = SessionSpec(
        Kind.INTERACTIVE, Tier.BASIC, 1, "a", kernel_id="kernel-1", every_s=60.0, every_steps=500
    )
    loss = LossReport("process", ("its process",), ("1 socket",), True, 12, "k1", 9.0)
    try:
        await write(
            ev.SessionCreated("a", "ada", spec),
            ev.Started("a"),
            ev.CheckpointTaken("a", whole("k1", 5.0, "one", damaged="", reason="ö")),
            ev.CheckpointTaken("a", whole("k2", 6.0, "two")),
            ev.CheckpointProved("a", "k1", ""),
            ev.CheckpointProved("a", "k2", "it is gone"),
            ev.CheckpointProved("a", "k0", "there is none of that name"),
            ev.DropAsked("a", "ada", "two"),
            ev.RestoreAsked("a", "ada", "k1"),
        )
        suspend = world.pending[-1]
        await write(ev.Suspended("a", suspend.epoch, suspend.seq, whole("k3", 7.0)))
        resume = world.pending[-1]
        await write(ev.Resumed("a", resume.epoch, resume.seq, loss))
        await ledger.close()
        ledger = await Ledger.open(place)
        [view] = await ledger.active()
        assert view == world["a"]
        assert [c.id for c in view.checkpoints] == ["k1", "k2", "k3"]
        assert [c.proof_fault for c in view.checkpoints] == ["", "it is gone", ""]
        assert [c.cause for c in view.checkpoints] == ["", "", "restore"]
        assert [c.proved_at is None for c in view.checkpoints] == [False, True, True]
        assert view.loss is not None
        assert (view.loss.lost, view.kernel_id, view.every_steps) == (
            ("1 socket",),
            "kernel-1",
            500,
        )
        assert [(s, u, c.id) for s, u, c in await ledger.dropped()] == [("a", "ada", "k2")]
        write = functools.partial(written, ledger, world)
        await write(ev.CheckpointGone("a", "k2"), ev.EndAsked("a", "ada"), ev.Ended("a"))
        # What is still in the store is not forgotten with its session.
        assert await ledger.trim(world.now + 1) == 0
        assert await ledger.drop_ended(world.now) == 0, "its end can still be taken back"
        assert await ledger.dropped() == []
        assert await ledger.drop_ended(world.now + world.state.retention.undo_end_s) == 1
        assert [c.id for _, _, c in await ledger.dropped()] == ["k3"]
        await ledger.forget_checkpoint("a", "k3")
        assert await ledger.trim(world.now + 1) == 0
        assert await ledger.drop_old(6.0) == 1
        await ledger.forget_checkpoint("a", "k1")
        assert await ledger.trim(world.now + 1) == 1
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_sessions_come_back_as_they_were(place: str) -> None:
    ledger = await Ledger.open(place)
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
    ledger = await Ledger.open(place)
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
async def test_what_waits_took_is_found_in_it_again(place: str) -> None:
    ledger = await Ledger.open(place)
    try:
        world = World(1)
        spec = SessionSpec(Kind.INTERACTIVE, Tier.BASIC, 1)
        for sid in ("s1", "s2"):
            await written(ledger, world, ev.SessionCreated(sid, "alice", spec), ev.Started(sid))
        await written(ledger, world, ev.DeviceNeeded("s1"), ev.Attached("s1", 1))
        await written(ledger, world, ev.DeviceNeeded("s2"), ev.ParkAsked("s1", "alice"))
        await written(ledger, world, ev.Parked("s1", 1), ev.Attached("s2", 1))
        live, again = world.state.experience, Experience()
        again.replay(await ledger.experience(1000))
        assert again.waits(Wait.DEVICES, "basic", 1) == live.waits(Wait.DEVICES, "basic", 1) != ()
        assert again.steps(Step.PARK, "local") == live.steps(Step.PARK, "local") == (1.0,)
        assert again.taken == live.taken
        assert set(again.taken) == {"s1"}
        assert again.taken["s1"].why == because("parked_by", by="alice")
        newest = await ledger.experience(2)
        assert [(c.session, c.rule) for c, _ in newest] == [
            ("s2", "queue.grant"),
            ("s2", "device.attached"),
        ]
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_the_database_itself_refuses_to_lease_a_device_twice(place: str) -> None:
    ledger = await Ledger.open(place)
    try:
        world = World(1)

        spec = SessionSpec(Kind.BATCH, Tier.BASIC, 1, "")
        await written(ledger, world, ev.SessionCreated("a", "alice", spec), ev.DeviceNeeded("a"))
        thief = replace(world["a"], id="b")
        with pytest.raises(Unavailable, match=r"(?i)unique constraint"):
            await ledger.write(ev.Decision(sessions=(thief,)))
        assert [view.id for view in await ledger.active()] == ["a"]
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_a_locked_ledger_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    ledger = await Ledger.open(url(tmp_path))
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert await ledger.active() == []
        with pytest.raises(Unavailable, match="locked by another program"):
            await ledger.trim(0.0)
        other.execute("ROLLBACK")
        assert await ledger.trim(0.0) == 0
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
async def test_old_sessions_are_forgotten_live_ones_never(place: str) -> None:
    ledger = await Ledger.open(place)
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
