"""What the dashboard reads from the ledger, in SQLite and in a real PostgreSQL server: the device
use of a day, and the event log with its filters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.service.dashboard.past import Past
from singularity_scheduler.service.dashboard.series import BUCKETS, WIDTH_S, beginning
from singularity_scheduler.service.ledger.ledger import Ledger
from singularity_scheduler.service.ledger.log_rows import BEGINNING, Filters, Line
from support.postgres import PostgresServer, needs_postgres
from support.scheduler_core import World

pytestmark = pytest.mark.asyncio

HOUR = 3600.0


class Recorded(World):
    """A world whose decisions are kept for a ledger."""

    def __init__(self, **settings: Any) -> None:
        self.decisions: list[ev.Decision] = []
        super().__init__(**settings)

    def do(self, event: ev.Event) -> ev.Decision:
        decision = super().do(event)
        self.decisions.append(decision)
        return decision

    async def into(self, ledger: Ledger) -> None:
        for decision in self.decisions:
            await ledger.write(decision)
        self.decisions.clear()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    else:
        url = request.getfixturevalue("server").url()
    opened = await Ledger.open(url)
    yield opened
    await opened.close()


async def test_a_day_is_what_sessions_had_and_waited_for(ledger: Ledger) -> None:
    world = Recorded(devices=2)
    world.now = 100 * 86400.0
    start = beginning(world.now + 25 * HOUR)
    world.now = start - 2 * HOUR  # what began before the day counts from its beginning
    world.holding("old", Tier.STANDARD)
    world.now = start + 3 * WIDTH_S + 600
    world.holding("new", Tier.BASIC)
    began = world.now
    world.now = start + 4 * WIDTH_S
    world.create("first", Tier.PREMIUM, devices=2)
    world.do(ev.Activity("first", True, world.now))
    world.need("first")
    waits = world.now
    world.answer()  # both give their devices up
    served = world.now
    world.need("old")
    world.need("new")
    world.now = start + 6 * WIDTH_S
    world.do(ev.EndAsked("first", "alice", "", 5.0))
    world.answer()
    ended = world.now
    await world.into(ledger)
    now = start + BUCKETS * WIDTH_S - 60
    day = await Past(ledger).day(now)
    assert [b.start for b in day.buckets] == [start + n * WIDTH_S for n in range(BUCKETS)]
    assert day.buckets[0].served("standard") == pytest.approx(1.0)
    assert day.buckets[0].served("basic") == 0.0
    assert day.buckets[3].served("basic") == pytest.approx((4 * WIDTH_S + start - began) / WIDTH_S)
    premium = day.of("premium")
    assert premium.served_s == pytest.approx(2 * (ended - served), abs=20)
    assert premium.waiting_s == pytest.approx(2 * (served - waits), abs=20)
    assert day.buckets[5].served("premium") == pytest.approx(2.0)
    assert day.buckets[5].waiting("standard") == pytest.approx(1.0)
    assert day.buckets[5].waiting("basic") == pytest.approx(1.0)
    standard = day.of("standard")
    assert standard.attained == pytest.approx(1 - 2 * WIDTH_S / (now - start), abs=0.01)
    assert day.of("standard").taken + day.of("basic").taken == 2
    assert day.most == pytest.approx(4.0)
    assert day.buckets[-1].seconds == WIDTH_S - 60


async def pages(ledger: Ledger, filters: Filters, whose: str | None, limit: int) -> list[Line]:
    """All pages, one after the other."""
    found: list[Line] = []
    after, past = BEGINNING, Past(ledger)
    while True:
        lines, following = await past.log(filters, whose, limit, after)
        assert len(lines) <= limit
        found += lines
        if following is None:
            return found
        assert len(lines) == limit
        after = following


async def test_the_log_is_all_that_happened_in_pages_of_any_size(ledger: Ledger) -> None:
    world = Recorded(devices=2)
    world.holding("mine", user="alice")
    world.do(adm.DutyAsked("root", "local", DutyEvent.CORDON, "100% of its fans_ fail"))
    world.do(adm.DutyAsked("root", "local", DutyEvent.UNCORDON))
    world.holding("theirs", user="bob")
    await world.into(ledger)
    everything = await pages(ledger, Filters(), None, 100)
    assert [line.at for line in everything] == sorted((x.at for x in everything), reverse=True)
    assert {line.user for line in everything} == {"alice", "bob", "root"}
    assert len(everything) == len(set(everything)) == len(world.history) + 2
    for limit in (1, 3, 7):
        assert await pages(ledger, Filters(), None, limit) == everything

    own = await pages(ledger, Filters(), "alice", 100)
    assert own == [line for line in everything if line.user == "alice"]
    assert await pages(ledger, Filters(user="bob"), "alice", 100) == []
    assert await pages(ledger, Filters(node="local"), "bob", 2) == [
        line for line in everything if line.user == "bob"
    ]
    by_rule = await pages(ledger, Filters(rule="device.attached"), None, 1)
    assert [line.session for line in by_rule] == ["theirs", "mine"]
    assert await pages(ledger, Filters(session="mine"), None, 100) == own
    [fans] = await pages(ledger, Filters(text="100% OF its fans_"), None, 100)
    assert (fans.word, fans.subject, fans.user) == ("cordon", "local", "root")
    assert await pages(ledger, Filters(text="100% of its fansx"), None, 100) == []


async def test_a_long_look_does_not_keep_decisions_waiting(ledger: Ledger) -> None:
    world, seen, go = Recorded(), threading.Event(), threading.Event()

    def slowly(connection: Any) -> bool:
        seen.set()
        return go.wait(30)

    looking = asyncio.ensure_future(ledger.look(slowly))
    await asyncio.to_thread(seen.wait, 30)
    world.holding("a")
    await asyncio.wait_for(world.into(ledger), 30)
    assert not looking.done()
    go.set()
    assert await looking is True
