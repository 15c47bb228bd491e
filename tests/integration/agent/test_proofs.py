"""Checkpoints that a real agent proves, beside the session that they are of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.capsule.tree import descendants, has_ended
from singularity_proxy.errors import CheckpointCancelled, NotFound, SingularityError, Unavailable
from support.agent import AgentBox, until
from support.agent_held import Held
from support.agent_kernels import client_of, run, start_kernel
from support.agent_moves import after, checkpoint, gone, listed, suspend
from support.agent_trains import hurry, losses, native_losses, start_training
from support.capsules import needs_criu
from support.proofs import BUSY, fingerprint

pytestmark = [needs_criu, pytest.mark.asyncio]

FAULT = "agent_with_fault.py"


async def prove(box: AgentBox, session: str, id: str) -> dict[str, Any]:
    """`checkpoints.prove`; returns the answer."""
    return dict(await box.call("checkpoints.prove", session=session, user="alice", id=id))


async def start_busy(box: AgentBox) -> tuple[str, str]:
    """A session that counts in home, and a checkpoint of it."""
    session = await box.start([sys.executable, "-c", BUSY])
    await box.logged(session, "ready")
    return session, str((await checkpoint(box, session, 0))["id"])


async def counts_on(box: AgentBox) -> None:
    """The session goes on where it is, and has counted each number once."""
    path = box.work / "counter"
    seen = len(path.read_text().splitlines())
    await until(lambda: len(path.read_text().splitlines()) > seen + 10)
    now = path.read_text().splitlines()
    assert now == [str(n + 1) for n in range(len(now))]


def capsules(box: AgentBox, session: str) -> set[ProcessIdentity]:
    """The session's processes, in whichever capsule."""
    return set(box.everything_of(session))


def nothing_left(box: AgentBox) -> bool:
    folders = (box.root / "state/images", box.runtime / "v")
    return not any(folder.exists() and any(folder.iterdir()) for folder in folders)


async def test_a_good_checkpoint_is_proved_and_the_session_unharmed() -> None:
    async with AgentBox() as box:
        session, id = await start_busy(box)
        before = capsules(box, session)
        answer = await prove(box, session, id)
        assert (answer["proved"], answer["why"]) == (True, "")
        assert capsules(box, session) == before
        assert nothing_left(box)
        await counts_on(box)
        assert [one["id"] for one in await listed(box, session)] == [id]
        with pytest.raises(NotFound):
            await prove(box, session, "20200101T000000-none")
        await box.end(session)


async def test_a_kernel_answers_while_it_is_proved_and_knows_nothing_of_it() -> None:
    async with AgentBox(script=FAULT) as box:
        session, info = await start_kernel(box)
        client = await client_of(info)
        try:
            assert await run(client, "n = 40; print(n)") == "40\n"
            made = await checkpoint(box, session, 0)
            held = Held(box, "proof.restored")
            proving = asyncio.ensure_future(prove(box, session, made["id"]))
            await held.wait()
            relays = box.relays(session)
            assert await run(client, "n += 2; print(n)") == "42\n"
            assert box.relays(session) == relays
            held.release()
            assert (await proving)["proved"]
            assert await run(client, "print(n, len(In))") == "42 4\n"
        finally:
            client.stop_channels()
        await box.end(session)


async def test_device_state_is_read_and_a_training_is_not_disturbed() -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, pause_s=0.2)
        await box.attach(session, 1)
        await after(box, session, 3)
        whole = await checkpoint(box, session, 1)
        device = await checkpoint(box, session, 1, level="device", seq=2)
        for made in (whole, device):
            assert (await prove(box, session, made["id"]))["proved"]
        assert (await box.session(session))["devices"] == ["cpu:0"]
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == await asyncio.to_thread(native_losses)
        await box.end(session)


async def test_a_suspended_session_is_proved_and_stays_away() -> None:
    async with AgentBox() as box:
        session = await box.start([sys.executable, "-c", BUSY])
        await box.logged(session, "ready")
        done = await suspend(box, session, 0)
        await gone(box, session)
        before = fingerprint(box.work)
        answer = await prove(box, session, done["checkpoint"]["id"])
        assert answer["proved"], answer
        assert fingerprint(box.work) == before
        await gone(box, session)


def damage(box: AgentBox, kind: str) -> None:
    """Flip a bit of the largest chunk in the store, or remove it."""
    chunks = [p for p in (box.root / "state/store").rglob("chunks/**/*") if p.is_file()]
    largest = max(chunks, key=lambda path: path.stat().st_size)
    if kind == "missing":
        largest.unlink()
        return
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.chmod(0o600)
    largest.write_bytes(data)


