"""Where checkpoints are kept: named objects in a folder, Azure Blob, S3 or Google Cloud Storage.

`store_urls.open_store` gives an `ObjectStore`. Only it is known to the rest of the package: an
object is there whole or not at all, and `swap`, `touch` and `delete_if` are atomic, also between
processes and machines. That is all that writers and collectors build on; no clock is trusted.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest, NotFound, StoreRefused

Data = bytes | bytearray | memoryview
"""What an object is written from."""

_KEY = re.compile(r"(?!\.)[A-Za-z0-9_.~%@=+-]+(/(?!\.)[A-Za-z0-9_.~%@=+-]+)*")


class ObjectMissing(NotFound):
    """There is no object of that name."""

    reason = "object_missing"


class Moved(Exception):
    """The object is not the one that was read (another etag, there now, or gone)."""


@dataclass(frozen=True)
class Entry:
    """One object as a listing shows it; `modified` is the store's own clock in seconds."""

    key: str
    size: int
    modified: float
    etag: str


@dataclass(frozen=True)
class Space:
    """Bytes of the file system that a store is in: free for the store's owner, and all."""

    free: int
    total: int


class Reservation:
    """Room that one writer is going to need, which other writers do not take for free. This one is
    of a store that has no bounds."""

    def use(self, sent: int) -> None:
        """So many bytes of it are in the store by now."""

    def release(self) -> None:
        """The writer has ended. Idempotent."""


class ObjectStore(ABC):
    """Objects by key (`a/b/c`). All methods may be called from any thread.

    Errors: `ObjectMissing`, `Moved`, `NoSpace`, `StoreUnavailable`, `StoreRefused`; none names a
    credential.
    """

    url: str
    """For people and logs; holds no credential."""

    transfers: int
    """How many transfers at once make sense."""

    stat_is_cheap: bool
    """Whether `stat` costs nothing beside a `put`."""

    def refused(self, verb: str, code: str = "") -> StoreRefused:
        """Return the error for credentials that the service does not take; `verb`: what was not
        done ("read"), `code`: the service's own word."""
        return StoreRefused(
            f"the checkpoint store {self.url} could not be {verb}: it does not take these "
            f"credentials{f' ({code})' if code else ''}",
            store=self.url,
        )

    @abstractmethod
    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        """Write an object, replacing one of that name. With `durable` it survives a power failure
        when this returns, else after the next `flush`."""

    @abstractmethod
    def flush(self) -> None:
        """Everything `put` before survives a power failure when this returns."""

    @abstractmethod
    def read(self, key: str) -> tuple[bytes, str]:
        """(contents, etag). Raises ObjectMissing."""

    @abstractmethod
    def stat(self, key: str) -> Entry | None:
        """What a listing would say of one object; None when it is not there."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Entry]:
        """Every object whose key begins with `prefix`, which ends in a slash."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """The next component of the keys that begin with `prefix`, each once."""

    @abstractmethod
    def touch(self, key: str) -> bool:
        """Give an object a new etag; False when it is not there."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object, whatever is in it. One that is not there is none to complain of."""

    @abstractmethod
    def delete_if(self, key: str, etag: str) -> bool:
        """Remove an object if it still has that etag; whether it was removed."""

    @abstractmethod
    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        """Compare and swap: write `data` if the object still has `etag` (None: if there is none).
        Returns the new etag and is durable. Raises Moved."""

    def prepare(self) -> None:  # noqa: B027 (most have nothing to prepare)
        """Make what the store needs before it is written to. Idempotent."""

    def for_user(self, root: str) -> ObjectStore:
        """The store for the objects of one user, which are those below `root`: where it can be told
        so, with credentials for nothing else. Closed with this one. Raises BadRequest, Unsupported
        (a library is missing)."""
        return self

    # What only stores with bounds have.

    def space(self) -> Space | None:
        """How much room there is; None: nobody knows of a bound."""
        return None

    def reserve(self, need: int, keep: int) -> Reservation:
        """Set `need` bytes aside, so that `keep` bytes stay free besides what all writers have
        reserved. Raises NoSpace, with `needed` and `free`; nothing is set aside then."""
        return Reservation()

    def lend_room(self) -> bool:
        """Free the little that the store keeps back, so that something can be removed from a full
        one: that takes writing, too. False: nothing was kept back."""
        return False

    def keep_room(self) -> bool:
        """Keep that back again, if there is room for it; whether anything is kept back."""
        return False

    def get(self, key: str) -> bytes:
        """The contents alone. Raises ObjectMissing."""
        return self.read(key)[0]

    def sweep(self, before: float) -> int:
        """Remove what killed writers left inside the store itself before that time of its clock;
        called by the collector."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Give back connections. The store is not used afterwards."""


def decimal_size(count: float) -> str:
    """`count` bytes as disks are sold, for sentences: "1.2 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def check_key(key: str) -> str:
    """`key` if it is one. A key never leaves its store, whatever it was made of."""
    if not _KEY.fullmatch(key):
        raise BadRequest(f"'{key}' is not the name of a stored object; nothing was done", key=key)
    return key
