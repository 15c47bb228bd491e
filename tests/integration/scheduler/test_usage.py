"""Accounting over a real ledger (SQLite and PostgreSQL), a real service and the command line."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.client.usage import FIGURES, OF_SESSION
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.service.ledger import accounts
from singularity_scheduler.service.ledger.accounts import Accounts
from singularity_scheduler.service.ledger.ledger import Ledger
from singularity_scheduler.service.ledger.usage_rows import Asked, Place
from support.cli_commands import Commands
from support.scheduler_core import World, outcome, used, whole
from support.scheduler_service import Platform, platform
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

pytestmark = pytest.mark.asyncio

Json = dict[str, Any]


class Story:
    """A world whose decisions are in a ledger too."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.world = World(2)
        self.accounts = Accounts(ledger)

    async def do(self, *events: Any) -> None:
        """These happen; after each of them the agent does what it is told."""
        for event in events:
            await self.ledger.write(self.world.do(event))
            while self.world.pending:
                action = self.world.pending.pop(0)
                await self.ledger.write(self.world.do(outcome(action)))

    async def session(self, sid: str, user: str, tier: Tier, **more: Any) -> None:
        """One that computes."""
        spec = SessionSpec(more.pop("kind", Kind.INTERACTIVE), tier, 1, name=sid, **more)
        await self.do(
            ev.SessionCreated(sid, user, spec),
            ev.Activity(sid, True, self.world.now),
            ev.DeviceNeeded(sid),
        )

    def asked(self, since: float = 0.0, until: float | None = None, **more: Any) -> Asked:
        now = self.world.now
        return Asked(since, now if until is None else until, more.pop("settled", now), **more)

    async def sums(self, by: str, **asked: Any) -> dict[Any, Json]:
        rows, following = await self.accounts.grouped(by, self.asked(**asked), 1000)
        assert following is None
        return {row[by]: row for row in rows}

    async def lines(self, limit: int = 1000, **asked: Any) -> list[Json]:
        found, after, fixed = [], Place(), self.asked(**asked)
        while True:
            rows, after = await self.accounts.sessions(fixed, limit, after)  # type: ignore[assignment]
            assert len(rows) <= limit
            found += rows
            if after is None:
                return found


@asynccontextmanager
async def story(place: str) -> AsyncIterator[Story]:
    """Ada's notebook and run of an experiment, bob's notebook in a virtual cluster; one has ended,
    one is suspended, one was preempted, one computes."""
    ledger = await Ledger.open(place)
    told = Story(ledger)
    world = told.world
    try:
        await told.do(adm.QuotaAsked("root", adm.VirtualCluster("vision", 2, True)))
        await told.session("a", "ada", Tier.BASIC)
        world.now += 100
        run = BatchRun("/n.ipynb", "/o.ipynb", metadata='{"experiment_name": "sweep"}')
        await told.session("b", "ada", Tier.STANDARD, kind=Kind.BATCH, run=run)
        world.now += 50
        await told.session("c", "bob", Tier.PREMIUM, virtual_cluster="vision")  # takes a's device
        world.now += 200
        await told.do(
            ev.CheckpointTaken("b", whole("k1", world.now, stored_bytes=70, sent_bytes=7))
        )
        await told.do(ev.SuspendAsked("c", "bob"))
        world.now += 300
        await told.do(ev.ProcessExited("b", 0))
        world.now += 25.5
        await told.do(ev.Tick("local"))
        yield told
    finally:
        await ledger.close()


def device_s(rows: Any) -> float:
    return float(sum(row["device_s"] for row in rows))


async def test_the_sums_are_the_leases_time_however_they_are_summed(place: str) -> None:
    async with story(place) as told:
        whole_ = used(told.world)
        assert whole_.device_s == told.world.leased_s > 500
        for by in ("user", "virtual_cluster", "experiment", "tier", "day"):
            rows = (await told.sums(by)).values()
            assert device_s(rows) == pytest.approx(told.world.leased_s, abs=0.01), by
            assert sum(row["sessions"] for row in rows) == 3
        lines = await told.lines()
        assert {line["session"] for line in lines} == {"a", "b", "c"}
        for name in FIGURES:
            expected = getattr(whole_, name)
            if name in ("checkpoints", "stored_bytes", "sent_bytes"):
                continue  # the world's histories have none of them
            assert sum(line[name] for line in lines) == pytest.approx(expected, abs=0.01), name


