"""A node that the scheduler cannot reach stops the sessions that could be started elsewhere, in
time and whatever keeps it from being reached, and goes on with those that were not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.agent.rights.leases import boot_clock
from singularity_scheduler.fleet import LocalFleet
from singularity_scheduler.fleet.local_agent import LocalAgent
from support.agent import SUPPORT, AgentBox, until
from support.agent_held import Held
from support.agent_moves import checkpoint
from support.capsules import needs_criu
from support.processes import stop_process
from support.scheduler_service import Platform, platform

pytestmark = needs_criu

WRITER = str(SUPPORT / "agent_writer.py")
NODES = ("node-1", "node-2")


class Written:
    """The lines that the writer has appended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[str, int]]:
        text = self.path.read_text() if self.path.exists() else ""
        words = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(capsule, int(number)) for capsule, number in words]

    async def grows(self) -> None:
        before = len(self.lines())
        await until(lambda: len(self.lines()) > before + 3)

    async def stands(self) -> None:
        """It has stopped growing."""
        for _ in range(100):
            before = len(self.lines())
            await asyncio.sleep(0.3)
            if len(self.lines()) == before:
                return
        raise AssertionError("it goes on and on")


# -- one agent, whose scheduler is the test --------------------------------------------------------


async def renew(box: AgentBox, got: float | None, after_s: float, *here: str) -> dict[str, Any]:
    terms = {"got": got, "after_s": after_s, "here": dict.fromkeys(here, 0)}
    return dict(await box.call("renew", leases=[], ttl_s=60.0, terms=terms))


async def writer(box: AgentBox) -> tuple[str, Written]:
    """A session that writes and has a checkpoint of its processes."""
    path = box.work / "shared"
    session = await box.start([sys.executable, WRITER, str(path), "0.01"])
    written = Written(path)
    await written.grows()
    await checkpoint(box, session, 1)
    return session, written


async def leased(box: AgentBox, session: str, after_s: float) -> None:
    """The scheduler has heard the node just now."""
    answer = await renew(box, None, after_s, session)
    await renew(box, answer["sent_at"], after_s, session)


def in_order(written: Written) -> bool:
    numbers = [number for _, number in written.lines()]
    return numbers == list(range(1, len(numbers) + 1))


async def goes_on(box: AgentBox, session: str, written: Written) -> None:
    """The scheduler is heard again, and nothing was written twice or left out."""
    await leased(box, session, 60.0)
    await written.grows()
    assert in_order(written)


@pytest.mark.asyncio
async def test_an_agent_that_sleeps_does_not_keep_its_sessions_running() -> None:
    async with AgentBox() as box:
        session, written = await writer(box)
        await leased(box, session, 4.0)
        end = boot_clock() + 4.0
        stop_process(box.agent_pid)
        try:
            await written.grows()
            await asyncio.sleep(max(0.0, end - boot_clock()) + 0.3)
            await written.stands()
        finally:
            os.kill(box.agent_pid, signal.SIGCONT)
        # What was on its way when it slept says nothing new, and neither does another's session.
        told = await renew(box, end - 4.0, 4.0, session)
        assert told["over"] is True
        await renew(box, told["sent_at"], 60.0)
        await asyncio.sleep(1.2)
        await written.stands()
        told = await renew(box, None, 60.0)
        await renew(box, told["sent_at"], 60.0, session)
        await written.grows()
        assert in_order(written)


@pytest.mark.asyncio
async def test_a_silent_scheduler_freezes_what_could_run_elsewhere_and_nothing_else() -> None:
    async with AgentBox() as box:
        session, written = await writer(box)
        other = box.work / "other"
        kept = await box.start([sys.executable, WRITER, str(other), "0.01"])
        await leased(box, session, 0.5)
        await written.stands()
        await Written(other).grows()
        log = box.root / "state" / "agent.log"
        await until(
            lambda: f"session {session} is frozen: the scheduler has not" in log.read_text()
        )
        # It can be saved as it stands, and does not go on by that.
        await checkpoint(box, session, 1, seq=2)
        await asyncio.sleep(0.2)
        await written.stands()
        # What has no checkpoint yet could be started elsewhere by one: it gets none now.
        with pytest.raises(Exception, match="has not been heard for too long"):
            await checkpoint(box, kept, 1, seq=3)
        await Written(other).grows()
        await goes_on(box, session, written)
        await checkpoint(box, kept, 1, seq=4)


