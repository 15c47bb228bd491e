"""Whole sessions to the store: a checkpoint from which a session goes on, or a suspend, after which
it has left this node.

Both are one sequence under the session's lock: freeze the processes, bring the device state to
files, close the agent's ends of the session's sockets, dump the processes, save it all. A session
that goes on does so from a copy of what it may change; one that leaves is saved in place. Until the
checkpoint is published anything that fails thaws the session, and so does the next agent when this
one is killed: nothing half-written is ever listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.capsule import files as open_files
from singularity_proxy.capsule import image, scratch
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import inner_pid
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.writer import Request, new_checkpoint_id
from singularity_proxy.errors import (
    Conflict,
    NoSpace,
    SingularityError,
    StaleEpoch,
    Unavailable,
    Unsupported,
)

from . import parts as files
from .copies import copy_parts
from .devices import DeviceKeeper
from .live import LiveSession
from .node import Node, Settings
from .relay_keeper import RelayKeeper
from .savings import Saving
from .sessions import Life, Phase
from .stores import reference, teller

log = logging.getLogger("singularity.agent")

DRAIN_S = 2.0
"""So long proxies may take to execute what a frozen session had asked for; otherwise they park."""

STEPS = {
    "begun": "the ledger says that a checkpoint is being taken",
    "frozen": "no process of the session runs",
    "device": "the device state is in files",
    "closed": "the agent's ends of its sockets are closed",
    "packed": "the session's own files are in one archive",
    "dumped": "the process image is written",
    "copied": "the rings and their state are copied (a session that goes on)",
    "thawed": "the session goes on (a session that goes on)",
    "published": "the checkpoint is listed in the store",
    "recorded": "the ledger says that it is",
    "ended": "its processes are gone (a suspend)",
    "removed": "its folders are gone (a suspend)",
}
"""Where an agent can die in the middle; `Node.on_step` is called there, by tests alone."""


@dataclass
class _Work:
    """One checkpoint that is being taken."""

    id: str
    name: str
    level: str
    reason: str
    folder: str
    """The agent's own, for the image and for copies."""
    saving: Saving
    epoch: int | None
    """Of the command; as is `seq`."""
    seq: int | None = None
    began: float = field(default_factory=time.monotonic)
    ms: dict[str, float] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    """Those to be taken back."""
    parts: list[Part] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def took(self, step: str, since: float) -> None:
        self.ms[step] = round((time.monotonic() - since) * 1e3, 3)


