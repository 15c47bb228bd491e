"""Restores a checkpoint into folders, and verifies one. Every chunk's hash is checked."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from singularity_proxy.errors import (
    CheckpointCancelled,
    Conflict,
    DamagedCheckpoint,
    KeyUnavailable,
    NoSpace,
    SingularityError,
)

from .chunks import Codec, Damaged
from .files import FILE, FOLDER, LINK, check_name, open_new, parent_of
from .layout import UserKeys
from .loading import mark_damaged, read_chunk
from .manifest import ZERO, Manifest, StoredPart, Summary
from .progress import Meter, OnProgress
from .steps import OnStep, nothing
from .stores.base import Data, ObjectStore

_AHEAD = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)

Place = Callable[[StoredPart], "str | None"]
"""The folder that a part is restored below, by its name; None leaves it out."""


@dataclass
class Restored:
    """What a restore did."""

    summary: Summary
    parts: list[StoredPart] = field(default_factory=list)
    """Those that were written."""
    record: dict[str, Any] = field(default_factory=dict)
    bytes: int = 0
    hashes_checked: int = 0


class Reader:
    """Reads one checkpoint. `older` finds the id of the next older one that can be restored; it is
    asked when this one cannot."""

    def __init__(
        self,
        store: ObjectStore,
        keys: UserKeys,
        codec: Codec,
        summary: Summary,
        manifest: Manifest,
        older: Callable[[], Summary | None],
    ) -> None:
        self._store, self._keys = store, keys
        self._codec = codec
        self._summary, self._manifest, self._older = summary, manifest, older

    def restore(
        self,
        place: Place,
        *,
        owner: tuple[int, int] | None = None,
        progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
        on_step: OnStep = nothing,
        threads: int | None = None,
    ) -> Restored:
        """Write the parts below the folders that `place` names, which exist. On failure what was
        written is removed again. Files become `owner`'s (uid, gid)."""
        result = Restored(self._summary, record=self._manifest.record)
        targets: dict[int, str] = {}
        for number, part in enumerate(self._manifest.parts):
            root = place(part)
            if root is not None:
                targets[number] = root
                result.parts.append(part)
        work = _Restore(self._manifest, targets, owner, on_step)
        meter = Meter(progress)
        meter.total = sum(part.size for part in result.parts)
        try:
            work.create()
            on_step("restore.created")
            users = work.users()
            meter.add(done=meter.total - sum(size for _, size in users.values()))

            def one(number: int, data: Data) -> None:
                work.write(users[number][0], data)
                meter.add(done=users[number][1], sent=self._manifest.chunks[number].stored)
                on_step("restore.chunk")

            result.hashes_checked = self._each(list(users), one, cancel, threads)
            work.finish()
            on_step("restore.finished")
        except BaseException as error:
            work.undo()
            if isinstance(error, OSError):
                raise self._cannot_write(error) from None
            raise
        finally:
            work.close()
        result.bytes = meter.total
        meter.finish()
        return result

    def verify(
        self,
        *,
        but: Collection[str] = (),
        progress: OnProgress | None = None,
        cancel: threading.Event | None = None,
        threads: int | None = None,
    ) -> int:
        """Read and check every chunk that parts of the kinds `but` do not need; how many there are.
        Raises DamagedCheckpoint."""
        read = {
            extent.chunk
            for part in self._manifest.parts
            if part.kind in but
            for extent in part.extents
        }
        numbers = [n for n in range(len(self._manifest.chunks)) if n not in read]
        meter = Meter(progress)
        meter.total = sum(self._manifest.chunks[n].size for n in numbers)

        def one(number: int, data: Data) -> None:
            meter.add(done=len(data), sent=self._manifest.chunks[number].stored)

        checked = self._each(numbers, one, cancel, threads)
        meter.finish()
        return checked

    def check_stored(self, sizes: Mapping[str, int], doubted: Collection[str]) -> None:
        """Raise DamagedCheckpoint when a chunk is not among `sizes` (id -> bytes in the store), or
        with another size. Those that are `doubted` are read as well."""
        chunks = self._manifest.chunks
        for number, chunk in enumerate(chunks):
            if chunk.id not in sizes:
                raise self._damaged(number, "it is missing")
            if sizes[chunk.id] != chunk.stored:
                raise self._damaged(number, "its length is wrong")
        read = [number for number, chunk in enumerate(chunks) if chunk.id in doubted]
        self._each(read, lambda number, data: None, None, None)

    # ---- inside ----------------------------------------------------------------------------------

    def _each(
        self,
        numbers: Sequence[int],
        use: Callable[[int, Data], None],
        cancel: threading.Event | None,
        threads: int | None,
    ) -> int:
        count = threads or self._store.transfers
        pool = ThreadPoolExecutor(count, "checkpoint")

        def one(number: int) -> None:
            chunk = self._manifest.chunks[number]
            try:
                data = read_chunk(self._store, self._keys, self._codec, chunk.id, chunk.size)
            except Damaged as error:
                raise self._damaged(number, str(error)) from None
            except KeyUnavailable as error:
                raise KeyUnavailable(
                    f"checkpoint {self._summary.id} cannot be read: {error.message}"
                ) from None
            use(number, data)

        running: set[Future[None]] = set()
        try:
            for number in numbers:
                if cancel is not None and cancel.is_set():
                    raise CheckpointCancelled(
                        f"reading checkpoint {self._summary.id} was cancelled; nothing was changed"
                    )
                running.add(pool.submit(one, number))
                if len(running) >= count * _AHEAD:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in running:
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return len(numbers)

    def _damaged(self, number: int, why: str) -> DamagedCheckpoint:
        chunk = self._manifest.chunks[number]
        part = next(
            (p for p in self._manifest.parts if any(e.chunk == number for e in p.extents)), None
        )
        name = part.name if part else "the index of pages"
        with contextlib.suppress(SingularityError):
            mark_damaged(self._store, self._keys, chunk.id)
        older = self._older()
        return damaged(self._summary, older, name, chunk.id, why)

    def _cannot_write(self, error: OSError) -> SingularityError:
        text = (
            f"checkpoint {self._summary.id} was not restored ({error.strerror or error}); "
            "what was written was removed, the checkpoint is kept"
        )
        kind = NoSpace if error.errno in _FULL else SingularityError
        return kind(text, checkpoint=self._summary.id)


