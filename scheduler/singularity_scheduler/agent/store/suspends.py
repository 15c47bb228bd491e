"""Whole sessions to the store: a checkpoint from which a session goes on, or a suspend, after which
it has left this node.

Both are done under the session's lock: freeze the processes, then bring the device state to files
while the processes are dumped (`taking`), and save it all. A session that goes on does so from a
copy of what it may change. One that leaves is saved in place, and what is complete is on its way to
the store while the rest is still being written. Until the checkpoint is published anything that
fails thaws the session, and so does the next agent when this one is killed: nothing half-written is
ever listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.capsule import connections
from singularity_proxy.capsule.images.io_rings import with_io_ring
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.sockets import end_without_trace
from singularity_proxy.capsule.tree import has_ended
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.progress import Progress
from singularity_proxy.checkpoint.saving.feed import Feed
from singularity_proxy.checkpoint.saving.writer import Request, new_checkpoint_id
from singularity_proxy.checkpoint.stores.base import Reservation
from singularity_proxy.errors import (
    CheckpointCancelled,
    Conflict,
    NoSpace,
    SingularityError,
    StaleEpoch,
    Unavailable,
    Unsupported,
)

from singularity_scheduler.agent.devices.control import DeviceKeeper
from singularity_scheduler.agent.memory import return_memory
from singularity_scheduler.agent.node import Node, Settings
from singularity_scheduler.agent.ranks.barrier import together
from singularity_scheduler.agent.ranks.gang_barrier import storing
from singularity_scheduler.agent.relays.keeper import RelayKeeper
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Life

from . import parts as files
from .estimates import expected_bytes
from .savings import Saving
from .stores import reference, teller
from .taking import Room, Taker, Work

log = logging.getLogger("singularity.agent")

STEPS = {
    "begun": "the ledger says that a checkpoint is being taken",
    "stopped": "no process of the session runs, and the ledger does not know yet",
    "frozen": "no process of the session runs, and the ledger knows",
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
"""Where an agent can die in the middle; `Node.on_step` is called there, by tests alone. "device"
comes in any order with those of the process."""


ENDS_WITHIN_S = 0.2
"""A process that was killed may still free its memory when what is asked of it already fails."""


class Suspender:
    """Takes checkpoints. One object per agent; `Lifecycle` ends what has been suspended."""

    def __init__(self, node: Node, devices: DeviceKeeper, relays: RelayKeeper) -> None:
        self._node = node
        self._devices = devices
        self._relays = relays
        self._taker = Taker(node, devices, relays)

    # -- commands ---------------------------------------------------------------------------------

    async def checkpoint(
        self,
        live: LiveSession,
        epoch: int | None,
        name: str,
        level: str | None,
        standing: bool = False,
    ) -> dict[str, Any]:
        """Save the session and let it go on. `level` None: the best that is possible here, and the
        answer's `reason` says why it is not more. `standing`: of a part of a gang, whose ranks
        stand with all others; it goes on when it is copied, and is saved as a whole or not at all.
        Raises `Conflict` when there is nothing to save or they do not stand, `Unsupported` for a
        level that cannot be had, what `dump` and the store raise."""
        live.record.check_live()
        with storing(live, standing):
            if standing and level is None:
                level = "process"
            async with _telling_its_end(live):
                return await self._checkpoint(live, epoch, name, level, standing)

    async def _checkpoint(
        self,
        live: LiveSession,
        epoch: int | None,
        name: str,
        level: str | None,
        standing: bool,
    ) -> dict[str, Any]:
        record = live.record
        why = await self.why_no_image(live)
        if level == "process" and why:
            raise Unsupported(f"no process image of session {record.session} was taken: {why}")
        if level not in (None, "process", "device"):
            raise Unsupported(f"an agent takes no checkpoints of level '{level}'")
        if level is None:
            level = "device" if why else "process"
        why = why if level == "device" else ""
        # Before the saving begins: savings and holders of the lock must have the same order.
        async with self._room(live, level) as room:
            with live.savings.begin() as saving:
                work = self._work(live, saving, epoch, name, level, why, room)
                try:
                    async with self._node.stores.turns, self._busy(live, work, standing=standing):
                        take = self._taker.copied if level == "process" else self._taker.states
                        parts = await take(live, work)
                except OSError as error:
                    raise _unsaved(live, work.name or work.id, error) from None
                except Conflict:
                    if record.alive:
                        raise
                    raise CheckpointCancelled(
                        f"checkpoint {work.name or work.id} was not taken, because session "
                        f"{record.session} was suspended or ended first; nothing else was changed"
                    ) from None
                try:
                    await live.savings.settle(before=saving)
                    summary = await self._save(live, work, parts)
                except SingularityError as error:
                    self._judge(live, error)
                    raise
                finally:
                    await self._tidy(live, work)
        made: dict[str, Any] = {**reference(summary), "ms": work.ms}
        if record.alive and self._node.sessions.get(record.session) is live:
            record.last_checkpoint = made
            self._node.try_save(live)
            self._node.spawn(self._relays.retain(live), "retention")
        return dict(made)

    async def suspend(
        self,
        live: LiveSession,
        epoch: int,
        seq: int | None,
        name: str,
        reason: str,
        standing: bool = False,
        urgent: bool = False,
    ) -> dict[str, Any]:
        """Save the session and mark it as gone; the caller ends it (`Lifecycle.leave`). Returns
        the answer of `session.suspend`. On any error the session goes on here, and when there is
        no room for it nothing of it was stopped. `standing`: as of `checkpoint`. `urgent`: what is
        not stored is lost, so it may use the room that the store keeps back."""
        live.record.check_live()
        with storing(live, standing):
            async with _telling_its_end(live):
                return await self._suspend(live, epoch, seq, name, reason, standing, urgent)

    async def _suspend(
        self,
        live: LiveSession,
        epoch: int,
        seq: int | None,
        name: str,
        reason: str,
        standing: bool,
        urgent: bool,
    ) -> dict[str, Any]:
        record = live.record
        if why := await self.why_no_image(live):
            raise Unsupported(
                f"session {record.session} cannot be suspended: {why}; it goes on here"
            )
        if urgent:  # what it stores now has all of them, and needs their room
            live.savings.give_up()
            await live.savings.settle()
        # Before the saving begins: savings and holders of the lock must have the same order.
        async with self._room(live, "process", urgent) as room:
            with live.savings.begin() as saving:
                work = self._work(live, saving, epoch, name, "process", "", room)
                work.seq = seq
                await self._send_away(live, work, reason, standing)
        await self._tidy(live, work)
        assert record.saving is not None
        return dict(record.saving["published"])

    async def _send_away(self, live: LiveSession, work: Work, reason: str, standing: bool) -> None:
        record, capsule = live.record, live.capsule
        assert isinstance(capsule, NamespaceCapsule)
        busy = self._busy(live, work, leaves=True, standing=standing)
        async with self._node.stores.turns, busy:
            live.savings.give_up(before=work.saving)  # they are older than what is saved now
            await live.savings.settle(before=work.saving)
            try:
                await self._relays.away(live, True)
                await self._taker.freeze(live, work)
                summary = await self._save_while_taken(live, work)
            except OSError as error:
                raise _unsaved(live, work.name or work.id, error) from None
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
            pids = [m.identity.pid for m in capsule.members()]
            await asyncio.to_thread(end_without_trace, pids)
            self._step("recorded")

    async def _save_while_taken(self, live: LiveSession, work: Work) -> Summary:
        feed = Feed(self._taker.expected_bytes(live))
        saving = asyncio.ensure_future(self._save(live, work, feed, frozen=True))
        try:
            await self._taker.in_place(live, work, feed.add)
        except BaseException as error:
            feed.fail(error)
            await asyncio.wait([saving])  # it withdraws what it has announced
            saving.exception()
            raise
        feed.finish()
        return await saving

    async def why_no_image(self, live: LiveSession) -> str:
        """ "" when this session's processes can be saved, else why not."""
        if live.record.mode == "joined":
            return "its process is a command in somebody's terminal, which cannot leave it"
        if not isinstance(live.capsule, NamespaceCapsule):
            return "it was started without namespaces of its own"
        found = await self._node.images.capability()
        if not found["available"]:
            return str(found["reason"]).rstrip(".")
        inside = {member.identity.pid: member.pid for member in live.capsule.members()}
        held = await asyncio.to_thread(with_io_ring, inside)
        if held is not None:
            return (
                f"its process {inside[held]} uses io_uring (torch's stores do with USE_LIBUV=1), "
                "which CRIU cannot save"
            )
        if not connections.can_keep(live.capsule):
            rank = await asyncio.to_thread(connections.needing_them, inside)
            if rank is not None:
                return (
                    f"its process {inside[rank]} is a rank of torchrun, which ends when its "
                    "connections are closed, and this node's agent has no right to take them along "
                    "(CAP_NET_ADMIN)"
                )
        return ""

    # -- room -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _room(
        self, live: LiveSession, level: str, urgent: bool | None = None
    ) -> AsyncIterator[Room]:
        """Room in the store for a checkpoint of this level, set aside before anything is stopped.
        `urgent`: as of `suspend`; None: it is none. Raises `NoSpace` when there is none, also after
        what nobody needs was removed."""
        record, stores = live.record, self._node.stores

        def reserve(box: Checkpoints) -> Room:
            keep_free = stores.keep_free(urgent)
            if box.store.space() is None:
                return Room(keep_free, Reservation())
            need = expected_bytes(live, self._node.settings, box, level)
            return Room(keep_free, stores.reserve(box, record.session, need, keep_free))

        try:
            room = await stores.call(record.user, reserve)
        except NoSpace as error:
            verb = "stored" if urgent is None else "suspended"
            raise NoSpace(
                f"session {record.session} was not {verb} and goes on as it was, older checkpoints "
                f"were kept: {error.message}",
                **error.fields,
            ) from None
        except OSError as error:
            raise _unsaved(live, "", error) from None
        try:
            yield room
        finally:
            await asyncio.to_thread(room.reserved.release)
            await asyncio.to_thread(return_memory)

    # -- steps ------------------------------------------------------------------------------------

    def _work(
        self,
        live: LiveSession,
        saving: Saving,
        epoch: int | None,
        name: str,
        level: str,
        why: str,
        room: Room,
    ) -> Work:
        id = new_checkpoint_id(datetime.now(timezone.utc))
        folder = os.path.join(self._node.settings.images_dir, f"{live.record.session}-{id}")
        return Work(id, name, level, why, folder, saving, epoch, room)

    def _step(self, name: str) -> None:
        self._node.on_step(f"suspend.{name}")

    @contextlib.asynccontextmanager
    async def _busy(
        self, live: LiveSession, work: Work, *, leaves: bool = False, standing: bool = False
    ) -> Any:
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
                # Before its processes stop: they have to get there.
                async with together(live, node.settings.barrier_s, standing=standing):
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

    async def _save(
        self, live: LiveSession, work: Work, parts: Iterable[Part], *, frozen: bool = False
    ) -> Summary:
        """Upload and publish. A session that was fenced meanwhile may not. `frozen`: it stands
        still until this has ended."""
        record, node = live.record, self._node
        if work.level == "process":
            node.lease.arm(live)
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

        def progress(now: Progress) -> None:
            work.room.reserved.use(now.bytes_sent)
            tell(now)

        began = time.monotonic()
        summary = await node.stores.call(
            record.user,
            lambda box: box.save(
                request,
                parts,
                progress=progress,
                cancel=cancel,
                on_step=node.on_step,
                keep_free=work.room.keep_free,
                make_room=node.stores.make_room,
            ),
            frozen=frozen,
        )
        work.took("store", began)
        self._step("published")
        return summary

    # -- afterwards -------------------------------------------------------------------------------

    async def _go_on(self, live: LiveSession, work: Work) -> None:
        """The session works again, as if nothing had happened."""
        await go_on(self._node, live, self._relays)
        self._step("thawed")
        await self._devices.take_back(live, work.devices)
        await asyncio.to_thread(remove_copies, self._node, live)

    async def _tidy(self, live: LiveSession, work: Work) -> None:
        await asyncio.to_thread(shutil.rmtree, work.folder, True)

    def _judge(self, live: LiveSession, error: BaseException) -> None:
        """What an error means beyond this checkpoint."""
        record = live.record
        if isinstance(error, StaleEpoch):
            log.error("session %s belongs to another node now: %s", record.session, error.message)
            live.fenced, record.elsewhere = error.message, True
        if isinstance(error, SingularityError) and error.fields.get("intact") is False:
            live.fenced = error.message


