"""The agent's ledger, session machine, leases, identities and checked parameters."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NoSpace,
    SingularityError,
    StaleEpoch,
    Unsupported,
)
from singularity_scheduler.agent.devices.probe import probe_devices, torch_version
from singularity_scheduler.agent.ledger import KEEP_ANSWERS, Ledger
from singularity_scheduler.agent.relays.relay import kernel_connection, write_private
from singularity_scheduler.agent.rights.identity import Identities, parse_uid_range
from singularity_scheduler.agent.rights.leases import LeaseTable
from singularity_scheduler.agent.rights.uids import FileUids
from singularity_scheduler.agent.sessions.launch import PORTS, Gang, LaunchRequest
from singularity_scheduler.agent.sessions.record import (
    PHASE_MOVES,
    GangPart,
    Life,
    Phase,
    ProxyRecord,
    RingRecord,
    SessionRecord,
)
from singularity_scheduler.agent.sessions.rings import WITHDRAW_S, RingSet, check_torch, ring_number
from singularity_scheduler.fleet.local import parse_bytes
from support.uids import needs_own_uids


def record(**changes: Any) -> SessionRecord:
    values: dict[str, Any] = {
        "session": "0123456789ab",
        "user": "alice",
        "kind": "interactive",
        "tier": "basic",
        "name": "a.ipynb",
        "mode": "capsule",
        "virtual_devices": 2,
        "uid": os.getuid(),
        "gid": os.getgid(),
        **changes,
    }
    return SessionRecord(**values)


def test_a_ledger_keeps_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite"
    ledger = Ledger(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ledger.put("session", "b", {"x": 1})
    ledger.put("session", "a", {"x": 2})
    ledger.put("session", "b", {"x": 3})
    for number in range(KEEP_ANSWERS + 5):
        ledger.put_answer("a", f"park/1/{number}", {"result": number})
    ledger.put_answer("b", "park/1/1", {"result": "other"})
    ledger.close()
    ledger = Ledger(str(path))
    assert list(ledger.all("session")) == [("a", {"x": 2}), ("b", {"x": 3})]
    assert ledger.get("session", "c") is None
    assert ledger.answer("a", "park/1/4") is None
    assert ledger.answer("a", f"park/1/{KEEP_ANSWERS + 4}") == {"result": KEEP_ANSWERS + 4}
    ledger.forget_session("a")
    assert ledger.answer("a", f"park/1/{KEEP_ANSWERS + 4}") is None
    assert ledger.answer("b", "park/1/1") == {"result": "other"}
    ledger.drop("session", "b")
    assert list(ledger.all("session")) == []
    ledger.close()


def test_a_full_disk_keeps_the_old_document(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "agent.sqlite"))
    ledger.put("session", "a", {"x": 1})
    ledger._db.execute("PRAGMA max_page_count = 10")
    with pytest.raises(NoSpace, match="the disk is full"):
        ledger.put("session", "a", {"x": "y" * 100_000})
    assert ledger.get("session", "a") == {"x": 1}
    ledger.put("session", "a", {"x": 2})
    ledger.close()


def test_a_session_survives_its_document() -> None:
    process = ProcessIdentity(5, 6)
    full = record(
        life=Life.LIVE,
        phase=Phase.HELD,
        epoch=7,
        devices=["cpu:0", "cpu:1"],
        process=process,
        relay=process,
        owner=process,
        proxies={"cpu:0": ProxyRecord("n", "/s", "cpu:0", process)},
        rings={"r1": RingRecord("r1", "/x/r1.ring", 1, process, 44)},
        rings_made=3,
        busy=True,
        part=GangPart("ab", 1, 2, "c" * 64, process, 7000, 7001, "h:7000", {"0": "g:1"}),
    )
    assert SessionRecord.from_json(full.to_json()) == full
    assert full.rings["r1"].prefix == "/x/r1"
    assert [r.ring_id for r in full.rings_of("cpu:1")] == ["r1"]
    assert full.rings_of("cpu:0") == []


@given(st.sampled_from(Phase), st.sampled_from(Phase))
def test_only_the_moves_of_the_table_are_possible(before: Phase, after: Phase) -> None:
    session = record(phase=before, devices=["cpu:0", "cpu:1"])
    if (before, after) in PHASE_MOVES:
        session.move(after)
        assert session.phase is after
        assert bool(session.devices) == (after not in (Phase.NONE, Phase.PARKED))
    else:
        with pytest.raises(Conflict):
            session.move(after)
        assert session.phase is before


def test_what_a_session_reports_and_refuses() -> None:
    session = record(life=Life.LIVE, phase=Phase.PARKED, epoch=4)
    assert session.report(True)["waiting"] is True
    assert session.report(False)["saved"] is True
    with pytest.raises(StaleEpoch):
        session.check_epoch(3)
    session.check_epoch(4)
    session.check_live()
    session.life = Life.ENDED
    session.reason = "its process ended"
    assert session.report(True)["waiting"] is False
    assert session.report(True)["saved"] is False
    with pytest.raises(Conflict, match="its process ended"):
        session.check_live()


def test_a_part_of_a_gang_is_not_stored_and_says_where_its_bridge_is() -> None:
    part = GangPart("ab", 0, 2, "c" * 64, address="10.0.0.1:7000")
    session = record(life=Life.LIVE, part=part)
    assert session.report(False)["bridge"] == "10.0.0.1:7000"
    with pytest.raises(
        Unsupported,
        match="it is part 0 of a gang on 2 nodes, which is stored only as a whole: suspend the "
        "run, park it, or let it end",
    ):
        session.check_storable()
    assert "c" * 64 not in repr(session)
    alone = record(life=Life.LIVE)
    alone.check_storable()
    assert "bridge" not in alone.report(False)
    old = {name: value for name, value in alone.to_json().items() if name != "part"}
    assert SessionRecord.from_json(old) == alone


def test_leases_run_out_once_and_never_come_back() -> None:
    table = LeaseTable()
    table.grant("a", 1, 10.0, now=100.0)
    table.grant("b", 5, 20.0, now=100.0)
    assert table.next_deadline() == 110.0
    assert table.renew([("a", 1), ("b", 4), ("c", 1)], 10.0, now=105.0) == ["a"]
    assert table.lapse(now=114.9) == []
    assert table.lapse(now=115.0) == ["a"]
    assert table.lapse(now=116.0) == []
    assert table.epoch("a") is None
    assert table.renew([("a", 1)], 10.0, now=116.0) == []
    assert table.renew([("b", 5)], 10.0, now=120.0) == []  # too late, though nobody had looked
    again = LeaseTable.from_json(table.to_json())
    assert again.epoch("a") is None
    assert again.epoch("b") == 5
    again.grant("a", 2, 10.0, now=130.0)
    assert again.epoch("a") == 2
    again.grant("a", 1, 99.0, now=130.0)
    assert again.epoch("a") == 2
    again.release("a")
    again.release("a")
    assert again.lapse(now=999.0) == ["b"]
    assert again.next_deadline() is None


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 5)), max_size=30))
def test_a_lease_is_held_exactly_until_its_deadline(steps: list[tuple[int, float]]) -> None:
    table, now, deadline, lapsed = LeaseTable(), 0.0, 2.0, False
    table.grant("s", 1, 2.0, now)
    for epoch, pause in steps:
        now += pause
        held = table.renew([("s", epoch)], 2.0, now)
        lapsed = lapsed or now >= deadline
        assert held == (["s"] if epoch == 1 and not lapsed else [])
        if held:
            deadline = now + 2.0


@pytest.mark.asyncio
async def test_an_agent_without_root_serves_one_user(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "a"))
    identities = Identities(ledger, range(5000, 5010), str(tmp_path), euid=1234)
    first = await identities.of("alice")
    assert (first.uid, first.mapped) == (1234, False)
    assert "runs without root" in first.sentence
    assert await identities.of("alice") == first
    with pytest.raises(Forbidden, match="serves one user, 'alice'"):
        await identities.of("bob")
    again = Identities(ledger, range(5000, 5010), str(tmp_path), euid=1234)
    with pytest.raises(Forbidden):
        await again.of("bob")
    ledger.close()


@pytest.mark.root
@needs_own_uids
@pytest.mark.asyncio
async def test_every_user_has_a_uid_for_ever_until_there_are_no_more(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "a"))
    uids = range(1900000000, 1900000002)
    identities = Identities(ledger, uids, str(tmp_path))
    alice, bob = await identities.of("alice"), await identities.of("bob")
    assert (alice.uid, bob.uid, alice.mapped) == (1900000000, 1900000001, True)
    with pytest.raises(NoSpace, match="uid_range"):
        await identities.of("carol")
    again = Identities(ledger, uids, str(tmp_path))
    assert await again.of("bob") == bob
    for name in ("", "x" * 256, "a\0b"):
        with pytest.raises(BadRequest):
            await identities.of(name)
    ledger.close()


@pytest.mark.root
@needs_own_uids
@pytest.mark.asyncio
async def test_agents_of_one_machine_give_a_uid_to_one_user(tmp_path: Path) -> None:
    uids, path = range(1900000000, 1900000004), str(tmp_path / "uids.json")
    ledgers = [Ledger(str(tmp_path / name)) for name in "ab"]
    ledgers[0].put("uid", "early", 1900000002)  # from before there was a file
    first, second = (
        Identities(ledger, uids, str(tmp_path), table=FileUids(path, ledger)) for ledger in ledgers
    )
    assert (await second.of("early")).uid == 1900000002
    assert (await first.of("alice")).uid == 1900000000
    assert (await second.of("bob")).uid == 1900000001
    assert (await second.of("alice")).uid == 1900000000
    await second.claim("bob", 1900000001, 1900000001)
    with pytest.raises(Conflict, match="sessions of carol run as uid"):
        await first.claim("carol", 1900000001, 1900000001)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path, "w") as file:  # noqa: ASYNC230
        file.write("no json")
    with pytest.raises(SingularityError, match="is damaged; nobody's uid was changed"):
        await first.of("dora")
    for ledger in ledgers:
        ledger.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="uids need root")
@pytest.mark.asyncio
async def test_an_unreadable_environment_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/usr/bin/python3")
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    ledger = Ledger(str(tmp_path / "a"))
    identities = Identities(ledger, range(1900000000, 1900000002), str(tmp_path))
    alice, bob = await identities.of("alice"), await identities.of("bob")
    assert (alice.uid, alice.mapped) == (0, False)
    assert alice == bob
    assert "All users share uid 0" in alice.sentence
    ledger.close()


@pytest.mark.parametrize("text", ["", "5", "9-5", "0-10", "a-b", "1-99999999999", "-5-9"])
def test_bad_uid_ranges(text: str) -> None:
    with pytest.raises(BadRequest, match="uid_range"):
        parse_uid_range(text)


def start(**changes: Any) -> dict[str, Any]:
    launch = {"mode": "capsule", "argv": ["x"], "env": {"A": "b"}, "cwd": "/", "owner_pid": 5}
    launch.update(changes.pop("launch", {}))
    return {
        "session": "0123456789ab",
        "user": "alice",
        "kind": "batch",
        "tier": "premium",
        "virtual_devices": 1,
        "launch": launch,
        **changes,
    }


CONNECTION = {"transport": "tcp", "ip": "127.0.0.1"} | dict.fromkeys(PORTS, 4001)
GANG = {"id": "ab12", "number": 1, "parts": 2, "key": "c" * 64}


def test_a_start_as_a_part_of_a_gang() -> None:
    gang = LaunchRequest.parse(start(launch={"gang": GANG})).gang
    assert gang == Gang("ab12", 1, 2, "c" * 64)
    assert "c" * 64 not in repr(gang)
    assert LaunchRequest.parse(start()).gang is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"session": "../../etc/xx"}, "12 lowercase"),
        ({"session": 5}, "'session' is missing"),
        ({"user": ""}, "'user' is missing"),
        ({"tier": "gold"}, "tier 'gold' is unknown; it is one of premium"),
        ({"kind": "x"}, "kind 'x' is unknown"),
        ({"virtual_devices": 0}, "between 1 and 1024"),
        ({"virtual_devices": 10**6}, "between 1 and 1024"),
        ({"virtual_devices": True}, "not a whole number"),
        ({"virtual_devices": "2"}, "not a whole number"),
        ({"launch": {"mode": "x"}}, "launch mode 'x'"),
        ({"launch": {"argv": []}}, "'argv' must be"),
        ({"launch": {"argv": [1]}}, "'argv' must be"),
        ({"launch": {"env": {"A": 1}}}, "'env' must map"),
        ({"launch": {"env": {"A=B": "x"}}}, "cannot be a variable"),
        ({"launch": {"env": {"A": "\0"}}}, "cannot be a variable"),
        ({"launch": {"owner_pid": 1}}, "owner_pid must be"),
        ({"launch": {"owner_pid": "5"}}, "owner_pid must be"),
        ({"launch": {"mode": "joined", "owner_pid": None}}, "needs owner_pid"),
        ({"launch": {"connection": {"transport": "udp"}}}, "transport 'tcp' or 'ipc'"),
        ({"launch": {"connection": {"transport": "tcp", "shell_port": 0}}}, "shell_port is 0"),
        ({"launch": {"gang": "ab"}}, "'gang' must say"),
        ({"launch": {"gang": {**GANG, "id": "../x"}}}, "id and key of a gang are hexadecimal"),
        ({"launch": {"gang": {**GANG, "key": "c" * 63}}}, "the key has 64 digits"),
        ({"launch": {"gang": {**GANG, "parts": 1}}}, "between 2 and 1024 parts"),
        ({"launch": {"gang": {**GANG, "number": 2}}}, "there is no part 2 of 2"),
        ({"launch": {"gang": {**GANG, "number": True}}}, "'number' is missing"),
        ({"launch": {"gang": GANG, "mode": "joined"}}, "without a kernel connection"),
        ({"launch": {"gang": GANG, "connection": CONNECTION}}, "without a kernel connection"),
    ],
)
def test_bad_starts_are_named(change: dict[str, Any], sentence: str) -> None:
    LaunchRequest.parse(start())
    with pytest.raises(BadRequest, match=sentence):
        LaunchRequest.parse(start(**change))
    with pytest.raises(BadRequest, match="'launch' is missing"):
        LaunchRequest.parse({**start(), "launch": None})


def test_the_kernel_gets_sockets_and_the_same_key(tmp_path: Path) -> None:
    client = {
        "transport": "tcp",
        "ip": "127.0.0.1",
        "shell_port": 4001,
        "key": "k",
        "signature_scheme": "hmac-sha256",
        "kernel_name": "x",
        "curve_publickey": "p",
    }
    kernel = kernel_connection(client, "/r/s/x")
    assert kernel["transport"] == "ipc"
    assert kernel["ip"] == "/r/s/x/k"
    ports = [kernel[f"{n}_port"] for n in ("shell", "iopub", "stdin", "control", "hb")]
    assert sorted(ports) == [1, 2, 3, 4, 5]
    assert {k: kernel[k] for k in ("key", "signature_scheme")} == {
        k: client[k] for k in ("key", "signature_scheme")
    }
    assert "curve_publickey" not in kernel  # the relay's ports are encrypted, not these sockets
    target = tmp_path / "victim"
    target.write_text("untouched")
    (tmp_path / "kernel.json").symlink_to(target)
    write_private(str(tmp_path / "kernel.json"), kernel, (os.getuid(), os.getgid()))
    assert target.read_text() == "untouched"
    assert stat.S_IMODE((tmp_path / "kernel.json").lstat().st_mode) == 0o600


@pytest.mark.asyncio
async def test_rings_of_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = record()
    gone: list[str] = []
    rings = RingSet(session, str(tmp_path), lambda ring: gone.append(ring.ring_id))
    me = ProcessIdentity.of(os.getpid())
    for bad in (-1, 2, 99):
        with pytest.raises(BadRequest, match="2 virtual devices"):
            rings.create(bad, me, "cpu", 1)
    first, older = rings.create(0, me, "cpu", 1 << 30)
    assert older == []
    second, older = rings.create(0, me, "cpu", 1 << 30)
    assert older == [first]
    assert (first.ring_id, second.ring_id) == ("r1", "r2")
    monkeypatch.setattr("singularity_scheduler.agent.sessions.rings.MAX_RINGS", 2)
    with pytest.raises(Conflict, match="use a device already"):
        rings.create(1, me, "cpu", 1)
    monkeypatch.undo()
    assert rings.need("r9") is None
    assert rings.need("r2") is second
    assert rings.still_waiting()
    rings._last_need -= WITHDRAW_S + 1
    assert not rings.still_waiting()
    second.file._put32("worker_waiting", 1)
    assert rings.still_waiting()
    second.file.fail("no")
    assert not rings.still_waiting()
    assert rings.need("r2") is None
    rings.forget(first)
    rings.release()
    again = RingSet(session, str(tmp_path), lambda ring: gone.append(ring.ring_id))
    assert again.adopt() == []
    assert sorted(again.rings) == ["r2"]
    again.release()
    (tmp_path / "r2.ring").unlink()
    lost = RingSet(session, str(tmp_path), lambda ring: None).adopt()
    assert [r.ring_id for r in lost] == ["r2"]
    assert session.rings == {}
    assert gone == []


def test_names_and_versions_that_a_worker_may_send() -> None:
    assert ring_number("r1")
    for bad in ("", "r", "r0", "r01", "x1", "r1/..", "r99999999999", "r1\n"):
        assert not ring_number(bad)
    ours = torch_version()
    assert ours is not None
    check_torch("2.0+cu1", ours.git_version, ours)
    with pytest.raises(Exception, match="has no torch"):
        check_torch("2.0", "x", None)


@pytest.mark.asyncio
async def test_cpu_devices(tmp_path: Path) -> None:
    found = await probe_devices("cpu", 3, 7, str(tmp_path))
    assert [d["id"] for d in found] == ["cpu:0", "cpu:1", "cpu:2"]
    assert all(d["type"] == "cpu" and d["capacity_bytes"] == 7 and d["name"] for d in found)
    uuids = [d["uuid"] for d in found]
    assert len(set(uuids)) == 3
    assert [d["uuid"] for d in await probe_devices("cpu", 3, 9, str(tmp_path))] == uuids
    other = await probe_devices("cpu", 3, 7, str(tmp_path), "other")
    assert not {d["uuid"] for d in other} & set(uuids)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("1.5gib", 3 << 29), ("77", 77), ("9B", 9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "0", "-1GiB", "4GB", "4 GiB x"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a size"):
        parse_bytes(text)


def test_sqlite_is_new_enough() -> None:
    assert sqlite3.sqlite_version_info >= (3, 24)
