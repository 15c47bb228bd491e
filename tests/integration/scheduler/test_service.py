"""The service over HTTP: sessions from start to end, devices coming and going, what people read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NoSpace,
    NotFound,
    Unavailable,
    Unreached,
)
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service import app as app_module
from support.kernel_platform import Hub
from support.scheduler_agent import PaperFleet
from support.scheduler_service import LAUNCH, PREFIX, Platform, platform, until
from tornado.httpclient import AsyncHTTPClient
from tornado.testing import bind_unused_port


@pytest.mark.asyncio
async def test_a_session_from_start_to_end(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client("server")
        created = await client.create_session(
            kind="interactive", tier="premium", devices=2, name="train", launch=LAUNCH
        )
        assert created["launch"] == {"pid": 4711, "connection": LAUNCH["connection"], "env": {}}
        assert (created["state"], created["tier"], created["user"]) == ("ready", "premium", "alice")
        assert created["owner"] == {"server": "big"}
        session = created["id"]
        p.agent.busy(session, True)
        p.agent.need(session)
        await p.state(session, "running")
        now = await client.get_session(session)
        assert now["devices"] == ["cpu:0", "cpu:1"]
        assert now["reason"] == "holds cpu:0 and cpu:1"
        assert now["busy"] is True
        cluster = await client.cluster()
        assert [d["session"] for d in cluster["devices"]] == [session, session]
        await client.signal(session, 2)
        ended = await client.end_session(session, reason="done")
        assert (ended["state"], ended["devices"]) == ("completed", [])
        assert ended["reason"].startswith("closed by alice: done; ")
        again = await client.end_session(session)
        assert again["reason"] == ended["reason"]
        with pytest.raises(Conflict, match="has ended"):
            await client.signal(session, 2)
        with pytest.raises(Conflict, match="has ended"):
            await client.park(session)
        history = [line["state"] for line in await client.history(session)]
        assert history == [
            "starting",
            "ready",
            "waiting",
            "attaching",
            "running",
            "completed",
            "completed",
        ]
        assert await client.sessions("active") == []
        assert [s["id"] for s in await client.sessions()] == [session]


@pytest.mark.asyncio
async def test_no_secret_is_in_the_ledger(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.holder(name="a")
    everything = b"".join(f.read_bytes() for f in (tmp_path / "state").iterdir())
    assert b"alice" in everything
    for secret in (b"in-the-environment", b"connection-secret", b"-token"):
        assert secret not in everything


@pytest.mark.asyncio
async def test_preemption_tells_both_sides(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        idle = await p.holder("alice", name="note")
        basic = await p.holder("bob", name="exp", tier="basic")
        p.agent.busy(idle, False)
        await until(lambda: p.controller.state.sessions[idle].idle, "idle")
        first = await p.holder("bob", name="train", tier="premium")
        second = await p.holder("bob", name="train2", tier="premium")
        assert (await p.client().get_session(idle))["reason"] == (
            "paused for bob/train: premium needs 1 device and this notebook was idle; nothing is "
            "lost; it comes back with the next device call"
        )
        assert "premium goes before basic" in (await p.client("bob").get_session(basic))["reason"]
        p.agent.need(basic)
        await p.state(basic, "waiting")
        shown = await p.client("bob").get_session(basic)
        assert shown["queue"] == {"place": 1, "ahead": 0}
        why = await p.client("bob").why(basic)
        assert "in use: cpu:0 by bob/train (premium, busy), cpu:1 by bob/train2" in why["sentence"]
        seen = await p.agent.command(idle, "status")
        assert seen["others_waiting"] == [
            {"user": "bob", "name": "exp", "tier": "basic", "devices": 1}
        ]
        p.agent.exit(first, 0)
        await p.state(basic, "running")
        await p.client("bob").end_session(second)


@pytest.mark.asyncio
async def test_a_verb_of_the_line_after_a_device_call_waits_for_the_answer_of_the_attach(
    tmp_path: Path,
) -> None:
    """The code goes on when its device serves, a moment before the service is told."""
    async with platform(tmp_path) as p:
        session = await p.kernel(name="a")
        p.agent.busy(session, True)
        gate = p.agent.hold["device.attach"] = asyncio.Event()
        p.agent.need(session)
        await p.state(session, "attaching")
        stored = asyncio.ensure_future(p.agent.command(session, "checkpoint", name="best"))
        await asyncio.sleep(0.1)
        assert not stored.done()
        gate.set()
        assert (await stored)["last_checkpoint"]["name"] == "best"


@pytest.mark.asyncio
async def test_verbs_by_rest_and_by_magic(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        session = await p.holder(name="a")
        moved = await client.migrate(session, 1)
        assert (moved["state"], moved["devices"], moved["epoch"]) == ("running", ["cpu:1"], 2)
        parked = await client.park(session)
        assert (parked["state"], parked["reason"]) == (
            "parked",
            "parked by alice: nothing is lost; it comes back with the next device call",
        )
        with pytest.raises(Conflict, match="is parked already"):
            await client.park(session)
        assert (await p.agent.command(session, "resume"))["state"] == "running"
        stored = await p.agent.command(session, "checkpoint", name="best")
        assert stored["last_checkpoint"] == {
            "id": "c-best",
            "at": "2026-01-02T03:04:05.000+00:00",
            "bytes": 77,
            "level": "device",
            "name": "best",
            "stored_bytes": 0,
            "sent_bytes": 0,
            "incarnation": 1,
            "reason": "",
            "damaged": None,
            "restorable": False,
            "proved_at": None,
            "unproved": None,
            "cause": "",
        }
        assert (await p.agent.command(session, "why"))["sentence"].startswith("alice/a is running")
        lines = await p.agent.command(session, "history", limit=2)
        assert [line["rule"] for line in lines] == ["queue.grant", "device.attached"]
        with pytest.raises(BadRequest, match="no device 'cpu:9' here: pick from cpu:0, cpu:1"):
            await client.migrate(session, "cpu:9")
        with pytest.raises(NotFound, match="no command 'explode'"):
            await p.agent.command(session, "explode")
        with pytest.raises(NotFound):
            await p.agent.command("0" * 12, "status")


@pytest.mark.asyncio
async def test_a_failed_park_is_told_and_loses_nothing(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.holder(name="a")
        p.agent.refuse["device.park"] = NoSpace("no space left on /dev/shm")
        with pytest.raises(NoSpace, match="no space left on /dev/shm"):
            await p.client().park(session)
        shown = await p.client().get_session(session)
        assert (shown["state"], shown["devices"]) == ("running", ["cpu:0"])
        assert (await p.client().park(session))["state"] == "parked"


@pytest.mark.asyncio
async def test_a_failed_start_is_told_and_stays_in_the_history(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        p.agent.refuse["session.start"] = BadRequest("there is no program 'pyhton'")
        with pytest.raises(BadRequest, match="no program 'pyhton'"):
            await p.kernel()
        await until(lambda: not p.controller.state.sessions, "removed")
        (shown,) = await p.client().sessions("failed")
        assert shown["reason"] == "could not be started: there is no program 'pyhton'"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"tier": "gold"}, "unknown tier 'gold': pick premium, standard or basic"),
        ({"devices": 0}, "0 devices asked, but a session needs at least 1: ask for 1 to 2"),
        ({"devices": 10**6}, "1000000 devices asked, but this cluster has at most 2 for one"),
    ],
)
@pytest.mark.asyncio
async def test_bad_requests_change_nothing(tmp_path: Path, spec: dict, sentence: str) -> None:
    async with platform(tmp_path) as p:
        with pytest.raises(BadRequest, match=sentence) as caught:
            await p.kernel(**spec)
        assert caught.value.fields
        assert await p.client("admin").sessions() == []


@pytest.mark.asyncio
async def test_the_same_key_starts_one_session_and_acts_once(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = p.client()
        args = {"kind": "interactive", "launch": LAUNCH, "key": "k1"}
        first = await client.create_session(**args)
        await p.stop()
        await p.start()
        await p.ready()
        second = await client.create_session(**args)
        assert (second["id"], second["launch"]) == (first["id"], first["launch"])
        starts = [c for c in p.agent.carried_out if c[0] == "session.start"]
        assert len(starts) == 1
        other = await p.client("bob").create_session(**args)
        assert other["id"] != first["id"]
        await client.end_session(first["id"])
        with pytest.raises(Conflict, match="that this key started has ended"):
            await client.create_session(**args)


@pytest.mark.asyncio
async def test_restart_keeps_everything_and_repeats_what_was_under_way(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder("alice", name="a", tier="premium")
        b = await p.holder("bob", name="b", tier="premium")
        c = await p.kernel("alice", name="c", tier="basic")
        p.agent.need(c)
        await p.state(c, "waiting")
        p.agent.hold["device.park"] = asyncio.Event()
        asking = asyncio.ensure_future(p.client().park(a))
        await p.state(a, "parking")
        await p.stop()
        assert (await asking)["state"] == "parking"
        p.agent.hold.pop("device.park").set()
        await p.start()
        await p.state(a, "parked")
        await p.state(c, "running")
        shown = {s["id"]: s for s in await p.client("admin").sessions()}
        assert (shown[b]["state"], shown[b]["devices"]) == ("running", ["cpu:1"])
        assert shown[c]["devices"] == ["cpu:0"]
        assert len([x for x in p.agent.carried_out if x == ("device.park", a)]) == 1


@pytest.mark.asyncio
async def test_sessions_a_new_agent_does_not_know_fail_with_the_reason(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder(name="a")
        await p.agent.stop()
        p.agent.sessions.clear()
        await p.agent.start()
        await p.state(a, "failed")
        assert (
            "its variables are lost; start it again" in (await p.client().get_session(a))["reason"]
        )
        assert [d["session"] for d in (await p.client().cluster())["devices"]] == [None, None]


@pytest.mark.asyncio
async def test_an_agent_that_was_away_is_taken_over_as_it_is(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder(name="a")
        await p.agent.stop()
        await until(lambda: not p.controller.state.nodes["local"].connected, "away")
        with pytest.raises(Unavailable, match="nothing can be started now"):
            await p.kernel()
        await p.agent.start()
        await p.ready()
        assert (await p.client().get_session(a))["state"] == "running"
        await p.holder("bob", name="b")


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ended"])
@pytest.mark.asyncio
async def test_whether_a_signal_was_sent_is_not_known_when_the_agent_is_lost(
    ends: bool, tmp_path: Path
) -> None:
    async with platform(tmp_path) as p:
        a = await p.kernel(name="a")
        p.agent.hold["session.signal"] = asyncio.Event()
        asked = asyncio.ensure_future(p.client().signal(a, 15))
        await until(lambda: "session.signal" in dict(p.agent.calls), "asked")
        await p.agent.stop()
        if ends:
            p.agent.sessions[a] |= {"alive": False, "exit_code": 3}
        await p.agent.start()
        with pytest.raises(Unreached, match="whether signal 15 was sent is not known") as told:
            await asked
        p.agent.hold.pop("session.signal").set()
        now = "failed" if ends else "ready"
        assert f"alice/a is {now} now (" in told.value.message
        assert told.value.fields["state"] == now


@pytest.mark.asyncio
async def test_lease_is_renewed_while_the_agent_answers_and_reaped_when_not(
    tmp_path: Path,
) -> None:
    quick = {"lease_ttl_s": 1.2, "lease_margin_s": 0.3}
    async with platform(tmp_path, controller=quick) as p:
        a = await p.holder(name="a")
        renewals = lambda: [c for c in p.agent.calls if c[0] == "renew" and c[1]["leases"]]  # noqa: E731
        await until(lambda: len(renewals()) >= 12, "twelve renewals, so two TTLs")
        last = renewals()[-1][1]
        assert (last["leases"], last["ttl_s"]) == ([{"session": a, "epoch": 1}], 1.2)
        assert last["terms"]["here"] == {a: 0}
        assert (await p.client().get_session(a))["state"] == "running"
        await p.agent.stop()
        await p.state(a, "parked")
        shown = await p.client().get_session(a)
        assert shown["reason"].startswith("parked because node local did not answer for 1.5 s")
        # The agent comes back and still holds the device: it is taken back before anybody gets it.
        await p.agent.start()
        await until(lambda: not p.agent.sessions[a]["devices"], "given back")
        b = await p.holder("bob", name="b")
        assert (await p.client("bob").get_session(b))["devices"] == ["cpu:0"]


@pytest.mark.asyncio
async def test_a_lease_the_agent_does_not_hold_any_more_is_parked(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"lease_ttl_s": 1.2}) as p:
        a = await p.holder(name="a")
        p.agent.holds_leases = False
        await p.state(a, "parked")
        assert "lease was not renewed in time" in (await p.client().get_session(a))["reason"]


async def _limit_ledger(p: Platform, pages: int | None) -> None:
    """Let the ledger's file have this many pages; None: as many as it has now."""
    engine = p.controller.ledger._database.engine
    assert engine is not None

    def limit() -> None:
        with engine.connect() as connection:
            now = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages or now}")

    await p.controller.ledger._run(limit)


