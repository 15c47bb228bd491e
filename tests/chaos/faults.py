"""The faults: what each does to the platform, on whom, and what it does not do.

Each is `async fault(world, subjects, step) -> str`: one line that says what was done, "" when
nobody was there to do it to (it is not counted then). What a fault changes for a while (a stopped
process, a full disk) it puts right itself.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from . import processes, scenes
from .processes import Found
from .schedule import Step
from .world import World

if TYPE_CHECKING:
    from .subjects import Subject

Fault = Callable[["World", "Sequence[Subject]", Step], Awaitable[str]]

SUCCESSOR_S = 8.0
"""How long a fault waits for the process that takes the place of one that it killed."""

CRIU_S = 25.0
"""How long a fault waits for somebody to start CRIU."""

LONGEST_STOP_S = 12.0
"""A process that is stopped is continued after this at the latest; as if a machine swapped."""


def _choose(found: Sequence[Found], step: Step) -> Found | None:
    return found[step.target % len(found)] if found else None


async def _candidates(world: World, role: str, subjects: Sequence[Subject]) -> list[Found]:
    """The processes of `role` that a fault may hit, in a fixed order: by node, session, user."""
    found = await world.find(role)
    if role == "proxy":
        found = [f for f in found if f.session]
    order = {subject.session[:6]: n for n, subject in enumerate(subjects) if subject.session}
    return sorted(found, key=lambda f: (f.node, order.get(f.session[:6], 99), f.user, f.pid))


def _kill(role: str) -> Fault:
    async def kill(world: World, subjects: Sequence[Subject], step: Step) -> str:
        found = _choose(await _candidates(world, role, subjects), step)
        if found is None or not found.signal(signal.SIGKILL):
            return ""
        note_server(world, found)
        if role == "service":
            world.measure_service()
        return f"killed {found}"

    return kill


def note_server(world: World, found: Found) -> None:
    """What is between kernels and tabs may lose what is on its way through it."""
    if found.role in ("server", "chp", "relay", "hub"):
        world.hit(found.user, found.session)


def _stop(role: str) -> Fault:
    async def stop(world: World, subjects: Sequence[Subject], step: Step) -> str:
        found = _choose(await _candidates(world, role, subjects), step)
        if found is None or not found.signal(signal.SIGSTOP):
            return ""
        seconds = _seconds(step.rng(), 0.3, LONGEST_STOP_S)
        note_server(world, found)
        world.timeline.add("fault", f"stopped {found} for {seconds:.1f} s")
        world.stopped += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            world.stopped -= 1
            found.signal(signal.SIGCONT)
            note_server(world, found)
        return f"continued {found}"

    return stop


def _seconds(rng: random.Random, low: float, high: float) -> float:
    """Short ones more often than long ones."""
    return low * (high / low) ** rng.random()


def _twice(role: str) -> Fault:
    """Kill, and kill again what takes its place, while that starts."""

    async def twice(world: World, subjects: Sequence[Subject], step: Step) -> str:
        first = _choose(await _candidates(world, role, subjects), step)
        if first is None or not first.signal(signal.SIGKILL):
            return ""
        rng = step.rng()
        for _ in range(round(SUCCESSOR_S / 0.05)):
            await asyncio.sleep(0.05)
            later = [
                f
                for f in await world.find(role)
                if f.process.started >= first.process.started and f.pid != first.pid
                if f.node == first.node and f.session == first.session
            ]
            if later:
                await asyncio.sleep(_seconds(rng, 0.01, 1.5))
                done = later[-1].signal(signal.SIGKILL)
                if role == "service":
                    world.measure_service()
                return f"killed {first}" + (f" and its successor {later[-1].pid}" if done else "")
        return f"killed {first}; nobody took its place within {SUCCESSOR_S:g} s"

    return twice


async def kill_warm_proxy(world: World, subjects: Sequence[Subject], step: Step) -> str:
    found = _choose([f for f in await world.find("proxy") if not f.session], step)
    return f"killed warm {found}" if found and found.signal(signal.SIGKILL) else ""


async def kill_replacement(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """Kill a session's proxy and those that wait to replace it, so that one has to be started."""
    found = _choose(await _candidates(world, "proxy", subjects), step)
    if found is None or not found.signal(signal.SIGKILL):
        return ""
    rng, told = step.rng(), [str(found)]
    for _ in range(rng.choice((1, 1, 2))):
        await asyncio.sleep(_seconds(rng, 0.01, 0.8))
        for other in await world.find("proxy", node=found.node):
            mine = other.session == found.session or not other.session
            if mine and other.signal(signal.SIGKILL):
                told.append(str(other.pid))
    return f"killed {', '.join(told)}"


