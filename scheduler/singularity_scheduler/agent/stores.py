"""Where this node keeps checkpoints: the store, opened when it is first needed, by user.

Everything that touches the store blocks, so it runs in a thread; how far a transfer has come is
told to the service as `checkpoint.progress`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.keys import KeyProvider, open_keys
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.progress import OnProgress, Progress
from singularity_proxy.checkpoint.retention import Policy
from singularity_proxy.checkpoint.store import ObjectStore, open_store
from singularity_proxy.errors import SingularityError, StoreUnavailable

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("singularity.agent")

T = TypeVar("T")

_TRANSFERS = 16
"""So many calls to the store run at the same time, besides those of frozen sessions."""

TELL_EVERY_S = 0.25
"""Progress is told at most this often."""

COLLECT_AFTER_S = 600.0
"""A user's garbage is collected this long after a checkpoint of theirs was removed, at the
earliest: several removals are one collection."""


class Stores:
    """The store of the agent. `url` is a folder or an address of Azure Blob; `keys` says where the
    keys are that checkpoints are encrypted with ("": not at all); so many sessions are frozen
    `at_once` for it."""

    def __init__(self, url: str, keys: str, policy: Policy, at_once: int) -> None:
        self._url, self._keys_source = url, keys
        self.policy = policy
        self.turns = asyncio.Semaphore(at_once)
        """Held by who has a session frozen to save it."""
        # Of its own: a save may wait in its thread for what the event loop's threads still make.
        self._threads = ThreadPoolExecutor(at_once + _TRANSFERS, "store")
        self._opening = threading.Lock()
        self._store: ObjectStore | None = None
        self._keys: KeyProvider | None = None
        self._of: dict[str, Checkpoints] = {}
        self._garbage: dict[str, float] = {}
        self._reason = ""

    def _open(self) -> ObjectStore:
        with self._opening:
            if self._store is None:
                try:
                    self._keys = open_keys(self._keys_source)
                    self._store = open_store(self._url)
                    self._reason = ""
                except SingularityError as error:
                    self._reason = error.message
                    raise
                except OSError as error:
                    self._reason = f"the checkpoint store cannot be opened ({error.strerror})"
                    raise StoreUnavailable(
                        f"{self._reason}; nothing was changed, try again"
                    ) from None
            return self._store

    def of(self, user: str) -> Checkpoints:
        """The checkpoints of one user; blocks, and raises `StoreUnavailable`, `KeyUnavailable` or
        `BadRequest` while the store cannot be opened."""
        store = self._open()
        with self._opening:
            if user not in self._of:
                self._of[user] = Checkpoints(store, user, self._keys)
            return self._of[user]

    async def call(self, user: str, work: Callable[[Checkpoints], T]) -> T:
        """`work(checkpoints of the user)` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(self.of(user)))

    async def has_whole(self, user: str, session: str) -> bool:
        """Whether the session can go on from a checkpoint; what cannot be asked is believed."""
        try:
            found = await self.call(user, lambda box: box.list(session))
        except SingularityError as error:
            log.warning("the checkpoints of session %s are not known: %s", session, error.message)
            return True
        return any(summary.level == "process" for summary in found)

    async def probe(self) -> None:
        """Open the store, so that `describe` can tell; a failure is tried again when needed."""
        try:
            await asyncio.to_thread(self._open)
        except SingularityError as error:
            log.warning("checkpoints cannot be stored now: %s", error.message)

    def describe(self) -> dict[str, Any]:
        """Capability `store` of `hello`: {available, url, reason}; no credential is in it."""
        store = self._store
        url = store.url if store is not None else urlsplit(self._url)._replace(query="").geturl()
        return {"available": store is not None, "url": url, "reason": self._reason}

    # -- housekeeping -----------------------------------------------------------------------------

    async def tidy(self, user: str, session: str, epoch: int) -> None:
        """After a checkpoint: remove what the retention policy does not keep. Best effort."""
        if self.policy == Policy():
            return
        try:
            gone = await self.call(
                user, lambda box: box.retain(session, self.policy, time.time(), epoch=epoch)
            )
        except SingularityError as error:
            log.warning("old checkpoints of session %s stay: %s", session, error.message)
            return
        if gone:
            self.littered(user)

    async def forget(self, user: str, session: str, epoch: int | None) -> None:
        """The session has ended for good: its checkpoints go, but for those with a name. Best
        effort; an agent that the session has left meanwhile removes none."""

        def forget(box: Checkpoints) -> list[str]:
            if not box.list(session):
                return []
            return box.forget(session, epoch=epoch, keep_named=True)

        try:
            gone = await self.call(user, forget)
        except SingularityError as error:
            log.warning("the checkpoints of session %s stay: %s", session, error.message)
            return
        if gone:
            self.littered(user)

    async def positions(
        self, user: str, session: str, known: dict[str, dict[str, Any] | None]
    ) -> dict[str, dict[str, Any] | None]:
        """Checkpoint -> where the session's connection stood then, of those with its processes;
        those in `known` are not read again."""

        def read(box: Checkpoints) -> dict[str, dict[str, Any] | None]:
            found = {}
            for one in (c.id for c in box.list(session) if c.level == "process"):
                there = one in known
                found[one] = known[one] if there else _positions(box, session, one)
            return found

        return await self.call(user, read)

    def littered(self, user: str) -> None:
        """Something of this user was removed: its space can be freed some time later."""
        self._garbage.setdefault(user, time.monotonic() + COLLECT_AFTER_S)

    @property
    def garbage_due(self) -> bool:
        """Whether it is time to `collect`; asked every few seconds."""
        return any(at <= time.monotonic() for at in self._garbage.values())

    async def collect(self) -> None:
        """Free the space of checkpoints that were removed a while ago."""
        now = time.monotonic()
        for user in [u for u, at in self._garbage.items() if at <= now]:
            del self._garbage[user]
            try:
                found = await self.call(user, lambda box: box.collect())
            except SingularityError as error:
                log.warning("unused checkpoint data of %s stays for now: %s", user, error.message)
                self.littered(user)
                continue
            log.info("%d chunks (%d bytes) of %s freed", found.chunks, found.bytes, user)

    def close(self) -> None:
        """Called when the agent ends."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()


def teller(node: Node, session: str) -> OnProgress:
    """Tells the service how far a transfer of `session` has come; made on the event loop, called
    from the threads of the transfer."""
    loop = asyncio.get_running_loop()
    last = [0.0]

    def tell(progress: Progress) -> None:
        now = time.monotonic()
        if now - last[0] < TELL_EVERY_S and progress.bytes_done < progress.bytes_total:
            return
        last[0] = now
        data = asdict(progress)
        loop.call_soon_threadsafe(lambda: node.emit(session, "checkpoint.progress", **data))

    return tell


def reference(summary: Summary) -> dict[str, Any]:
    """A checkpoint as the service is told of it."""
    return {
        "id": summary.id,
        "name": summary.name,
        "at": summary.at,
        "level": summary.level,
        "bytes": summary.bytes,
        "stored_bytes": summary.stored_bytes,
        "sent_bytes": summary.sent_bytes,
        "incarnation": summary.incarnation,
        "reason": summary.reason,
    }


def _positions(box: Checkpoints, session: str, checkpoint: str) -> dict[str, Any] | None:
    found = box.manifest(session, checkpoint).record.get("positions")
    return found if isinstance(found, dict) else None
