"""Faults and verbs that are little stories: damage in the store, files that were exchanged while
their session was away, an end that is taken back, the platform stopped or its `up` killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from singularity_proxy.errors import Conflict, SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

from .notebooks import CsvWriter, Notebook
from .schedule import Step
from .subjects import ENDED
from .world import PATIENCE_S, World

if TYPE_CHECKING:
    from .subjects import Subject

BETWEEN_S = 2.5
"""Between two checkpoints, so that the second one has something of its own."""


async def comes_back(world: World, subject: Subject, service: ServiceClient) -> str:
    """Resume until it is back, however often a fault refuses that; the last refusal if it does
    not."""
    session, began, said = subject.session, world.calm_s, ""
    while world.calm_s - began < PATIENCE_S:
        try:
            await service.resume(session)
            return ""
        except SingularityError as error:
            said = f"{type(error).__name__}: {error.message}"
            found = await world.session(session)
            if found.get("process_state") in (*ENDED, "live", "resuming", None):
                return ""
            world.timeline.add("refused", f"resume of {subject}: {said}")
            await asyncio.sleep(1.0)
    return said or "no answer"


async def flip_chunk(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """One bit of a checkpoint is wrong on the disk. It must be told, and the session comes back
    from an older checkpoint, or from that one when the disk is right again; never with a wrong
    state."""
    able = [s for s in subjects if isinstance(s, Notebook) and s.session and not s.locked.locked()]
    if not able or world.disk.trouble:
        return ""
    subject = able[step.target % len(able)]
    async with subject.locked:
        if not subject.session:
            return ""
        subject.verb = "chunk.flip"
        try:
            return await _flip_chunk(world, subject, step)
        finally:
            subject.verb = ""


async def _flip_chunk(world: World, subject: Subject, step: Step) -> str:
    service = world.service(await world.token(subject.user), timeout=90.0)
    older = (await service.checkpoint(subject.session, name=f"chaos-{step.number}"))[
        "last_checkpoint"
    ]
    await asyncio.sleep(BETWEEN_S)
    since = time.time()
    newest = (await service.suspend(subject.session))["last_checkpoint"]
    chunk = await asyncio.to_thread(_new_chunk, world, subject.user, since, step.dice)
    if chunk is None:
        await comes_back(world, subject, service)
        return ""
    await asyncio.to_thread(_flip, chunk, step.dice)
    world.timeline.add("fault", f"a bit of {chunk.name[:12]} of {newest['id']} is flipped")
    try:
        said = await _resume_damaged(world, subject, service, older["id"])
    finally:
        await asyncio.to_thread(_flip, chunk, step.dice)
    subject.stored.pop(newest["id"], None)
    if why := await comes_back(world, subject, service):
        world.timeline.violate("comes back", subject.name, f"{subject.session}: {why}")
    return f"{subject} with a flipped bit: {said}"


async def _resume_damaged(
    world: World, subject: Subject, service: ServiceClient, older: str
) -> str:
    try:
        await service.resume(subject.session)
    except SingularityError as error:
        words = ("damaged", "not what was", "wrong", "chunk")
        if not any(word in error.message for word in words):
            return f"refused for another reason: {error.message}"
        told = error.message
        try:
            await service.resume(subject.session, older)
        except SingularityError as second:
            return f"told ({told}); the older one was refused: {second.message}"
        return f"told ({told}); back from the older one"
    loss = (await service.get_session(subject.session)).get("loss") or {}
    if loss.get("rolled_back"):
        return "it came back from an older one by itself"
    return "what was damaged was not needed, or kept elsewhere"


def _new_chunk(world: World, user: str, since: float, dice: int) -> Path | None:
    """A chunk of the user that was written since then."""
    folder = world.disk.place / user / "chunks"
    found = sorted(p for p in folder.glob("*/*") if p.stat().st_mtime >= since - 0.05)
    return found[dice % len(found)] if found else None


def _flip(path: Path, dice: int) -> None:
    """Flip one bit, with no change of the file's times."""
    try:
        stat = path.stat()
        with path.open("r+b") as file:
            place = dice % max(1, stat.st_size)
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ (1 << (dice % 8))]))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    except FileNotFoundError:
        return  # it was collected, or sent again


