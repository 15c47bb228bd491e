"""Sends the chunks of a checkpoint that the store does not have yet.

They go in batches: the ids of a batch are pinned before the store is asked which of them it has.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from singularity_proxy.checkpoint.chunks import Codec
from singularity_proxy.checkpoint.cleaning.pins import Pins
from singularity_proxy.checkpoint.layout import UserKeys
from singularity_proxy.checkpoint.manifest import Chunk
from singularity_proxy.checkpoint.progress import Meter
from singularity_proxy.checkpoint.steps import OnStep
from singularity_proxy.checkpoint.stores.base import ObjectStore
from singularity_proxy.errors import CheckpointCancelled

_BATCH = 32 << 20
_IN_FLIGHT = 64 << 20
_WORTH_LISTING, _LISTED = 4, 20_000


class Sender:
    """The table of chunks of one checkpoint, and the threads that send them.

    `known` and `damaged` are set before the first chunk: chunks that are certainly there (id ->
    stored bytes), and chunks to be sent even if they are.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: UserKeys,
        codec: Codec,
        pins: Pins,
        pool: ThreadPoolExecutor,
        meter: Meter,
        cancel: threading.Event,
        on_step: OnStep,
    ) -> None:
        self._store, self._keys, self._codec, self._pins = store, keys, codec, pins
        self._pool, self._meter, self._cancel, self._step = pool, meter, cancel, on_step
        self.known: dict[str, int] = {}
        self.damaged: set[str] = set()
        self.numbers: dict[str, int] = {}
        """Chunk id -> its (first) number."""
        self.sent_bytes = 0
        self._table: list[tuple[str, int]] = []
        self._stored: dict[str, int] = {}
        self._batch: list[tuple[str, bytes, bool]] = []
        self._batch_bytes = 0
        self._there_before: set[str] = set()
        self._sending: deque[tuple[Future[tuple[int, int]], str, int]] = deque()
        self._sending_bytes = 0

    def new_chunk(self) -> int:
        """The number of a chunk whose contents are told later, by `settle`."""
        self._table.append(("", 0))
        return len(self._table) - 1

    def number_of(self, id: str, size: int) -> int:
        """The number of a known chunk; it becomes part of this checkpoint."""
        number = self.numbers.get(id)
        if number is None:
            number = self.numbers[id] = self.new_chunk()
            self._table[number] = (id, size)
            self._stored[id] = self.known[id]
        return number

    def place(self, id: str, data: bytes) -> int:
        """The number of a chunk with these contents; it is sent if it has to be."""
        number = self.numbers.get(id)
        if number is None:
            number = self.new_chunk()
            self.settle(number, id, data)
        else:
            self._meter.add(done=len(data))
        return number

    def settle(self, number: int, id: str, data: bytes, counts: bool = True) -> None:
        """Chunk `number` has these contents. `counts`: they are bytes of the checkpoint's files."""
        self._table[number] = (id, len(data))
        if id in self.numbers:
            self._meter.add(done=len(data) if counts else 0)
            return
        self.numbers[id] = number
        if id in self.known:
            self._stored[id] = self.known[id]
            self._meter.add(done=len(data) if counts else 0)
            return
        self._batch.append((id, data, counts))
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH:
            self._send()

    def finish(self) -> None:
        """Returns when everything is in the store."""
        self._send()
        while self._sending:
            self._wait()

    def chunks(self) -> list[Chunk]:
        """The table, after `finish`."""
        return [Chunk(id, size, self._stored[id]) for id, size in self._table]

    # ---- inside ----------------------------------------------------------------------------------

    def _send(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return
        self._look_around(len(batch))
        condemned = self._pins.add(id for id, _, _ in batch)
        self._step("save.pinned")
        for id, data, counts in batch:
            while self._sending and self._sending_bytes + len(data) > _IN_FLIGHT:
                self._wait()
            future = self._pool.submit(self._send_one, id, data, counts, id in condemned)
            self._sending.append((future, id, len(data)))
            self._sending_bytes += len(data)

    def _look_around(self, count: int) -> None:
        """Learn once which chunks were there when the save began, if that is cheaper than asking
        for each. It tells which to send without asking; that one is there says nothing, for it may
        be removed before it is pinned."""
        if self._there_before or self._store.stat_is_cheap or count < _WORTH_LISTING:
            return
        entries = list(islice(self._store.list(self._keys.chunks), _LISTED + 1))
        if len(entries) <= _LISTED:
            self._there_before = {entry.key for entry in entries} | {""}

    def _wait(self) -> None:
        future, id, size = self._sending.popleft()
        self._sending_bytes -= size
        stored, sent = future.result()
        self._stored[id] = stored
        self.sent_bytes += sent

    def _send_one(self, id: str, data: bytes, counts: bool, condemned: bool) -> tuple[int, int]:
        """(stored bytes, sent bytes) of one chunk."""
        if self._cancel.is_set():
            raise CheckpointCancelled("it was cancelled")
        key = self._keys.chunk(id)
        done = len(data) if counts else 0
        new = bool(self._there_before) and key not in self._there_before
        if not new and id not in self.damaged and (not condemned or self._store.touch(key)):
            entry = self._store.stat(key)
            if entry is not None and entry.size:
                self._meter.add(done=done)
                return entry.size, 0
        pieces = self._codec.encode(id, data)
        self._store.put(key, pieces, durable=False)
        if id in self.damaged:
            self._store.delete(self._keys.damaged + id)
        size = sum(len(piece) for piece in pieces)
        self._meter.add(done=done, sent=size)
        self._step("save.chunk")
        return size, size
