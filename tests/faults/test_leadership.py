"""Two services on one ledger, one of them stopped with SIGSTOP: they never both act.

The services are processes of their own; the node is simulated and keeps the whole contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service.ledger.database import Database, parse
from singularity_scheduler.service.ledger.tables import decisions
from sqlalchemy import select
from support.postgres import PostgresServer, needs_postgres
from support.processes import stop_process

from benchmarks.admissions import LAUNCH, Service
from benchmarks.simulated_nodes import SimulatedNode

LEASE_S = 2.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shared.sqlite'}"
        return
    server = PostgresServer()
    try:
        server.start()
        yield server.url()
    finally:
        server.remove()


class Pair:
    """Services "A" and "B" on one ledger, and the node that both reach."""

    def __init__(self, folder: Path, ledger_url: str) -> None:
        self.node = SimulatedNode(folder / "agent", folder, "one", 2, lambda name: None)
        self.services = {}
        for name in "AB":
            own = folder / name
            own.mkdir()
            settings = {
                "SchedulerApp.state_dir": str(own / "state"),
                "SchedulerApp.ledger_url": ledger_url,
                "Leader.name": name,
                "Leader.lease_s": LEASE_S,
                "LocalFleet.nodes": ["one"],
                "LocalFleet.state_dir": str(folder / "agent"),
            }
            self.services[name] = Service(own, settings)

    def client(self, name: str, who: str = "alice") -> ServiceClient:
        return ServiceClient(self.services[name].url, f"{who}-token", timeout=10.0)

    async def health(self, name: str) -> str:
        with contextlib.suppress(SingularityError):
            return str((await self.client(name)._json("GET", "healthz"))["status"])
        return ""

    async def refusal(self, name: str) -> str:
        """What it says to somebody who wants something."""
        with pytest.raises(Unavailable) as caught:
            await self.client(name).sessions()
        return caught.value.message


@contextlib.asynccontextmanager
async def pair(ledger_url: str) -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="lp-", dir="/tmp") as folder:
        made = Pair(Path(folder), ledger_url)
        try:
            await made.node.start()
            yield made
        finally:
            for service in made.services.values():
                with contextlib.suppress(AssertionError, ProcessLookupError):
                    os.kill(service.pid, signal.SIGCONT)
                service.stop()
            await made.node.stop()


async def until(look: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    for _ in range(int(seconds * 20)):
        if look():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {what}")


def record(url: str) -> list[int]:
    """The leaders of all decisions, in order."""
    database = Database(parse(url))
    database.open()
    try:
        with database.reading() as connection:
            query = select(decisions.c.leader).order_by(decisions.c.n)
            return [int(leader) for (leader,) in connection.execute(query)]
    finally:
        database.close()


async def stop_between_writes(pid: int, url: str) -> None:
    """Stop a service while it does not write: nobody else could write to an SQLite file that a
    stopped process holds locked, whoever leads."""
    while True:
        stop_process(pid)
        if not url.startswith("sqlite"):
            return
        with contextlib.closing(sqlite3.connect(url.partition(":///")[2], timeout=0)) as ledger:
            try:
                ledger.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.asyncio
async def test_a_leader_that_stood_still_does_nothing_any_more(ledger_url: str) -> None:
    async with pair(ledger_url) as p:
        a, b = p.services["A"], p.services["B"]
        a.launch()
        await a.ready(1)
        b.launch()
        await until(lambda: "A leads, and this one stands by" in b.log(), "B stands by")
        assert "the scheduler service A leads" in await p.refusal("B")
        client = p.client("A")
        made: dict[str, Any] = await client.create_session(
            kind="interactive", launch=LAUNCH, name="one"
        )
        p.node.need(made["id"])
        await until(lambda: bool(p.node.sessions[made["id"]]["devices"]), "it has its device")

        await stop_between_writes(a.pid, ledger_url)
        await b.ready(1)
        kept = await p.client("B").get_session(made["id"])
        assert (kept["id"], kept["devices"]) == (made["id"], ["cpu:0"])
        before = len(p.node.obeyed)
        await p.client("B").create_session(kind="interactive", launch=LAUNCH, name="two")

        # It has work to do as soon as it wakes up: its renewals are overdue, and somebody asks.
        asked = asyncio.ensure_future(client.create_session(kind="interactive", launch=LAUNCH))
        await asyncio.sleep(0.2)
        os.kill(a.pid, signal.SIGCONT)
        await until(lambda: "leads no more and stands by" in a.log(), "A steps down")
        with pytest.raises(Unavailable):
            await asked
        await until(lambda: "B leads, and this one stands by" in a.log(), "A stands by")
        assert "the scheduler service B leads" in await p.refusal("A")
        assert a.log().count("leads no more") == 1
        # Nothing of A was written or obeyed after B had taken over.
        leaders = await asyncio.to_thread(record, ledger_url)
        assert set(leaders) == {1, 2}
        assert leaders == sorted(leaders)
        assert {epoch for epoch, _ in p.node.obeyed[before:]} == {2}
        assert len(p.node.sessions) == 2

        # One that is stopped in order gives way at once.
        os.kill(b.pid, signal.SIGTERM)
        await a.ready(1)
        assert len(await p.client("A").sessions()) == 2
        assert {epoch for epoch, _ in p.node.obeyed} == {1, 2, 3}