async def _start_many(p: Platform) -> None:
    for _ in range(200):
        await p.kernel(name="x" * 200)


async def _drain(stream: AsyncIterator[dict[str, Any]]) -> None:
    async for _ in stream:
        pass


@pytest.mark.asyncio
async def test_full_disk_is_one_sentence_and_nothing_is_lost(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.holder(name="a")
        before = await p.client().get_session(a)
        await _limit_ledger(p, None)
        sentence = "the scheduler's ledger cannot be written .database or disk is full.; nothing"
        # Small changes still fit into the file's last page: go on until one does not.
        with pytest.raises(NoSpace, match=sentence) as caught:
            await _start_many(p)
        assert caught.value.fields["ledger"].endswith("ledger.sqlite")
        started = len([c for c in p.agent.carried_out if c[0] == "session.start"])
        assert len(p.controller.state.sessions) == started
        assert (await p.client().get_session(a))["devices"] == before["devices"]
        # What the agent reports meanwhile waits, and is taken in when there is space again.
        p.agent.exit(a, None, reason="long " * 2000)
        await until(lambda: bool(p.controller.ledger_trouble), "trouble is told")

        await _limit_ledger(p, 1_000_000)
        await p.state(a, "failed")
        await until(lambda: not p.controller.ledger_trouble, "trouble is over")
        await p.stop()
        await p.start()
        await p.ready()
        assert len(p.controller.state.sessions) == started - 1


@pytest.mark.asyncio
async def test_leases_are_kept_while_the_disk_is_full(tmp_path: Path) -> None:
    quick = {"lease_ttl_s": 1.2, "lease_margin_s": 0.3}
    async with platform(tmp_path, controller=quick) as p:
        a = await p.holder(name="a")
        b = await p.kernel("bob", name="b", devices=2)
        await _limit_ledger(p, None)
        with pytest.raises(NoSpace):
            await _start_many(p)
        p.agent.exit(b, 1)  # cannot be written, so it waits
        before = len([c for c in p.agent.calls if c[0] == "renew"])
        await until(
            lambda: len([c for c in p.agent.calls if c[0] == "renew"]) >= before + 12, "two TTLs"
        )
        assert (await p.client().get_session(a))["state"] == "running"
        assert p.agent.sessions[a]["devices"] == ["cpu:0"]
        await _limit_ledger(p, 1_000_000)
        await p.state(b, "failed")


@pytest.mark.asyncio
async def test_requests_with_the_same_key_at_the_same_time(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        made = await asyncio.gather(
            *(
                p.client().create_session(kind="interactive", launch=LAUNCH, key="k")
                for _ in range(6)
            )
        )
        assert len({m["id"] for m in made}) == 1
        session = made[0]["id"]
        parked = await asyncio.gather(
            *(
                p.controller.desk.act(
                    p.controller.state.sessions[session], "resume", {}, "alice", "r"
                )
                for _ in range(3)
            )
        )
        assert {v.epoch for v in parked} == {1}
        with pytest.raises(Conflict, match="this key was used to resume session"):
            await p.controller.desk.act(parked[0], "park", {}, "alice", "r")


@pytest.mark.asyncio
async def test_events_come_as_they_happen_and_only_ones_own(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a = await p.kernel("alice", name="a")
        stream, everything = p.client().events(), p.client("admin").events()
        first = await anext(stream)
        assert first["event"] == "snapshot"
        assert [s["id"] for s in first["data"]["sessions"]] == [a]
        assert (await anext(everything))["event"] == "snapshot"
        b = await p.holder("bob", name="b")
        p.agent.need(a)
        words = []
        while not words or words[-1] != "running":
            message = await anext(stream)
            assert message["data"]["id"] == a
            words.append(message["data"]["state"])
        assert words == ["attaching", "running"]
        seen = set()
        while seen != {a, b}:
            seen.add((await anext(everything))["data"]["id"])
        await stream.aclose()
        await p.stop()
        with pytest.raises(Unavailable, match="event stream ended"):
            await _drain(everything)
        await p.start()
        await p.ready()


@pytest.mark.asyncio
async def test_health_says_what_is_wrong(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:

        async def health() -> tuple[int, dict]:
            response = await AsyncHTTPClient().fetch(f"{p.url}api/v1/healthz", raise_error=False)
            return response.code, json.loads(response.body)

        await until(lambda: not p.controller.node_trouble, "ready")
        assert await health() == (200, {"status": "ok", "nodes": 1, "detail": "ready"})
        await p.agent.stop()
        await until(lambda: bool(p.controller.node_trouble), "away")
        nodes = p.controller.state.nodes
        await until(lambda: not any(node.connected for node in nodes.values()), "it is counted out")
        assert await health() == (
            503,
            {"status": "degraded", "nodes": 0, "detail": "node local does not answer"},
        )
        await p.agent.start()
        await p.ready()


@pytest.mark.asyncio
async def test_old_sessions_are_forgotten_while_the_service_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "TRIM_S", 0.1)
    async with platform(tmp_path, app={"keep_history_days": 0.1 / 86400}) as p:
        gone, stays = await p.kernel(), await p.kernel()
        await p.client().end_session(gone)
        for _ in range(100):
            left = [s["id"] for s in await p.client().sessions()]
            if left == [stays]:
                break
            await asyncio.sleep(0.1)
        assert left == [stays]


@pytest.mark.asyncio
async def test_the_operator_is_answered_while_the_hubs_client_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, load = threading.Event(), app_module._load_pages

    def load_late() -> Any:
        assert may_load.wait(120)
        return load()

    monkeypatch.setattr(app_module, "_load_pages", load_late)
    monkeypatch.setattr(app_module, "make_hub_auth", lambda prefix, parent: Hub())
    sock, port = bind_unused_port()
    sock.close()
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", address)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)
    token = tmp_path / "operator"
    token.touch(0o600)
    token.write_text("o" * 32)
    app = app_module.SchedulerApp(
        state_dir=str(tmp_path / "state"), operator_token_file=str(token), log_level=50
    )
    app.fleet_class = PaperFleet
    running = app.running()
    starting = asyncio.ensure_future(running.__aenter__())
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await ServiceClient(address + PREFIX, "o" * 32).cluster()
                    break
                except Unavailable:  # nobody listens yet, or it says that it starts
                    await asyncio.sleep(0.02)
        icon = f"{address}{PREFIX}dashboard/static/icon.svg"
        asset = AsyncHTTPClient().fetch(icon, request_timeout=60.0)
        listed = asyncio.ensure_future(ServiceClient(address + PREFIX, "token-of-ada").sessions())
        missing = f"{address}{PREFIX}api/v1/nothing"
        assert (await AsyncHTTPClient().fetch(missing, raise_error=False)).code == 404
        assert not starting.done()
        assert not asset.done()
        assert not listed.done()
        may_load.set()
        assert (await asset).headers["Content-Type"] == "image/svg+xml"
        assert await listed == []
    finally:
        may_load.set()
        await starting
        await running.__aexit__(None, None, None)
