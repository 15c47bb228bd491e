"""The agent's rounds: what one session breaks, and what goes on all the same."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_scheduler.agent.rights.leases import LeaseTable, boot_clock
from singularity_scheduler.agent.rounds import Rounds
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Life, SessionRecord
from singularity_scheduler.agent.sessions.rings import RingSet


class PaperNode:
    """What `Rounds` needs of a node, its devices and its sessions' lives."""

    def __init__(self, folder: Path) -> None:
        self.settings = SimpleNamespace(state_dir=str(folder), log_bytes=4096)
        self.leases = LeaseTable()
        self.lease: Any = type("Lease", (), {"look": lambda _: None})()
        self.sessions: dict[str, LiveSession] = {}
        self.stores = SimpleNamespace(garbage_due=False)
        self.service = None
        self.told: list[tuple[str, int]] = []
        self.fenced: list[str] = []
        self.trimmed: list[str] = []
        self.jobs: list[Any] = []
        self.stopped = 0
        self.folder = folder

    def rounds(self, idle_exit_s: float = 0.0) -> Rounds:
        def stop() -> None:
            self.stopped += 1

        histories = SimpleNamespace(look=lambda _: None)
        lifecycle = SimpleNamespace(trim_logs=self._trim, histories=histories)
        return Rounds(self, self, lifecycle, idle_exit_s, stop)  # type: ignore[arg-type]

    def session(self, name: str) -> LiveSession:
        record = SessionRecord(name, "alice", "batch", "basic", "", "capsule", 1, 0, 0)
        record.life = Life.LIVE
        folder = self.folder / name
        folder.mkdir()
        live = LiveSession(record, RingSet(record, str(folder), lambda _: None), None)  # type: ignore[arg-type]
        self.sessions[name] = live
        return live

    def emit(self, session: str, _type: str, count: int) -> None:
        self.told.append((session, count))

    def spawn(self, job: Any, _what: str) -> None:
        self.jobs.append(asyncio.ensure_future(job))

    def try_save_leases(self) -> None: ...

    async def fence(self, live: LiveSession) -> None:
        self.fenced.append(live.record.session)

    def _trim(self, live: LiveSession) -> None:
        self.trimmed.append(live.record.session)


@pytest.fixture
def node(tmp_path: Path) -> PaperNode:
    return PaperNode(tmp_path)


@pytest.mark.asyncio
async def test_one_that_cannot_be_looked_at_is_told_once_and_stops_nothing(
    node: PaperNode, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = node.session("bad"), node.session("good")
    bad.rings.rings["r1"] = SimpleNamespace(file=SimpleNamespace(steps=lambda: 1 // 0))  # type: ignore[assignment]
    shown = SimpleNamespace(file=SimpleNamespace(steps=lambda: 7))
    good.rings.rings["r1"] = shown  # type: ignore[assignment]
    rounds = node.rounds()
    for _ in range(5):
        rounds.look(trim=True)
    assert node.told == [("good", 7)]
    assert node.trimmed == ["good"] * 5
    assert caplog.text.count("session bad: it could not be looked at") == 1
    bad.rings.rings["r1"].file.steps = lambda: os.pread(-1, 8, 0)  # type: ignore
    rounds.look(trim=False)
    rounds.look(trim=False)
    assert caplog.text.count("session bad: it could not be looked at") == 2
    assert "session good" not in caplog.text
    node.leases.grant("good", 1, 5.0, boot_clock() - 6.0)
    rounds.look(trim=False)
    await asyncio.sleep(0)
    assert node.fenced == ["good"]


@pytest.mark.asyncio
async def test_a_part_of_the_agent_that_fails_keeps_no_lease_from_ending(node: PaperNode) -> None:
    node.session("a")

    def fails(*_: object) -> None:
        raise OSError("no")

    node.lease.look, node.try_save_leases = fails, fails  # type: ignore[method-assign]
    node.leases.grant("a", 1, 0.05, boot_clock())
    running = asyncio.ensure_future(node.rounds().run())
    while not (node.fenced or running.done()):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not running.done()
    running.cancel()
    assert node.fenced == ["a"]


def test_an_agent_that_nobody_needs_is_told_to_end(node: PaperNode) -> None:
    rounds = node.rounds(idle_exit_s=1e-6)
    live = node.session("a")
    rounds.look(trim=False)
    assert node.stopped == 0
    live.record.life = Life.ENDED
    rounds.look(trim=False)
    assert node.stopped == 0
    rounds.look(trim=False)
    assert node.stopped == 1


@pytest.mark.asyncio
async def test_a_ring_whose_files_cannot_be_removed_is_forgotten(
    node: PaperNode, caplog: pytest.LogCaptureFixture
) -> None:
    live = node.session("a")
    ring, _ = live.rings.create(0, ProcessIdentity.of(os.getpid()), "cpu", 1)
    folder = node.folder / "a"
    (folder / "r1.ring").unlink()
    for name in ("r1.ring", "r1.snap.tmp"):
        (folder / name).mkdir()
    (folder / "r1.journal").touch()
    live.rings.forget(ring)
    assert live.rings.rings == live.record.rings == {}
    assert sorted(path.name for path in folder.iterdir()) == ["r1.ring", "r1.snap.tmp"]
    assert caplog.text.count("stays until its session ends") == 2
    node.rounds().look(trim=False)
    assert "could not be looked at" not in caplog.text
