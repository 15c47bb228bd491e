"""Saves files as a checkpoint.

The order is what makes it safe: the head says that the checkpoint is being written, what it relies
on is pinned, chunks are sent, then the manifest, and at last the head is moved by compare-and-swap.
Until then nothing is listed and the checkpoints before are as they were.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.checkpoint.chunks import PAGE, Codec, Damaged, is_zero
from singularity_proxy.checkpoint.cleaning.pins import Pins
from singularity_proxy.checkpoint.files import (
    FILE,
    FOLDER,
    LINK,
    Part,
    cannot_be_read,
    changed_while_read,
    check_unchanged,
    examine,
    open_part,
    read_link,
)
from singularity_proxy.checkpoint.heads import Heads
from singularity_proxy.checkpoint.layout import UserKeys
from singularity_proxy.checkpoint.loading import (
    MissingManifest,
    manifest_name,
    read_chunk,
    read_damaged,
    read_manifest,
)
from singularity_proxy.checkpoint.manifest import (
    LEVELS,
    ZERO,
    Head,
    Manifest,
    PageIndex,
    StoredPart,
    Summary,
    is_checkpoint_id,
)
from singularity_proxy.checkpoint.progress import Meter, OnProgress
from singularity_proxy.checkpoint.steps import OnStep, nothing
from singularity_proxy.checkpoint.stores.base import ObjectStore
from singularity_proxy.errors import (
    BadRequest,
    CheckpointCancelled,
    SingularityError,
    StoreRefused,
    StoreUnavailable,
)

from .batches import Sender
from .cutting import SMALL, TINY, Piece, blocks, cut
from .feed import Feed
from .packing import Packer
from .pages import PageTable, PageWriter, extend

_WINDOW = 32 << 20
_PAGED = ("image", "ring")
_INDEXED_CHUNKS = 64


@dataclass(frozen=True)
class Request:
    """What is to be saved, apart from the files."""

    session: str
    epoch: int
    level: str
    id: str = ""
    name: str = ""
    incarnation: int = 0
    reason: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    """Read when the last part has come: with a `Feed` it may be filled until then."""
    uid: int | None = None
    """Only files of this user (and of the process's own) are read."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise BadRequest(f"'{self.level}' is no level; levels are {', '.join(LEVELS)}")
        if self.id and not is_checkpoint_id(self.id):
            raise BadRequest(f"'{self.id}' is not the id of a checkpoint")


def new_checkpoint_id(now: datetime) -> str:
    """Sorts by time; unique without asking anybody."""
    return f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"


def save(
    store: ObjectStore,
    user: str,
    codec: Codec,
    request: Request,
    parts: Iterable[Part],
    *,
    progress: OnProgress | None = None,
    cancel: threading.Event | None = None,
    on_step: OnStep = nothing,
    threads: int | None = None,
) -> Summary:
    """Save `parts` as a checkpoint; when this returns it is listed, and the head's.

    Called by the agent in a thread of its own, with the session frozen or the files its own. From a
    `Feed` parts are saved while others are still being made. Raises
    StaleEpoch, Superseded, FileChanged, NoSpace, StoreUnavailable, StoreRefused, KeyUnavailable,
    CheckpointCancelled, BadRequest; then nothing is listed.
    """
    work = _Save(store, user, codec, request, parts, progress, cancel, on_step, threads)
    try:
        return work.run()
    except SingularityError as error:
        raise type(error)(
            f"checkpoint '{request.name or work.id}' of session {request.session} was not made: "
            f"{error.message}; older checkpoints were kept",
            **{**error.fields, "session": request.session},
        ) from None


class _Save:
    def __init__(
        self,
        store: ObjectStore,
        user: str,
        codec: Codec,
        request: Request,
        parts: Iterable[Part],
        progress: OnProgress | None,
        cancel: threading.Event | None,
        on_step: OnStep,
        threads: int | None,
    ) -> None:
        self.now = datetime.now(timezone.utc)
        self.id = request.id or new_checkpoint_id(self.now)
        self._store, self._user, self._codec = store, user, codec
        self._request, self._parts, self._step = request, parts, on_step
        self._keys = UserKeys(user)
        self._session = self._keys.session(request.session)
        self._heads = Heads(store, self._keys)
        self._cancel = cancel or threading.Event()
        self._meter = Meter(progress)
        self._manifest = Manifest(self.id, user, request.session, record=request.record)
        self._pool = ThreadPoolExecutor(threads or store.transfers, "checkpoint")
        self._pins = Pins(store, self._keys, self._session, self.id)
        self._sender = Sender(
            store, self._keys, codec, self._pins, self._pool, self._meter, self._cancel, on_step
        )
        self._packer = Packer(self._sender.new_chunk, self._hash_later)
        self._table = PageTable(self._reuse)
        self._pages = PageWriter(
            self._table, codec.zero_page, self._sender.new_chunk, self._finish_pages
        )
        self._base: Manifest | None = None
        self._unread: Manifest | None = None
        self._new_pages: list[tuple[int, int, bytes]] = []
        self._pending: deque[tuple[Future[Any] | None, Callable[[Any], None], int]] = deque()
        self._pending_bytes = 0
        self._hashing: deque[tuple[Future[str], int, bytes, bool]] = deque()
        self._hashing_bytes = 0
        self._open: set[int] = set()
        self._seen_bytes = 0

    def run(self) -> Summary:
        sized: Iterable[tuple[Part, os.stat_result | None]]
        if isinstance(self._parts, Feed):
            self._meter.total = self._parts.expected_bytes
            sized = self._examined(self._parts)
        else:  # all are looked at first, so that how much it is, is known
            sized = list(self._examined(self._parts))
        head = self._heads.register(self._session, self.id, self._request.epoch)
        self._step("save.registered")
        try:
            self._take_base(head)
            for part, info in sized:
                self._add(part, info)
            self._meter.total = self._seen_bytes
            self._finish_contents()
            return self._publish()
        except BaseException as error:
            # When the store does not answer, asking it more would only take the session's time.
            self._cancel_all()
            if not isinstance(error, (StoreUnavailable, StoreRefused)):
                self._give_up()
            raise
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
            for fd in self._open:
                os.close(fd)
            self._let_go()

    def _let_go(self) -> None:
        """Drop what points back here. Tables of pages would otherwise stay until the interpreter
        looks for circles of objects, which it rarely does in a process that makes few."""
        self._pending.clear()
        self._hashing.clear()
        del self._table, self._pages, self._packer

    def _examined(self, parts: Iterable[Part]) -> Iterator[tuple[Part, os.stat_result | None]]:
        names: set[str] = set()
        for part in parts:
            if part.name in names:
                raise BadRequest(f"two parts are called '{part.name}'")
            names.add(part.name)
            info = examine(part, self._request.uid)
            if part.type == FILE:
                self._seen_bytes += len(part.data or b"") if info is None else info.st_size
                self._meter.total = max(self._meter.total, self._seen_bytes)
            yield part, info

    # ---- the checkpoint before -------------------------------------------------------------------

    def _take_base(self, head: Head) -> None:
        """Chunks of the session's newest checkpoint need not be asked for one by one."""
        self._sender.damaged = read_damaged(self._store, self._keys)
        usable = [c for c in head.complete if c.key == self._codec.key_id]
        summary = next((c for c in usable if c.id == head.checkpoint), None) or (
            usable[-1] if usable else None
        )
        if summary is None:
            return
        try:
            base = read_manifest(self._store, self._session, self._codec, summary)
        except (MissingManifest, SingularityError) as error:
            if isinstance(error, SingularityError) and error.reason != "damaged_checkpoint":
                raise
            return  # everything is sent anew
        condemned = self._pins.add(chunk.id for chunk in base.chunks)
        self._step("save.base_pinned")
        # Listed still, with the pins in place: from here on its chunks cannot go away.
        if self._heads.read(self._session).find(summary.id) is None:
            return
        self._base = self._unread = base
        unsafe = condemned | self._sender.damaged
        self._sender.known = {c.id: c.stored for c in base.chunks if c.id not in unsafe}

    def _load_pages(self) -> None:
        """What the base has of pages, before the first file that is cut page by page."""
        base, self._unread = self._unread, None
        if base is None:
            return

        def read(number: int) -> bytes:
            chunk = base.chunks[number]
            return bytes(read_chunk(self._store, self._keys, self._codec, chunk.id, chunk.size))

        # A damaged index costs only that its pages are sent again.
        with contextlib.suppress(Damaged):
            self._table.load(base, read)

    def _reuse(self, number: int) -> int | None:
        assert self._base is not None
        chunk = self._base.chunks[number]
        if chunk.id not in self._sender.known:
            return None
        return self._sender.number_of(chunk.id, chunk.size)

    # ---- files -----------------------------------------------------------------------------------

    def _add(self, part: Part, info: os.stat_result | None) -> None:
        size = len(part.data or b"") if info is None else info.st_size if part.type == FILE else 0
        stored = StoredPart(
            part.name,
            part.kind,
            part.type,
            size,
            0o600 if info is None else info.st_mode & 0o1777,  # nobody gains rights by a restore
            int(self.now.timestamp()) * 10**9 if info is None else info.st_mtime_ns,
        )
        self._manifest.parts.append(stored)
        if part.type == LINK:
            stored.target = read_link(part)
        elif part.data is not None:
            self._pack(stored, part.data)
        elif part.type != FOLDER and info is not None and size:
            self._add_file(part, stored, info)

    def _add_file(self, part: Part, stored: StoredPart, info: os.stat_result) -> None:
        fd = open_part(part, info, self._request.uid)
        self._open.add(fd)

        def close(_: Any) -> None:
            check_unchanged(part, info, fd)
            self._open.discard(fd)
            os.close(fd)

        if stored.size <= SMALL:
            data = self._read(part, fd, 0, stored.size)
            close(None)
            self._pack(stored, data)
            return
        if part.kind in _PAGED:
            self._load_pages()
            for piece in blocks(fd, stored.size):
                self._add_block(part, stored, fd, piece)
        else:
            for piece in cut(fd, stored.size, device=part.kind == "device"):
                self._add_piece(part, stored, fd, piece)
        self._later(None, close)

    def _add_piece(self, part: Part, stored: StoredPart, fd: int, piece: Piece) -> None:
        if piece.hole:
            self._later(None, lambda _: self._zeros(stored, piece.size))
            return
        if piece.size < TINY:
            self._later(
                None, lambda _: self._pack(stored, self._read(part, fd, piece.at, piece.size))
            )
            return

        def read() -> tuple[str, bytes] | None:
            data = self._read(part, fd, piece.at, piece.size)
            return None if is_zero(data) else (self._codec.id(data), data)

        def place(found: tuple[str, bytes] | None) -> None:
            if found is None:
                self._zeros(stored, piece.size)
            else:
                number = self._sender.place(*found)
                extend(stored.extents, number, 0, piece.size)

        self._later(self._pool.submit(read), place, piece.size)

    def _add_block(self, part: Part, stored: StoredPart, fd: int, piece: Piece) -> None:
        whole = piece.size - piece.size % PAGE
        if piece.hole:
            self._later(None, lambda _: self._zeros(stored, piece.size))
            return

        def read() -> tuple[bytes, bytes]:
            data = self._read(part, fd, piece.at, piece.size)
            if is_zero(data):
                return data, self._codec.zero_page * (whole // PAGE)
            return data, self._codec.pages(memoryview(data)[:whole])

        def place(found: tuple[bytes, bytes]) -> None:
            data, hashes = found
            new = self._pages.add(stored.extents, memoryview(data)[:whole], hashes)
            self._meter.add(done=whole - new)
            if whole < piece.size:
                self._pack(stored, data[whole:])

        self._later(self._pool.submit(read), place, piece.size)

    def _read(self, part: Part, fd: int, at: int, size: int) -> bytes:
        try:
            data = os.pread(fd, size, at)
            while len(data) < size:
                more = os.pread(fd, size - len(data), at + len(data))
                if not more:
                    raise changed_while_read(part)
                data += more
        except OSError as error:
            raise cannot_be_read(part, error) from None
        return data

    def _zeros(self, stored: StoredPart, size: int) -> None:
        extend(stored.extents, ZERO, 0, size)
        self._meter.add(done=size)

    def _pack(self, stored: StoredPart, data: bytes) -> None:
        if not data:
            return
        if is_zero(data):
            self._zeros(stored, len(data))
        else:
            extent = self._packer.add(data)
            extend(stored.extents, extent.chunk, extent.at, extent.size)

    # ---- in the order of the files, while threads read ahead
    # ---------------------------------------

    def _later(
        self, future: Future[Any] | None, handle: Callable[[Any], None], size: int = 0
    ) -> None:
        self._pending.append((future, handle, size))
        self._pending_bytes += size
        while self._pending_bytes > _WINDOW or (self._pending and self._pending[0][0] is None):
            self._next()

    def _next(self) -> None:
        if self._cancel.is_set():
            raise CheckpointCancelled("it was cancelled")
        self._pins.sign_of_life()
        future, handle, size = self._pending.popleft()
        self._pending_bytes -= size
        handle(None if future is None else future.result())

    def _hash_later(self, number: int, data: bytes, counts: bool = True) -> None:
        """Chunk `number` is `data`; its id is computed by the threads."""
        self._hashing.append((self._pool.submit(self._codec.id, data), number, data, counts))
        self._hashing_bytes += len(data)
        while self._hashing_bytes > _WINDOW:
            self._settle()

    def _settle(self) -> None:
        future, number, data, counts = self._hashing.popleft()
        self._hashing_bytes -= len(data)
        self._sender.settle(number, future.result(), data, counts)

    def _finish_pages(self, number: int, data: bytes, hashes: bytes) -> None:
        self._new_pages.append((number, len(hashes) // 16, hashes))
        self._hash_later(number, data)

    def _finish_contents(self) -> None:
        while self._pending:
            self._next()
        self._packer.flush()
        self._pages.flush()
        for at in range(0, len(self._new_pages), _INDEXED_CHUNKS):
            group = self._new_pages[at : at + _INDEXED_CHUNKS]
            number = self._sender.new_chunk()
            self._hash_later(number, b"".join(hashes for _, _, hashes in group), False)
            self._manifest.indexes.append(PageIndex(number, [(n, c) for n, c, _ in group]))
        while self._hashing:
            self._settle()
        self._keep_indexes()
        self._sender.finish()
        self._step("save.chunks")

    def _keep_indexes(self) -> None:
        """The page hashes of older chunks that this checkpoint still needs."""
        if self._base is None:
            return
        base = self._base
        for index in base.indexes:
            numbers = [
                (-1 if n < 0 else self._sender.numbers.get(base.chunks[n].id, -1), count)
                for n, count in index.of
            ]
            chunk = base.chunks[index.chunk]
            if any(n >= 0 for n, _ in numbers) and chunk.id in self._sender.known:
                kept = self._sender.number_of(chunk.id, chunk.size)
                if all(i.chunk != kept for i in self._manifest.indexes):
                    self._manifest.indexes.append(PageIndex(kept, numbers))

    # ---- the end ---------------------------------------------------------------------------------

    def _publish(self) -> Summary:
        self._store.flush()
        self._step("save.flushed")
        self._manifest.chunks = self._sender.chunks()
        data = self._codec.encode(manifest_name(self.id), self._manifest.to_bytes())
        stored = b"".join(data)
        self._store.put(self._session.manifest(self.id), [stored])
        self._step("save.manifest")
        if self._cancel.is_set():
            raise CheckpointCancelled("it was cancelled")
        summary = self._summary(stored)
        self._heads.publish(self._session, summary)
        self._step("save.published")
        with contextlib.suppress(SingularityError):  # the collector removes them otherwise
            self._pins.remove()
        self._step("save.unpinned")
        self._meter.finish()
        return summary

    def _summary(self, manifest: bytes) -> Summary:
        request = self._request
        kinds: dict[str, dict[str, int]] = {}
        for part in self._manifest.parts:
            kind = kinds.setdefault(part.kind, {"files": 0, "bytes": 0})
            kind["files"] += part.type == FILE
            kind["bytes"] += part.size
        needed = {chunk.id: chunk.stored for chunk in self._manifest.chunks}
        return Summary(
            id=self.id,
            name=request.name,
            session=request.session,
            user=self._user,
            at=self.now.isoformat(timespec="milliseconds"),
            level=request.level,
            epoch=request.epoch,
            incarnation=request.incarnation,
            bytes=sum(part.size for part in self._manifest.parts),
            stored_bytes=sum(needed.values()) + len(manifest),
            sent_bytes=self._sender.sent_bytes + len(manifest),
            parts=kinds,
            reason=request.reason,
            key=self._codec.key_id,
            manifest=self._codec.plain_hash(manifest),
        )

    def _give_up(self) -> None:
        """Leave nothing behind, as far as the store can be reached; the collector does the rest."""
        with contextlib.suppress(SingularityError):
            if self._heads.withdraw(self._session, self.id):
                self._store.delete(self._session.manifest(self.id))
                self._pins.remove()

    def _cancel_all(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