async def test_who_and_what_a_sum_is_of(place: str) -> None:
    async with story(place) as told:
        users = await told.sums("user")
        assert {name: row["sessions"] for name, row in users.items()} == {"ada": 2, "bob": 1}
        assert users["bob"]["suspended_s"] > 300
        assert users["bob"]["preemptions"] == 0
        assert users["ada"]["preemptions"] == 1
        assert users["ada"]["parked_s"] > 500
        experiments = await told.sums("experiment")
        assert set(experiments) == {None, "sweep"}
        run = experiments["sweep"]
        assert (run["checkpoints"], run["stored_bytes"], run["sent_bytes"]) == (1, 70, 7)
        assert set(await told.sums("virtual_cluster")) == {None, "vision"}
        assert set(await told.sums("tier")) == {"basic", "standard", "premium"}
        assert set(await told.sums("day")) == {"1970-01-01"}
        assert set(await told.sums("user", user="bob")) == {"bob"}
        [line] = await told.lines(user="bob")
        assert {name: line[name] for name in OF_SESSION} == {
            "session": "c",
            "user": "bob",
            "name": "c",
            "kind": "interactive",
            "tier": "premium",
            "virtual_cluster": "vision",
            "experiment": None,
            "virtual_devices": 1,
            "created_at": line["created_at"],
        }


async def test_part_of_the_time_counts_in_part(place: str) -> None:
    async with story(place) as told:
        cuts = [1000.0, 1105.0, 1160.0, 1190.5, 1400.0, 1660.0, told.world.now]
        for since, until in pairwise(cuts):
            expected = used(told.world, since, until)
            rows = await told.lines(since=since, until=until)
            assert device_s(rows) == pytest.approx(expected.device_s, abs=0.01)
            assert sum(r["preemptions"] for r in rows) == expected.preemptions
            assert len(rows) == expected.sessions
        assert await told.sums("user", since=0.0, until=1000.0) == {}


async def test_however_little_is_read_at_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with story(place) as told:
        expected, lines = await told.sums("user"), await told.lines()
        monkeypatch.setattr(accounts, "SESSIONS", 2)
        monkeypatch.setattr(accounts, "LINES", 3)
        assert await told.sums("user") == expected
        assert await told.lines() == lines
        assert await told.lines(limit=1) == lines
        first, following = await told.accounts.grouped("tier", told.asked(), 2)
        rest, end = await told.accounts.grouped("tier", told.asked(), 2, following)
        assert [row["tier"] for row in first + rest] == ["basic", "premium", "standard"]
        assert end is None


async def test_pages_miss_nobody_and_count_nobody_twice_when_sessions_end_meanwhile(
    place: str,
) -> None:
    async with story(place) as told:
        asked = told.asked()
        rows, after = await told.accounts.sessions(asked, 1, Place())
        assert after is not None
        assert rows[0]["session"] == "a"
        told.world.now += 1
        await told.do(ev.EndAsked("a", "ada"), ev.EndAsked("c", "bob"))
        while after is not None:
            more, after = await told.accounts.sessions(asked, 1, after)
            rows += more
        assert [row["session"] for row in rows] == ["a", "c", "b"]


async def test_what_was_stored_counts_when_it_is_deleted(place: str) -> None:
    async with story(place) as told:
        world = told.world
        await told.ledger.drop_old(world.now + 1)
        for sid, _, reference in await told.ledger.dropped():
            await told.ledger.forget_checkpoint(sid, reference.id)
        assert await told.ledger.dropped() == []
        assert (await told.sums("experiment"))["sweep"]["stored_bytes"] == 70
        world.now += 10
        assert await told.ledger.trim(world.now) == 1  # b, with everything of it
        assert set(await told.sums("experiment")) == {None}


# ---- the service -------------------------------------------------------------------------------


async def ask(p: Platform, path: str, who: str = "alice", **headers: str) -> HTTPResponse:
    return await AsyncHTTPClient().fetch(
        f"{p.url}api/v1/{path}",
        headers={"Authorization": f"token {who}-token", **headers},
        raise_error=False,
    )


