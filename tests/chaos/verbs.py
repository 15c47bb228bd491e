"""The verbs: what users and administrators do with sessions and nodes while things break.

Each is `async verb(world, subjects, step) -> str`: what was done, "" when nobody could do it now. A
refusal with a sentence of ours is an answer; that what was refused changed nothing is the watch's
affair. A verb that was answered is checked here: what it says is so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from singularity_proxy.errors import NotFound, SingularityError
from singularity_scheduler.client import ServiceClient

from . import scenes
from .schedule import Step
from .world import PATIENCE_S, Json, World

if TYPE_CHECKING:
    from .subjects import Subject

Verb = Callable[[World, "Sequence[Subject]", Step], Awaitable[str]]
OnSession = Callable[[World, "Subject", Step, ServiceClient], Awaitable[str]]

LONGEST_S = 4 * PATIENCE_S
"""The campaign gives a verb up after this, whatever was in its way."""


def _on_session(name: str, do: OnSession) -> Verb:
    """A verb of one session, as its user calls it."""

    async def verb(world: World, subjects: Sequence[Subject], step: Step) -> str:
        able = [s for s in subjects if name in s.verbs and s.session and not s.locked.locked()]
        if not able:
            return ""
        subject = able[step.target % len(able)]
        async with subject.locked:
            if not subject.session:
                return ""
            subject.verb = name
            try:
                service = world.service(await world.token(subject.user), timeout=90.0)
                return await do(world, subject, step, service)
            finally:
                subject.verb = ""

    return verb


async def park(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    await service.park(subject.session)
    return f"parked {subject}"


async def suspend(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    low = subject.counted
    said = await service.suspend(subject.session)
    while said.get("process_state") == "suspending":  # answered after half a minute in any case
        await asyncio.sleep(0.5)
        said = await world.session(subject.session)
    state = said.get("process_state")
    if state == "suspended":
        await subject.stored_now(said["last_checkpoint"], low)
        await asyncio.sleep(step.rng().uniform(0.0, 10.0))
    await _resume(world, subject, service)
    return f"suspended ({state}) and resumed {subject}"


async def _resume(world: World, subject: Subject, service: ServiceClient) -> None:
    """Bring a session back, again after each refusal that a fault explains, until it is back."""
    session = subject.session
    if why := await scenes.comes_back(world, subject, service):
        world.timeline.violate("comes back", subject.name, f"{session} was not resumed: {why}")


async def migrate_node(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    here = (await service.get_session(subject.session))["node"]
    there = next((node for node in world.nodes if node != here), world.nodes[0])
    said = await service.migrate(subject.session, node=there)
    return f"moved {subject} to {said['node']}"


async def migrate_device(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    said = await service.migrate(subject.session)
    return f"moved {subject} to {said['devices']}"


async def checkpoint(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    low = subject.counted
    said = await service.checkpoint(subject.session, name=f"chaos-{step.number}")
    await subject.stored_now(said["last_checkpoint"], low)
    return f"stored {subject} as {said['last_checkpoint']['id']}"


async def restore(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    named = [c for c in subject.stored.values() if c.name]
    if not named:
        return ""
    chosen = named[step.dice % len(named)]
    with subject.asking_back():
        await service.restore(subject.session, chosen.id)
    return f"{subject} went back to {chosen.id}"


async def fork(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    if not subject.stored:
        return ""
    chosen = list(subject.stored)[step.dice % len(subject.stored)]
    key = f"chaos-{subject.session}-{step.number}"

    async def call() -> Json:
        return await service.fork(subject.session, chosen, key=key)

    made = await world.persist(call, what="fork")  # a lost answer would leave a fork behind
    try:
        await asyncio.sleep(step.rng().uniform(0.0, 4.0))
    finally:
        await end(world, made["id"], "the fork")
    return f"forked {subject} to {made['id']} and ended that"


async def end(world: World, session: str, what: str) -> None:
    """End a session of the campaign for good, however long that takes."""

    async def call() -> Json:
        return await world.service(timeout=30.0).end_session(session, grace_s=0.0)

    with contextlib.suppress(NotFound):
        await world.persist(call, what=f"end of {what}")
    world.ended[session] = world.timeline.now


async def preempt(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    await service.preempt(subject.session)
    subject.kept_back = "preempted"
    try:
        await asyncio.sleep(step.rng().uniform(0.0, 8.0))
    finally:
        await _resume(world, subject, service)
        subject.kept_back = ""
    return f"preempted and resumed {subject}"


async def keep(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    await service.keep(subject.session, 600.0)
    return f"kept {subject} alive"


async def tier(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    wanted = ("basic", "standard", "premium")[step.dice % 3]
    await service.tier(subject.session, wanted)
    return f"{subject} has tier {wanted}"


async def resize(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    said = await service.resize(subject.session, 1 + step.dice % 2)
    return f"{subject} runs on {said['physical_devices']} devices"


async def visit(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    if subject.kind not in ("idle", "notes"):  # the others are in the middle of a cell
        return ""
    if wrong := await subject.visit():
        world.timeline.violate("variables", subject.name, wrong)
    return f"visited {subject}"


async def close(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """Shut a notebook down in the middle of its cell; it is opened anew."""
    able = [s for s in subjects if "close" in s.verbs and s.session and not s.locked.locked()]
    if not able:
        return ""
    subject = able[step.target % len(able)]
    old = subject.session
    await subject.drop()
    world.ended[old] = world.timeline.now
    return f"closed {subject.name}, session {old}"


async def drain_node(world: World, subjects: Sequence[Subject], step: Step) -> str:
    node = world.nodes[step.target % len(world.nodes)]
    if world.draining:
        return ""
    world.draining = node
    service = world.service(timeout=30.0)
    try:
        await service.drain_node(node, reason="chaos", store=bool(step.dice % 2))
        world.timeline.add("verb", f"{node} is drained")
        await asyncio.sleep(step.rng().uniform(3.0, 25.0))
    finally:
        await world.persist(lambda: service.undrain_node(node), what="undrain")
        world.draining = ""
    return f"{node} is used again"


async def drain_device(world: World, subjects: Sequence[Subject], step: Step) -> str:
    node = world.nodes[step.target % len(world.nodes)]
    device = f"cpu:{step.dice % world.devices}"
    service = world.service(timeout=30.0)
    try:
        await service.drain(node, device, reason="chaos")
        await asyncio.sleep(step.rng().uniform(2.0, 15.0))
    finally:
        await world.persist(lambda: service.return_device(node, device), what="return of a device")
    return f"{device} of {node} was drained and returned"


async def upgrade(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """A rolling upgrade of all nodes: each is emptied, "upgraded" and used again."""
    if world.draining:
        return ""
    world.draining = "upgrade"
    service = world.service(timeout=30.0)
    done: list[str] = []
    try:
        await service.begin_upgrade(reason="chaos", wait=True)
        began = world.calm_s
        while world.calm_s - began < 2 * PATIENCE_S:
            found = await world.persist(service.upgrade, what="upgrade")
            if found.get("state") not in ("running", "paused"):
                break
            for node in found.get("nodes", ()):
                name, state = node.get("node") or node.get("id"), node.get("state")
                if state == "out":
                    await world.persist(lambda name=name: service.upgraded(name), what="upgraded")
                    done.append(name)
            await asyncio.sleep(1.0)
    finally:
        with contextlib.suppress(SingularityError):
            await world.persist(service.cancel_upgrade, what="end of the upgrade")
        for node in world.nodes:
            with contextlib.suppress(SingularityError):
                await world.persist(lambda node=node: service.undrain_node(node), what="undrain")
        world.draining = ""
    return f"upgraded {done}"


async def restart_server(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """Stop a user's server as the Hub's page does; its tabs start it again."""
    user = world.users[step.target % len(world.users)]
    world.hit(user)
    await world.hub.call("DELETE", f"users/{user}/server", timeout=120.0)
    world.hit(user)
    return f"stopped the server of {user}"


VERBS: dict[str, Verb] = {
    **{
        name: _on_session(name, do)
        for name, do in {
            "park": park,
            "suspend": suspend,
            "migrate.node": migrate_node,
            "migrate.device": migrate_device,
            "checkpoint": checkpoint,
            "restore": restore,
            "fork": fork,
            "preempt": preempt,
            "keep": keep,
            "tier": tier,
            "resize": resize,
            "visit": visit,
            "reopen": scenes.reopen,
        }.items()
    },
    "close": close,
    "drain.node": drain_node,
    "drain.device": drain_device,
    "upgrade": upgrade,
    "server.restart": restart_server,
    "platform.restart": scenes.restart_platform,
}
