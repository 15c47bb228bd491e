"""The device side of sessions: needs, attach, park, late rings, checkpoints, leases.

Device proxies are the tests' stand-in here (it answers in milliseconds and fails on demand); the
real ones are in test_real_proxy.py and in tests/faults.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import BadRequest, Conflict, NotFound, ProxyNotReady, StaleEpoch
from singularity_scheduler.fleet.local_agent import ALLOCATOR
from support.agent import AgentBox, until
from support.agent_moves import listed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def agent() -> AsyncIterator[AgentBox]:
    async with AgentBox(double=True) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def box(agent: AgentBox) -> AsyncIterator[AgentBox]:
    """One agent for the tests of this file that neither end it nor want settings of their own."""
    yield agent
    await agent.clear()


async def test_the_allocator_of_the_agent_is_not_that_of_what_it_starts(box: AgentBox) -> None:
    session = await box.worker("open", "need", "sleep")
    await box.event("device.need", session)
    await box.attach(session, 1, "cpu:0")
    chosen = [f"{name}={value}".encode() for name, value in ALLOCATOR.items()]
    proxies = box.proxies_of(session)
    assert proxies
    for pid, own in {box.agent_pid: True, **dict.fromkeys(proxies, False)}.items():
        environment = _environment(pid)
        assert [one in environment for one in chosen] == [own] * len(chosen), pid


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def test_a_need_is_told_served_parked_and_served_again_elsewhere(box: AgentBox) -> None:
    go = box.work / "go"
    session = await box.worker("open", "need", f"next:{go}", "need", "sleep")
    await box.event("device.need", session)
    assert (await box.session(session))["waiting"] is True
    assert (await box.session(session))["saved"] is False
    await box.attach(session, 1, "cpu:0")
    await box.logged(session, "attached r1 generation 1 epoch 1")
    report = await box.session(session)
    assert report["devices"] == ["cpu:0"]
    assert report["epoch"] == 1
    assert report["waiting"] is False
    assert report["saved"] is True
    done = await box.park(session, 1)
    assert done["bytes"] == 8
    report = await box.session(session)
    assert report["devices"] == []
    assert report["saved"] is True
    assert sorted(p.name for p in (box.shm / session).iterdir()) == ["r1.ring", "r1.snap"]
    assert list((box.runtime / "p").iterdir()) == []
    box.forget_events()
    go.touch()
    await box.event("device.need", session)
    await box.attach(session, 2, "cpu:1")
    await box.logged(session, "attached r1 generation 2 epoch 2")


async def test_the_doorbell_repeats_until_somebody_listens(box: AgentBox) -> None:
    session = await box.worker("open", "need", "sleep")
    await box.event("device.need", session, count=3)
    await box.attach(session, 1)
    await box.logged(session, "attached")
    told = len(box.events)
    await asyncio.sleep(1.2)
    assert len(box.events) == told


async def test_an_interrupted_wait_is_withdrawn(box: AgentBox) -> None:
    session = await box.worker("open", "wait:0.6", "sleep")
    await box.event("device.need", session)
    await box.logged(session, "gave up")
    await box.event("device.withdrawn", session)
    assert (await box.session(session))["waiting"] is False


async def test_several_virtual_devices_share_or_spread(box: AgentBox) -> None:
    session = await box.worker(
        "open:0", "open:1", "open:7", "need:0", "need:1", "sleep", virtual_devices=2
    )
    await box.logged(session, "there is no cuda:7")
    with pytest.raises(BadRequest, match="2 virtual devices, but 1"):
        await box.attach(session, 1, "cpu:0")
    with pytest.raises(NotFound, match="no device 'cpu:9'"):
        await box.attach(session, 1, "cpu:0", "cpu:9")
    assert (await box.session(session))["saved"] is False
    await box.attach(session, 1, "cpu:0", "cpu:1")
    await box.logged(session, "attached r2")
    assert len(list((box.runtime / "p").glob("*.sock"))) == 2
    await box.attach(session, 2, "cpu:1", "cpu:1")
    assert (await box.session(session))["devices"] == ["cpu:1", "cpu:1"]
    assert len(list((box.runtime / "p").glob("*.sock"))) == 1


async def test_a_process_that_comes_later_joins_the_devices_that_are_held(box: AgentBox) -> None:
    go = box.work / "go"
    session = await box.worker("open", "need", f"next:{go}", "open", "need", "sleep")
    await box.event("device.need", session)
    await box.attach(session, 1)
    await box.logged(session, "attached r1")
    box.forget_events()
    go.touch()
    # The same process asks again: it replaced itself, its first ring is nobody's any more.
    await box.logged(session, "attached r2 generation 1 epoch 1")
    await until(lambda: not (box.shm / session / "r1.ring").exists())
    assert [t for _, t, _ in box.events if t == "device.need"] == []


async def test_old_leases_are_refused_and_repeated_commands_answered_again(box: AgentBox) -> None:
    session = await box.worker("open", "need", "sleep")
    await box.event("device.need", session)
    first = await box.attach(session, 5, seq=100)
    assert await box.attach(session, 5, seq=100) == first
    with pytest.raises(StaleEpoch) as refused:
        await box.attach(session, 4, "cpu:1", seq=101)
    assert refused.value.fields["newest"] == 5
    with pytest.raises(StaleEpoch):
        await box.park(session, 4)
    assert (await box.session(session))["devices"] == ["cpu:0"]
    parked = await box.park(session, 5, seq=102)
    await box.attach(session, 6, "cpu:1", seq=103)
    assert await box.park(session, 5, seq=102) == parked
    assert (await box.session(session))["devices"] == ["cpu:1"]


async def test_a_lease_that_is_not_renewed_fences_and_one_that_is_does_not() -> None:
    async with AgentBox("--NodeAgent.lease_ttl_s=4", double=True) as box:
        kept = await box.worker("open", "need", "sleep")
        lost = await box.worker("open", "need", "sleep")
        for session in (kept, lost):
            await box.event("device.need", session)
        await box.attach(lost, 3, "cpu:1")
        await box.attach(kept, 3, "cpu:0")
        fenced = ("lease.lapsed", lost)
        while fenced not in [(type, session) for session, type, _ in box.events]:
            answer = await box.call(
                "renew",
                leases=[{"session": kept, "epoch": 3}, {"session": "000000000000", "epoch": 1}],
                ttl_s=60.0,
            )
            assert answer["held"] == [{"session": kept, "epoch": 3}]
            assert (answer["gone"], answer["over"]) == (["000000000000"], False)
            await asyncio.sleep(0.25)
        for _ in range(500):  # it is told before its state is written
            if not (await box.session(lost))["devices"]:
                break
            await asyncio.sleep(0.02)
        assert (await box.session(lost))["devices"] == []
        assert (await box.session(lost))["saved"] is True
        assert (await box.session(kept))["devices"] == ["cpu:0"]
        late = await box.call("renew", leases=[{"session": lost, "epoch": 3}], ttl_s=60.0)
        assert (late["held"], late["gone"]) == ([], [])
        wrong = await box.call("renew", leases=[{"session": kept, "epoch": 2}], ttl_s=60.0)
        assert wrong["held"] == []


async def test_a_ring_ends_with_its_worker(box: AgentBox) -> None:
    code = (
        "import subprocess, sys, time, os\n"
        "w = os.environ['WORKER']\n"
        "a = subprocess.Popen([sys.executable, w, 'open', 'need', 'sleep'])\n"
        "b = subprocess.Popen([sys.executable, w, 'open', 'need', 'sleep'])\n"
        "time.sleep(14400)"
    )
    from support.agent import SUPPORT

    env = {
        **os.environ,
        "PYTHONPATH": str(SUPPORT.parent),
        "WORKER": str(SUPPORT / "agent_worker.py"),
    }
    session = await box.python(code, env=env)
    await box.event("device.need", session)
    await until(lambda: len(list((box.shm / session).glob("*.ring"))) == 2)
    await box.attach(session, 1)
    await until(lambda: box.log(session).count("attached") == 2)
    child = box.below(session)[0]
    os.kill(child.pid, 9)
    await until(lambda: len(list((box.shm / session).glob("*.ring"))) == 1)
    await box.park(session, 1)
    assert len(list((box.shm / session).iterdir())) == 2


async def test_checkpoints_are_whole_or_absent(box: AgentBox) -> None:
    session = await box.worker("open", "need", "sleep")
    await box.event("device.need", session)
    with pytest.raises(Conflict, match="has not used a device yet"):
        await box.call("device.checkpoint", session=session, name="a", seq=1)
    await box.attach(session, 1)
    made = await box.call("device.checkpoint", session=session, name="a", seq=2)
    assert made["level"] == "device"
    assert made["bytes"] == 8
    again = await box.call("device.checkpoint", session=session, name="a", seq=2)
    assert again == made
    await box.park(session, 1)
    parked = await box.call("device.checkpoint", session=session, name="b", seq=3)
    kept = await listed(box, session)
    assert [c["id"] for c in kept] == [made["id"], parked["id"]]
    assert [(c["name"], c["bytes"]) for c in kept] == [("a", 8), ("b", 8)]
    found = Checkpoints(open_store(str(box.root / "state" / "store")), "alice")
    for reference in kept:
        into = box.root / reference["id"]
        assert found.restore(session, reference["id"], into=into).bytes == 8
        assert (into / "shm" / "r1.snap").stat().st_size == 8
    assert not list(box.folder(session).glob("c-*"))
    await box.call("checkpoints.delete", session=session, user="alice", id=made["id"])
    assert [c["id"] for c in await listed(box, session)] == [parked["id"]]
    await box.end(session)
    assert [c.id for c in found.list(session)] == [parked["id"]]  # a name outlives its session


async def test_a_proxy_that_cannot_restore_leaves_the_state_where_it_was() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.park(session, 1)
        die = box.shm / session / "r1.die"
        die.touch()
        with pytest.raises(ProxyNotReady, match="ended 4 times while it restored"):
            await box.attach(session, 2)
        report = await box.session(session)
        assert report["devices"] == []
        assert report["saved"] is True
        assert (box.shm / session / "r1.snap").exists()
        die.unlink()
        await box.attach(session, 3)
        assert (await box.session(session))["devices"] == ["cpu:0"]


async def test_warm_proxies_are_used_and_filled_up_again() -> None:
    async with AgentBox(double=True, warm=1) as box:
        pool = box.runtime / "p"
        await until(lambda: len(list(pool.glob("*.sock"))) == 1)
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        await until(lambda: len(list(pool.glob("*.sock"))) == 2)
        await box.end(session)
        await until(lambda: len(list(pool.glob("*.sock"))) == 1)


async def test_the_end_of_a_session_does_not_wait_for_its_devices(box: AgentBox) -> None:
    session = await box.worker("open", "need", "sleep")
    await box.event("device.need", session)
    attach = asyncio.ensure_future(box.attach(session, 1))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await box.end(session)
    assert time.monotonic() - started < 30
    with pytest.raises((Conflict, NotFound, ProxyNotReady)):
        await attach
    assert list((box.runtime / "p").iterdir()) == []


async def test_verbs_and_activity_go_to_the_service_and_status_survives_without_it(
    box: AgentBox,
) -> None:
    go = box.work / "go"
    session = await box.worker("busy", "park", f"next:{go}", "status", "park", "sleep")
    data = await box.event("activity", session)
    assert data["busy"] is True
    await box.logged(session, '{"verb": "park"}')
    assert box.commands == [{"session": session, "verb": "park", "args": {}, "by": "user"}]
    assert (await box.session(session))["busy"] is True
    await box.fleet.stop()
    go.touch()
    await box.logged(session, "Unavailable the scheduler service is away")
    assert '"service": "away"' in box.log(session)
    await box.fleet.start()


async def test_a_worker_with_another_torch_is_told_what_to_install(box: AgentBox) -> None:
    code = (
        "import os\n"
        "from singularity_proxy.wire.rpc import SyncPeer\n"
        "from singularity_proxy.errors import SingularityError\n"
        "try:\n"
        "    SyncPeer(os.environ['SINGULARITY_SOCKET']).call('ring.open', virtual_device=0,\n"
        "        torch_version='1.0', git_version='abc', python='', pid=1)\n"
        "except SingularityError as error:\n"
        "    print(type(error).__name__, error.message, flush=True)\n"
        "import time; time.sleep(60)"
    )
    session = await box.python(code)
    await box.logged(session, "Unsupported this process uses torch 1.0, but")


async def test_what_a_session_uses_of_its_devices_is_told_while_it_holds_them() -> None:
    async with AgentBox("--NodeAgent.health_every_s=0.2", double=True) as box:
        session = await box.worker("open", "need", "sleep")
        other = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.event("device.need", other)
        assert box.used == {}
        await box.attach(session, 1, "cpu:0")
        await box.attach(other, 1, "cpu:1")
        await until(lambda: set(box.used) == {session, other})
        ring = os.open(box.shm / session / "r1.ring", os.O_RDWR)
        os.pwrite(ring, (5 << 20).to_bytes(8, "little"), 104)  # memory_current, see wire/ring.h
        os.close(ring)
        await until(lambda: box.used[session][0]["memory_used_bytes"] == 5 << 20)
        [report] = box.used[session]
        assert (report["virtual_device"], report["device"]) == (0, "cpu:0")
        assert 0 <= report["utilisation_percent"] <= 100
        [beside] = box.used[other]
        assert (beside["device"], beside["memory_used_bytes"]) == ("cpu:1", 0)
        card = {r["id"]: r["memory_used_bytes"] for r in box.reports[-1]}
        assert card["cpu:0"] == 5 << 20, "the device has what its sessions have"
        await box.park(session, 1)
        await until(lambda: set(box.used) == {other})