@pytest.mark.parametrize("kind", ["missing", "flipped"])
async def test_a_damaged_one_is_told_in_one_sentence(kind: str) -> None:
    async with AgentBox() as box:
        session, id = await start_busy(box)
        damage(box, kind)
        answer = await prove(box, session, id)
        assert not answer["proved"]
        assert f"checkpoint {id} of session {session} is damaged in " in answer["why"]
        assert "\n" not in answer["why"]
        assert nothing_left(box)
        await counts_on(box)
        assert [one["id"] for one in await listed(box, session)] == [id]
        await box.end(session)


async def test_a_file_that_it_has_in_memory_and_that_is_gone_is_told() -> None:
    async with AgentBox() as box:
        session, id = await start_busy(box)
        os.rename(box.work / "mapped", box.work / "elsewhere")
        answer = await prove(box, session, id)
        assert not answer["proved"]
        assert str(box.work / "mapped") in answer["why"]
        os.rename(box.work / "elsewhere", box.work / "mapped")
        assert (await prove(box, session, id))["proved"]
        await box.end(session)


@pytest.mark.parametrize("step", ["reading", "unpacking", "restoring", "restored"])
async def test_a_move_of_the_session_does_not_wait_for_a_proof(step: str) -> None:
    async with AgentBox(script=FAULT) as box:
        session, id = await start_busy(box)
        held = Held(box, f"proof.{step}")
        proving = asyncio.ensure_future(prove(box, session, id))
        await held.wait()
        done = await suspend(box, session, 0, seq=2)
        assert held.reached
        held.release()
        with pytest.raises(CheckpointCancelled, match="is being moved or stored"):
            await proving
        await gone(box, session)
        assert (await prove(box, session, done["checkpoint"]["id"]))["proved"]


async def test_one_at_a_time_and_the_end_of_the_agent_ends_it() -> None:
    async with AgentBox(script=FAULT) as box:
        session, id = await start_busy(box)
        held = Held(box, "proof.restored")
        proving = asyncio.ensure_future(prove(box, session, id))
        await held.wait()
        with pytest.raises(Unavailable, match="proves another"):
            await prove(box, session, id)
        parts = processes_of_agent(box)
        stopping = asyncio.ensure_future(box.end_agent(signal.SIGTERM))
        with pytest.raises(SingularityError):
            await proving
        held.release()
        await stopping
        assert all(has_ended(one) for one in parts)
        assert box.everything_of(session) == []


@pytest.mark.parametrize("step", ["unpacking", "restoring", "restored"])
async def test_a_killed_agent_leaves_nothing_of_a_proof(step: str) -> None:
    async with AgentBox(script=FAULT) as box:
        session, id = await start_busy(box)
        before, processes = processes_of_agent(box), capsules(box, session)
        held = Held(box, f"proof.{step}")
        proving = asyncio.ensure_future(prove(box, session, id))
        await held.wait()
        new = processes_of_agent(box) - before
        known = own_namespaces(before)
        assert (step == "restored") == (capsules(box, session) != processes)
        with contextlib.ExitStack() as stack:
            own = [path for path in namespaces(new) if seen(path) not in known]
            spaces = {hold(stack, path) for path in own}
            assert len(spaces) >= 4  # pid, mnt, net, ipc
            await box.kill_agent()
            with pytest.raises(SingularityError):
                await proving
            await until(lambda: all(has_ended(one) for one in new), lambda: str(new))
            # Those that have ended are seen there until they are reaped.
            await until(lambda: not inside(spaces), lambda: str(inside(spaces)))
        assert capsules(box, session) == processes
        await until(lambda: nothing_left(box))
        await counts_on(box)
        assert (await prove(box, session, id))["proved"]
        await box.end(session)


def processes_of_agent(box: AgentBox) -> set[ProcessIdentity]:
    """All below the agent: capsules, proxies, what it runs."""
    found = descendants(ProcessIdentity.of(box.agent_pid))
    return {member.identity for member in found}


def own_namespaces(of: set[ProcessIdentity]) -> set[str]:
    """Those of the test, and of processes that were there before."""
    return {seen(path) for path in namespaces({*of, ProcessIdentity.of(os.getpid())})}


def namespaces(of: set[ProcessIdentity]) -> Iterator[str]:
    for one in of:
        yield from (f"/proc/{one.pid}/ns/{kind}" for kind in ("pid", "mnt", "net", "ipc"))


def seen(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def hold(stack: contextlib.ExitStack, path: str) -> str:
    """The namespace, whose number nobody else gets until `stack` is closed."""
    fd = os.open(path, os.O_RDONLY)
    stack.callback(os.close, fd)
    return os.readlink(path)


def inside(spaces: set[str]) -> list[str]:
    """The namespaces of processes of this machine that are among `spaces`, as paths."""
    return [path for path in namespaces(all_processes()) if seen(path) in spaces]


def all_processes() -> set[ProcessIdentity]:
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            found.add(ProcessIdentity.of(int(entry.name)))
    return found
