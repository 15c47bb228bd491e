"""What a save does in a store that has no room: it has that made once, and tries again once.

`RoomStore` stands between a writer and its store. A write that finds the store full has garbage
collected (by `make_room`, which is called once for a whole save, however many of its threads find
no room) and is made once more. What fails then is told with what would make room. Of the room
that a store keeps for suspends (`keep`) it leaves as much free as it should.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from singularity_proxy.checkpoint.stores.base import Data, Entry, ObjectStore, Space, decimal_size
from singularity_proxy.errors import NoSpace

log = logging.getLogger("singularity.checkpoint")

T = TypeVar("T")

MakeRoom = Callable[[], int]
"""Frees what nobody needs; returns the bytes that were freed. Blocks, and raises nothing."""


class RoomStore(ObjectStore):
    """`store` for one save. `hint` says what would make room, as the end of a sentence; "": it does
    not know."""

    def __init__(
        self, store: ObjectStore, make_room: MakeRoom, hint: Callable[[], str], keep: int = 0
    ) -> None:
        self._store, self._make_room, self._hint, self._keep = store, make_room, hint, keep
        self.url, self.transfers = store.url, store.transfers
        self.stat_is_cheap = store.stat_is_cheap
        self._making = threading.Lock()
        self._freed: int | None = None
        """What was freed for this save; None: it had room until now."""
        self._said: str | None = None

    # ---- what takes room -------------------------------------------------------------------------

    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        def write() -> None:
            if not durable and self._keep:  # contents; what is small and makes them count may pass
                self._leave_room(sum(len(piece) for piece in data))
            self._store.put(key, data, durable=durable)

        self._write(write)

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        return self._write(lambda: self._store.swap(key, data, etag))

    def flush(self) -> None:
        self._write(self._store.flush)

    def _write(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except NoSpace as error:
            if not self._room_was_made():
                raise self._told(error) from None
        try:
            return write()
        except NoSpace as error:
            raise self._told(error) from None

    def _leave_room(self, need: int) -> None:
        space = self._store.space()
        if space is not None and space.free - need < self._keep:
            raise NoSpace(
                f"the checkpoint store {self.url} is full but for the {decimal_size(self._keep)} "
                "that are kept for suspends of a platform or node that stops",
                store=self.url,
            )

    def _room_was_made(self) -> bool:
        with self._making:
            if self._freed is None:
                self._freed = self._make_room()
                log.warning(
                    "the checkpoint store %s is full: %s of it were freed at once, and the write "
                    "is %s",
                    self.url,
                    decimal_size(self._freed),
                    "tried once more" if self._freed else "given up",
                )
            return self._freed > 0

    def _told(self, error: NoSpace) -> NoSpace:
        with self._making:
            if self._said is None:
                self._said = self._hint()
            said = f": {self._said}" if self._said else ""
            return NoSpace(f"{error.message}{said}", **error.fields)

    # ---- the rest --------------------------------------------------------------------------------

    def read(self, key: str) -> tuple[bytes, str]:
        return self._store.read(key)

    def stat(self, key: str) -> Entry | None:
        return self._store.stat(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        return self._store.list(prefix)

    def names(self, prefix: str) -> Iterator[str]:
        return self._store.names(prefix)

    def touch(self, key: str) -> bool:
        return self._store.touch(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def delete_if(self, key: str, etag: str) -> bool:
        return self._store.delete_if(key, etag)

    def space(self) -> Space | None:
        return self._store.space()

    def lend_room(self) -> bool:
        return self._store.lend_room()

    def keep_room(self) -> bool:
        return self._store.keep_room()

    def close(self) -> None:
        """The store is its owner's."""
