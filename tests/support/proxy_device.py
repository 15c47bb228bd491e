"""A worker in pure Python, and device proxies as processes: what the device tests drive.

`RingClient` writes request records by hand and reads replies; it knows nothing of torch. `Proxy` is
one device proxy (forked by `proxy_zygote`) with its control connection.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity_proxy.errors import Unavailable
from singularity_proxy.wire import ring as ring_file
from singularity_proxy.wire.rpc import SyncPeer
from support.processes import stop_process
from support.proxy_zygote import Forked, Zygote

OP, DEFINE, FREE, ALLOCATE, RESIZE, WRITE, READ, SEED, GET_RNG, SET_RNG, SYNC = range(1, 12)
EVENT_RECORD, EVENT_TIME, SETTINGS, COMPILE = 12, 13, 14, 15
REPLY, ALL_NEW, NO_OUTPUTS = 1, 2, 4
OK, RUNTIME, INDEX, VALUE, TYPE, NOT_IMPLEMENTED, OUT_OF_MEMORY, LINALG = range(8)
FLOAT, DOUBLE, LONG = 6, 7, 4
ITEM = {FLOAT: 4, DOUBLE: 8, LONG: 8}

HEADER = struct.Struct("<IHHQIIQ")
REPLY_HEADER = struct.Struct("<IIQII")


@dataclass(frozen=True)
class T:
    """A tensor argument: storage id, sizes, and strides unless contiguous."""

    id: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    dtype: int = FLOAT


@dataclass(frozen=True)
class Value:
    """A number that travels outside of the key, as the worker sends Scalars."""

    number: int | float


class Device:
    """The `device` argument of a factory: the proxy's own."""


@dataclass(frozen=True)
class Gen:
    """A generator argument."""

    id: int


@dataclass(frozen=True)
class Text:
    """A string argument."""

    text: str


@dataclass(frozen=True)
class Reply:
    seq: int
    status: int
    payload: bytes

    @property
    def text(self) -> str:
        return self.payload.decode()

    def results(self) -> tuple[int, list[Any]]:
        """Number of new storages, and per result its metadata or its number."""
        made, count = struct.unpack_from("<II", self.payload)
        at, found = 8, []
        for _ in range(count):
            kind = self.payload[at : at + 1]
            at += 1
            if kind in (b"i", b"b", b"d"):
                found.append(
                    struct.unpack_from("<d" if kind == b"d" else "<q", self.payload, at)[0]
                )
                at += 8
            elif kind == b"n":
                found.append(None)
            else:
                number = 1
                if kind == b"l":
                    (number,) = struct.unpack_from("<I", self.payload, at)
                    at += 4
                for _ in range(number):
                    meta = self.payload[at]
                    if meta == 0:
                        at += 1
                        found.append(None)
                        continue
                    dtype, dim, flags = self.payload[at + 1 : at + 4]
                    index, offset, size = struct.unpack_from("<IqQ", self.payload, at + 4)
                    words = struct.unpack_from(f"<{2 * dim}q", self.payload, at + 24)
                    at += 24 + 16 * dim
                    found.append(
                        (meta, index, offset, size, words[:dim], words[dim:], dtype, flags)
                    )
        return made, found


