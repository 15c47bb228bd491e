"""The rings of one session: made for workers, watched with them, and asked whether they wait.

A worker process asks for a ring per virtual device over the session socket. The ring lives as long
as the process: its end is seen by a pidfd, because workers leave by `os._exit` and SIGKILL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable

from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.errors import BadRequest, Conflict, Unsupported
from singularity_proxy.wire.ring import RingFile, RingState

from singularity_scheduler.agent.devices.probe import TorchVersion

from .record import RingRecord, SessionRecord

log = logging.getLogger("singularity.agent")

MAX_RINGS = 256
"""Rings of one session at the same time: each reserves 12 MiB of shared memory."""

WITHDRAW_S = 1.5
"""A worker that waits rings every second; this long after the last ring, and with no worker
marked as waiting, the wait is over."""


class LiveRing:
    """A ring whose file is open and whose worker is watched."""

    def __init__(
        self, record: RingRecord, file: RingFile, on_worker_exit: Callable[[LiveRing], None]
    ) -> None:
        self.record = record
        self.file = file
        self.worker = ProcessWatch(record.worker, lambda _: on_worker_exit(self))

    @property
    def ring_id(self) -> str:
        return self.record.ring_id

    def release(self) -> None:
        """Stop watching and close the descriptor; the file stays."""
        self.worker.close()
        self.file.close()

    def remove(self) -> None:
        """End the ring and remove its files (the session's worker gets an error, if it lives).
        What its user has put in their place, and cannot be removed like a file, goes with the
        session's folder."""
        self.worker.close()
        with contextlib.suppress(OSError):  # the file is tried again
            self.file.retire()
        for suffix in (".ring", ".snap", ".snap.tmp", ".journal"):
            try:
                os.unlink(self.record.prefix + suffix)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning("%s stays until its session ends: %s", error.filename, error.strerror)


class RingSet:
    """All rings of a session. `folder` is its /dev/shm folder (0700, the session's user)."""

    def __init__(
        self, record: SessionRecord, folder: str, on_worker_exit: Callable[[LiveRing], None]
    ) -> None:
        self._record = record
        self._folder = folder
        self._on_worker_exit = on_worker_exit
        self.rings: dict[str, LiveRing] = {}
        self._last_need = 0.0

    def create(
        self, virtual_device: int, worker: ProcessIdentity, device_type: str, capacity_bytes: int
    ) -> tuple[LiveRing, list[LiveRing]]:
        """A new ring for `worker`, and the older ones of the same process and virtual device: it
        has replaced itself by exec and lost their mappings. Raises `BadRequest` for a virtual
        device the session does not have, `Conflict` for too many rings, `NoSpace`."""
        count = self._record.virtual_devices
        if not 0 <= virtual_device < count:
            raise BadRequest(
                f"this session has {count} virtual device{'s' if count > 1 else ''} "
                f"(cuda:0 to cuda:{count - 1}), there is no cuda:{virtual_device}",
                virtual_device=virtual_device,
            )
        if len(self.rings) >= MAX_RINGS:
            raise Conflict(
                f"{MAX_RINGS} processes of this session use a device already; end some of them",
                limit=MAX_RINGS,
            )
        older = [
            ring
            for ring in self.rings.values()
            if ring.record.worker == worker and ring.record.virtual_device == virtual_device
        ]
        self._record.rings_made += 1
        ring_id = f"r{self._record.rings_made}"
        path = os.path.join(self._folder, f"{ring_id}.ring")
        with contextlib.suppress(FileNotFoundError):  # an agent was killed right after making it
            os.unlink(path)
        file = RingFile.create(
            path,
            virtual_device=virtual_device,
            device_type=device_type,
            memory_capacity=capacity_bytes,
            owner=(self._record.uid, self._record.gid) if os.geteuid() == 0 else None,
        )
        record = RingRecord(ring_id, path, virtual_device, worker)
        self._record.rings[ring_id] = record
        ring = LiveRing(record, file, self._on_worker_exit)
        self.rings[ring_id] = ring
        return ring, older

    def adopt(self) -> list[RingRecord]:
        """Open the rings of the ledger after an agent restart; returns those whose file is gone
        or no ring any more (dropped: their workers get an error from the file they still map).
        Raises `OSError` for one that cannot be opened now."""
        lost = []
        for record in list(self._record.rings.values()):
            try:
                file = RingFile.open(record.path)
            except (FileNotFoundError, Conflict):
                lost.append(record)
                del self._record.rings[record.ring_id]
                continue
            self.rings[record.ring_id] = LiveRing(record, file, self._on_worker_exit)
        return lost

    def let_go(self) -> None:
        """Watch and hold none of the rings any more; files and workers stay as they are."""
        for ring in self.rings.values():
            ring.worker.close()
            ring.file.close()
        self.rings.clear()

    def forget(self, ring: LiveRing) -> None:
        """Remove the ring and its files."""
        self.rings.pop(ring.ring_id, None)
        self._record.rings.pop(ring.ring_id, None)
        ring.remove()

    def need(self, ring_id: str) -> LiveRing | None:
        """A worker rang for `ring_id`; None when there is no such ring or it has failed."""
        ring = self.rings.get(ring_id)
        if ring is None or ring.file.state in (RingState.FAILED, RingState.CLOSED):
            return None
        self._last_need = time.monotonic()
        return ring

    def still_waiting(self) -> bool:
        """False once no worker waits: each has got its device, was interrupted, or has ended."""
        if time.monotonic() - self._last_need < WITHDRAW_S:
            return True
        return any(
            header.worker_waiting and header.state in (RingState.DETACHED, RingState.MOVING)
            for header in (ring.file.read() for ring in self.rings.values())
        )

    def release(self) -> None:
        """Let go of all rings; their files stay."""
        for ring in self.rings.values():
            ring.release()
        self.rings.clear()


def ring_number(name: str) -> bool:
    """Whether `name` looks like a ring id (what a doorbell datagram may name)."""
    return re.fullmatch(r"r[1-9]\d{0,9}", name) is not None


def check_torch(worker_version: str, worker_git: str, ours: TorchVersion | None) -> None:
    """Refuse a worker whose torch is not the proxies' torch (CPU and CUDA builds of one release
    are the same): records name operators by schema, so two releases could disagree silently."""
    if ours is None:
        raise Unsupported(
            "the node agent's Python environment has no torch, so it cannot run device proxies; "
            "install torch there and restart the agent"
        )
    if worker_git != ours.git_version:
        raise Unsupported(
            f"this process uses torch {worker_version}, but the device proxies of this node use "
            f"torch {ours.version}; install torch {ours.version.partition('+')[0]} here",
            worker=worker_version,
            proxy=ours.version,
        )