def _command(work: Work) -> str | None:
    return None if work.seq is None else f"session.suspend/{work.epoch}/{work.seq}"


@contextlib.asynccontextmanager
async def _telling_its_end(live: LiveSession) -> AsyncIterator[None]:
    """Raise `Conflict` in place of an error that came because the session's processes ended in the
    middle: such an error says that the session goes on."""
    try:
        yield
    except (Conflict, CheckpointCancelled):
        raise
    except SingularityError as error:
        if live.record.published:
            raise
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not _is_over(live):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        raise Conflict(
            f"no checkpoint of session {live.record.session} was made, because its processes ended "
            "meanwhile; older checkpoints were kept",
            **{**error.fields, "session": live.record.session},
        ) from error


def _is_over(live: LiveSession) -> bool:
    """Whether the session's first process has ended; the agent may learn of that a moment later."""
    capsule = live.capsule
    if capsule is None or not capsule.watch.alive:
        return True
    if not isinstance(capsule, NamespaceCapsule):
        return False
    first = capsule.main()
    return first is None or has_ended(first)


def _unsaved(live: LiveSession, checkpoint: str, error: OSError) -> SingularityError:
    """`checkpoint`: name or id; "": it has none yet."""
    which = f"checkpoint '{checkpoint}'" if checkpoint else "a checkpoint"
    what = f"{which} of session {live.record.session} was not made"
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
        # Not there: the agent was killed while it stopped them, before it could write that down.
        stopped = saving.get("stopped", [])
        live.capsule.stopped_by_user = frozenset(stopped)
        if node.lease.release(live, stopped):
            await asyncio.to_thread(live.capsule.thaw)
    try:
        await relays.away(live, False)
    finally:
        record.saving = None
        node.try_save(live)


def remove_copies(node: Node, live: LiveSession) -> None:
    """Remove what device proxies have written for a checkpoint, also of an agent that was killed in
    the middle of one."""
    for folder in files.copy_folders(node.settings, live.record.session):
        shutil.rmtree(folder, ignore_errors=True)


def clear_stages(settings: Settings) -> None:
    """Make the agent's own folders for images anew, and remove what an agent that was killed had
    on its way there or back; called before sessions are taken over."""
    for folder in (settings.images_dir, settings.proofs_dir):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(settings.images_dir, 0o700)
    for name in os.listdir(settings.shm_dir):
        if name.endswith(files.STAGE):
            shutil.rmtree(os.path.join(settings.shm_dir, name), ignore_errors=True)
