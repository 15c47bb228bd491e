"""Proves checkpoints: each is read from the store, and its processes are brought back in a capsule
that leaves no trace, held against the image and thrown away. They never run.

One at a time, with the least priority, and never in the way: a command that moves the session, or
the end of the agent, cancels the proof at once. Nothing of the session is used but its files, which
are read: not its lock, its sockets, its devices, its epoch, nor its place in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from singularity_proxy.capsule.files import record as open_files
from singularity_proxy.capsule.files import rehearsal, scratch
from singularity_proxy.capsule.images import proof
from singularity_proxy.capsule.images.files import made_paths
from singularity_proxy.capsule.launcher import CapsuleSpec
from singularity_proxy.capsule.namespace import NamespaceCapsule, NamespaceLauncher
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.manifest import StoredPart, Summary
from singularity_proxy.errors import (
    CheckpointCancelled,
    DamagedCheckpoint,
    ImageFailed,
    OpenFilesChanged,
    SingularityError,
    Unavailable,
    Unsupported,
)

from singularity_scheduler.agent.memory import return_memory
from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.logs import CAPSULE_LOG

from . import parts as files
from .proof_room import ON_DISK, refuse_room
from .resumes import refuse_machine

T = TypeVar("T")

STEPS = {
    "reading": "nothing is here yet",
    "unpacking": "all but the device state is here, and a sealed capsule",
    "restoring": "the session's own files are in it",
    "restored": "its processes are in it, and do not run",
}
"""Where an agent can die in the middle; `Node.on_step` is called there, by tests alone."""

IDLE = 19
"""The niceness of what reads and checks. CRIU has that of the agent: what it restores gets its own
niceness back, which takes a right to do from a lower one."""

_FAILURES = (DamagedCheckpoint, ImageFailed, OpenFilesChanged)
"""What says that the checkpoint, as it is now, does not come back; all else says nothing of it."""

_SEALED = ("Read-only file system", "Permission denied")
"""In what CRIU says: the sealed capsule was in the way. Where root has no rights (shared storage) a
view has none either."""


@dataclass(eq=False)
class _Job:
    session: str
    cancel: threading.Event = field(default_factory=threading.Event)
    why: str = ""
    capsule: NamespaceCapsule | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        """Raise `CheckpointCancelled` once it is to be given up."""
        if self.cancel.is_set():
            raise CheckpointCancelled(
                f"the checkpoint was not proved because {self.why}; it is kept as it was"
            )


class Prover:
    """One object per agent."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._job: _Job | None = None
        self._threads = ThreadPoolExecutor(1, "proof", initializer=_become_idle)

    # -- commands ---------------------------------------------------------------------------------

    async def prove(self, session: str, user: str, checkpoint: str) -> dict[str, Any]:
        """Prove one checkpoint; {"proved", "why", "ms"}: `why` says in one sentence why it does not
        come back. Raises `Unavailable` or `CheckpointCancelled` when that could not be found out
        now, `Unsupported` when it cannot be here, and what the store raises."""
        if self._job is not None or self._node.stopping:
            raise Unavailable("this node proves another checkpoint; try again later")
        live = self._node.sessions.get(session)
        if live is not None and (live.lock.locked() or live.savings):
            raise Unavailable(f"session {session} is being moved or stored; try again later")
        self._job = job = _Job(session)
        began = time.monotonic()
        try:
            why = await self._find_fault(job, user, checkpoint)
        finally:
            self._job = None
            job.over.set()
        return {"proved": not why, "why": why, "ms": round((time.monotonic() - began) * 1e3, 3)}

    def give_way(self, session: str) -> None:
        """A command moves `session`: a proof of one of its checkpoints is given up now."""
        if self._job is not None and self._job.session == session:
            self._give_up(self._job, "its session is being moved or stored")

    async def close(self) -> None:
        """The agent ends; returns when nothing is left of a proof."""
        if (job := self._job) is not None:
            self._give_up(job, "its node is being stopped")
            await job.over.wait()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _give_up(self, job: _Job, why: str) -> None:
        job.why = job.why or why
        job.cancel.set()
        if job.capsule is not None:
            self._node.spawn(job.capsule.end(0.0), "end of a proof")

    # -- steps ------------------------------------------------------------------------------------

    async def _find_fault(self, job: _Job, user: str, checkpoint: str) -> str:
        """Why the checkpoint does not come back; "": it does."""
        try:
            await self._try(job, user, checkpoint)
        except _FAILURES as error:
            job.check()  # a capsule that was ended in the middle is no fault
            if any(word in line for line in error.fields.get("log") or () for word in _SEALED):
                raise Unsupported(
                    "the checkpoint cannot be proved while its session's files stay untouched: "
                    f"{error.message}"
                ) from None
            return error.message
        except (SingularityError, OSError) as error:
            job.check()
            if isinstance(error, OSError):
                raise Unavailable(
                    f"the checkpoint could not be proved now ({error}); it is kept as it was"
                ) from None
            raise
        return ""

    async def _try(self, job: _Job, user: str, checkpoint: str) -> None:
        def look(box: Checkpoints) -> tuple[Summary, dict[str, Any]]:
            found = box.find(job.session, checkpoint)
            return found, box.manifest(job.session, found.id).record

        summary, told = await self._node.stores.call(user, look)
        if summary.level != "process":
            await self._read(job, user, summary, but=())
            return
        await self._refuse(summary, told)
        name = f"{job.session}-{os.urandom(4).hex()}"
        folder = os.path.join(self._node.settings.images_dir, name)
        own = os.path.join(self._node.settings.proofs_dir, name)
        try:
            await asyncio.to_thread(_make_folders, folder, own, told["uid"], told["gid"])
            await self._read(job, user, summary, but=ON_DISK, folder=folder)
            job.check()
            await self._bring_back(job, told, folder, own)
        finally:
            if job.capsule is not None:
                await job.capsule.end(0.0)
            for path in (folder, own):
                await asyncio.to_thread(shutil.rmtree, path, True)
            await asyncio.to_thread(return_memory)

    def _step(self, name: str) -> None:
        self._node.on_step(f"proof.{name}")

    async def _call(self, work: Callable[[], T]) -> T:
        """`work` in the thread of the least priority."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _refuse(self, summary: Summary, told: dict[str, Any]) -> None:
        """Refuse what cannot be proved here: it may well come back elsewhere, or later."""
        node = self._node
        found = await node.images.capability()
        if not found["available"] or not isinstance(node.launcher, NamespaceLauncher):
            why = str(found["reason"]).rstrip(".")
            raise Unsupported(f"no checkpoint can be proved on node {node.settings.node}: {why}")
        if told.get("format") != files.FORMAT:
            raise Unsupported("the checkpoint was taken by another version of the node agent")
        await refuse_machine(node, told)
        await asyncio.to_thread(refuse_room, summary, node.settings.images_dir)

    async def _read(
        self, job: _Job, user: str, summary: Summary, but: tuple[str, ...], folder: str = ""
    ) -> None:
        """Read and check every chunk; the kinds `but` are put below `folder`."""
        box = await self._node.stores.call(user, lambda box: box)

        def place(part: StoredPart) -> str | None:
            return folder if part.kind in but else None

        def read() -> None:
            self._step("reading")
            once: dict[str, Any] = {"cancel": job.cancel, "threads": 1}
            if but:
                box.restore(job.session, summary.id, place=place, **once)
            box.verify(job.session, summary.id, but=but, **once)

        await self._call(read)

    async def _bring_back(self, job: _Job, told: dict[str, Any], folder: str, own: str) -> None:
        """The session's processes, in a capsule that `_try` ends."""
        places, image = told["places"], os.path.join(folder, files.IMAGE)
        session_folder, shm = os.path.join(own, "s"), os.path.join(own, "shm")
        opened = open_files.Record.from_json(told["opened"])

        def rehearse() -> tuple[rehearsal.Rehearsal, list[str]]:
            _place_rings(os.path.join(folder, files.SHM), shm, told["uid"], told["gid"])
            kept = [p for p in told["kept"] or () if p not in places.values()]
            made = made_paths(image) | _missing_places(places.values(), told["kept"] is not None)
            found = rehearsal.rehearse(
                opened,
                own=(places["folder"], session_folder),
                made=made,
                uid=told["uid"],
                gid=told["gid"],
            )
            return found, [path for path in kept if os.path.isdir(path)]

        found, kept = await self._call(rehearse)
        job.check()
        spec = CapsuleSpec(
            argv=("proved",),
            env={},
            cwd="/",
            log_path=os.path.join(session_folder, CAPSULE_LOG),
            uid=told["uid"],
            gid=told["gid"],
            tmp=None if told["kept"] is None else os.path.join(session_folder, "tmp"),
            keep=(*kept, *found.shown),
            moved={places["folder"]: session_folder, places["shm"]: shm},
            views=found.views,
        )
        job.capsule = capsule = await self._prepare(spec)
        roots, _ = files.roots_of(told["kept"], places["folder"])
        archive = os.path.join(folder, files.SCRATCH)

        def unpack() -> None:
            self._step("unpacking")
            scratch.unpack(capsule, archive, roots)

        def restore() -> None:
            self._step("restoring")
            proof.prove(capsule, image, plan=found.plan, processes=told["processes"])
            self._step("restored")

        await self._call(unpack)
        job.check()
        await asyncio.to_thread(restore)
        job.check()

    async def _prepare(self, spec: CapsuleSpec) -> NamespaceCapsule:
        launcher, node = self._node.launcher, self._node.settings.node
        assert isinstance(launcher, NamespaceLauncher)
        try:
            return await launcher.prepare(spec)
        except Unsupported as error:
            raise Unsupported(
                f"no checkpoint can be proved on node {node}: a capsule that leaves no trace could "
                f"not be made ('{error.fields.get('step', '')}'); it is kept as it was"
            ) from None