async def test_people_see_their_own_and_admins_everybodys(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        mine = await p.holder(name="mine")
        await p.holder("bob", name="theirs")
        await p.client().end_session(mine)
        own = await p.client().usage()
        assert [row["user"] for row in own["usage"]] == ["alice"]
        assert own["usage"][0]["device_s"] > 0
        every = await p.client("admin").usage(by="session")
        assert {row["name"] for row in every["usage"]} == {"mine", "theirs"}
        assert [r["user"] for r in (await p.client("admin").usage(user="bob"))["usage"]] == ["bob"]
        assert (await p.client().usage(user="bob"))["usage"] == []
        assert (await p.client().usage(since="1990-01-01", until="1990-02-01"))["usage"] == []
        with pytest.raises(BadRequest, match="since must be a time"):
            await p.client().usage(since="soon")
        with pytest.raises(BadRequest, match="by must be one of user"):
            await p.client().usage(by="planet")


async def test_running_sessions_count_up_to_now(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.holder()
        view = await p.controller.find(session)
        for _ in range(2):
            [row] = (await p.client().usage(by="session"))["usage"]
            now = p.controller.now()
            began = view.held_since or 0.0
            assert 0 < row["device_s"] <= now - began + 1.0
            await asyncio.sleep(0.05)
        [later] = (await p.client().usage(by="session"))["usage"]
        assert later["device_s"] > row["device_s"]


async def test_pages_and_csv(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        made = [await p.kernel(name=f"n{n}") for n in range(5)]
        page = await ask(p, "usage?by=session&limit=2")
        until = json.loads(page.body)["until"]
        found, links = json.loads(page.body)["usage"], 0
        while link := page.headers.get("Link"):
            links += 1
            page = await ask(p, link[1:].split(">")[0].partition("api/v1/")[2])
            document = json.loads(page.body)
            assert document["until"] == until  # the same time on all pages
            found += document["usage"]
        assert sorted(row["session"] for row in found) == sorted(made)
        assert links == 2
        for query, accept in (("&format=csv", "*/*"), ("", "text/csv")):
            answer = await ask(p, f"usage?by=session{query}", Accept=accept)
            assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
            rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
            assert sorted(row["session"] for row in rows) == sorted(made)
            assert {row["sessions"] for row in rows} == {"1"}
        cursor = json.loads((await ask(p, "usage?by=session&limit=2")).body)["next"]
        other = await ask(p, f"usage?by=user&cursor={cursor}")
        assert other.code == 400
        assert "cursor is not one that this list gave" in json.loads(other.body)["detail"]


async def test_the_command_line(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.holder(name="train")
        cli = Commands(p.url, "alice-token")
        done = await cli("usage", "--by", "session")
        assert done.code == 0, done
        header, line = done.out.splitlines()
        assert header.startswith("SESSION")
        assert " alice  train" in line
        told = await cli("usage", "--by", "vc", "--since", "2h", "--json")
        assert json.loads(told.out)["by"] == "virtual_cluster"
        path = tmp_path / "usage.csv"
        written = await cli("usage", "--csv", str(path))
        assert (written.code, written.out) == (0, "")
        [row] = csv.DictReader(path.read_text().splitlines())
        assert (row["user"], row["sessions"]) == ("alice", "1")
        printed = await cli("usage", "--csv", "-")
        assert printed.out.splitlines()[0] == path.read_text().splitlines()[0]
        for words, said in (
            (("--by", "planet"), "--by is 'planet', but it must be one of user, virtual_cluster"),
            (("--since", "soon"), "--since is 'soon', but it must be like 90min"),
            (("--csv", "x", "--json"), "--csv and --json"),
        ):
            refused = await cli("usage", *words)
            assert refused.code == 64
            assert said in refused.err
        unwritable = await cli("usage", "--csv", str(tmp_path / "no" / "x.csv"))
        assert unwritable.code == 73
        empty = await cli("usage", "--since", "1990-01-01", "--until", "1990-02-01")
        assert "no session was there between 1990-01-01 00:00 and 1990-02-01" in empty.out