class Suspender:
    """Takes checkpoints. One object per agent; `Lifecycle` ends what has been suspended."""

    def __init__(self, node: Node, devices: DeviceKeeper, relays: RelayKeeper) -> None:
        self._node = node
        self._devices = devices
        self._relays = relays

    # -- commands ---------------------------------------------------------------------------------

    async def checkpoint(
        self, live: LiveSession, epoch: int | None, name: str, level: str | None
    ) -> dict[str, Any]:
        """Save the session and let it go on. `level` None: the best that is possible here, and the
        answer's `reason` says why it is not more. Raises `Conflict` when there is nothing to save,
        `Unsupported` for a level that cannot be had, what `dump` and the store raise."""
        record = live.record
        record.check_live()
        why = await self.why_no_image(live)
        if level == "process" and why:
            raise Unsupported(f"no process image of session {record.session} was taken: {why}")
        if level not in (None, "process", "device"):
            raise Unsupported(f"an agent takes no checkpoints of level '{level}'")
        if level is None:
            level = "device" if why else "process"
        with live.savings.begin() as saving:
            why = why if level == "device" else ""
            work = self._work(live, saving, epoch, name, level, why)
            async with self._busy(live, work):
                try:
                    if level == "process":
                        await self._take_copy(live, work)
                    else:
                        await self._take_states(live, work)
                except OSError as error:
                    raise _unsaved(live, work, error) from None
            try:
                await live.savings.settle(before=saving)
                summary = await self._save(live, work)
            except SingularityError as error:
                self._judge(live, error)
                raise
            finally:
                await self._tidy(live, work)
        made: dict[str, Any] = {**reference(summary), "ms": work.ms}
        if record.alive and self._node.sessions.get(record.session) is live:
            record.last_checkpoint = made
            self._node.try_save(live)
            self._node.spawn(
                self._node.stores.tidy(record.user, record.session, record.epoch), "retention"
            )
        return dict(made)

    async def suspend(
        self, live: LiveSession, epoch: int, seq: int | None, name: str, reason: str
    ) -> dict[str, Any]:
        """Save the session and mark it as gone; the caller ends it (`Lifecycle.leave`). Returns
        the answer of `session.suspend`. On any error the session goes on here."""
        record = live.record
        record.check_live()
        if why := await self.why_no_image(live):
            raise Unsupported(
                f"session {record.session} cannot be suspended: {why}; it goes on here"
            )
        with live.savings.begin() as saving:
            work = self._work(live, saving, epoch, name, "process", "")
            work.seq = seq
            await self._send_away(live, work, reason)
        await self._tidy(live, work)
        assert record.saving is not None
        return dict(record.saving["published"])

    async def _send_away(self, live: LiveSession, work: _Work, reason: str) -> None:
        record = live.record
        async with self._busy(live, work, leaves=True):
            live.savings.give_up(before=work.saving)  # they are older than what is saved now
            await live.savings.settle(before=work.saving)
            try:
                await self._relays.away(live, True)
                await self._freeze(live, work)
                work.devices = await self._part(self._devices.set_aside(live), work, "device")
                await self._describe(live, work)
                await self._dump(live, work)
                shm = self._node.settings.session_shm(record.session)
                work.parts += files.ring_parts(shm, list(record.rings.values()))
                summary = await self._save(live, work)
            except OSError as error:
                raise _unsaved(live, work, error) from None
            record.check_live()  # it may have ended meanwhile, or somebody ended it
            work.took("total", work.began)
            answer = {
                "checkpoint": reference(summary),
                "ms": work.ms,
                "incarnation": record.incarnation,
            }
            # From here on the session is in the store: whoever finds this record ends the rest.
            record.saving = {"published": answer, "command": _command(work)}
            record.life = Life.ENDING
            record.reason = reason or "it was suspended"
            self._node.try_save(live)
            self._step("recorded")

    async def why_no_image(self, live: LiveSession) -> str:
        """ "" when this session's processes can be saved, else why not."""
        if live.record.mode == "joined":
            return "its process is a command in somebody's terminal, which cannot leave it"
        if not isinstance(live.capsule, NamespaceCapsule):
            return "it was started without namespaces of its own"
        found = await self._node.images.capability()
        return "" if found["available"] else str(found["reason"]).rstrip(".")

    # -- steps ------------------------------------------------------------------------------------

    def _work(
        self, live: LiveSession, saving: Saving, epoch: int | None, name: str, level: str, why: str
    ) -> _Work:
        id = new_checkpoint_id(datetime.now(timezone.utc))
        folder = os.path.join(self._node.settings.images_dir, f"{live.record.session}-{id}")
        return _Work(id, name, level, why, folder, saving, epoch)

    def _step(self, name: str) -> None:
        self._node.on_step(f"suspend.{name}")

    @contextlib.asynccontextmanager
    async def _busy(self, live: LiveSession, work: _Work, leaves: bool = False) -> Any:
        """The session's lock, and whatever happens it goes on afterwards, unless it has left."""
        record, node = live.record, self._node
        async with live.lock:
            record.check_live()
            if work.epoch is not None:
                record.check_epoch(work.epoch)
                record.epoch = work.epoch
            if live.capsule is not None and not live.capsule.watch.alive:
                raise Conflict(f"session {record.session} has just ended", session=record.session)
            record.saving = {"id": work.id, "level": work.level}
            try:
                node.save(live)
                self._step("begun")
                os.makedirs(work.folder, 0o700)
                yield
            except BaseException as error:
                self._judge(live, error)
                if not live.fenced:
                    await asyncio.shield(self._go_on(live, work))
                await self._tidy(live, work)
                raise
            else:
                if not leaves:
                    await asyncio.shield(self._go_on(live, work))

    async def _part(self, job: Any, work: _Work, step: str) -> Any:
        began = time.monotonic()
        result = await job
        work.took(step, began)
        self._step(step)
        return result

    async def _freeze(self, live: LiveSession, work: _Work) -> None:
        assert isinstance(live.capsule, NamespaceCapsule)
        began = time.monotonic()
        await asyncio.to_thread(live.capsule.freeze)
        live.record.saving = {
            **(live.record.saving or {}),
            "stopped": sorted(live.capsule.stopped_by_user),
        }
        self._node.try_save(live)
        work.took("freeze", began)
        self._step("frozen")

    async def _dump(self, live: LiveSession, work: _Work) -> None:
        assert isinstance(live.capsule, NamespaceCapsule)
        await live.socket.close()
        self._step("closed")
        began = time.monotonic()
        target = os.path.join(work.folder, files.IMAGE)
        await asyncio.to_thread(image.dump, live.capsule, target)
        work.parts += files.image_parts(target)
        work.took("image", began)
        self._step("dumped")

    async def _describe(self, live: LiveSession, work: _Work) -> None:
        """The session's own files, and a record of what the way back needs."""
        record, node, capsule = live.record, self._node, live.capsule
        assert isinstance(capsule, NamespaceCapsule)
        began = time.monotonic()
        settings = node.settings
        places = record.places or {
            "folder": settings.session_dir(record.session),
            "shm": settings.session_shm(record.session),
        }
        opened = await asyncio.to_thread(
            open_files.describe,
            capsule,
            session_folder=places["folder"],
            ring_folder=places["shm"],
        )
        roots, skip = files.scratch_roots(record, places["folder"])
        skip += [os.path.join(places["folder"], name) for name in _copies(node, live)]
        archive = os.path.join(work.folder, files.SCRATCH)
        await asyncio.to_thread(scratch.pack, capsule, archive, roots, skip)
        work.parts += files.scratch_parts(archive)
        workers = {}
        for ring in live.rings.rings.values():
            with contextlib.suppress(OSError):
                workers[ring.ring_id] = inner_pid(ring.record.worker.pid)
        work.record = files.describe(
            record,
            node=settings.node,
            torch=node.torch.git_version if node.torch else "",
            workers=workers,
            places=places,
            opened=opened.to_json(),
            processes=len(capsule.members()),
            positions=await self._relays.positions(live),
        )
        work.took("files", began)
        self._step("packed")

    async def _take_copy(self, live: LiveSession, work: _Work) -> None:
        """Everything, as it is at one moment, into the agent's own folder."""
        record, settings = live.record, self._node.settings
        shm = settings.session_shm(record.session)
        states = shm
        await self._freeze(live, work)
        began = time.monotonic()
        if record.phase is Phase.HELD:
            states = await self._states_of_frozen(live, work) or shm
        work.took("device", began)
        self._step("device")
        await self._describe(live, work)
        await self._dump(live, work)
        began = time.monotonic()
        rings = files.ring_parts(shm, list(record.rings.values()), states)
        own = os.path.join(work.folder, "copy")
        work.parts += await asyncio.to_thread(copy_parts, rings, own, record.uid)
        work.took("copy", began)
        self._step("copied")

    async def _states_of_frozen(self, live: LiveSession, work: _Work) -> str | None:
        """Device state that fits the ring files, while no worker runs: the folder of the
        snapshots, or None when the proxies had to park and the state is where it always is."""
        rings = [ring.file for ring in live.rings.rings.values()]
        deadline = time.monotonic() + DRAIN_S
        while any(file.read().pending for file in rings):
            if time.monotonic() > deadline:
                work.devices = await self._devices.set_aside(live)
                return None
            await asyncio.sleep(0.002)
        # Nothing is left to do for them, so what they write stays true as long as nobody runs.
        folder = self._own_copy(live, work)
        await self._devices.copy_states(live, folder)
        return folder

    def _own_copy(self, live: LiveSession, work: _Work) -> str:
        """A folder that the session's device proxies can write to."""
        record = live.record
        name = f"{files.COPY_PREFIX}{work.id}"
        folder = os.path.join(self._node.settings.session_dir(record.session), name)
        os.mkdir(folder, 0o700)
        if os.geteuid() == 0:
            os.chown(folder, record.uid, record.gid, follow_symlinks=False)
        return folder

    async def _take_states(self, live: LiveSession, work: _Work) -> None:
        """Device state alone, while the session works."""
        record, settings = live.record, self._node.settings
        if record.phase is Phase.NONE:
            why = f", and no image of its processes can be taken: {work.reason}"
            raise Conflict(
                f"session {record.session} has not used a device yet, so there is no device state "
                f"to save{why if work.reason else ''}; nothing was changed",
                session=record.session,
            )
        rings = list(record.rings.values())
        folder = settings.session_shm(record.session)
        if record.phase is Phase.HELD:
            folder = self._own_copy(live, work)
            await self._part(self._devices.copy_states(live, folder), work, "device")
        found = files.state_parts(folder, rings)
        own = os.path.join(work.folder, "copy")
        work.parts = await asyncio.to_thread(copy_parts, found, own, record.uid)
        self._step("copied")
        work.record = {
            "format": files.FORMAT,
            "node": settings.node,
            "incarnation": record.incarnation,
            "virtual_devices": record.virtual_devices,
            "rings": [
                {
                    "ring_id": ring.ring_id,
                    "virtual_device": ring.record.virtual_device,
                    "done_seq": ring.file.read().done_seq,
                }
                for ring in live.rings.rings.values()
            ],
        }

    async def _save(self, live: LiveSession, work: _Work) -> Summary:
        """Upload and publish. A session that was fenced meanwhile may not."""
        record, node = live.record, self._node
        request = Request(
            record.session,
            record.epoch,
            work.level,
            id=work.id,
            name=work.name,
            incarnation=record.incarnation,
            reason=work.reason,
            record=work.record,
            uid=record.uid,
        )
        tell, cancel = teller(node, record.session), work.saving.cancel
        began = time.monotonic()
        summary = await node.stores.call(
            record.user,
            lambda box: box.save(
                request, work.parts, progress=tell, cancel=cancel, on_step=node.on_step
            ),
        )
        work.took("store", began)
        self._step("published")
        return summary

    # -- afterwards -------------------------------------------------------------------------------

    async def _go_on(self, live: LiveSession, work: _Work) -> None:
        """The session works again, as if nothing had happened."""
        await go_on(self._node, live, self._relays)
        self._step("thawed")
        await self._devices.take_back(live, work.devices)
        await asyncio.to_thread(_remove_copies, self._node, live)

    async def _tidy(self, live: LiveSession, work: _Work) -> None:
        await asyncio.to_thread(shutil.rmtree, work.folder, True)

    def _judge(self, live: LiveSession, error: BaseException) -> None:
        """What an error means beyond this checkpoint."""
        record = live.record
        if isinstance(error, StaleEpoch):
            log.error("session %s belongs to another node now: %s", record.session, error.message)
            live.fenced, record.elsewhere = error.message, True
        if isinstance(error, SingularityError) and error.fields.get("intact") is False:
            live.fenced = error.message


