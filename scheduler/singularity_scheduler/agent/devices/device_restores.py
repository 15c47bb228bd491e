"""A checkpoint of device state goes back into the session that it is of, while that lives.

The contents of tensors and the states of random number generators become what they were; processes,
and with them all Python variables, go on as they are. No process image is needed, so this works
wherever device proxies do. The session's lock is held, its rings stand still at a boundary between
records with the state in files, and the changed files take the place of those all together or not
at all: also when the agent is killed in between (`undo_unfinished`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
from typing import Any

from singularity_proxy.checkpoint.device import contents
from singularity_proxy.checkpoint.device.state import has_records
from singularity_proxy.checkpoint.files import FILE, Part, examine, open_part
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.reader import Restored
from singularity_proxy.errors import Conflict, NoSpace, SingularityError, Unavailable, Unsupported
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.memory import return_memory_soon
from singularity_scheduler.agent.node import Node, Settings
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase
from singularity_scheduler.agent.store import parts as files
from singularity_scheduler.agent.store.copies import copy_parts
from singularity_scheduler.agent.store.stores import teller
from singularity_scheduler.agent.store.suspends import Suspender
from singularity_scheduler.client.words import size

from .control import DeviceKeeper

log = logging.getLogger("singularity.agent")

DRAIN_S = 60.0
"""So long a device may take to execute what the session had asked for before."""

BACK = ".back"
"""Ends the name of a folder with the state files of a session that are just being replaced."""
DONE = ".done"
"""Ends its name once they are."""


class DeviceRestorer:
    """Puts contents back. One object per agent."""

    def __init__(self, node: Node, devices: DeviceKeeper, suspender: Suspender) -> None:
        self._node = node
        self._devices = devices
        self._suspender = suspender

    async def put_back(
        self, live: LiveSession, epoch: int, checkpoint: str, discard: bool
    ) -> dict[str, Any]:
        """Returns {loss, before}: the report, and the checkpoint of the present device state that
        was stored first (None with `discard`). Raises `Conflict` when the session has no device
        state or its state cannot be changed now, `Unsupported` for a checkpoint that needs a device
        proxy to be read, and what the store raises; the session goes on as it was then."""
        record, node = live.record, self._node
        record.check_live()
        record.check_storable()
        record.check_epoch(epoch)
        stage = node.settings.session_shm(record.session) + files.STAGE
        try:
            os.mkdir(stage, 0o700)
        except FileExistsError:
            raise Conflict(
                f"a checkpoint is being put back into session {record.session} already; try again "
                "in a moment",
                session=record.session,
            ) from None
        try:
            summary, restored = await self._fetch(live, checkpoint, stage)
            before = None
            if not discard:
                before = await self._suspender.checkpoint(live, epoch, "", "device")
            await self._drain(live)
            async with live.lock:
                record.check_live()
                record.check_epoch(epoch)
                done = await self._exchange(live, stage)
        except OSError as error:
            raise _unchanged(live, error) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, stage, True)
            return_memory_soon()
        log.info("session %s: the contents of checkpoint %s are back", record.session, summary.id)
        return {"loss": _loss(summary, restored, done), "before": before}

    async def _fetch(
        self, live: LiveSession, checkpoint: str, stage: str
    ) -> tuple[Summary, Restored]:
        tell, on_step = teller(self._node, live.record.session), self._node.on_step

        def fetch(box: Any) -> tuple[Summary, Restored]:
            summary: Summary = box.find(live.record.session, checkpoint)
            restored: Restored = box.restore(
                live.record.session,
                summary.id,
                place=lambda part: stage if part.kind == "device" else None,
                progress=tell,
                cancel=live.cancel,
                on_step=on_step,
            )
            return summary, restored

        found = await self._node.stores.call(live.record.user, fetch)
        for name in _names(stage):
            if name.endswith(".journal") and _has_records(os.path.join(stage, files.SHM), name):
                raise Unsupported(
                    f"checkpoint '{checkpoint}' holds a snapshot and a journal, because its device "
                    "was parked by the driver or was broken when it was made, and only a device "
                    "proxy can put those together; nothing was changed: take another checkpoint"
                )
        return found

    async def _drain(self, live: LiveSession) -> None:
        """Wait until the device has done what the session asked for before: it would be done to
        the older contents otherwise."""
        asked = {ring.ring_id: ring.file.queue()[0] for ring in live.rings.rings.values()}
        deadline = time.monotonic() + DRAIN_S
        while live.record.alive and live.record.phase is not Phase.PARKED:
            left = [
                ring
                for ring in list(live.rings.rings.values())
                if ring.file.state not in (RingState.FAILED, RingState.CLOSED)
                and ring.file.queue()[1] < asked.get(ring.ring_id, 0)
            ]
            if not left:
                return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the device of session {live.record.session} has been working for "
                    f"{DRAIN_S:g} s on what was asked for before; nothing was changed: try again "
                    "later",
                    session=live.record.session,
                )
            await asyncio.sleep(0.005)

    async def _exchange(self, live: LiveSession, stage: str) -> contents.PutBack:
        record = live.record
        self._refuse_unsettled(live)
        devices = await self._devices.set_aside(live)
        self._node.on_step("put_back.aside")
        try:
            done, changed = await asyncio.to_thread(self._merge, live, stage)
            self._node.on_step("put_back.merged")
            await asyncio.to_thread(
                _replace, self._node.settings, record.session, changed, self._node.on_step
            )
        finally:
            await asyncio.shield(self._devices.take_back(live, devices))
        return done

    def _refuse_unsettled(self, live: LiveSession) -> None:
        record = live.record
        if record.phase is Phase.NONE:
            raise Conflict(
                f"session {record.session} has no device state, so there is nowhere to put that of "
                "a checkpoint; nothing was changed",
                session=record.session,
            )
        if live.off_device:
            raise Conflict(
                f"the device memory of session {record.session} is kept by the driver while it is "
                "parked; nothing was changed: call a device in it, and try again",
                session=record.session,
            )
        waits = any(
            ring.file.read().pending
            for ring in live.rings.rings.values()
            if ring.file.state is not RingState.FAILED
        )
        if record.phase is Phase.PARKED and waits:
            raise Conflict(
                f"session {record.session} waits for a device in the middle of its work, which "
                "would go on with the older contents; nothing was changed: try again when it has "
                "one",
                session=record.session,
            )

    def _merge(self, live: LiveSession, stage: str) -> tuple[contents.PutBack, dict[str, str]]:
        """What came of it, and for each state file that changes the path of the changed copy."""
        record, total = live.record, contents.PutBack()
        shm = self._node.settings.session_shm(record.session)
        names = set(os.listdir(shm))
        changed: dict[str, str] = {}
        known = {f"{ring_id}.snap" for ring_id in live.rings.rings} & names
        for name in known:
            journal = name.removesuffix(".snap") + ".journal"
            if journal in names and _has_records(shm, journal, record.uid):
                raise Conflict(
                    f"the device state of session {record.session} is a snapshot and a journal "
                    "since its device broke; nothing was changed: call a device in it, and try "
                    "again",
                    session=record.session,
                )
        for name in _names(stage):
            stored = os.path.join(stage, files.SHM, name)
            if not name.endswith(".snap"):
                continue
            if name not in known:
                total += contents.missing_from(stored)
                continue
            part = Part(name, "device", name, shm, type=FILE)
            [copy] = copy_parts([part], os.path.join(stage, f"copy-{name}"), record.uid)
            changed[name] = copy.path
            total += contents.put_back(stored, copy.path)
            os.chmod(copy.path, 0o600)
            if os.geteuid() == 0:
                os.chown(copy.path, record.uid, record.gid, follow_symlinks=False)
        if not changed:
            raise Conflict(
                f"no process of session {record.session} that had device state in that checkpoint "
                "is left; nothing was changed",
                session=record.session,
            )
        return total, changed


def _replace(settings: Settings, session: str, changed: dict[str, str], on_step: Any) -> None:
    """Put the changed files in their places, all or none."""
    shm, back = settings.session_shm(session), settings.session_shm(session) + BACK
    os.mkdir(back, 0o700)
    try:
        for name, path in changed.items():
            os.rename(os.path.join(shm, name), os.path.join(back, name))
            on_step("put_back.between")
            os.rename(path, os.path.join(shm, name))
        os.rename(back, back + DONE)
    except BaseException:
        _undo(shm, back)
        raise
    shutil.rmtree(back + DONE, ignore_errors=True)


def _undo(shm: str, back: str) -> None:
    for name in os.listdir(back):
        os.rename(os.path.join(back, name), os.path.join(shm, name))
    os.rmdir(back)


def undo_unfinished(settings: Settings) -> None:
    """What an agent that was killed was just replacing is as it was again. Called before sessions
    are taken over."""
    for name in os.listdir(settings.shm_dir):
        path = os.path.join(settings.shm_dir, name)
        if name.endswith(BACK):
            with contextlib.suppress(OSError):  # its session is gone
                _undo(path.removesuffix(BACK), path)
        if name.endswith((BACK, BACK + DONE)):
            shutil.rmtree(path, ignore_errors=True)


def _names(stage: str) -> list[str]:
    folder = os.path.join(stage, files.SHM)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _has_records(folder: str, name: str, uid: int | None = None) -> bool:
    """Whether that journal holds anything. Its user may put something else in its place, so it is
    opened like what is saved. Raises FileChanged."""
    part = Part(name, "device", name, folder, type=FILE)
    info = examine(part, uid)
    assert info is not None
    fd = open_part(part, info, uid)
    try:
        return has_records(fd, os.path.join(folder, name))
    finally:
        os.close(fd)


def _unchanged(live: LiveSession, error: OSError) -> SingularityError:
    what = f"nothing was put back into session {live.record.session}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(
            f"{what}: there is no room for a second copy of its device state in "
            f"{os.path.dirname(error.filename or '/dev/shm')}; it goes on as it was"
        )
    return Unavailable(f"{what} ({error.strerror or error}); it goes on as it was")


def _loss(summary: Summary, restored: Restored, done: contents.PutBack) -> dict[str, Any]:
    """The report, in words for people."""
    back = [f"the contents of {_count(done.storages, 'tensor')} ({size(done.bytes)})"]
    if done.generators:
        back.append(_count(done.generators, "random number generator"))
    lost = []
    if done.missing:
        lost.append(f"{_count(done.missing, 'tensor')} of then that no longer exist here")
    if done.newer:
        lost.append(f"{_count(done.newer, 'newer tensor')}, left unchanged")
    lost.append("Python variables, which are as they are now")
    return {
        "level": "device",
        "back": back,
        "lost": lost,
        "rolled_back": False,
        "hashes_checked": restored.hashes_checked,
        "checkpoint": summary.id,
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