def _become_idle() -> None:
    """Called in a thread: those that it starts are as it is."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, IDLE)


def _make_folders(folder: str, own: str, uid: int, gid: int) -> None:
    os.makedirs(folder, 0o700)
    os.makedirs(os.path.dirname(own), 0o711, exist_ok=True)
    os.mkdir(own, 0o711)
    for name in ("shm", "s", "s/tmp"):
        os.mkdir(os.path.join(own, name), 0o700)
    os.chmod(os.path.join(own, "s/tmp"), 0o1777)
    if os.geteuid() == 0:
        for name in ("shm", "s/tmp", "s"):  # what is inside first
            os.chown(os.path.join(own, name), uid, gid, follow_symlinks=False)


def _missing_places(places: Iterable[str], private_tmp: bool) -> set[str]:
    """The folders of the session that have to be made to be shown at their place: it is away, and
    they are not in what is its own inside."""
    own = ("/dev/shm/", "/tmp/") if private_tmp else ("/dev/shm/",)
    return {path for path in places if not path.startswith(own) and not os.path.isdir(path)}


def _place_rings(found: str, shm: str, uid: int, gid: int) -> None:
    """Put the rings, as they are in the checkpoint, where the sealed capsule shows them."""
    for name in os.listdir(found) if os.path.isdir(found) else ():
        target = os.path.join(shm, name)
        shutil.copyfile(os.path.join(found, name), target)
        os.chmod(target, 0o600)
        if os.geteuid() == 0:
            os.chown(target, uid, gid, follow_symlinks=False)
