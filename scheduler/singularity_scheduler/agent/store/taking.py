"""What is taken of a session for a checkpoint: its processes frozen, then device state and process
image at the same time, for neither needs the other. No store in here: whoever takes it is given the
parts as soon as they are complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.capsule.files import record as open_files
from singularity_proxy.capsule.files import scratch
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import inner_pid
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.stores.base import Reservation
from singularity_proxy.errors import Conflict

from singularity_scheduler.agent.devices.control import DeviceKeeper
from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.relays.keeper import RelayKeeper
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase

from . import parts as files
from .copies import copy_parts, take_over
from .savings import Saving

DRAIN_S = 2.0
"""So long proxies may take to execute what a frozen session had asked for; otherwise they park."""

TRANSACTION_S = 1.0
"""So long a checkpoint waits for the end of a transaction in a database outside. Stopped in its
middle, it is undone by whoever opens the database next, and the session is told when it is back."""

BETWEEN_TRIES_S = 0.02

Give = Callable[[Iterable[Part]], None]
"""Called with parts that are complete."""


@dataclass(frozen=True)
class Room:
    """Of the store, for one checkpoint."""

    keep_free: int
    """Bytes that it leaves free."""
    reserved: Reservation
    """What was set aside for it."""


@dataclass
class Work:
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
    room: Room
    seq: int | None = None
    began: float = field(default_factory=time.monotonic)
    ms: dict[str, float] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    """Those to be taken back."""
    record: dict[str, Any] = field(default_factory=dict)
    """What the way back needs; filled while the parts are taken."""

    def took(self, step: str, since: float) -> None:
        self.ms[step] = round((time.monotonic() - since) * 1e3, 3)


async def together(*jobs: Awaitable[None]) -> None:
    """All at once; when one fails the others are waited for, and the first error is raised: what
    was stopped for them may not go on before all have ended."""
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        if outcome is not None:
            raise outcome


class Taker:
    """One object per agent; `Suspender` holds the session's lock meanwhile, and lets the session go
    on afterwards."""

    def __init__(self, node: Node, devices: DeviceKeeper, relays: RelayKeeper) -> None:
        self._node = node
        self._devices = devices
        self._relays = relays

    def step(self, name: str) -> None:
        """A step of `suspends.STEPS` is done."""
        self._node.on_step(f"suspend.{name}")

    async def freeze(self, live: LiveSession, work: Work) -> None:
        """No process of the session runs from here on."""
        assert isinstance(live.capsule, NamespaceCapsule)
        began = time.monotonic()
        await self._node.lease.obeyed(live)  # pid 1 must not continue what is stopped here
        await self._freeze_between_transactions(live.capsule)
        self.step("stopped")
        live.record.saving = {
            **(live.record.saving or {}),
            "stopped": sorted(live.capsule.stopped_by_user),
        }
        self._node.try_save(live)
        work.took("freeze", began)
        self.step("frozen")

    async def _freeze_between_transactions(self, capsule: NamespaceCapsule) -> None:
        """Stop every process; while one is changing a database that others use, let all go on for
        a moment and try again. A transaction that is open for longer is stopped in its middle."""
        deadline = time.monotonic() + TRANSACTION_S
        while True:
            await asyncio.to_thread(capsule.freeze)
            path = await asyncio.to_thread(open_files.in_the_middle, capsule)
            if path is None or time.monotonic() > deadline:
                return
            await asyncio.to_thread(capsule.thaw)
            await asyncio.sleep(BETWEEN_TRIES_S)

    def expected_bytes(self, live: LiveSession) -> int:
        """About how much a frozen session is: what its processes have in memory, and on devices."""
        assert isinstance(live.capsule, NamespaceCapsule)
        pages = 0
        for member in live.capsule.members():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{member.identity.pid}/statm", encoding="ascii") as file,
            ):
                pages += int(file.read().split()[1])
        held = sum(ring.file.read().ring_memory_current for ring in live.rings.rings.values())
        return pages * os.sysconf("SC_PAGESIZE") + held

    async def in_place(self, live: LiveSession, work: Work, give: Give) -> None:
        """All of a frozen session that leaves: nobody changes its files any more."""
        await together(self._device_in_place(live, work, give), self._process(live, work, give))

    async def copied(self, live: LiveSession, work: Work) -> list[Part]:
        """Everything, as it is at one moment, in the agent's own folder: the session goes on."""
        record, shm = live.record, self._node.settings.session_shm(live.record.session)
        parts: list[Part] = []
        states = shm

        async def device() -> None:
            nonlocal states
            began = time.monotonic()
            if record.phase is Phase.HELD:
                states = await self._states_of_frozen(live, work) or shm
            work.took("device", began)
            self.step("device")

        await self.freeze(live, work)
        await together(device(), self._process(live, work, parts.extend))
        began = time.monotonic()
        rings = list(record.rings.values())
        parts += await self._copy(live, work, files.ring_parts(shm, rings), "rings")
        parts += await self._own_states(live, work, states)
        work.took("copy", began)
        self.step("copied")
        return parts

    async def states(self, live: LiveSession, work: Work) -> list[Part]:
        """Device state alone, while the session works."""
        record, settings = live.record, self._node.settings
        if record.phase is Phase.NONE:
            why = f", and no image of its processes can be taken: {work.reason}"
            raise Conflict(
                f"session {record.session} has not used a device yet, so there is no device state "
                f"to save{why if work.reason else ''}; nothing was changed",
                session=record.session,
            )
        folder = settings.session_shm(record.session)
        if record.phase is Phase.HELD:
            began = time.monotonic()
            folder = self._own_copy(live, work)
            await self._devices.copy_states(live, folder)
            work.took("device", began)
            self.step("device")
        parts = await self._own_states(live, work, folder)
        self.step("copied")
        work.record.update(
            format=files.FORMAT,
            node=settings.node,
            incarnation=record.incarnation,
            virtual_devices=record.virtual_devices,
            rings=[
                {
                    "ring_id": ring.ring_id,
                    "virtual_device": ring.record.virtual_device,
                    "done_seq": ring.file.read().done_seq,
                }
                for ring in live.rings.rings.values()
            ],
        )
        return parts

    async def _copy(
        self, live: LiveSession, work: Work, parts: list[Part], name: str
    ) -> list[Part]:
        own = os.path.join(work.folder, name)
        return await asyncio.to_thread(copy_parts, parts, own, live.record.uid)

    async def _own_states(self, live: LiveSession, work: Work, folder: str) -> list[Part]:
        """The device state in `folder`, where nobody but the agent changes it any more."""
        rings = list(live.record.rings.values())
        if folder != self._node.settings.session_shm(live.record.session):
            own = os.path.join(work.folder, "written")
            if await asyncio.to_thread(take_over, folder, own):
                return files.state_parts(own, rings)
        return await self._copy(live, work, files.state_parts(folder, rings), "states")

    # -- of a frozen session ----------------------------------------------------------------------

    async def _device_in_place(self, live: LiveSession, work: Work, give: Give) -> None:
        record = live.record
        began = time.monotonic()
        work.devices = await self._devices.set_aside(live)
        work.took("device", began)
        self.step("device")
        # With what the proxies had still to answer in them.
        shm = self._node.settings.session_shm(record.session)
        rings = list(record.rings.values())
        give([*files.ring_parts(shm, rings), *files.state_parts(shm, rings)])

    async def _states_of_frozen(self, live: LiveSession, work: Work) -> str | None:
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

    def _own_copy(self, live: LiveSession, work: Work) -> str:
        """A folder that the session's device proxies can write to."""
        record = live.record
        folder = files.copy_folder(self._node.settings, record.session, work.id)
        os.mkdir(folder, 0o700)
        if os.geteuid() == 0:
            os.chown(folder, record.uid, record.gid, follow_symlinks=False)
        return folder

    async def _process(self, live: LiveSession, work: Work, give: Give) -> None:
        await self._describe(live, work, give)
        await self._dump(live, work, give)

    async def _describe(self, live: LiveSession, work: Work, give: Give) -> None:
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
        await asyncio.to_thread(node.writers.begin, record.session, capsule, opened)
        roots, skip = files.scratch_roots(record, places["folder"])
        copy = os.path.basename(files.copy_folder(settings, record.session, work.id))
        skip.append(os.path.join(places["folder"], copy))
        archive = os.path.join(work.folder, files.SCRATCH)
        await asyncio.to_thread(scratch.pack, capsule, archive, roots, skip)
        give(files.scratch_parts(archive))
        workers = {}
        for ring in live.rings.rings.values():
            with contextlib.suppress(OSError):
                workers[ring.ring_id] = inner_pid(ring.record.worker.pid)
        work.record.update(
            files.describe(
                record,
                node=settings.node,
                torch=node.torch.git_version if node.torch else "",
                workers=workers,
                places=places,
                opened=opened.to_json(),
                processes=len(capsule.members()),
                positions=await self._relays.positions(live),
                machine=await node.images.machine(),
            )
        )
        work.took("files", began)
        self.step("packed")

    async def _dump(self, live: LiveSession, work: Work, give: Give) -> None:
        assert isinstance(live.capsule, NamespaceCapsule)
        await live.socket.close()
        self.step("closed")
        began = time.monotonic()
        target = os.path.join(work.folder, files.IMAGE)
        await asyncio.to_thread(image.dump, live.capsule, target)
        give(files.image_parts(target))
        work.took("image", began)
        self.step("dumped")