def _command(work: _Work) -> str | None:
    return None if work.seq is None else f"session.suspend/{work.epoch}/{work.seq}"


def _unsaved(live: LiveSession, work: _Work, error: OSError) -> SingularityError:
    what = f"checkpoint '{work.name or work.id}' of session {live.record.session} was not made"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"{what}: the disk is full; the session goes on and older checkpoints were kept"
        )
    return Unavailable(f"{what} ({error.strerror or error}); the session goes on")


async def go_on(node: Node, live: LiveSession, relays: RelayKeeper) -> None:
    """Whatever a checkpoint had stopped runs again. Also called for what an agent that was killed
    in the middle of one left behind; then sockets and devices are in order already."""
    record = live.record
    if record.life is not Life.LIVE or node.stopping:
        return
    with contextlib.suppress(OSError, SingularityError):
        await live.socket.reopen()
    saving = record.saving or {}
    if isinstance(live.capsule, NamespaceCapsule) and saving.get("level") == "process":
        if "stopped" in saving:
            live.capsule.stopped_by_user = frozenset(saving["stopped"])
        await asyncio.to_thread(live.capsule.thaw)
    await relays.away(live, False)
    record.saving = None
    node.try_save(live)


def _copies(node: Node, live: LiveSession) -> list[str]:
    """Names of what device proxies have written for checkpoints into the session's folder."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(node.settings.session_dir(live.record.session))
    return [name for name in names if name.startswith(files.COPY_PREFIX)]


def _remove_copies(node: Node, live: LiveSession) -> None:
    folder = node.settings.session_dir(live.record.session)
    for name in _copies(node, live):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def remove_unfinished(node: Node, live: LiveSession) -> None:
    """Remove what an agent that was killed in the middle of a checkpoint left in the session's
    folder."""
    _remove_copies(node, live)


def clear_stages(settings: Settings) -> None:
    """Make the agent's own folders for images anew, and remove what an agent that was killed had
    on its way there or back; called before sessions are taken over."""
    shutil.rmtree(settings.images_dir, ignore_errors=True)
    os.makedirs(settings.images_dir, 0o700)
    for name in os.listdir(settings.shm_dir):
        if name.endswith(files.STAGE):
            shutil.rmtree(os.path.join(settings.shm_dir, name), ignore_errors=True)