def encode(arguments: Iterable[Any]) -> tuple[bytes, bytes]:
    """Key (without its count) and values of an operator's arguments."""
    key, values = b"", b""
    for a in arguments:
        if a is None:
            key += b"\x00"
        elif isinstance(a, T):
            flags = 1 if a.strides is None else 0
            key += struct.pack(f"<4B{len(a.sizes)}q", 1, a.dtype, len(a.sizes), flags, *a.sizes)
            if a.strides is not None:
                key += struct.pack(f"<{len(a.strides)}q", *a.strides)
            values += struct.pack("<Qq", a.id, a.offset)
        elif isinstance(a, Value) and isinstance(a.number, float):
            key += b"\x0a"
            values += struct.pack("<d", a.number)
        elif isinstance(a, Value):
            key += b"\x09"
            values += struct.pack("<q", a.number)
        elif isinstance(a, bool):
            key += struct.pack("<BB", 7, a)
        elif isinstance(a, int):
            key += struct.pack("<Bq", 5, a)
        elif isinstance(a, float):
            key += struct.pack("<Bd", 6, a)
        elif isinstance(a, Device):
            key += struct.pack("<BB", 20, 0)
        elif isinstance(a, Text):
            key += struct.pack("<BI", 19, len(a.text)) + a.text.encode()
        elif isinstance(a, Gen):
            key += b"\x15"
            values += struct.pack("<Q", a.id)
        elif isinstance(a, list) and a and isinstance(a[0], T):
            inner_key, inner_values = encode(a)
            key += struct.pack("<BI", 16, len(a)) + inner_key
            values += inner_values
        elif isinstance(a, list):
            key += struct.pack(f"<BI{len(a)}q", 13, len(a), *a)
        else:
            raise TypeError(a)
    return key, values


