"""Removes chunks that no checkpoint needs, and what dead writers left. It may run at any time.

    1. list the chunks with their etags, and judge which of them nothing refers to
    2. condemn those: their ids go into an object that every writer reads
    3. judge again: what a writer has pinned or published meanwhile is spared
    4. remove each of the others, if it still has the etag of step 1
    5. remove the condemned list

`pins` says why no chunk in use can go. Whether a writer is dead is decided by time, but nothing
depends on that being right: a writer that was taken for dead cannot publish. A collector may be
killed, or stopped for hours and go on, at any point; a later one touches what it had condemned, so
that its etags are worth nothing, before it removes its list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from singularity_proxy.checkpoint.chunks import Codec
from singularity_proxy.checkpoint.heads import Heads
from singularity_proxy.checkpoint.layout import SessionKeys, UserKeys
from singularity_proxy.checkpoint.loading import MissingManifest, read_manifest
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.steps import OnStep, nothing
from singularity_proxy.checkpoint.stores.base import Entry, ObjectMissing, ObjectStore
from singularity_proxy.errors import DamagedCheckpoint, NoSpace

from .pins import list_pins, pack, pinned_by, read_pins, remove_pins, unpack

DEAD_AFTER_S = 6 * 3600.0
SPARE_S = 3600.0

FULL_DEAD_AFTER_S = 1800.0
FULL_SPARE_S = 0.0
"""The same in a store that is full: room counts for more than what a save that broke off need not
send again. A writer gives a sign of life every ten minutes."""

_AT_ONCE = 30_000
"""So many chunks are condemned by one list: it fits the room that a full store lends."""

_ID = re.compile(r"[0-9a-f]{64}")


@dataclass
class Collected:
    """What a collector removed."""

    chunks: int = 0
    bytes: int = 0
    manifests: int = 0
    writers: int = 0
    """Those that were taken for dead."""


def collect(
    store: ObjectStore,
    user: str,
    codec_of: Callable[[str | None], Codec],
    *,
    dead_after_s: float = DEAD_AFTER_S,
    spare_s: float = SPARE_S,
    on_step: OnStep = nothing,
) -> Collected:
    """Collect the garbage of one user. Called by the agent now and then, and after checkpoints were
    deleted. A writer that gave no sign for `dead_after_s` is taken for dead; chunks younger than
    `spare_s` stay, so that a save that broke off need not send them again. `codec_of` gives the
    codec of a key id. Raises DamagedCheckpoint, KeyUnavailable (what checkpoints need cannot be
    read: then nothing is removed), StoreUnavailable."""
    return _Collector(store, user, codec_of, dead_after_s, spare_s, on_step).run()


class _Collector:
    def __init__(
        self,
        store: ObjectStore,
        user: str,
        codec_of: Callable[[str | None], Codec],
        dead_after_s: float,
        spare_s: float,
        on_step: OnStep,
    ) -> None:
        self._store, self._keys, self._codec_of = store, UserKeys(user), codec_of
        self._heads = Heads(store, self._keys)
        self._dead_after_s, self._spare_s, self._step = dead_after_s, spare_s, on_step
        self._list = f"{self._keys.condemned}{os.urandom(16).hex()}"
        self._needs: dict[str, set[str]] = {}
        self._result = Collected()

    def run(self) -> Collected:
        now = self._now()
        self._withdraw_dead(now)
        listed = self._chunks(now - self._spare_s)
        self._step("collect.listed")
        unneeded = set(listed) - self._live()
        self._step("collect.judged")
        ordered = sorted(unneeded)
        for at in range(0, len(ordered), _AT_ONCE):
            some = set(ordered[at : at + _AT_ONCE])
            self._put(self._list, pack(sorted(some)))
            self._step("collect.condemned")
            some -= self._live()
            self._step("collect.judged_again")
            self._remove([listed[id] for id in sorted(some)])
            self._step("collect.swept")
            self._store.delete(self._list)
            self._step("collect.pardoned")
        self._leftovers(now)
        self._step("collect.leftovers")
        self._store.keep_room()
        return self._result

    # ---- the parts -------------------------------------------------------------------------------

    def _put(self, key: str, data: bytes) -> None:
        """Write what a removal needs, also in a full store."""
        try:
            self._store.put(key, [data])
        except NoSpace:
            if not self._store.lend_room():
                raise
            self._store.put(key, [data])

    def _now(self) -> float:
        """The time by the store's clock: when an object was written that nobody removes."""
        while True:
            self._put(self._keys.clock, b"")
            entry = self._store.stat(self._keys.clock)
            if entry is not None:
                return entry.modified

    def _withdraw_dead(self, now: float) -> None:
        """All times are by the store's clock: that of a writer's machine may be days off."""
        for session in self._heads.sessions():
            writing = self._heads.read(session).writing
            head = self._store.stat(session.head) if writing else None
            for intent in writing:
                pins = [e.modified for e in list_pins(self._store, session, intent.id)]
                # One without pins began before its head was written last.
                last = max(pins, default=now if head is None else head.modified)
                if now - last > self._dead_after_s and self._heads.withdraw(session, intent.id):
                    self._result.writers += 1

    def _chunks(self, before: float) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in self._store.list(self._keys.chunks):
            id = entry.key.rpartition("/")[2]
            if _ID.fullmatch(id) and entry.modified <= before:
                found[id] = entry
        return found

    def _live(self) -> set[str]:
        """Every chunk that a listed checkpoint or a writer relies on."""
        live: set[str] = set()
        for session in self._heads.sessions():
            for intent in self._heads.read(session).writing:
                live |= read_pins(self._store, session, intent.id)
            # Read again: a writer whose pins were just gone has published by now, or given up.
            for summary in self._heads.read(session).complete:
                live |= self._needed(session, summary)
        return live

    def _needed(self, session: SessionKeys, summary: Summary) -> set[str]:
        key = f"{session.root}/{summary.id}"
        if key not in self._needs:
            codec = self._codec_of(summary.key)
            try:
                manifest = read_manifest(self._store, session, codec, summary)
            except MissingManifest:
                if self._heads.read(session).find(summary.id) is None:
                    return set()  # deleted meanwhile
                raise DamagedCheckpoint(
                    f"the manifest of checkpoint {summary.id} of session {summary.session} is "
                    "missing, so nothing was removed; delete that checkpoint",
                    session=summary.session,
                    checkpoint=summary.id,
                    part="manifest",
                ) from None
            self._needs[key] = {chunk.id for chunk in manifest.chunks}
        return self._needs[key]

    def _remove(self, entries: list[Entry]) -> None:
        def one(entry: Entry) -> int | None:
            if not self._store.delete_if(entry.key, entry.etag):
                return None
            self._step("collect.chunk")
            return entry.size

        with ThreadPoolExecutor(self._store.transfers, "collect") as pool:
            for size in pool.map(one, entries):
                if size is not None:
                    self._result.chunks += 1
                    self._result.bytes += size

    def _leftovers(self, now: float) -> None:
        for session in self._heads.sessions():
            manifests = {e.key.rpartition("/")[2] for e in self._store.list(session.checkpoints)}
            pinned = {pinned_by(e.key) for e in self._store.list(session.pins)}
            head = self._heads.read(session)  # after the listings: who is not in it never will be
            known = {c.id for c in head.complete} | {w.id for w in head.writing}
            for id in manifests - known:
                self._store.delete(session.manifest(id))
                self._result.manifests += 1
            for id in pinned - {w.id for w in head.writing}:
                remove_pins(self._store, session, id)
        for entry in self._store.list(self._keys.condemned):
            if now - entry.modified > self._dead_after_s:
                self._pardon(entry.key)
        for entry in self._store.list(self._keys.damaged):
            id = entry.key.removeprefix(self._keys.damaged)
            if self._store.stat(self._keys.chunk(id)) is None:
                self._store.delete(entry.key)
        self._store.sweep(now - max(self._dead_after_s, SPARE_S))

    def _pardon(self, key: str) -> None:
        """Remove the list of a collector that is dead, or only held up."""
        try:
            data, etag = self._store.read(key)
        except ObjectMissing:
            return
        for id in unpack(data):
            self._store.touch(self._keys.chunk(id))
        self._store.delete_if(key, etag)
