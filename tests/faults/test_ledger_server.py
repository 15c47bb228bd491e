"""A real PostgreSQL server that is killed, is away or does not let us in: what was acknowledged is
there, the rest never was, and every trouble is one sentence without a password."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, SingularityError, Unavailable
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.service.ledger.database import InDoubt
from singularity_scheduler.service.ledger.ledger import Ledger, Write
from support.postgres import PASSWORD, PostgresServer, needs_postgres
from support.scheduler_core import World
from support.scheduler_service import platform, until

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    try:
        made.start()
        made.sql(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
        made.sql(f"ALTER ROLE scheduler PASSWORD '{PASSWORD}'")
        yield made
    finally:
        made.remove()


async def refused(url: str) -> str:
    with pytest.raises(SingularityError) as caught:
        await Ledger.open(url)
    told = f"{caught.value.message} {caught.value.fields}"
    assert PASSWORD not in told
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.asyncio
async def test_each_trouble_of_an_address_is_one_sentence(server: PostgresServer) -> None:
    name = server.database()
    wrong = server.tcp_url(name, password=PASSWORD + "!")
    assert "does not let the scheduler in" in await refused(wrong)
    assert "does not let the scheduler in" in await refused(server.tcp_url(name, "nobody"))
    assert "there is no database" in await refused(server.tcp_url("nowhere"))
    away = server.tcp_url(name).replace(f":{server.port}", ":1")
    assert "does not answer" in await refused(away)
    with pytest.raises(BadRequest, match="must begin with sqlite:/// or postgresql://"):
        await Ledger.open("mysql://somebody:geheim@somewhere/x")
    with pytest.raises(BadRequest, match="is no database URL"):
        await Ledger.open("scheduler.db")
    ledger = await Ledger.open(server.tcp_url(name))
    assert ledger.place == f"PostgreSQL {name} at 127.0.0.1:{server.port}"
    await ledger.close()
    server.sql("UPDATE alembic_version SET version_num = '9999'", name)
    assert "was written by a newer version (its tables are of version 9999" in await refused(
        server.url(name)
    )


@pytest.mark.asyncio
async def test_a_database_that_may_only_be_read(server: PostgresServer) -> None:
    name = server.database()
    assert "does not let the scheduler in" in await refused(server.tcp_url(name, "reader"))
    server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert "can only be read" in await refused(server.url(name))


@pytest.mark.asyncio
async def test_a_missing_driver_is_named(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'jupyter-singularity[postgres]'" in await refused(server.url("postgres"))


@pytest.mark.asyncio
async def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(
    server: PostgresServer,
) -> None:
    url, world, done, told = server.url(), World(8), 0, set()
    spec = SessionSpec(Kind.BATCH, Tier.BASIC, 1, "n")
    ledger = await Ledger.open(url)
    await ledger.lead("me", "me", 60.0)

    async def killer() -> None:
        for _ in range(3):
            before = done
            while done < before + 20:
                await asyncio.sleep(0.002)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    async def durable(writes: list[Write]) -> None:
        """Write them, whatever comes in between; as the committer does."""
        while True:
            try:
                await ledger.write_all(writes)
                return
            except InDoubt:
                while True:
                    with contextlib.suppress(Unavailable):
                        if await ledger.happened(writes):
                            return
                        break
                    await asyncio.sleep(0.02)
            except Unavailable:
                await asyncio.sleep(0.02)

    killing = asyncio.create_task(killer())
    while not killing.done():
        created = world.do(ev.SessionCreated(f"s{done}", "ada", spec))
        ended = world.do(ev.EndAsked(f"s{done - 5}", "ada")) if done >= 5 else None
        await durable([Write(created), *([Write(ended)] if ended else [])])
        told.add(f"s{done}")
        done += 1
    await killing
    await ledger.close()
    ledger = await Ledger.open(url)
    try:
        assert {view.id: view for view in await ledger.active()} == world.state.sessions
        assert told <= {sid for _, sid in await ledger.page(None, limit=10_000)}
        assert (await ledger.compare()).sessions == ()
        lines = server.sql("SELECT n FROM decisions ORDER BY n", url.split("/")[3].split("?")[0])
        assert [n for (n,) in lines] == list(range(1, len(lines) + 1))
    finally:
        await ledger.close()


@pytest.mark.asyncio
async def test_a_service_goes_on_after_its_database_was_away(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with platform(tmp_path, ledger_url=server.url()) as p:
        a = await p.holder(name="a")
        await asyncio.to_thread(server.kill)
        with pytest.raises(Unavailable) as caught:
            await p.kernel(name="b")
        assert "ledger" in caught.value.message
        started = [c for c in p.agent.carried_out if c[0] == "session.start"]
        assert started == [("session.start", a)]
        p.agent.exit(a, 3)  # what nodes say waits
        await until(lambda: bool(p.controller.ledger_trouble), "trouble is told")
        assert (await p.client().get_session(a))["state"] == "running"
        await asyncio.to_thread(server.start)
        await p.state(a, "failed")
        b = await p.kernel(name="b")
        await p.stop()
        await p.start()
        await p.ready()
        assert set(p.controller.state.sessions) == {b}
        assert (await p.controller.ledger.compare()).sessions == ()
