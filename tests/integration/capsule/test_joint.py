"""Both halves of a training session taken down in the middle and brought back, several times.

The worker in a capsule, its device proxy outside, the ring between them: frozen at any instruction,
then the proxy drains and writes its state, then the process image; everything is killed. A new
proxy, a new namespace and copied rings go on, and every loss is bitwise that of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.files import record as files
from singularity_proxy.capsule.files.rules import Way
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.launcher import CapsuleSpec
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.standalone import Standalone
from support import matrix
from support.agent_trains import TRAINING, native_losses
from support.capsules import LAUNCHER, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio, pytest.mark.timeout(300)]

STEPS = 40
GENERATIONS = 8 if matrix.is_full() else 2
_LOSS = re.compile(r"^step (\d+) (\S+)$", re.MULTILINE)


@pytest.fixture
def session() -> Iterator[Standalone]:
    with Standalone(keep_rings=True) as made:
        yield made


def native() -> list[tuple[str, str]]:
    return [(str(step), loss) for step, loss in native_losses(STEPS).items()]


class Trainer:
    """A training script in a capsule, with the device session that serves it."""

    def __init__(self, session: Standalone) -> None:
        self.session = session
        self.folder = str(session.folder)
        self.log_path = os.path.join(self.folder, "worker.log")
        self.store = Path(tempfile.mkdtemp(prefix="joint-"))
        self.capsule: NamespaceCapsule | None = None
        self.back_at = 0
        """Steps in the log when it came back last, before it went on."""

    def spec(self) -> CapsuleSpec:
        return CapsuleSpec(
            argv=[sys.executable, TRAINING, "cuda", str(STEPS), self.folder, "0.005"],
            env={**self.session.env(), "OMP_NUM_THREADS": "1"},
            cwd=self.folder,
            log_path=self.log_path,
            keep=(self.folder, str(self.session.shm)),
        )

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError), open(self.log_path, encoding="utf-8") as file:
            return file.read()
        return ""

    def steps(self) -> int:
        return len(_LOSS.findall(self.log()))

    async def start(self) -> None:
        assert LAUNCHER is not None
        self.capsule = await LAUNCHER.start(self.spec())

    async def until(self, steps: int) -> None:
        deadline = asyncio.get_running_loop().time() + 120
        while self.steps() < steps:
            assert asyncio.get_running_loop().time() < deadline, self.log()
            assert self.capsule is not None
            assert self.capsule.watch.alive, self.log()
            await asyncio.sleep(0.003)

    async def suspend(self, number: int) -> files.Record:
        """Freeze, drain, save rings and image, kill everything."""
        assert self.capsule is not None
        session, capsule, place = self.session, self.capsule, self.store / str(number)
        session.automatic = False
        await asyncio.to_thread(capsule.freeze)
        await asyncio.to_thread(session.park, "copy")
        assert session.proxy_pids() == []
        record = await asyncio.to_thread(
            files.describe, capsule, session_folder=self.folder, ring_folder=str(session.shm)
        )
        assert any(one.place == "ring" for one in record.files)
        await asyncio.to_thread(image.dump, capsule, str(place.with_suffix(".image")))
        await asyncio.to_thread(shutil.copytree, session.shm, place)
        shutil.copy(self.log_path, place.with_suffix(".log"))
        assert await capsule.end(0) == -9
        for path in session.shm.iterdir():
            path.unlink()
        return record

    async def resume(self, number: int, record: files.Record) -> None:
        """Rings at their place, the tree in a new capsule, a new proxy behind the rings."""
        assert LAUNCHER is not None
        session, place = self.session, self.store / str(number)
        await asyncio.to_thread(shutil.copytree, place, session.shm, dirs_exist_ok=True)
        # The session's folder travels too.
        os.truncate(self.log_path, place.with_suffix(".log").stat().st_size)
        own = (self.folder, self.folder)
        done = reconcile.reconcile(record, way=Way.RESUME, own=own, label="after")
        self.capsule = await LAUNCHER.prepare(self.spec())
        folder = str(place.with_suffix(".image"))
        await asyncio.to_thread(
            image.restore, self.capsule, folder, stopped=record.stopped, plan=done.plan
        )
        await asyncio.to_thread(session.attach)
        session.automatic = True
        self.back_at = self.steps()  # it stands still until now
        await asyncio.to_thread(self.capsule.thaw)

    async def close(self) -> None:
        if self.capsule:
            await self.capsule.end(0)
        shutil.rmtree(self.store)


async def test_losses_are_bitwise_those_of_an_undisturbed_run(session: Standalone) -> None:
    chance = random.Random(matrix.seed())
    trainer = Trainer(session)
    try:
        await trainer.start()
        for number in range(GENERATIONS):
            await trainer.until(2 + number * (STEPS - 10) // GENERATIONS)
            await asyncio.sleep(chance.uniform(0, 0.02))  # anywhere within a step
            record = await trainer.suspend(number)
            await trainer.resume(number, record)
        await trainer.until(STEPS)
        assert _LOSS.findall(trainer.log()) == await asyncio.to_thread(native)
        assert trainer.capsule is not None
        assert trainer.capsule.signal(signal.SIGINT)
        assert await trainer.capsule.wait(30)
        assert trainer.capsule.watch.exit_code in (1, -2)
        assert "KeyboardInterrupt" in trainer.log()
    finally:
        await trainer.close()


async def test_an_older_checkpoint_runs_to_the_same_losses(session: Standalone) -> None:
    """A rollback: image, rings and device state of before, after the session had gone on."""
    trainer = Trainer(session)
    try:
        await trainer.start()
        await trainer.until(5)
        record = await trainer.suspend(0)
        done = trainer.steps()
        await trainer.resume(0, record)
        await trainer.until(done + 10)
        await trainer.suspend(1)
        await trainer.resume(0, record)
        assert trainer.back_at <= done + 1
        await trainer.until(STEPS)
        assert _LOSS.findall(trainer.log()) == await asyncio.to_thread(native)
    finally:
        await trainer.close()


async def test_a_worker_that_waits_for_a_device_comes_back_and_rings(session: Standalone) -> None:
    session.automatic = False
    trainer = Trainer(session)
    try:
        await trainer.start()
        while not session.doorbell_rings:
            await asyncio.sleep(0.005)
        record = await trainer.suspend(0)
        rings = session.doorbell_rings
        await trainer.resume(0, record)  # attaches nothing new: no proxy was ever bound
        await trainer.until(STEPS)
        assert session.doorbell_rings >= rings
        assert _LOSS.findall(trainer.log()) == await asyncio.to_thread(native)
    finally:
        await trainer.close()