async def swap_file(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """While a writer is in the store, its file becomes a link to another one of its user. That one
    stays as it is, and what became of the writer's is told."""
    able = [s for s in subjects if isinstance(s, CsvWriter) and s.session and not s.locked.locked()]
    if not able:
        return ""
    subject = able[step.target % len(able)]
    async with subject.locked:
        if not subject.session:
            return ""
        subject.verb = "files.swap"
        try:
            return await _swap_file(world, subject)
        finally:
            subject.verb = ""


async def _swap_file(world: World, subject: CsvWriter) -> str:
    service = world.service(await world.token(subject.user), timeout=90.0)
    before = subject.counted
    await asyncio.sleep(BETWEEN_S)
    if not before < subject.counted < subject.rows / 2:  # its file is not open, or soon closed
        return ""
    await service.suspend(subject.session)
    rows = world.home(subject.user) / subject.rows_file
    stored = await subject.reach("suspended")
    if not stored or len(subject.file(rows.name)) >= subject.rows:
        await comes_back(world, subject, service)
        return ""
    away, precious = rows.with_name("away.csv"), rows.with_name("precious.csv")
    text = "precious,1\n" * 50
    if not await asyncio.to_thread(_exchange, rows, away, precious, text):
        await comes_back(world, subject, service)
        return ""
    subject.void = True
    said = "it came back"
    try:
        await service.resume(subject.session)
        if not await subject.reach("live"):
            return ""  # there was no room; what follows looks at that
        loss = (await service.get_session(subject.session)).get("loss") or {}
        if not any(rows.name in word for word in (*loss.get("lost", ()), *loss.get("back", ()))):
            text_of = f"{rows.name} was exchanged and its loss report says nothing: {loss}"
            world.timeline.violate("files", subject.name, text_of)
    except Conflict as error:
        said = f"refused: {error.message}"
        if rows.name not in error.message:
            world.timeline.add("note", f"files.swap of {subject.name}: {error.message}")
    finally:
        if await asyncio.to_thread(precious.read_text) != text:
            world.timeline.violate("files", subject.name, "a file that it never opened was changed")
        await asyncio.to_thread(os.replace, away, rows)
    if why := await comes_back(world, subject, service):
        world.timeline.violate("comes back", subject.name, f"{subject.session}: {why}")
    return f"{subject}: {rows.name} was a link to another file: {said}"


def _exchange(rows: Path, away: Path, precious: Path, text: str) -> bool:
    try:
        os.rename(rows, away)
    except FileNotFoundError:
        return False
    owner = away.stat()
    precious.write_text(text)
    os.chown(precious, owner.st_uid, owner.st_gid)
    rows.symlink_to(precious.name)
    os.lchown(rows, owner.st_uid, owner.st_gid)
    return True


async def reopen(world: World, subject: Subject, step: Step, service: ServiceClient) -> str:
    """End a run by mistake, and take that back."""
    session = subject.session
    low = subject.counted
    said = await service.checkpoint(session, name=f"chaos-{step.number}")
    await subject.stored_now(said["last_checkpoint"], low)
    subject.reopening = True
    try:
        with contextlib.suppress(Unavailable):  # where the answer is lost, the ledger knows
            await service.end_session(session, reason="by mistake")
        ended = await world.session(session)
        if ended.get("process_state") not in ENDED:
            return ""
        began, why = world.calm_s, ""
        while world.calm_s - began < PATIENCE_S:
            try:
                await service.reopen(session)
                return f"ended {subject} and took that back"
            except SingularityError as error:
                why = error.message
                found = await world.session(session)
                if found.get("process_state") not in ENDED:
                    return f"ended {subject} and took that back"
                if ended["process_state"] == "completed":  # it was faster
                    return ""
                await asyncio.sleep(1.0)
        world.timeline.violate("undo", subject.name, f"the end of {session} stays: {why}")
        return ""
    finally:
        subject.reopening = False


async def restart_platform(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """Ctrl-C of `up`, and `up` again: notebooks wait in the store meanwhile; runs end."""
    if world.off or world.disk.trouble or world.draining:
        return ""
    world.draining = "restart"
    try:
        for subject in subjects:
            subject.note_restart()
        world.hit()
        said = await world.restart()
        world.hit()
    finally:
        world.draining = ""
    return f"stopped and started the platform: {said}"


async def kill_up(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """`up` itself is killed, and started again a little later: it takes everything over."""
    seconds = 0.3 * 30.0 ** step.rng().random()
    if not await world.kill_up(seconds):
        return ""
    return f"killed up and started it again {seconds:.1f} s later"


async def step_clock(world: World, subjects: Sequence[Subject], step: Step) -> str:
    """The clock of service and agents jumps, and back again a little later."""
    rng = step.rng()
    jump = rng.choice((-1, 1)) * rng.choice((45.0, 600.0, 7200.0))
    seconds = 2.0 + 10.0 * rng.random()
    world.clock.set(jump)
    world.timeline.add("fault", f"the clock of service and agents jumps by {jump:+.0f} s")
    try:
        await asyncio.sleep(seconds)
    finally:
        world.clock.set(0.0)
    return f"the clock is back after {seconds:.0f} s"
