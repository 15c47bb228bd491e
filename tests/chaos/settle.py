"""The end of a campaign: everything is put right and must come back, be whole, and end without a
rest."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import traceback
from collections.abc import Sequence
from pathlib import Path

from singularity_proxy.errors import NotFound, SingularityError
from singularity_spawner.platform.processes import of_run
from singularity_spawner.platform.settings import Settings

from . import processes
from .growth import ROLES, WHAT
from .subjects import Subject
from .watch import LEFT_S, Watch
from .world import World

STEPS_S = 150.0
"""What is under way when the faults are over may take so long."""

ROUNDS_S = 420.0
"""The last round of everybody may take so long."""

STORED_S = 600.0
"""Going back to each checkpoint of one subject may take so long."""

SUMS = frozenset(
    {
        *("faults", "verbs", "refused", "skipped", "violations", "lost_checkpoints", "leaked"),
        *("told_losses", "rounds", "checkpoints_compared"),
    }
)


async def finish(
    world: World,
    subjects: Sequence[Subject],
    doing: Sequence[asyncio.Task[None]],
    working: Sequence[asyncio.Task[None]],
) -> None:
    """Wait for what is under way, bring everything back, look at it, end it; look at what is
    left."""
    if doing:
        await asyncio.wait(doing, timeout=STEPS_S)
    for task in doing:
        note_mistake(world, task)
        task.cancel()
    await asyncio.gather(*doing, return_exceptions=True)
    for found in await world.find():
        if found.role != "init":
            found.signal(signal.SIGCONT)
    await world.persist(lambda: world.service(timeout=5.0).cluster(), what="the service at the end")
    for subject in subjects:
        if subject.session:
            with contextlib.suppress(SingularityError):
                await subject.bring_back()
    world.timeline.add("world", "everything was asked to come back")
    _, late = await asyncio.wait(working, timeout=ROUNDS_S)
    for task in late:
        name = task.get_name()
        subject = next(s for s in subjects if s.name == name)
        text = f"its last round did not end: {subject.doc.get('process_state')}, "
        world.timeline.violate("stuck", name, text + str(subject.doc.get("reason")))
        task.cancel()
    for task in working:
        note_mistake(world, task)
    for subject in subjects:
        try:
            async with asyncio.timeout(240.0):
                await subject.settle()
        except TimeoutError:
            world.timeline.violate("comes back", subject.name, f"{subject} did not in 240 s")
    world.timeline.lost_checkpoints = sum([await _lost_checkpoints(world, s) for s in subjects])
    await asyncio.gather(*(_check_stored(world, subject) for subject in subjects))
    _look_at_history(world)
    for subject in subjects:
        session = subject.session
        await subject.drop()
        if session:
            world.ended[session] = world.timeline.now
    await _all_gone(world, subjects)


def note_mistake(world: World, task: asyncio.Task[None]) -> None:
    """A mistake of the campaign itself is told with the others: the report of an hour stays."""
    if task.done() and not task.cancelled() and (error := task.exception()):
        said = "".join(traceback.format_exception(error))
        world.timeline.violate("campaign", task.get_name(), said)


async def _lost_checkpoints(world: World, subject: Subject) -> int:
    """How many checkpoints that were called stored, with a name, are not there any more."""
    named = [c for c in subject.stored.values() if c.name]
    if not named or not subject.session:
        return 0
    try:
        listed = await world.persist(lambda: world.service().checkpoints(subject.session))
    except NotFound:
        listed = []
    ids = {c["id"] for c in listed if not c["damaged"]}
    lost = [c for c in named if c.id not in ids]
    for checkpoint in lost:
        text = f"checkpoint {checkpoint.id} ('{checkpoint.name}') of {subject.session} is gone"
        world.timeline.violate("stored", subject.name, text)
    return len(lost)


async def _check_stored(world: World, subject: Subject) -> None:
    """Each checkpoint that was called stored comes back with what was in it."""
    try:
        async with asyncio.timeout(STORED_S):
            count = await subject.check_stored()
    except TimeoutError:
        text = f"its checkpoints did not come back one after another in {STORED_S:g} s"
        world.timeline.violate("stored", subject.name, text)
        return
    world.timeline.counts["checkpoints compared"] += count


def _look_at_history(world: World) -> None:
    """The IPython histories in all homes are whole."""
    for user in world.users:
        for path in world.home(user).rglob("history.sqlite*"):
            if path.name != "history.sqlite":
                if ".after-" in path.name or "corrupt" in path.name:
                    world.timeline.violate("files", user, f"{path.name} was put aside")
                continue
            try:
                with contextlib.closing(sqlite3.connect(path, timeout=5.0)) as db:
                    said = db.execute("PRAGMA integrity_check").fetchone()[0]
            except sqlite3.Error as error:
                said = str(error)
            if said != "ok":
                world.timeline.violate("files", user, f"{path}: {said}")


async def _all_gone(world: World, subjects: Sequence[Subject]) -> None:
    """No session is left in the ledger, and nothing of any on the machine."""
    watch = Watch(world, subjects)
    for subject in subjects:
        world.ended.update(dict.fromkeys(subject.history, 0.0))
    left: dict[str, list[str]] = {}
    for _ in range(round(LEFT_S)):
        roles = await world.find()
        active: list[str] = []
        with contextlib.suppress(SingularityError):
            active = [s["id"] for s in await world.service(timeout=5.0).sessions("active")]
        for session in active:
            with contextlib.suppress(SingularityError):
                await world.service(timeout=20.0).end_session(session, grace_s=0.0)
        left = {s: found for s in world.ended if (found := watch.left_of(s, roles))}
        if not left and not active:
            return
        await asyncio.sleep(1.0)
    for session, found in left.items():
        for what in found:
            world.timeline.violate("leak", session, what)
            world.timeline.count("leaked")


def look_at_machine(world: World) -> None:
    """The platform has ended: nothing of it is left on the machine."""
    settings = Settings.load(world.state)
    if settings is None:
        return
    left = [
        f"process {p.pid}: {Path(f'/proc/{p.pid}/cmdline').read_bytes()[:80]!r}"
        for p in of_run(settings.instance)
    ]
    left += [folder for folder in settings.memory if Path(folder).exists()]
    for what in left:
        world.timeline.violate("leak", "platform", what)
        world.timeline.count("leaked")
    processes.kill(p.pid for p in of_run(settings.instance))


def figures(world: World, subjects: Sequence[Subject], watch: Watch) -> dict[str, float | None]:
    """The campaign's figures, flat."""
    counts = world.timeline.counts

    def total(kind: str) -> int:
        return sum(n for name, n in counts.items() if name.startswith(f"{kind} "))

    return {
        "faults": total("fault"),
        "verbs": total("verb"),
        "refused": total("refused"),
        "skipped": total("skipped"),
        "rounds": sum(s.rounds for s in subjects),
        "told_losses": counts["told losses"],
        "violations": len(world.timeline.violations),
        "lost_checkpoints": world.timeline.lost_checkpoints,
        "checkpoints_compared": counts["checkpoints compared"],
        "leaked": counts["leaked"],
        "service_back_s_p95": p95(world.service_back),
        "memory_growth": watch.growth.worst("rss"),
        "fd_growth": watch.growth.worst("fd"),
        **{f"{role}_{what}_growth": watch.growth.of(role, what) for role in ROLES for what in WHAT},
    }


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile; None of nothing."""
    found = sorted(values)
    return found[int(0.95 * (len(found) - 1) + 0.5)] if found else None