class RingClient:
    """The worker's side of one ring. Sequence numbers and storage ids are kept by the caller's use:
    `seq` counts records; ids are given in the calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self.request_bytes, self.reply_bytes = struct.unpack_from("<QQ", self._map, 16)
        self._words: dict[int, Any] = {}
        self._head = self.word(128)
        self.seq = 0
        self.defined: dict[str, int] = {}
        self.replies: list[Reply] = []

    def word(self, offset: int, value: int | None = None, *, bits: int = 64) -> int:
        """Read or (given `value`) store one header word, in one access."""
        kind = ctypes.c_uint64 if bits == 64 else ctypes.c_uint32
        cell = self._words.setdefault(offset, kind.from_buffer(self._map, offset))
        if value is not None:
            cell.value = value
        return int(cell.value)

    @property
    def state(self) -> int:
        return self.word(64, bits=32)

    @property
    def done_seq(self) -> int:
        return self.word(640)

    @property
    def error_seq(self) -> int:
        return self.word(648)

    def text(self, name: str, value: str | None = None) -> str:
        """Read or (given `value`) store a text of the header."""
        offset, size = ring_file._TEXT[name]
        if value is not None:
            self._map[offset : offset + size] = value.encode().ljust(size, b"\0")
        return bytes(self._map[offset : offset + size]).split(b"\0", 1)[0].decode()

    @property
    def failure(self) -> str:
        return bytes(self._map[1024:8192]).split(b"\0", 1)[0].decode()

    # ---- records

    def record(
        self,
        kind: int,
        body: bytes = b"",
        *,
        flags: int = 0,
        op: int = 0,
        key: int = 0,
        base: int = 0,
    ) -> int:
        """Write one record without publishing it; returns its sequence number."""
        length = (HEADER.size + len(body) + 7) & ~7
        deadline = time.monotonic() + 60
        while self._head + length - self.word(192) > self.request_bytes:
            assert time.monotonic() < deadline, "the request queue stays full"
            self.publish()
            time.sleep(0.0005)
        self.seq += 1
        data = HEADER.pack(length, kind, flags, self.seq, op, key, base) + body
        self._put(data.ljust(length, b"\0"))
        return self.seq

    def _put(self, data: bytes) -> None:
        at = self._head % self.request_bytes
        first = min(len(data), self.request_bytes - at)
        start = ring_file.HEADER_BYTES
        self._map[start + at : start + at + first] = data[:first]
        self._map[start : start + len(data) - first] = data[first:]
        self._head += len(data)

    def publish(self) -> None:
        """Make what was written visible; the proxy looks again within 100 ms, or is woken."""
        self.word(128, self._head)
        if self.word(256, bits=32):
            self.word(256, 0, bits=32)
            self._wake(256)

    def _wake(self, offset: int) -> None:
        address = ctypes.addressof(self._words[offset])
        libc.syscall(202, ctypes.c_void_p(address), 1, 1, None, None, 0)

    def op(self, name: str, *arguments: Any, flags: int = 0, base: int = 0, schema: int = 0) -> int:
        """One operator call; defines the operator first when needed, with the hash of its schema as
        a worker's torch would have it (0: unknown)."""
        if name not in self.defined:
            self.defined[name] = len(self.defined)
            full, _, overload = name.partition(".")
            full = full if "::" in full else f"aten::{full}"
            texts = full.encode() + overload.encode()
            body = struct.pack("<IIQ", len(full), len(overload), schema) + texts
            self.record(DEFINE, body, op=self.defined[name])
        inner, values = encode(arguments)
        key = struct.pack("<H", len(arguments)) + inner
        body = key.ljust((len(key) + 7) & ~7, b"\0") + values
        seq = self.record(OP, body, flags=flags, op=self.defined[name], key=len(key), base=base)
        self.publish()
        return seq

    def allocate(self, storage: int, size: int, *, flags: int = 0) -> int:
        seq = self.record(ALLOCATE, struct.pack("<Q", size), base=storage, flags=flags)
        self.publish()
        return seq

    def write(self, storage: int, data: bytes, offset: int = 0) -> int:
        body = struct.pack("<QQ", offset, len(data)) + data
        seq = self.record(WRITE, body, base=storage)
        self.publish()
        return seq

    def ask(self, kind: int, body: bytes = b"", *, base: int = 0) -> Reply:
        """Write a record that replies and wait for its reply."""
        seq = self.record(kind, body, flags=REPLY, base=base)
        self.publish()
        return self.reply(seq)

    def call(self, name: str, *arguments: Any, flags: int = 0, base: int = 0) -> Reply:
        return self.reply(self.op(name, *arguments, flags=flags | REPLY, base=base))

    def read(self, storage: int, size: int, offset: int = 0) -> bytes:
        reply = self.ask(READ, struct.pack("<QQ", offset, size), base=storage)
        assert reply.status == OK, reply.text
        return reply.payload

    def sync(self) -> tuple[int, int]:
        """Wait until all is executed; (records, storages)."""
        records, storages = struct.unpack("<QQ", self.ask(SYNC).payload)
        return records, storages

    # ---- replies

    def poll(self) -> Reply | None:
        """The next reply if one is there; it leaves the queue."""
        tail = self.word(448)
        if self.word(384) == tail:
            return None
        start = ring_file.HEADER_BYTES + self.request_bytes
        length, size, seq, status, _ = REPLY_HEADER.unpack(
            self._ring(start, tail, REPLY_HEADER.size)
        )
        data = self._ring(start, tail, length)
        self.word(448, tail + length)
        if self.word(576, bits=32):
            self.word(576, 0, bits=32)
            self._wake(576)
        reply = Reply(seq, status, data[REPLY_HEADER.size : REPLY_HEADER.size + size])
        self.replies.append(reply)
        return reply

    def _ring(self, start: int, position: int, size: int) -> bytes:
        at = position % self.reply_bytes
        first = bytes(self._map[start + at : start + min(at + size, self.reply_bytes)])
        return first + bytes(self._map[start : start + size - len(first)])

    def reply(self, seq: int, timeout: float = 60.0) -> Reply:
        """Wait for the reply of record `seq`; earlier ones are collected in `replies`."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.poll()
            if found is None:
                assert time.monotonic() < deadline, f"no reply to record {seq} (state {self.state})"
                time.sleep(0.0002)
            elif found.seq == seq:
                return found

    def wait(self, condition: str, timeout: float = 60.0) -> None:
        """Poll an expression over `self` until it is true."""
        deadline = time.monotonic() + timeout
        while not eval(condition, {"self": self}):
            assert time.monotonic() < deadline, f"{condition} did not become true"
            time.sleep(0.001)

    def copy(self, path: Path) -> RingClient:
        """A client of a copy of the ring and its state files, at the same point of its work."""
        for suffix in (".ring", ".snap", ".journal"):
            if self.path.with_suffix(suffix).exists():
                shutil.copyfile(self.path.with_suffix(suffix), path.with_suffix(suffix))
        other = RingClient(path)
        other.seq, other.defined = self.seq, dict(self.defined)
        other._head, other.replies = self._head, list(self.replies)
        return other

    def close(self) -> None:
        self._words.clear()
        self._map.close()
        self._file.close()


libc = ctypes.CDLL(None, use_errno=True)


def make_ring(
    path: Path, *, request_bytes: int = 1 << 20, reply_bytes: int = 1 << 20, virtual_device: int = 0
) -> RingClient:
    """A new ring file and its worker's side."""
    ring_file.RingFile.create(
        path,
        virtual_device=virtual_device,
        device_type="cpu",
        memory_capacity=0,
        request_bytes=request_bytes,
        reply_bytes=reply_bytes,
    ).close()
    return RingClient(path)


