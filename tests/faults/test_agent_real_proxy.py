"""The real device proxies under the agent: every fault leaves training bitwise what it was.

One process trains on a CPU without any proxy; sessions that are parked, moved, and whose proxies
and agents are killed in the middle print the same losses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict, NoSpace
from singularity_proxy.wire.ring import RingFile
from support.agent import SUPPORT, AgentBox, alive, until
from support.agent_trains import TRAINING, go, losses, native_losses, reach, start_training
from support.processes import stop_process


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    """The losses of an undisturbed run, by step."""
    return native_losses()


@pytest.mark.asyncio
async def test_parked_moved_and_killed_in_between(reference: dict[int, str]) -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, 4, 8, 12, 16)
        await box.attach(session, 1, "cpu:0")
        await reach(box, session, 4)
        [first] = box.proxies_of(session)
        done = await box.park(session, 1)
        assert done["bytes"] > 100_000
        assert not alive(first)
        go(box, 4)
        await box.attach(session, 2, "cpu:1")
        await reach(box, session, 8)
        [second] = box.proxies_of(session)
        os.kill(second, signal.SIGKILL)
        data = await box.event("proxy.recovered", session)
        assert data["records"] > 0
        go(box, 8)
        await reach(box, session, 12)
        await box.kill_agent()
        go(box, 12)
        await reach(box, session, 16)
        await box.call("device.checkpoint", session=session, name="here", seq=1)
        await box.attach(session, 3, "cpu:0")
        go(box, 16)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_proxies_killed_in_the_middle_of_steps(reference: dict[int, str]) -> None:
    """Not at a pause: wherever the kill happens to hit."""
    async with AgentBox(warm=1) as box:
        session = await start_training(box)
        await box.attach(session, 1, "cpu:0")
        for step, kill in ((3, 1), (11, 2)):
            await until(lambda step=step: step in losses(box.log(session)))  # type: ignore[misc]
            for pid in box.proxies_of(session):
                os.kill(pid, signal.SIGKILL)
            await box.event("proxy.recovered", session, count=kill)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_a_stopped_proxy_is_replaced_and_nobody_notices(reference: dict[int, str]) -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, 9)
        await box.attach(session, 1, "cpu:0")
        await until(lambda: 3 in losses(box.log(session)))
        [stopped] = box.proxies_of(session)
        stop_process(stopped)
        data = await box.event("proxy.recovered", session)
        assert data["why"].startswith("was stopped")
        assert not alive(stopped)
        await reach(box, session, 9)
        go(box, 9)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


POISON = """
import os, subprocess, sys, time, torch
helper = subprocess.Popen([sys.executable, "-c", sys.argv[1]]) if len(sys.argv) > 1 else None
kept = torch.arange(1000.0, device="cuda")
large = torch.randn(1200, 1200, device="cuda")
print("before", float(kept.sum()), flush=True)
try:
    print("svdvals", float(torch.linalg.svdvals(large).sum()), flush=True)
except RuntimeError as error:
    print("error", str(error).splitlines()[0], flush=True)
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
try:
    print("after", float(kept.sum()), flush=True)
except RuntimeError as error:
    print("error", str(error).splitlines()[0], flush=True)
time.sleep(14400)
"""

OTHER = """
import time, torch
x = torch.ones(10, device="cuda")
while True:
    print("other", float(x.sum()), flush=True)
    time.sleep(0.2)
"""


async def kill_at(box: AgentBox, session: str, seconds: float = 0.05) -> None:
    """Kill the session's proxy while it executes a record for longer than `seconds`."""
    rings = []
    for path in (box.shm / session).glob("*.ring"):
        with contextlib.suppress(Conflict):  # just being made, so nothing is executed for it
            rings.append(RingFile.open(path))
    seen: dict[tuple[RingFile, int], float] = {}
    deadline = time.monotonic() + 60
    while True:
        now = time.monotonic()
        assert now < deadline, f"no record takes long: {box.events} {box.log(session)}"
        working = {(ring, seq) for ring in rings if (seq := ring.read().executing_seq)}
        seen = {key: seen.get(key, now) for key in working}
        # What a killed proxy was executing stays in the header until the agent has seen it.
        if any(now - since > seconds for since in seen.values()) and box.proxies_of(session):
            break
        await asyncio.sleep(0.005)
    for ring in rings:
        ring.close()
    [pid] = box.proxies_of(session)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in box.proxies())


@pytest.mark.asyncio
async def test_an_operation_that_ends_its_proxies_fails_alone() -> None:
    """Its call raises; tensors, the other process of the session and its ring go on."""
    async with AgentBox(warm=2) as box:
        session = await box.start([sys.executable, "-c", POISON, OTHER])
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "before 499500.0")
        for _ in range(3):
            await kill_at(box, session)
        assert await box.event("proxy.gave_up", session) == {
            "operation": "aten::_linalg_svd",
            "deaths": 3,
        }
        await box.logged(session, "after 499500.0")
        said = box.log(session)
        assert "ended 3 times while it executed aten::_linalg_svd" in said
        assert "svdvals" not in said
        number = said.count("other 10.0")
        await until(lambda: box.log(session).count("other 10.0") > number + 1)
        assert [t for _, t, _ in box.events if t == "proxy.failed"] == []