@pytest.mark.asyncio
async def test_a_killed_agent_comes_back_in_time_or_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AgentBox() as box:
        session, written = await writer(box)
        await leased(box, session, 30.0)
        await box.kill_agent()
        await written.grows()
        assert box.host_pid(session, 5001)
        await leased(box, session, 1.0)
        with monkeypatch.context() as gone:
            gone.setattr(box.fleet, "command", lambda: ["/bin/false"])
            os.kill(box.agent_pid, signal.SIGKILL)
            await asyncio.sleep(1.0)
            await written.stands()
        await until(lambda: box.connections[-1:] == [True])
        await asyncio.sleep(1.2)
        await written.stands()
        await goes_on(box, session, written)


@pytest.mark.asyncio
async def test_who_is_saved_the_moment_it_goes_on_stands_still_meanwhile() -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session, written = await writer(box)
        await leased(box, session, 0.3)
        await written.stands()
        held = Held(box, "suspend.frozen")
        told = await renew(box, None, 60.0)
        await renew(box, told["sent_at"], 60.0, session)
        command = asyncio.ensure_future(checkpoint(box, session, 1, seq=2))
        await held.wait()
        before = len(written.lines())
        await asyncio.sleep(1.3)  # longer than between two looks of pid 1
        assert len(written.lines()) == before
        held.release()
        await command
        await written.grows()
        assert in_order(written)


@pytest.mark.asyncio
async def test_a_new_agent_lets_nothing_go_that_no_renewal_has_named() -> None:
    async with AgentBox() as box:
        session, written = await writer(box)
        await leased(box, session, 0.5)
        await written.stands()
        told = await renew(box, None, 60.0)
        await renew(box, told["sent_at"], 60.0)  # it has been started elsewhere
        await box.kill_agent()
        await asyncio.sleep(1.2)
        await written.stands()
        await goes_on(box, session, written)


@pytest.mark.asyncio
async def test_what_an_agent_had_stopped_that_was_killed_goes_on_with_the_scheduler() -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session, written = await writer(box)
        await leased(box, session, 5.0)
        end = boot_clock() + 5.0
        held = Held(box, "suspend.stopped")
        command = asyncio.ensure_future(checkpoint(box, session, 1, seq=2))
        await held.wait()
        await asyncio.sleep(max(0.0, end - boot_clock()))  # its time is over
        connections = len(box.connections)
        os.kill(box.agent_pid, signal.SIGKILL)
        with pytest.raises(SingularityError):
            await command
        await until(lambda: len(box.connections) > connections + 1 and box.connections[-1])
        await written.stands()
        await goes_on(box, session, written)


# -- two nodes and the real scheduler --------------------------------------------------------------


class Nodes(LocalFleet):
    """Two agents; one that `held` names is not started again after its end, and one that is asleep
    is left alone."""

    held: set[str] = set()

    def __init__(self, **traits: Any) -> None:
        few = ["--NodeAgent.warm_proxies=0"]
        super().__init__(
            nodes=list(NODES),
            device_type="cpu",
            cpu_devices=1,
            agent_args=few,
            hung_agent_s=0.0,
            **traits,
        )

    def command(self, node: str = "") -> list[str]:
        return ["/bin/false"] if node in self.held else super().command(node)

    def agent(self, node: str) -> LocalAgent:
        return self._agents[NODES.index(node)]

    def pid(self, node: str) -> int:
        watch = self.agent(node)._agent
        assert watch is not None
        return watch.pid


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user of every node sees."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@contextlib.asynccontextmanager
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Platform, Nodes]]:
    Nodes.held = set()
    times = {"lease_ttl_s": 2.0, "lease_margin_s": 1.0, "lost_patience_s": 30.0}
    async with platform(tmp_path, nodes=NODES, fleet=Nodes, controller=times) as p:
        fleet: Any = p.controller.fleet.bare
        try:
            yield p, fleet
        finally:
            Nodes.held = set()
            await fleet.stop_agent()