class Proxy:
    """One device proxy process. `close` ends it; `kill` does so without a warning."""

    def __init__(self, folder: Path, zygote: Zygote, options: Iterable[str]) -> None:
        self.socket = folder / f"{time.monotonic_ns()}.sock"
        self.process = Forked(zygote, ["--socket", str(self.socket), *options])
        self._peer: SyncPeer | None = None

    def peer(self) -> SyncPeer:
        """The control connection; waits until the proxy listens."""
        deadline = time.monotonic() + 90
        while self._peer is None:
            assert self.process.poll() is None, self.finish()
            assert time.monotonic() < deadline, "the device proxy does not listen"
            try:
                self._peer = SyncPeer(self.socket, timeout=90)
            except Unavailable:
                time.sleep(0.005)
        return self._peer

    def call(self, method: str, **params: Any) -> Any:
        return self.peer().call(method, **params)

    def bind(self, *, capacity: int = 4 << 30, epoch: int = 1, **more: Any) -> Any:
        params: dict[str, Any] = {
            "session": "0123456789ab",
            "uid": os.getuid(),
            "gid": os.getgid(),
            "device": "cpu:0",
            "capacity_bytes": capacity,
            "threads": 1,
            "epoch": epoch,
        }
        return self.call("bind", **(params | more))

    def attach(self, client: RingClient, *, journal: int = 0, epoch: int = 1, **more: Any) -> Any:
        """Attach the client's ring; its state files lie beside it."""
        params: dict[str, Any] = {
            "ring_id": client.path.stem,
            "path": str(client.path),
            "state_prefix": str(client.path.with_suffix("")),
            "journal_bytes": journal,
            "epoch": epoch,
        }
        return self.call("attach", **(params | more))

    def disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def finish(self) -> tuple[int, bytes, bytes]:
        """Wait until it has ended; (exit code, stdout, stderr)."""
        ended = self.process.finish()
        self.disconnect()
        return ended

    def stop(self) -> None:
        """Freeze it: its memory is now what a kill at this instant would leave in shared files."""
        stop_process(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.finish()

    def close(self) -> None:
        self.process.kill()
        self.finish()
        self.process.close()
        self.socket.unlink(missing_ok=True)


class Proxies:
    """Device proxies of one test (or module), all ended with it."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self._folder = folder
        self._zygote = zygote
        self._all: list[Proxy] = []

    def start(self, *options: str) -> Proxy:
        proxy = Proxy(self._folder, self._zygote, options)
        self._all.append(proxy)
        return proxy

    def bound(self, **params: Any) -> Proxy:
        proxy = self.start()
        proxy.bind(**params)
        return proxy

    def close(self) -> None:
        for proxy in self._all:
            proxy.close()


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def pack_floats(values: Iterable[float]) -> bytes:
    numbers = list(values)
    return struct.pack(f"<{len(numbers)}f", *numbers)
