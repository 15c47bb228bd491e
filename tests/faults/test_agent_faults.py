"""Processes are killed, disks are full, strangers knock: one sentence, nothing lost, no leak."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from singularity_proxy.errors import NoSpace, SingularityError
from singularity_proxy.wire.rpc import SyncPeer
from support.agent import SUPPORT, AgentBox, alive, until
from support.agent_kernels import connection
from support.agent_moves import listed
from support.disks import fill, needs_root, small_disk
from support.processes import stop_process


@pytest.mark.asyncio
async def test_a_killed_proxy_is_replaced_behind_the_same_ring() -> None:
    async with AgentBox(double=True) as box:
        go = box.work / "go"
        session = await box.worker("open", "need", f"next:{go}", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 2)
        await box.logged(session, "attached r1 generation 1")
        [pid] = box.proxies()
        os.kill(pid, signal.SIGKILL)
        await box.event("proxy.recovered", session)
        go.touch()
        await box.logged(session, "attached r1 generation 2 epoch 2")
        assert (await box.session(session))["devices"] == ["cpu:0"]
        assert pid not in box.proxies()


@pytest.mark.asyncio
async def test_a_proxy_whose_heart_stops_is_told_then_replaced() -> None:
    async with AgentBox("--NodeAgent.hung_proxy_s=1.5", double=True) as box:
        go = box.work / "go"
        session = await box.worker("open", "need", f"next:{go}", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 2)
        await box.logged(session, "attached r1 generation 1")
        [pid] = box.proxies()
        (box.work / f"hush-{pid}").touch()
        assert await box.event("proxy.silent", session) == {"limit_s": 1.5}
        assert alive(pid)
        (box.work / f"hush-{pid}").unlink()
        await box.event("proxy.answers", session)
        assert pid in box.proxies()
        (box.work / f"hush-{pid}").touch()
        data = await box.event("proxy.recovered", session)
        assert data["why"].startswith("had not answered for ")
        go.touch()
        await box.logged(session, "attached r1 generation 2 epoch 2")
        assert pid not in box.proxies()
        assert (await box.session(session))["devices"] == ["cpu:0"]


@pytest.mark.asyncio
async def test_a_session_leaves_a_broken_device_that_cannot_park() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1, "cpu:0")
        [pid] = box.proxies_of(session)
        (box.work / f"nopark-{pid}").touch()
        with pytest.raises(SingularityError, match="the device is gone"):
            await box.park(session, 1)
        assert (await box.session(session))["devices"] == ["cpu:0"]
        await box.call(
            "device.park", session=session, epoch=1, seq=99, reason="drained", force=True
        )
        assert not alive(pid)
        report = await box.session(session)
        assert (report["devices"], report["saved"], report["reason"]) == ([], True, "drained")
        await box.attach(session, 2, "cpu:1")
        assert (await box.session(session))["devices"] == ["cpu:1"]


@pytest.mark.asyncio
async def test_proxies_that_end_as_soon_as_they_serve_are_not_replaced_for_ever() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        other = await box.worker("open", "need", "sleep")
        for each, device in ((session, "cpu:0"), (other, "cpu:1")):
            await box.event("device.need", each)
            await box.attach(each, 1, device)
            await box.logged(each, "attached")
        while not [d for s, t, d in box.events if (s, t) == (session, "proxy.failed")]:
            before = len(box.events)
            for pid in box.proxies_of(session):
                os.kill(pid, signal.SIGKILL)
            await until(lambda before=before: len(box.events) > before)  # type: ignore[misc]
        assert len([t for s, t, _ in box.events if (s, t) == (session, "proxy.recovered")]) == 5
        sentence = (await box.event("proxy.failed", session))["sentence"]
        assert "ended 6 times within a minute and nothing could be done" in sentence
        assert (await box.session(other))["devices"] == ["cpu:1"]
        assert [t for s, t, _ in box.events if s == other and t.startswith("proxy.")] == []


@pytest.mark.asyncio
async def test_folders_in_the_place_of_files_end_nobodys_leases() -> None:
    async with AgentBox("--NodeAgent.lease_ttl_s=3.0", double=True) as box:
        go = box.work / "go"
        words = [sys.executable, str(SUPPORT / "agent_worker.py"), "open", f"next:{go}"]
        session = await box.python(
            f"import subprocess, time; subprocess.run({words}); print('over'); time.sleep(14400)"
        )
        await box.logged(session, "opened r1")
        folder = box.shm / session
        (folder / "r1.ring").unlink()
        for name in ("r1.ring", "r1.snap.tmp", "r1.journal"):
            (folder / name).mkdir()
            (folder / name / "file").touch()
        go.touch()
        await until(lambda: "r1.journal stays until its session ends" in box.agent_log())
        other = await box.worker("open", "need", "sleep")
        await box.event("device.need", other)
        await box.attach(other, 1)
        await box.event("lease.lapsed", other)
        await until(lambda: not box.proxies_of(other))
        assert (await box.session(session))["alive"]
        await box.end(session)
        assert [path.name for path in box.shm.iterdir()] == [other]


@pytest.mark.root
@needs_root
@pytest.mark.asyncio
async def test_no_room_to_park_keeps_the_device_and_says_so() -> None:
    box = AgentBox("--NodeAgent.lease_ttl_s=600", double=True)
    async with small_disk(box.root / "m", 40) as filler:
        box.fleet.shm_dir = str(box.root / "m" / "shm")
        async with box:
            session = await box.worker("open:0", "open:1", "need", "sleep", virtual_devices=2)
            await box.event("device.need", session)
            await box.attach(session, 1, "cpu:0", "cpu:1")
            await box.logged(session, "attached r1")
            fill(filler)
            with pytest.raises(NoSpace, match="could not be written"):
                await box.park(session, 1)
            report = await box.session(session)
            assert report["devices"] == ["cpu:0", "cpu:1"]
            assert len(box.proxies()) == 2
            # Nor is there room for another ring: that worker is told, nobody is hurt.
            other = await box.worker("open", "sleep")
            await box.logged(other, "NoSpace there is no room for a device ring")
            filler.unlink()
            assert (await box.park(session, 1))["bytes"] == 16
            assert box.proxies() == []


@pytest.mark.root
@needs_root
@pytest.mark.asyncio
async def test_a_checkpoint_without_room_leaves_no_half_one() -> None:
    box = AgentBox(double=True)
    async with small_disk(box.root / "state", 16) as filler, box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        made = await box.call("device.checkpoint", session=session, name="a", seq=1)
        fill(filler)
        with pytest.raises(NoSpace, match="was not stored and goes on as it was"):
            await box.call("device.checkpoint", session=session, name="b", seq=2)
        filler.unlink()
        assert [c["id"] for c in await listed(box, session)] == [made["id"]]
        assert list((box.root / "state" / "images").iterdir()) == []
        assert (await box.session(session))["devices"] == ["cpu:0"]


@pytest.mark.root
@needs_root
@pytest.mark.asyncio
async def test_a_ledger_without_room_refuses_a_start_and_keeps_the_others() -> None:
    box = AgentBox(double=True)
    async with small_disk(box.root / "state", 4) as filler, box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        fill(filler)

        async def start_many() -> None:
            for _ in range(200):
                await box.end(await box.worker("sleep"))

        with pytest.raises(NoSpace, match="cannot write its ledger"):
            await start_many()
        with pytest.raises(NoSpace, match="cannot write its ledger"):
            await box.attach(session, 1)
        assert (await box.session(session))["devices"] == []
        filler.unlink()
        assert [p.name for p in (box.runtime / "s").iterdir()] == [session]
        assert (await box.session(session))["alive"] is True
        await box.attach(session, 1)
        await box.logged(session, "attached")
        # What must happen happens, even when it cannot be written down.
        fill(filler)
        await box.park(session, 1)
        assert box.proxies() == []
        filler.unlink()
        await box.kill_agent()
        await box.attach(session, 2, "cpu:1")
        assert (await box.session(session))["devices"] == ["cpu:1"]


@pytest.mark.root
@needs_root
@pytest.mark.asyncio
async def test_strangers_are_refused_at_the_session_sockets() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        bob = await box.call("identity", user="bob")
        await box.event("device.need", session)
        path = box.folder(session)
        for call in (
            f"SyncPeer('{path}/agent.sock').call('status')",
            f"SyncPeer('{box.runtime}/agent.sock').call('hello')",
            f"open('{box.shm / session}/r1.ring', 'rb')",
            f"socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect('{path}/doorbell')",
        ):
            said = await _as_user(bob["uid"], call)
            assert "Permission denied" in said, (call, said)
        # A path that somebody opened for all does not help: the kernel says who calls.
        for folder in (path, path / "agent.sock"):
            os.chmod(folder, 0o777)
        said = await _as_user(bob["uid"], f"SyncPeer('{path}/agent.sock').call('status')")
        assert "it belongs to another user" in said
        # The agent's own uid may pass every file mode, but is not the session's user either.
        with SyncPeer(path / "agent.sock") as peer, pytest.raises(Exception, match="may not use"):
            await asyncio.to_thread(peer.call, "status")
        rung = len(box.events)
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.sendto(b"need r1", str(path / "doorbell"))
        bell.close()
        with SyncPeer(box.runtime / "agent.sock") as peer:
            await asyncio.to_thread(peer.call, "hello", observer=True)
        assert len(box.events) - rung <= 1


async def _as_user(uid: int, expression: str) -> str:
    code = (
        "import socket\nfrom singularity_proxy.wire.rpc import SyncPeer\n"
        f"try:\n    print('worked', {expression})\nexcept Exception as error:\n    print(error)"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return str(done.stdout)


@pytest.mark.asyncio
async def test_nonsense_on_the_sockets_changes_nothing() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        identity = await box.call("identity", user="alice")
        words: list[Any] = [b"", b"\xff" * 100, b"need", b"need ../../x", b"need r999", b"x" * 5000]

        def ring() -> None:
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            for word in words:
                bell.sendto(word, str(box.folder(session) / "doorbell"))
            bell.close()
            for line in (b"\n", b"{}\n", b"[1]\n", b'{"method": 5}\n', b"\xff\xfe\n"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                    sock.connect(str(box.folder(session) / "agent.sock"))
                    sock.settimeout(0.2)
                    with contextlib.suppress(OSError):  # it may hang up on us before or after
                        sock.sendall(line)
                        sock.recv(1000)

        assert identity["uid"] >= 0
        await asyncio.to_thread(ring)
        await box.attach(session, 1)
        await box.logged(session, "attached")


@pytest.mark.asyncio
async def test_a_dead_relay_comes_back_at_the_same_place() -> None:
    async with AgentBox() as box:
        session = await box.worker("sleep", connection=connection(box))
        told = box.started["connection"]
        place = f"{told['ip']}-{told['shell_port']}"
        [relay] = box.relays(session)
        os.kill(relay, signal.SIGKILL)
        await until(lambda: [p for p in box.relays(session) if p != relay] != [])
        await until(lambda: _listens(place))
        [relay] = box.relays(session)
        await box.kill_agent()
        assert box.relays(session) == [relay]
        await box.end(session)
        assert not alive(relay)
        assert not _listens(place)


@pytest.mark.asyncio
async def test_an_agent_that_dies_while_it_starts_a_relay_leaves_none_alone() -> None:
    """The relay has the ports, and the agent that started it has not heard so yet."""
    async with AgentBox() as box:
        session = await box.worker("sleep", connection=connection(box))
        told = box.started["connection"]
        place = f"{told['ip']}-{told['shell_port']}"
        [first] = box.relays(session)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not alive(first))
        deadline = time.monotonic() + 60.0
        while not _listens(place):  # in no time: the agent hears of it next
            assert time.monotonic() < deadline, box.agent_log()
        stop_process(box.agent_pid)
        found = set(box.relays(session))
        await box.kill_agent()
        await until(lambda: len(box.relays(session)) == 1 and _listens(place))
        found.update(box.relays(session))
        await box.end(session)
        assert [pid for pid in found if alive(pid)] == []
        assert not _listens(place)


def _listens(place: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(place) == 0
