"""Ranks of process groups in pure Python: what the tests of the proxy's collectives drive."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support import proxy_device as w
from support.proxy_device import RingClient, T, Value, make_ring

JOIN_GROUP, LEAVE_GROUP, COLLECTIVE = 16, 17, 18
ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = range(1, 7)
GATHER, SCATTER, BARRIER, SEND, RECV = range(7, 12)
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)
DISTRIBUTED_ERROR = 8


@dataclass
class Group:
    """A process group; every rank has it."""

    size: int
    name: str = "default"
    id: bytes = bytes(range(16))
    timeout_ms: int = 60_000
    fast: bool = False


@dataclass
class Rank:
    """The worker's side of one rank of one or more groups, on a ring of its own."""

    client: RingClient
    rank: int
    counts: dict[tuple[int, str, int], int] = field(default_factory=lambda: defaultdict(int))
    storages: int = 0

    def join(self, group: Group, number: int = 1, rank: int | None = None) -> None:
        rank = self.rank if rank is None else rank
        body = group.id + struct.pack("<IIQI", rank, group.size, group.timeout_ms, len(group.name))
        self.client.record(JOIN_GROUP, body + group.name.encode(), base=number, op=int(group.fast))
        self.client.publish()

    def leave(self, number: int = 1) -> None:
        self.client.record(LEAVE_GROUP, base=number)
        self.client.publish()

    def floats(self, values: Sequence[float], dtype: int = w.FLOAT) -> T:
        """A new tensor with these values."""
        self.storages += 1
        data = struct.pack(f"<{len(values)}{'f' if dtype == w.FLOAT else 'q'}", *values)
        self.client.allocate(self.storages, max(len(data), 1))
        if data:
            self.client.write(self.storages, data)
        return T(self.storages, (len(values),), dtype=dtype)

    def empty(self, count: int, dtype: int = w.FLOAT) -> T:
        return self.floats([-1] * count, dtype)

    def value(self, tensor: T) -> list[float]:
        size = tensor.sizes[0] * w.ITEM[tensor.dtype]
        data = self.client.read(tensor.id, size, tensor.offset * w.ITEM[tensor.dtype])
        kind = "f" if tensor.dtype == w.FLOAT else "q"
        return list(struct.unpack(f"<{tensor.sizes[0]}{kind}", data))

    def collective(
        self,
        what: int,
        inputs: Sequence[T] = (),
        outputs: Sequence[T] = (),
        *,
        number: int = 1,
        reduction: int = SUM,
        factor: float = 1.0,
        root: int = -1,
        seq: int | None = None,
    ) -> int:
        """One record; its number."""
        line = (number, {SEND: "send", RECV: "recv"}.get(what, ""), root * (what >= SEND))
        self.counts[line] += 1
        seq = self.counts[line] if seq is None else seq
        key, values = w.encode([seq, what, reduction, Value(factor), root])
        for tensors in (inputs, outputs):
            inner, more = w.encode(tensors)
            key += struct.pack("<BI", 16, len(tensors)) + inner
            values += more
        key = struct.pack("<H", 7) + key
        body = key.ljust((len(key) + 7) & ~7, b"\0") + values
        at = self.client.record(COLLECTIVE, body, flags=w.NO_OUTPUTS, key=len(key), base=number)
        self.client.publish()
        return at

    def failure(self) -> str:
        """The asynchronous error that is there (and leaves), as the worker would raise it."""
        self.client.wait("self.error_seq")
        text = self.client.failure
        assert self.client.word(656, bits=32) == DISTRIBUTED_ERROR, text
        self.client.word(648, 0)
        return text


def make_ranks(shm: Path, count: int) -> list[Rank]:
    """So many ranks, each with a ring in `shm` that nobody serves yet."""
    return [Rank(make_ring(shm / f"r{i}.ring", virtual_device=i), i) for i in range(count)]
