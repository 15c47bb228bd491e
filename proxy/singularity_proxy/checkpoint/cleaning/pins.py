"""What keeps a chunk from being removed while a writer relies on it.

A collector writes the chunks that it is about to remove into a *condemned* list, and only then
reads what writers rely on. A writer writes down what it is going to rely on, its *pins*, and only
then reads the condemned lists. So at least one of them sees the other, whatever happens in between
and however long it takes. A writer that finds a chunk condemned touches it: that changes its etag,
and the collector removes only what still has the etag that it listed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from singularity_proxy.checkpoint.chunks import ID_BYTES
from singularity_proxy.checkpoint.layout import SessionKeys, UserKeys
from singularity_proxy.checkpoint.stores.base import Entry, ObjectMissing, ObjectStore

_SIGN_EVERY_S = 600.0


def pack(ids: Iterable[str]) -> bytes:
    return b"".join(bytes.fromhex(id) for id in ids)


def unpack(data: bytes) -> set[str]:
    return {data[at : at + ID_BYTES].hex() for at in range(0, len(data), ID_BYTES)}


class Pins:
    """The pins of one writer."""

    def __init__(
        self, store: ObjectStore, keys: UserKeys, session: SessionKeys, checkpoint: str
    ) -> None:
        self._store, self._keys = store, keys
        self._session, self._checkpoint = session, checkpoint
        self._number = 0
        self._last = time.monotonic()
        self._lists: dict[str, set[str]] = {}

    def add(self, ids: Iterable[str]) -> set[str]:
        """Pin chunks; returns all chunks that are condemned now. What is not among them and is
        there stays there until the pins are removed; the others have to be touched first."""
        data = pack(ids)
        if data:
            self._put(data)
        return self._condemned()

    def sign_of_life(self) -> None:
        """Called all the time; now and then it tells collectors that this writer is not dead, for
        one that finds nothing new to send pins nothing."""
        if time.monotonic() - self._last > _SIGN_EVERY_S:
            self._put(b"")

    def remove(self) -> None:
        """The manifest is published or given up."""
        remove_pins(self._store, self._session, self._checkpoint)

    def _put(self, data: bytes) -> None:
        self._store.put(self._session.pin(self._checkpoint, self._number), [data])
        self._number += 1
        self._last = time.monotonic()

    def _condemned(self) -> set[str]:
        found: dict[str, set[str]] = {}
        for entry in self._store.list(self._keys.condemned):
            known = self._lists.get(entry.key)
            if known is None:
                try:
                    known = unpack(self._store.get(entry.key))
                except ObjectMissing:
                    continue  # that collector has just finished
            found[entry.key] = known
        self._lists = found
        return set().union(*found.values())


def list_pins(store: ObjectStore, session: SessionKeys, checkpoint: str) -> list[Entry]:
    """The objects that hold the pins of a checkpoint."""
    return [e for e in store.list(session.pins) if pinned_by(e.key) == checkpoint]


def pinned_by(key: str) -> str:
    """The checkpoint that an object with pins is of."""
    return key.rpartition("/")[2].partition(".")[0]


def remove_pins(store: ObjectStore, session: SessionKeys, checkpoint: str) -> None:
    """Remove the pins of a checkpoint that is published, given up or withdrawn."""
    for entry in list_pins(store, session, checkpoint):
        store.delete(entry.key)


def read_pins(store: ObjectStore, session: SessionKeys, checkpoint: str) -> set[str]:
    """What a writer relies on; for the collector."""
    ids: set[str] = set()
    for entry in list_pins(store, session, checkpoint):
        try:
            ids |= unpack(store.get(entry.key))
        except ObjectMissing:
            continue  # published or given up meanwhile
    return ids
