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
from urllib.parse import unquote, urlsplit

from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.cleaning.retention import Policy
from singularity_proxy.checkpoint.keys import KeyProvider, open_keys
from singularity_proxy.checkpoint.layout import component
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.progress import OnProgress, Progress
from singularity_proxy.checkpoint.stores.base import ObjectStore, Reservation, decimal_size
from singularity_proxy.checkpoint.stores.identity import check_identity, give_identity
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import NoSpace, SingularityError, StoreUnavailable

if TYPE_CHECKING:
    from singularity_scheduler.agent.node import Node

log = logging.getLogger("singularity.agent")

T = TypeVar("T")

_TRANSFERS = 16
"""So many calls to the store run at the same time, besides those of frozen sessions."""

TELL_EVERY_S = 0.25
"""Progress is told at most this often."""

COLLECT_AFTER_S = 600.0
"""A user's garbage is collected this long after a checkpoint of theirs was removed, at the
earliest: several removals are one collection."""


CHECK_EVERY_S = 10.0
"""A store that costs something to ask is asked so often whether it is still the same one."""

MOST_KEPT_PERCENT = 95.0
"""More of a store is never kept back."""

ROOM_REST_S = 10.0
"""A full store in which nothing could be freed is not collected again for so long."""


class Stores:
    """The store of the agent. `url` is a folder or the address of a bucket; `keys` says where the
    keys are that checkpoints are encrypted with ("": not at all); so many sessions are frozen
    `at_once` for it. `identity` is that of the store which was used at this address before ("":
    none was); `remember` is told another one. `keep_percent` of a folder's file system stay free
    for suspends that keep a session from loss."""

    def __init__(
        self,
        url: str,
        keys: str,
        policy: Policy,
        at_once: int,
        *,
        identity: str = "",
        remember: Callable[[str], None] = lambda identity: None,
        keep_percent: float = 0.0,
    ) -> None:
        self._url, self._keys_source = url, keys
        self.policy = policy
        self.identity = identity
        self._remembered, self._remember = identity, remember
        self._keep_percent = keep_percent
        self._checked = 0.0
        self._room = threading.Lock()
        self._full_since = -ROOM_REST_S
        """When nothing could be freed last (CLOCK_MONOTONIC)."""
        self.turns = asyncio.Semaphore(at_once)
        """Held by who has a session frozen to save it."""
        # Of its own: a save may wait in its thread for what the event loop's threads still make.
        self._threads = ThreadPoolExecutor(_TRANSFERS, "store")
        self._for_frozen = ThreadPoolExecutor(at_once, "store-frozen")
        self._opening = threading.Lock()
        self._failure: tuple[float, SingularityError] | None = None
        """When (CLOCK_MONOTONIC) and why it could not be opened the last time."""
        self._store: ObjectStore | None = None
        self._keys: KeyProvider | None = None
        self._of: dict[str, Checkpoints] = {}
        self._garbage: dict[str, float] = {}
        self._reason = ""

    def _open(self) -> ObjectStore:
        """The store, which is the one that was used before."""
        asked = time.monotonic()
        with self._opening:
            if self._failure is not None and self._failure[0] > asked:
                # Of a store that hangs each would wait as long as the one before it.
                error = self._failure[1]
                raise type(error)(error.message, **error.fields)
            if self._store is None or self._store.stat_is_cheap or self._is_check_due():
                try:
                    self._store = self._checked_store(self._store)
                    self._checked, self._reason = time.monotonic(), ""
                except (SingularityError, OSError) as error:
                    raise self._failed(error) from None
            return self._store

    def _failed(self, error: SingularityError | OSError) -> SingularityError:
        """Note why the store could not be opened, for those who wait for the answer too."""
        if isinstance(error, OSError):
            self._reason = f"the checkpoint store cannot be opened ({error.strerror})"
            error = StoreUnavailable(f"{self._reason}; nothing was changed, try again")
        else:
            self._reason = error.message
        self._failure = time.monotonic(), error
        return error

    def _is_check_due(self) -> bool:
        return bool(self._reason) or time.monotonic() - self._checked > CHECK_EVERY_S

    def _checked_store(self, store: ObjectStore | None) -> ObjectStore:
        if store is None:
            self._keys = open_keys(self._keys_source)
            store = open_store(self._url, make=not self.identity)
        if self.identity:
            check_identity(store, self.identity)
            if self._store is None:
                store.prepare()
        else:
            self.identity = give_identity(store)
        return store

    def of(self, user: str) -> Checkpoints:
        """The checkpoints of one user; blocks, and raises `StoreUnavailable`, `KeyUnavailable` or
        `BadRequest` while the store cannot be opened, `StoreChanged` while it is another one."""
        store = self._open()
        if found := self._of.get(user):
            return found
        with self._opening:
            if user not in self._of:
                own = store.for_user(component(user))
                self._of[user] = Checkpoints(own, user, self._keys)
            return self._of[user]

    async def call(self, user: str, work: Callable[[Checkpoints], T], *, frozen: bool = False) -> T:
        """`work(checkpoints of the user)` in a thread. `frozen`: the caller holds one of `turns`,
        and a session stands still until this has ended: it waits for no calls of others."""
        loop = asyncio.get_running_loop()
        threads = self._for_frozen if frozen else self._threads
        try:
            return await loop.run_in_executor(threads, lambda: work(self.of(user)))
        finally:
            self._note_identity()

    def _note_identity(self) -> None:
        """On the event loop: whose ledger it is."""
        if self.identity != self._remembered:
            self._remembered = self.identity
            self._remember(self.identity)

    async def has_whole(self, user: str, session: str) -> bool:
        """Whether the session can go on from a checkpoint; what cannot be asked is believed."""
        try:
            found = await self.call(user, lambda box: box.list(session))
        except SingularityError as error:
            log.warning("the checkpoints of session %s are not known: %s", session, error.message)
            return True
        return any(summary.level == "process" for summary in found)

    async def probe(self) -> None:
        """Open the store, or see whether it is still the same, so that `describe` can tell; a
        failure is tried again when needed."""
        before = self._reason
        try:
            await asyncio.to_thread(self._open)
        except SingularityError as error:
            if error.message != before:
                log.warning("checkpoints cannot be stored now: %s", error.message)
        else:
            if before:
                log.info("the checkpoint store can be used again")
        self._note_identity()

    def describe(self) -> dict[str, Any]:
        """Capability `store` of `hello`: {available, url, id, reason}; no credential is in it."""
        store = self._store
        url = store.url if store is not None else urlsplit(self._url)._replace(query="").geturl()
        return {
            "available": store is not None and not self._reason,
            "url": url,
            "id": self.identity,
            "reason": self._reason,
        }

    # -- room -------------------------------------------------------------------------------------

    def keep_free(self, urgent: bool | None) -> int:
        """Bytes of the store that a save leaves free. A suspend that keeps a session from loss
        (`urgent`) leaves none, any other one what is kept for those. A checkpoint (None) leaves as
        much again for suspends: however many one user takes, sessions of others can still leave.
        Blocks; raises what `of` raises."""
        if urgent or not self._keep_percent:
            return 0
        space = self._open().space()
        if space is None:
            return 0
        percent = self._keep_percent * (2 if urgent is None else 1)
        return int(space.total * min(percent, MOST_KEPT_PERCENT) / 100)

    def reserve(self, box: Checkpoints, session: str, need: int, keep: int) -> Reservation:
        """Set `need` bytes aside for a save that is about to begin, `keep` bytes staying free. What
        nobody needs is collected where they are not there. Blocks. Raises `NoSpace`."""
        try:
            return box.store.reserve(need, keep)
        except NoSpace as error:
            said = error
        if self.make_room():
            try:
                return box.store.reserve(need, keep)
            except NoSpace as error:
                said = error
        hint = box.what_frees(session) or "free some space there and try again"
        raise NoSpace(f"{said.message}: {hint}", **said.fields)

    def make_room(self) -> int:
        """Collect the garbage of all users at once, because the store is full; the bytes that were
        freed. Blocks; raises nothing. Several that ask at a time get what one collection gave."""
        asked = time.monotonic()
        with self._room:
            if self._full_since > asked - ROOM_REST_S:
                return 0
            try:
                users = _users(self._open())
                freed = sum(self.of(user).make_room() for user in users)
            except SingularityError as error:
                log.warning("no room could be made: %s", error.message)
                return 0
            if not freed:
                self._full_since = time.monotonic()
            log.warning("the checkpoint store is full: %s were freed", decimal_size(freed))
            return freed

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
        for threads in (self._threads, self._for_frozen):
            threads.shutdown(wait=False, cancel_futures=True)
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


def _users(store: ObjectStore) -> list[str]:
    """All users who have something in the store, but for those with very long names."""
    return [user for name in store.names("") if component(user := unquote(name)) == name]


def _positions(box: Checkpoints, session: str, checkpoint: str) -> dict[str, Any] | None:
    found = box.manifest(session, checkpoint).record.get("positions")
    return found if isinstance(found, dict) else None
