"""Checkpoints in a folder of a local or shared file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

from singularity_proxy.errors import NoSpace, SingularityError, StoreUnavailable

from .base import (
    Data,
    Entry,
    Moved,
    ObjectMissing,
    ObjectStore,
    Reservation,
    Space,
    check_key,
    decimal_size,
)
from .reservations import HeldRoom, reserved_bytes

_LOCKS = 64
_TMP, _LOCK, _RESERVED, _KEPT = ".tmp", ".lock", ".reserved", ".kept"
_KEPT_MOST, _KEPT_LEAST, _KEPT_OF = 1 << 20, 64 << 10, 64
"""Bytes kept back for the bookkeeping of a removal (heads, and the list of what is removed next):
the 64th part of a small file system."""


class FolderStore(ObjectStore):
    """An object is a file; it is written beside, synchronized and renamed into its place.

    `touch`, `swap` and deletes exclude each other by `flock`, which works between the processes of
    one machine, and between machines on file systems that pass it on (NFS 4, Lustre with -o
    flock). The folder and everything in it is for its owner alone.
    """

    def __init__(self, root: str, *, make: bool = True) -> None:
        """`make`: the folder, if it is not there; else nothing is written until `prepare`."""
        self.root = os.path.abspath(root)
        self.url = self.root
        # More than cores: some of them wait for the disk.
        self.transfers = min(8, 2 * (os.cpu_count() or 2))
        self.stat_is_cheap = True
        self.on_step: Callable[[str], None] = lambda name: None
        """Called between the steps of a write; tests end the process there."""
        self._counter = itertools.count()
        self._dirty: set[str] = set()
        self._known: set[str] = {self.root}
        self._guard, self._flushing = threading.Lock(), threading.Lock()
        if make:
            self.prepare()

    def prepare(self) -> None:
        with self._errors("opened"):
            for folder in (self.root, *map(self._path, (_TMP, _LOCK, _RESERVED))):
                os.makedirs(folder, 0o700, exist_ok=True)
        self.keep_room()

    # ---- the interface ---------------------------------------------------------------------------

    def put(self, key: str, data: Sequence[Data], *, durable: bool = True) -> None:
        path = self._path(check_key(key))
        with self._errors("written"):
            self._folder(os.path.dirname(path))
            self._replace(path, data)
            if durable:
                self._sync_folder(os.path.dirname(path))
                return
        with self._guard:
            self._dirty.add(os.path.dirname(path))

    def flush(self) -> None:
        # One at a time: who finds nothing to do may not return before it is done.
        with self._flushing, self._errors("written"):
            with self._guard:
                dirty, self._dirty = self._dirty, set()
            for folder in dirty:
                self._sync_folder(folder)

    def read(self, key: str) -> tuple[bytes, str]:
        path = self._path(check_key(key))
        with self._errors("read", key), open(path, "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            return file.readall(), _etag(info)

    def stat(self, key: str) -> Entry | None:
        try:
            with self._errors("read", key):
                return _entry(key, os.stat(self._path(check_key(key))))
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> Iterator[Entry]:
        pending = [check_key(prefix.rstrip("/"))]
        while pending:
            folder = pending.pop()
            for item in self._scan(folder):
                key = f"{folder}/{item.name}"
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
                if stat.S_ISDIR(info.st_mode):
                    pending.append(key)
                else:
                    yield _entry(key, info)

    def names(self, prefix: str) -> Iterator[str]:
        folder = prefix.rstrip("/")
        for item in self._scan(check_key(folder) if folder else ""):
            if not item.name.startswith("."):
                yield item.name

    def touch(self, key: str) -> bool:
        with self._locked(key), self._errors("written"):
            try:
                now = time.time_ns()
                os.utime(self._path(key), ns=(now, now))
            except FileNotFoundError:
                return False
            return True

    def delete(self, key: str) -> None:
        self._remove(key, None)

    def delete_if(self, key: str, etag: str) -> bool:
        return self._remove(key, etag)

    def _remove(self, key: str, etag: str | None) -> bool:
        path = self._path(check_key(key))
        with self._locked(key), self._errors("removed"):
            try:
                if etag is not None and _etag(os.stat(path)) != etag:
                    return False
                self.on_step("folder.delete")
                os.unlink(path)
            except FileNotFoundError:
                return False
            return True

    def swap(self, key: str, data: bytes, etag: str | None) -> str:
        path = self._path(check_key(key))
        with self._locked(key), self._errors("written"):
            self._folder(os.path.dirname(path))
            try:
                now = _etag(os.stat(path))
            except FileNotFoundError:
                now = None
            if now != etag:
                raise Moved(key)
            self.on_step("folder.swap")
            self._replace(path, [data])
            self._sync_folder(os.path.dirname(path))
            return _etag(os.stat(path))

    def close(self) -> None:
        """A folder holds nothing open."""

    def sweep(self, before: float) -> int:
        removed = 0
        with self._errors("removed"), os.scandir(self._path(_TMP)) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):
                    if item.stat().st_mtime < before:
                        os.unlink(item.path)
                        removed += 1
        return removed

    # ---- room ------------------------------------------------------------------------------------

    def space(self) -> Space:
        with self._errors("read"):
            found = os.statvfs(self.root)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def reserve(self, need: int, keep: int) -> Reservation:
        folder = self._path(_RESERVED)
        with self._locked("+reserve"), self._errors("written"):
            free = self.space().free - reserved_bytes(folder)
            if need + keep > free:
                spare = max(0, free)
                held = f", of which {decimal_size(keep)} are kept for suspends" if keep else ""
                raise NoSpace(
                    f"the checkpoint store {self.url} has {decimal_size(spare)} free{held}, and "
                    f"about {decimal_size(need)} are needed",
                    store=self.url,
                    needed=need,
                    free=spare,
                    kept=keep,
                )
            return HeldRoom(folder, need)

    def lend_room(self) -> bool:
        try:
            os.unlink(self._path(_KEPT))
        except OSError:
            return False
        return True

    def keep_room(self) -> bool:
        try:
            fd = os.open(
                self._path(_KEPT), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            return isinstance(error, FileExistsError)
        try:
            part = self.space().total // _KEPT_OF
            os.posix_fallocate(fd, 0, min(_KEPT_MOST, max(_KEPT_LEAST, part)))
        except (OSError, SingularityError):
            self.lend_room()
            return False
        finally:
            os.close(fd)
        return True

    # ---- inside ----------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key)

    def _folder(self, folder: str) -> None:
        """Make a folder that survives a power failure."""
        if folder in self._known:
            return
        if not os.path.isdir(folder):
            self._folder(os.path.dirname(folder))
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        # Also when it was there: who made it may not have come to this.
        self._sync_folder(os.path.dirname(folder))
        self._known.add(folder)

    def _replace(self, path: str, data: Sequence[Data]) -> None:
        temporary = self._path(f"{_TMP}/{os.getpid()}-{next(self._counter)}-{os.urandom(4).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                for piece in data:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(fd, view) :]
                # Never twice the same: the coarse clock of the file system could repeat an etag.
                now = time.time_ns()
                os.utime(fd, ns=(now, now))
                self.on_step("folder.written")
                os.fsync(fd)
            finally:
                os.close(fd)
            self.on_step("folder.synced")
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.on_step("folder.renamed")

    def _sync_folder(self, folder: str) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _scan(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with self._errors("read", folder), os.scandir(self._path(folder)) as items:
                found = list(items)
        except ObjectMissing:
            return
        yield from found

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        number = zlib.crc32(check_key(key).encode()) % _LOCKS
        with self._errors("locked"):
            fd = os.open(
                self._path(f"{_LOCK}/{number:02x}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        try:
            with self._errors("locked"):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _errors(self, verb: str, key: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._typed(error, verb, key) from None

    def _typed(self, error: OSError, verb: str, key: str) -> SingularityError:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and key:
            return ObjectMissing(f"the checkpoint store {self.url} has no {key}", key=key)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(
                f"the checkpoint store {self.url} is full ({error.strerror})", store=self.url
            )
        return StoreUnavailable(
            f"the checkpoint store {self.url} cannot be {verb} ({error.strerror or error})",
            store=self.url,
        )


def _etag(info: os.stat_result) -> str:
    return f"{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}"


def _entry(key: str, info: os.stat_result) -> Entry:
    return Entry(key, info.st_size, info.st_mtime, _etag(info))