async def session_with_checkpoint(p: Platform, path: Path) -> tuple[str, str, Written]:
    launch = {
        "mode": "capsule",
        "argv": [sys.executable, WRITER, str(path), "0.01"],
        "env": {"HOME": "/tmp"},
        "cwd": "/",
    }
    made = await p.client().create_session(kind="interactive", launch=launch, name="writer")
    written = Written(path)
    await written.grows()
    await p.client().checkpoint(made["id"], "")
    return made["id"], made["node"], written


async def goes_on_elsewhere(p: Platform, session: str, node: str, written: Written) -> str:
    """Wait until it does; returns the capsule on the lost node. Nothing comes from there after the
    first line of the other one."""
    old = written.lines()[0][0]
    await until(
        lambda: written.lines()[-1][0] != old,
        lambda: str(p.controller.state.sessions[session]),
        timeout=60,
    )
    await written.grows()
    capsules = [capsule for capsule, _ in written.lines()]
    first = next(i for i, capsule in enumerate(capsules) if capsule != old)
    assert old not in capsules[first:]
    assert p.controller.state.sessions[session].node != node
    return old


async def unreachable() -> NoReturn:
    raise Unavailable("the network is cut")


@pytest.mark.parametrize("how", ["asleep", "killed", "cut off"])
@pytest.mark.asyncio
async def test_a_lost_node_writes_nothing_once_its_session_runs_elsewhere(
    how: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path) as (p, fleet):
        session, node, written = await session_with_checkpoint(p, home / "shared")
        pid = fleet.pid(node)
        if how == "cut off":  # its agent lives and hears nothing
            monkeypatch.setattr(fleet.agent(node), "_connect", unreachable)
            await fleet.agent(node).link.close()
        else:
            if how == "killed":
                fleet.held.add(node)
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        old = await goes_on_elsewhere(p, session, node, written)
        stored = await p.client().checkpoints(session)
        # It comes back: what it still has is ended, without another line, and never published.
        if how == "killed":
            fleet.held.clear()
        elif how == "cut off":
            monkeypatch.undo()
        else:
            os.kill(pid, signal.SIGCONT)
        state = p.controller.state
        await until(lambda: state.nodes[node].connected, timeout=60)

        def of_node() -> list[Path]:
            return [p for p in Path("/proc").glob("[0-9]*/ns/pid") if _link(p) == old]

        await until(lambda: of_node() == [], timeout=60)
        await written.grows()
        capsules = [capsule for capsule, _ in written.lines()]
        assert old not in capsules[next(i for i, c in enumerate(capsules) if c != old) :]
        assert await p.client().checkpoints(session) == stored
        assert state.sessions[session].node != node


@pytest.mark.asyncio
async def test_a_node_that_comes_back_before_that_goes_on_and_nothing_is_lost(
    tmp_path: Path, home: Path
) -> None:
    async with nodes(tmp_path) as (p, fleet):
        session, node, written = await session_with_checkpoint(p, home / "shared")
        await asyncio.sleep(8.0)  # it has more to lose than the wait that follows
        pid = fleet.pid(node)
        stop_process(pid)
        try:
            await asyncio.sleep(2.5)
            await written.stands()
            await until(lambda: not p.controller.state.nodes[node].connected)
        finally:
            os.kill(pid, signal.SIGCONT)
        await written.grows()
        assert in_order(written)
        view = p.controller.state.sessions[session]
        assert (view.node, view.incarnation) == (node, 1)


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