@pytest.mark.asyncio
async def test_a_state_that_cannot_be_repeated_fails_its_ring_and_no_other() -> None:
    async with AgentBox(warm=2) as box:
        go_on = box.work / "go-on"
        session = await box.start([sys.executable, "-c", POISON, OTHER, str(go_on)])
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "svdvals")
        await box.logged(session, "other 10.0")
        for pid in box.proxies_of(session):
            os.kill(pid, signal.SIGKILL)
        for _ in range(3):
            await kill_at(box, session)
        data = await box.event("proxy.failed", session)
        assert "ended 3 times while it repeated aten::_linalg_svd" in data["sentence"]
        assert data["left"] == 1
        go_on.touch()
        await box.logged(session, "error the device state cannot be rebuilt")
        number = box.log(session).count("other 10.0")
        await until(lambda: box.log(session).count("other 10.0") > number + 1)


@pytest.mark.asyncio
async def test_many_processes_use_a_device_and_give_it_back(tmp_path: Path) -> None:
    async with AgentBox(warm=1) as box:
        many = str(SUPPORT / "agent_many.py")
        session = await box.start([sys.executable, many, str(box.work)])
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "parent 28.0")
        ring = RingFile.open(box.shm / session / "r1.ring")
        before = ring.read().memory_current
        children = re.compile(r"^child (\d) (\d+) (\S+) (\S+)$", re.MULTILINE)
        await until(lambda: len(children.findall(box.log(session))) == 3)
        assert len(list((box.shm / session).glob("*.ring"))) == 4
        # The figure in the parent's ring follows a few times a second.
        await until(lambda: ring.read().memory_current >= before + 3 * (32 << 20))
        found = {int(n): (int(pid), x, y) for n, pid, x, y in children.findall(box.log(session))}
        assert {n: (x, y) for n, (_, x, y) in found.items()} == await native_children()
        (box.work / "end").touch()
        os.kill(box.host_pid(session, found[2][0]), signal.SIGKILL)
        await box.logged(session, "parent still has 28.0")
        await until(lambda: ring.read().memory_current <= before + 4096)
        await until(lambda: [p.name for p in (box.shm / session).glob("*.ring")] == ["r1.ring"])
        await box.logged(session, "parent goes on 56.0")
        assert "forked: Cannot re-initialize CUDA in forked subprocess." in box.log(session)
        ring.close()


async def native_children() -> dict[int, tuple[str, str]]:
    """What the children of `agent_many` compute on a CPU without any proxy."""
    code = (
        "import torch\ntorch.set_num_threads(1)\nfor n in range(3):\n"
        "    torch.manual_seed(n); x = torch.randn(1024, 1024)\n"
        "    for _ in range(20): x = torch.nn.functional.gelu(x * 1.01)\n"
        "    print(n, float(x.sum()).hex(), float(n))"
    )
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {int(n): (x, y) for n, x, y in map(str.split, run.stdout.splitlines())}


@pytest.mark.asyncio
async def test_preempted_at_random_moments_by_park_and_attach(reference: dict[int, str]) -> None:
    async with AgentBox(warm=2) as box:
        session = await start_training(box)
        epoch = 0
        while "done" not in box.log(session):
            epoch += 1
            await box.attach(session, epoch, f"cpu:{epoch % 2}")
            await asyncio.sleep(0.05)
            await box.park(session, epoch)
            assert epoch < 200
        assert losses(box.log(session)) == reference
        assert epoch > 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.asyncio
async def test_a_full_disk_during_a_park_keeps_the_device(reference: dict[int, str]) -> None:
    box = AgentBox()
    place = box.root / "m"
    await _mount(place)
    try:
        box.fleet.shm_dir = str(place / "shm")
        async with box:
            session = await start_training(box, 6)
            await box.attach(session, 1)
            await reach(box, session, 6)
            filler = place / "filler"
            _fill(filler)
            with pytest.raises(NoSpace):
                await box.park(session, 1)
            assert (await box.session(session))["devices"] == ["cpu:0"]
            filler.unlink()
            await box.park(session, 1)
            go(box, 6)
            await box.attach(session, 2, "cpu:1")
            await box.logged(session, "done")
            assert losses(box.log(session)) == reference
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(place)], check=True)


async def _mount(place: Path) -> None:
    os.mkdir(place)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", str(place)]
    await asyncio.to_thread(subprocess.run, command, check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


@pytest.mark.asyncio
async def test_a_worker_that_is_killed_takes_its_ring_along() -> None:
    async with AgentBox() as box:
        code = (
            "import subprocess, sys, time\n"
            f"subprocess.run([sys.executable, {TRAINING!r}, 'cuda', '1'])\n"
            "print('the child ended', flush=True)\n"
            "time.sleep(14400)"
        )
        session = await box.python(code)
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "done")
        [child] = box.below(session)
        os.kill(child.pid, signal.SIGKILL)
        await box.logged(session, "the child ended")
        await until(lambda: list((box.shm / session).iterdir()) == [])
        assert len(box.proxies()) == 1