def damaged(
    summary: Summary, older: Summary | None, part: str, chunk: str | None, why: str
) -> DamagedCheckpoint:
    """The error that names what is wrong, and what to restore instead."""
    what = f"{part} (chunk {chunk[:12]})" if chunk else part
    instead = (
        f"restore {older.id} of {older.at} instead" if older else "no older checkpoint is whole"
    )
    return DamagedCheckpoint(
        f"checkpoint {summary.id} of session {summary.session} is damaged in {what}: {why}; "
        f"{instead}",
        session=summary.session,
        checkpoint=summary.id,
        part=part,
        chunk=chunk,
        older=older.id if older else None,
        older_at=older.at if older else None,
    )


class _Restore:
    """The files of one restore."""

    def __init__(
        self,
        manifest: Manifest,
        targets: dict[int, str],
        owner: tuple[int, int] | None,
        on_step: OnStep,
    ) -> None:
        self._manifest, self._targets = manifest, targets
        self._owner, self._step = owner, on_step
        self._roots: dict[str, int] = {}
        self._made: list[tuple[str, str, bool]] = []

    def create(self) -> None:
        """All folders, links and files, the latter with their size and nothing in them."""
        for number, part in self._chosen():
            check_name(part.name)
            root = self._root(self._targets[number])
            self._folders(self._targets[number], part.name)
            if part.type == FOLDER:
                self._folder(self._targets[number], part.name)
                continue
            with self._named(part):
                if part.type == FILE:
                    fd = open_new(root, part.name)
                    self._made.append((self._targets[number], part.name, False))
                    try:
                        os.ftruncate(fd, part.size)
                    finally:
                        os.close(fd)
                else:
                    with parent_of(root, part.name) as (name, folder):
                        os.symlink(part.target, name, dir_fd=folder)
                    self._made.append((self._targets[number], part.name, False))

    def users(self) -> dict[int, tuple[list[tuple[int, int, int, int]], int]]:
        """Chunk number -> where its bytes go: [(part, offset in it, offset in the chunk, size)],
        and how many bytes these are in all."""
        users: dict[int, tuple[list[tuple[int, int, int, int]], int]] = {}
        for number, part in self._chosen():
            at = 0
            for extent in part.extents:
                if extent.chunk != ZERO:
                    places, size = users.get(extent.chunk, ([], 0))
                    places.append((number, at, extent.at, extent.size))
                    users[extent.chunk] = (places, size + extent.size)
                at += extent.size
        return users

    def write(self, places: list[tuple[int, int, int, int]], data: Data) -> None:
        """One chunk into every file that has it."""
        view = memoryview(data)
        for number, group in groupby(places, key=lambda place: place[0]):
            name = self._manifest.parts[number].name
            with self._reopened(self._targets[number], name, os.O_WRONLY) as fd:
                for _, offset, start, size in group:
                    at, piece = offset, view[start : start + size]
                    while piece:
                        count = os.pwrite(fd, piece, at)
                        at, piece = at + count, piece[count:]

    def finish(self) -> None:
        """Owners, modes and times; those of folders last, because files in them changed them."""
        parts = list(_folders_last(list(self._chosen())))
        known = {(self._targets[number], part.name) for number, part in parts}
        for number, part in parts:
            if part.type == LINK:
                self._finish_link(number, part)
                continue
            with self._reopened(self._targets[number], part.name, os.O_RDONLY) as fd:
                if self._owner is not None:
                    os.fchown(fd, *self._owner)
                os.fchmod(fd, stat.S_IMODE(part.mode))
                os.utime(fd, ns=(part.mtime_ns, part.mtime_ns))
        for root, name, is_folder in self._made:
            if is_folder and self._owner is not None and (root, name) not in known:
                with self._reopened(root, name, os.O_RDONLY) as fd:
                    os.fchown(fd, *self._owner)

    def _finish_link(self, number: int, part: StoredPart) -> None:
        with parent_of(self._root(self._targets[number]), part.name) as (name, folder):
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)
            times = (part.mtime_ns, part.mtime_ns)
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def undo(self) -> None:
        """Remove what was made, and nothing else."""
        for root, name, is_folder in reversed(self._made):
            with contextlib.suppress(OSError), parent_of(self._root(root), name) as (last, folder):
                if is_folder:
                    os.rmdir(last, dir_fd=folder)
                else:
                    os.unlink(last, dir_fd=folder)

    def close(self) -> None:
        for fd in self._roots.values():
            os.close(fd)
        self._roots = {}

    def _chosen(self) -> Iterator[tuple[int, StoredPart]]:
        for number in self._targets:
            yield number, self._manifest.parts[number]

    def _root(self, path: str) -> int:
        if path not in self._roots:
            self._roots[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._roots[path]

    @contextlib.contextmanager
    def _reopened(self, root: str, relative: str, flags: int) -> Iterator[int]:
        """What was made, opened again. The folder may be its user's: what was put in its place
        meanwhile (a link, another name of somebody's file) is not touched."""
        with parent_of(self._root(root), relative) as (name, folder):
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            info = os.fstat(fd)
            ours = info.st_uid in (os.geteuid(), *(self._owner or ())[:1])
            single = stat.S_ISDIR(info.st_mode) or info.st_nlink == 1
            if not (ours and single and stat.S_IFMT(info.st_mode) in (stat.S_IFREG, stat.S_IFDIR)):
                raise Conflict(f"{relative} was replaced while it was being restored")
            yield fd
        finally:
            os.close(fd)

    def _folders(self, root: str, name: str) -> None:
        parents = name.split("/")[:-1]
        for count in range(1, len(parents) + 1):
            self._folder(root, "/".join(parents[:count]))

    def _folder(self, root: str, name: str) -> None:
        with parent_of(self._root(root), name) as (last, folder):
            try:
                os.mkdir(last, 0o700, dir_fd=folder)
            except FileExistsError:
                return
        self._made.append((root, name, True))

    @contextlib.contextmanager
    def _named(self, part: StoredPart) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise Conflict(
                f"{part.name} is there already, so nothing was restored over it", part=part.name
            ) from None


def _folders_last(parts: list[tuple[int, StoredPart]]) -> Iterator[tuple[int, StoredPart]]:
    """Files and links, then folders, the inner ones before those that they are in."""
    yield from (item for item in parts if item[1].type != FOLDER)
    folders = [item for item in parts if item[1].type == FOLDER]
    yield from sorted(folders, key=lambda item: -item[1].name.count("/"))


def empty_folder(path: str) -> None:
    """Make a folder for a restore. Raises Conflict when something is in it."""
    os.makedirs(path, 0o700, exist_ok=True)
    with os.scandir(path) as items:
        if any(True for _ in items):
            raise Conflict(f"{path} is not empty, so nothing was restored into it", path=path)
