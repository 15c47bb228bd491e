"""The ledger on a real disk, in SQLite and in a real PostgreSQL server: what goes in comes out, all
or nothing, and its troubles in words."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from singularity_proxy.errors import Unavailable
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.state.experience import Experience, Step, Wait
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.service.ledger import database
from singularity_scheduler.service.ledger.database import parse
from singularity_scheduler.service.ledger.ledger import Command, Ledger
from singularity_scheduler.service.ledger.tables import metadata
from sqlalchemy import create_engine, text
from support.scheduler_core import World, reads, whole
from support.scheduler_gangs import gang


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
async def test_a_ledger_of_the_version_before_keeps_its_checkpoints(place: str) -> None:
    engine = create_engine(parse(place))
    config = alembic.config.Config()
    folder = Path(database.__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0003")
        for number, ended in ((1, "false"), (2, "true")):
            connection.exec_driver_sql(
                'INSERT INTO sessions (id, "user", kind, name, tier, virtual_devices, node, '
                "process_state, device_state, reason, epoch, seq, queue_order, attach_order, "
                "saved, wants, asked, moving, preferred, ended, grace_s, checkpoint_id, "
                "checkpoint_at, checkpoint_bytes, checkpoint_level, created_at, updated_at) "
                f"VALUES ('s{number}', 'ada', 'interactive', '', 'basic', 1, 'local', 'live', "
                "'none', 'its process runs', 1, 2, 0, 0, true, false, false, false, '[]', "
                f"{ended}, 5.0, 'c{number}', 77.0, 1024, 'device', 1.0, 2.0)"
            )
    engine.dispose()
    ledger = await Ledger.open(place)
    try:
        [view] = await ledger.active()
        assert view.last_checkpoint == CheckpointRef("c1", 77.0, 1024, "device")
        assert (view.origin, view.incarnation, view.kernel_id) == ("local", 1, "")
        assert view.why == because("said", text="its process runs")
        assert reads(view) == "its process runs"
        [over] = await ledger.sessions_of(["s2"])
        assert over.checkpoints == ()  # it was deleted with its session
    finally:
        await ledger.close()

    def down() -> None:
        engine = create_engine(parse(place))
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            alembic.command.downgrade(config, "0003")
        engine.dispose()

    await asyncio.to_thread(down)


@pytest.mark.asyncio
async def test_the_version_before_reads_what_was_resized_and_limited(place: str) -> None:
    await (await Ledger.open(place)).close()
    engine = create_engine(parse(place))
    config = alembic.config.Config()
    folder = Path(database.__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    elastic = json.dumps({"devices": ["d0", "d1"], "resizing": ["d2", "d2"]})
    member = {"group": "g", "number": 1, "members": 1, "name": "study"}
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        connection.execute(
            text(
                'INSERT INTO sessions (id, "user", kind, name, tier, virtual_devices, node, '
                "process_state, device_state, reason, epoch, seq, queue_order, attach_order, "
                "saved, wants, asked, moving, preferred, ended, grace_s, created_at, updated_at, "
                "elastic, \"group\", member) VALUES ('s', 'ada', 'batch', '', 'basic', 2, 'local', "
                "'live', 'resizing', 'goes on', 1, 2, 0, 0, true, false, false, false, '[]', "
                "false, 5.0, 1.0, 2.0, :elastic, 'g', :member)"
            ),
            {"elastic": elastic, "member": json.dumps({**member, "timeout_s": 60})},
        )
        for number in range(3):
            connection.exec_driver_sql(
                "INSERT INTO leases (node, device, session, virtual_device, epoch) "
                f"VALUES ('local', 'd{number}', 's', {number}, 1)"
            )
        alembic.command.downgrade(config, "0015")
        kept = connection.exec_driver_sql("SELECT device_state, member FROM sessions").all()
        assert [(state, json.loads(said)) for state, said in kept] == [("held", member)]
        alembic.command.upgrade(config, "head")
    engine.dispose()
    ledger = await Ledger.open(place)
    try:
        [view] = await ledger.active()
        assert (view.device_state, view.devices, view.resizing) == (
            DeviceState.HELD,
            ("d0", "d1"),
            (),
        )
        assert view.member is not None
        assert view.member.timeout_s is None
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_checkpoints_and_reports_come_back_as_they_were(place: str) -> None:
    ledger = await Ledger.open(place)
    world = World(1)
    write = functools.partial(written, ledger, world)
    spec = SessionSpec(Kind.INTERACTIVE, Tier.BASIC, 1, "a", None, "kernel-1", 60.0, 500)
    loss = LossReport("process", ("its process",), ("1 socket",), True, 12, "k1", 9.0)
    try:
        await write(
            ev.SessionCreated("a", "ada", spec),
            ev.Started("a"),
            ev.CheckpointTaken("a", whole("k1", 5.0, "one", damaged="", reason="ö")),
            ev.CheckpointTaken("a", whole("k2", 6.0, "two")),
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


@pytest.mark.asyncio
async def test_the_version_before_reads_runs_on_several_nodes(place: str) -> None:
    """Their parts are runs of their own to it."""
    world = World(1, "a")
    world.join("b", 1)
    ledger = await Ledger.open(place)
    try:
        await ledger.write(world.do(gang("g")))
        for number, sid in enumerate(("g0", "g1")):
            reference = whole(f"c{number}", set_id="g-1-3")
            await ledger.write(world.do(ev.CheckpointTaken(sid, reference)))
        stored = {v.id: [c.set_id for c in v.checkpoints] for v in await ledger.active()}
        assert stored == {"g0": ["g-1-3"], "g1": ["g-1-3"]}
        assert {v.id: v.part for v in await ledger.active()} == {
            sid: world[sid].part for sid in ("g0", "g1")
        }
        assert (await ledger.compare()).sessions == ()
    finally:
        await ledger.close()
    config = alembic.config.Config()
    folder = Path(database.__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")

    def turn() -> None:
        engine = create_engine(parse(place))
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            alembic.command.downgrade(config, "0018")
            whose = connection.exec_driver_sql("SELECT session FROM checkpoints ORDER BY session")
            assert [row[0] for row in whose] == ["g0", "g1"]
            alembic.command.downgrade(config, "0017")
            kept = connection.exec_driver_sql("SELECT id, process_state FROM sessions ORDER BY id")
            assert [tuple(row) for row in kept] == [("g0", "starting"), ("g1", "starting")]
            alembic.command.upgrade(config, "head")
        engine.dispose()

    await asyncio.to_thread(turn)
    ledger = await Ledger.open(place)
    try:
        assert [view.part for view in await ledger.active()] == [None, None]
        found = {v.id: [c.set_id for c in v.checkpoints] for v in await ledger.active()}
        assert found == {"g0": [""], "g1": [""]}
    finally:
        await ledger.close()