async def kill_criu(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """The next CRIU that somebody starts, in the middle of its work."""
    rng = step.rng()
    for _ in range(round(CRIU_S / 0.03)):
        found = await asyncio.to_thread(_running_criu, world)
        if found:
            await asyncio.sleep(_seconds(rng, 0.01, 0.3))
            return f"killed {found[0]}" if found[0].signal(signal.SIGKILL) else ""
        await asyncio.sleep(0.03)
    return ""


def _running_criu(world: World) -> list[Found]:
    return [f for f in processes.find(world.settings.instance) if f.role == "criu"]


async def kill_holder(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """The process that a capsule hangs on: all of the session ends with it, as if its own program
    had been killed. That must be told, and nothing of it may go on or stay."""
    of = {subject.session: subject for subject in subjects if subject.session}
    holders = [f for f in await _candidates(world, "holder", subjects) if f.session in of]
    found = _choose(holders, step)
    if found is None or not found.signal(signal.SIGKILL):
        return ""
    subject = of[found.session]
    subject.note_kill()
    return f"killed {found} of {subject}"


async def cut_power(world: World, subjects: Sequence[Subject], step: Step) -> str:
    return await _cut_power(world, subjects, step, wipe=False)


async def cut_power_and_wipe(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """As when a machine loses power: what was in shared memory is gone as well."""
    return await _cut_power(world, subjects, step, wipe=True)


async def _cut_power(world: World, subjects: Sequence[Subject], step: Step, wipe: bool) -> str:
    node = world.nodes[step.target % len(world.nodes)]
    if world.off:  # the last node: its sessions would have nowhere to be
        return ""
    seconds = _seconds(step.rng(), 2.0, 60.0)
    world.timeline.add("fault", f"{node} without power for {seconds:.0f} s")
    for subject in subjects:
        subject.note_power_loss(node)
    count = await world.cut_power(node, seconds, wipe)
    lost = ", its shared memory was wiped" if wipe else ""
    return f"{node} has power again ({count} processes were killed{lost})"


async def fill_store(world: World, subjects: Sequence[Subject], step: Step) -> str:
    if world.disk.trouble:
        return ""
    seconds = _seconds(step.rng(), 3.0, 30.0)
    spare = step.rng().choice((0, 1 << 16, 8 << 20))
    world.timeline.add(
        "fault", f"the store's disk is full for {seconds:.0f} s ({spare} bytes left)"
    )
    await world.disk.fill(seconds, spare)
    return "the store's disk has room again"


async def slow_store(world: World, subjects: Sequence[Subject], step: Step) -> str:
    if world.disk.trouble:
        return ""
    seconds, share = _seconds(step.rng(), 3.0, 20.0), step.rng().choice((0.5, 0.8, 0.95))
    text = f"the store's disk stands still for {share:.0%} of each second, {seconds:.0f} s long"
    world.timeline.add("fault", text)
    await world.disk.freeze(seconds, share)
    return "the store's disk is fast again"


async def readonly_store(world: World, subjects: Sequence[Subject], step: Step) -> str:
    if world.disk.trouble:
        return ""
    seconds = _seconds(step.rng(), 2.0, 15.0)
    if not await world.disk.refuse_writes(seconds):
        return ""
    return f"the store's disk was read-only for {seconds:.1f} s"


async def cut_link(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """The connection between the service and one agent breaks; both live."""
    agent = _choose(await world.find("agent"), step)
    if agent is None:
        return ""
    path = f"{world.settings.runtime_dir}-{agent.node}/agent.sock"
    cut = await asyncio.to_thread(processes.cut_connections, agent.pid, path)
    return f"cut {cut} connections of {agent} with the service" if cut else ""


ROLES = ("proxy", "template", "agent", "service", "hub", "chp", "relay", "server")

FAULTS: dict[str, Fault] = {
    **{f"{role}.kill": _kill(role) for role in ROLES},
    **{f"{role}.stop": _stop(role) for role in ROLES},
    "agent.twice": _twice("agent"),
    "service.twice": _twice("service"),
    "proxy.warm": kill_warm_proxy,
    "proxy.replacement": kill_replacement,
    "criu.kill": kill_criu,
    "holder.kill": kill_holder,
    "node.off": cut_power,
    "node.wiped": cut_power_and_wipe,
    "store.full": fill_store,
    "store.frozen": slow_store,
    "store.readonly": readonly_store,
    "link.cut": cut_link,
    "chunk.flip": scenes.flip_chunk,
    "files.swap": scenes.swap_file,
    "up.kill": scenes.kill_up,
    "clock.step": scenes.step_clock,
}
