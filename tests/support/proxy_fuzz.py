"""A worker that lies: valid records of real code, mutated, and header words that cannot be.

`record` runs real code in a worker and reads its records from the journal. `Fuzz` sends them to a
real device proxy together with mutated copies, with garbage, with words changed under its hands.
What may happen is in `Fuzz.settle`: every record is executed or refused, or the ring is broken with
a sentence; the process lives, and its other ring computes.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from singularity_proxy.checkpoint.device.state import JOURNAL_MAGIC
from singularity_proxy.errors import SingularityError
from singularity_proxy.standalone import Standalone
from support import proxy_device as w
from support.proxy_device import Device, Proxy, RingClient, T, Value, make_ring

CHECKS = Path(__file__).parents[1] / "checks" / "run.py"
WORKLOAD = (
    *("to_variants", "dtypes", "complex_ops", "views_inplace", "out_variants", "tensorlist"),
    *("indexing", "scalars", "factories", "storage_ops", "view_autograd", "rng_state"),
    *("rng_generator", "histogram_etc"),
)
"""Checks whose records are mutated."""

FACTORIES = {"empty", "zeros", "ones", "full", "rand", "randn", "arange", "eye", "empty_strided"}
"""Operators that are sent sizes no device has: they must find out themselves."""

CRASHES: dict[str, str] = {}
"""Operator -> how its kernel in ATen ends the process for arguments that user code can give it
natively too; not sent. Nothing that the proxy could check: the arguments are well-formed."""

LARGEST_INT = 1 << 12
LARGEST_VIEW = 1 << 18
EDGES = (
    *(0, 1, 2, -1, 7, 63, 64, 65, 255, 4095, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**40, 2**58, 2**60, 2**61, 2**62, 2**63 - 1, -(2**63), -2, -8),
)


@dataclass(frozen=True)
class Record:
    """One record as a worker wrote it; `key` is the operator's, `body` all behind the header."""

    kind: int
    flags: int
    op: int
    key_bytes: int
    base: int
    body: bytes

    @property
    def parts(self) -> tuple[bytes, bytes]:
        return self.body[: self.key_bytes], self.body[(self.key_bytes + 7) & ~7 :]

    def with_parts(self, key: bytes, values: bytes) -> Record:
        body = key.ljust((len(key) + 7) & ~7, b"\0") + values
        return replace(self, body=body, key_bytes=len(key))


def record(names: tuple[str, ...] = WORKLOAD) -> list[Record]:
    """The records of real code that says "cuda", in their order, from the journal of its ring."""
    with tempfile.TemporaryDirectory() as folder, Standalone(keep_rings=True) as session:
        command = [sys.executable, str(CHECKS), str(Path(folder) / "out.json"), *names]
        subprocess.run(command, env=session.env(), timeout=200, check=True, capture_output=True)
        (ring,) = session.rings()
        return list(read_journal(Path(ring.path).with_suffix(".journal").read_bytes()))


def read_journal(data: bytes) -> Iterator[Record]:
    assert data[:8] == JOURNAL_MAGIC
    (end,) = struct.unpack_from("<Q", data, 24)
    at = 4096
    while at < end:
        length, kind, flags, _, op, key, base = w.HEADER.unpack_from(data, at)
        body = data[at + w.HEADER.size : at + length]
        if kind == w.EVENT_RECORD:
            op = key = 0  # the proxy's clock
        if kind not in (w.READ, w.GET_RNG, w.SYNC, w.EVENT_TIME) and kind < 0xFF00:
            yield Record(kind, flags, op, key, base, body)
        at += length


class Refused(Exception):
    """The server stops reading here."""


class Walk:
    """Reads a key and its values as the server does, to know what a record would ask for."""

    def __init__(self, key: bytes, values: bytes) -> None:
        self.key, self.values = key, values
        self.views: list[int] = []
        self.ints: list[int] = []
        (count,) = self._take("H")
        for _ in range(count):
            self._argument()

    def _take(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize("<" + layout)
        if size > len(self.key):
            raise Refused
        found = struct.unpack_from("<" + layout, self.key)
        self.key = self.key[size:]
        return found

    def _value(self, layout: str) -> int:
        size = struct.calcsize("<" + layout)
        if size > len(self.values):
            raise Refused
        (found,) = struct.unpack_from("<" + layout, self.values)
        self.values = self.values[size:]
        return int(found) if layout == "q" else 0

    def _argument(self) -> None:
        (tag,) = self._take("B")
        if tag == 1:
            _, dim, flags = self._take("3B")
            count = 1
            for n in self._take(f"{dim}q"):
                count *= n
            if not flags & 1:
                self._take(f"{dim}q")
                self.views.append(count)
            self._value("Q")
            self._value("q")
        elif tag == 3:
            self._take("2B")
            self._value("16s")
        elif tag == 4:
            _, dim = self._take("2B")
            self._take(f"{dim}q")
            (size,) = struct.unpack_from("<Q", self.values.ljust(8, b"\0"))
            self._value("Q")
            if size > len(self.values):
                raise Refused
            self.values = self.values[size:]
        elif tag == 5:
            self.ints += self._take("q")
        elif tag in (6, 7, 20):
            self._take({6: "d", 7: "B", 20: "B"}[tag])
        elif tag == 8:
            self._take("2d")
        elif tag in (9, 10, 11, 12, 21):
            if tag == 9:
                self.ints.append(self._value("q"))
            else:
                self._value("16s" if tag == 12 else "8s")
        elif tag in (13, 14, 15, 19):
            (n,) = self._take("I")
            size = {13: 8, 14: 8}.get(tag, 1) * n
            if size > len(self.key):
                raise Refused
            if tag == 13:
                self.ints += struct.unpack_from(f"<{n}q", self.key)
            self.key = self.key[size:]
        elif tag in (16, 17, 18):
            (n,) = self._take("I")
            for _ in range(n):
                self._argument()
        elif tag not in (0, 2):
            raise Refused


class Fuzz:
    """Drives one proxy. `run` raises AssertionError with the last records when a rule is broken."""

    def __init__(self, start: Callable[[], Proxy], corpus: list[Record], folder: Path, seed: int):
        self.random = random.Random(seed)
        self.seed = seed
        self.corpus = corpus
        self.names = {
            r.op: r.body[16 : 16 + struct.unpack_from("<I", r.body)[0]].decode()
            for r in corpus
            if r.kind == w.DEFINE
        }
        self.folder = folder
        self.start = start
        self.counts: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=30)
        self.rings = 0
        self._begin()

    def _begin(self) -> None:
        self.proxy = self.start()
        self.healthy = make_ring(self.folder / f"healthy{self.rings}.ring")
        self.proxy.attach(self.healthy)
        self.healthy.op("full", [64], 2.5, w.FLOAT, None, Device(), None, base=1)

    def run(self, seconds: float) -> None:
        """Rounds of every kind until the time is over; at least one of each."""
        deadline = time.monotonic() + seconds
        rounds = [self.mutated, self.garbage, self.words, self.racing, self.framing]
        number = 0
        while number < len(rounds) or time.monotonic() < deadline:
            kind = rounds[number % len(rounds)]
            self.last.append(f"-- round {number}: {kind.__name__}")
            try:
                kind()
                self.check_healthy()
            except (AssertionError, SingularityError, OSError) as error:
                raise AssertionError(self.story(error)) from error
            self.counts[kind.__name__] += 1
            number += 1
        self.healthy.close()

    def story(self, error: Exception) -> str:
        end = self.proxy.process.poll()
        lines = [f"seed {self.seed}: {error} (exit code of the proxy: {end})", *self.last]
        if end is not None:
            lines.append(self.proxy.finish()[2].decode(errors="replace")[-6000:])
        return "\n".join(lines)

    def check_healthy(self) -> None:
        assert self.proxy.process.poll() is None, "the proxy died"
        self.healthy.op("add.Tensor", T(1, (64,)), T(1, (64,)), Value(1), base=2)
        assert w.floats(self.healthy.read(2, 256)) == [5.0] * 64

    # ---- rings

    def _ring(self, *, journal: int, request_bytes: int = 1 << 20) -> RingClient:
        self.rings += 1
        client = make_ring(
            self.folder / f"r{self.rings}.ring", request_bytes=request_bytes, reply_bytes=1 << 18
        )
        self.proxy.attach(client, journal=journal)
        return client

    def broken(self, client: RingClient) -> str:
        return str(self.proxy.call("stats")["rings"][client.path.stem]["broken"])

    def send(self, client: RingClient, r: Record) -> None:
        deadline = time.monotonic() + 60
        length = (w.HEADER.size + len(r.body) + 7) & ~7
        while client._head + length - client.word(192) > client.request_bytes:
            client.publish()
            while client.poll():
                pass
            assert client.state == 1, "the ring is not served"
            assert time.monotonic() < deadline, "the queue stays full"
        key = r.key_bytes & 0xFFFFFFFF
        client.record(r.kind, r.body, flags=r.flags, op=r.op, key=key, base=r.base)

    def settle(self, client: RingClient) -> None:
        """All that was sent is executed or refused, unless the ring is broken with a sentence."""
        seq = client.record(w.SYNC, flags=w.REPLY)
        client.publish()
        deadline = time.monotonic() + 60
        looked = 0.0
        while True:
            while (reply := client.poll()) is not None:
                self.counts["ok" if reply.status == w.OK else "refused"] += 1
                assert reply.status == w.OK or reply.text, "refused without a sentence"
                if reply.seq == seq:
                    return
            now = time.monotonic()
            if now - looked > 0.05:
                looked = now
                if why := self.broken(client):
                    assert why == client.failure
                    self.counts["broken"] += 1
                    return
            assert now < deadline, "a record is never executed"
            time.sleep(0.0005)

    def _close(self, client: RingClient) -> None:
        start = time.monotonic()
        self.proxy.call("close_ring", ring_id=client.path.stem)
        assert time.monotonic() - start < 30, "closing a ring took too long"
        client.close()
        client.path.unlink()

    # ---- rounds

    def mutated(self) -> None:
        """Real code, and mutated copies of its records in between."""
        client = self._ring(journal=self.random.choice([0, 1 << 16, 16 << 20]))
        share = self.random.choice([0.05, 0.2, 0.5])
        for number, original in enumerate(self.corpus):
            if self.random.random() < share:
                lie = self.mutate(original)
                if self.harmless(lie):
                    self.last.append(self.describe(lie))
                    self.send(client, lie)
                    self.counts["mutated"] += 1
                    if self.random.random() < 0.2:
                        client.publish()
            self.send(client, replace(original, flags=original.flags & ~w.REPLY))
            if number % 64 == 0:
                client.publish()
                while reply := client.poll():
                    self.counts["ok" if reply.status == w.OK else "refused"] += 1
        self.settle(client)
        if not self.broken(client):
            answer = self.proxy.call("checkpoint", directory=str(self.folder / "copy"))
            assert answer["bytes"] > 0
        self._close(client)

    def garbage(self) -> None:
        """Random bytes behind headers of every kind."""
        client = self._ring(journal=self.random.choice([0, 1 << 20]))
        self.send(client, next(r for r in self.corpus if r.kind == w.DEFINE))
        for _ in range(300):
            kind = self.random.choice([*range(20), 0xFF01, 0xFFFF])
            body = self.random.randbytes(self.random.choice([0, 8, 16, 24, 32, 64, 200]))
            if kind in (w.WRITE, w.READ, w.SET_RNG) and self.random.random() < 0.5:
                body = struct.pack("<qq", self._edge(), self._edge()) + body
            flags = self.random.choice([0, w.REPLY, 0xFFFF & ~w.NO_OUTPUTS])
            base = self.random.choice([0, 1, 2**32, 2**64 - 1])
            self.send(
                client, Record(kind, flags, 0, self.random.choice([0, 3, 2**32 - 1]), base, body)
            )
        self.settle(client)
        self._close(client)

    def words(self) -> None:
        """Header words change while records are executed; no reply is asked for or believed."""
        client = self._ring(journal=self.random.choice([0, 1 << 20]))
        for number in range(400):
            client.op("add.Tensor", T(1, (64,)), T(1, (64,)), Value(1), base=2)
            if number in (100, 200, 300):
                offset = self.random.choice([*range(64, 132, 4), *range(192, 260, 64), 320, 384,
                                             448, 512, 576, *range(640, 728, 8)])  # fmt: skip
                value = self.random.choice([0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1])
                wide = offset % 8 == 0
                if wide:
                    value = self.random.choice([value, 2**63, 2**64 - 8, 2**40])
                self.last.append(f"word {offset} = {value}")
                client.word(offset, value, bits=64 if wide else 32)
            if client._head - client.word(192) > client.request_bytes // 2 or client.state != 1:
                break  # broken, or the words say so
        client.publish()
        time.sleep(0.02)
        self._close(client)

    def racing(self) -> None:
        """Bodies change while they are read."""
        client = self._ring(journal=1 << 20)
        client.allocate(1, 4096)
        client.allocate(2, 4096)
        end = threading.Event()
        start = 64 << 10

        def flip() -> None:
            chance = random.Random(self.seed)
            while not end.is_set():
                at = start + chance.randrange(client.request_bytes)
                client._map[at] = client._map[at] ^ chance.randrange(1, 4)

        thread = threading.Thread(target=flip)
        thread.start()
        try:
            for _ in range(300):
                client.op(
                    "add_.Tensor", T(1, (32, 32)), T(2, (32, 32)), Value(1), flags=w.NO_OUTPUTS
                )
                client.write(1, bytes(512))
                if client.state != 1:
                    break
        except AssertionError:
            assert client.state != 1  # only a broken ring stops taking records
        finally:
            end.set()
            thread.join()
        deadline = time.monotonic() + 30
        while not self.broken(client) and client.done_seq < client.seq:
            assert time.monotonic() < deadline, "neither executed nor broken"
            time.sleep(0.002)
        self._close(client)

    def framing(self) -> None:
        """Headers whose length or number cannot be: the ring breaks at that record."""
        client = self._ring(journal=0, request_bytes=64 << 10)
        client.allocate(1, 64)
        length = self.random.choice([0, 8, 31, 33, 40, 1 << 16, 1 << 21, 2**31, 2**32 - 8])
        seq = client.seq + 1
        if self.random.random() < 0.5:
            length, seq = 32, self.random.choice([0, 1, seq + 1, 2**63, 2**64 - 1])
        self.last.append(f"length {length} seq {seq}")
        client._put(w.HEADER.pack(length, w.SYNC, w.REPLY, seq, 0, 0, 0))
        client.publish()
        deadline = time.monotonic() + 30
        while not self.broken(client):
            assert time.monotonic() < deadline, "a record that cannot be read is not refused"
            time.sleep(0.002)
        self.counts["broken"] += 1
        self._close(client)

    # ---- mutation

    def _edge(self) -> int:
        if self.random.random() < 0.2:
            return self.random.getrandbits(64) - 2**63
        return self.random.choice(EDGES)

    def mutate(self, r: Record) -> Record:
        chance = self.random
        flags = r.flags | (w.REPLY if chance.random() < 0.5 else 0)
        # The results of a lie get numbers of their own; real code goes on with its own.
        r = replace(
            r, flags=flags, base=r.base if r.kind != w.OP else (1 << 40) + chance.getrandbits(20)
        )
        if r.kind in (w.FREE, w.DEFINE):
            r = replace(r, kind=w.OP if r.kind == w.FREE else r.kind, op=chance.randrange(1 << 17))
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            r = chance.choice([self._bytes, self._number, self._length, self._other, self._head])(r)
        return r

    def _bytes(self, r: Record) -> Record:
        body = bytearray(r.body)
        for _ in range(self.random.randrange(1, 4)):
            if body:
                body[self.random.randrange(len(body))] = self.random.getrandbits(8)
        return replace(r, body=bytes(body))

    def _number(self, r: Record) -> Record:
        """An eight-byte number somewhere becomes one of the edges, or a little different."""
        if len(r.body) < 8:
            return r
        body = bytearray(r.body)
        at = self.random.randrange(len(body) - 7)
        (old,) = struct.unpack_from("<q", body, at)
        new = old + self.random.choice([-1, 1, 8]) if self.random.random() < 0.4 else self._edge()
        struct.pack_into("<Q", body, at, new % 2**64)
        return replace(r, body=bytes(body))

    def _length(self, r: Record) -> Record:
        body = r.body[: self.random.randrange(len(r.body) + 1)]
        if self.random.random() < 0.3:
            body = r.body + self.random.randbytes(8)
        key = (
            r.key_bytes if self.random.random() < 0.7 else self.random.choice([0, 1, 8, 2**32 - 1])
        )
        return replace(r, body=body, key_bytes=key)

    def _other(self, r: Record) -> Record:
        """The arguments of another record, or the operator of one."""
        other = self.random.choice(self.corpus)
        if other.kind != w.OP or r.kind != w.OP:
            return replace(r, body=other.body)
        if self.random.random() < 0.5:
            return replace(r, op=other.op)
        return r.with_parts(other.parts[0], r.parts[1])

    def _head(self, r: Record) -> Record:
        chance = self.random
        return chance.choice(
            [
                replace(r, flags=chance.getrandbits(16)),
                replace(r, key_bytes=max(0, r.key_bytes + chance.choice([-1, 1, 8]))),
                replace(r, kind=chance.choice([1, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 40])),
                replace(r, op=chance.choice([0, 1, 70_000, 2**32 - 1])),
            ]
        )

    def harmless(self, r: Record) -> bool:
        """Whether ATen answers in a short time: a loop of 2**40 rounds is no fault of a proxy."""
        if r.kind in (w.ALLOCATE, w.RESIZE):
            return r.kind == w.ALLOCATE or r.base >= 1 << 40
        if r.kind != w.OP:
            return r.kind not in (w.FREE, w.DEFINE, w.SEED)
        name = self.names.get(r.op, "").removeprefix("aten::")
        if name in CRASHES:
            return False
        try:
            walk = Walk(*r.parts)
        except (Refused, struct.error):
            return True
        if any(abs(count) > LARGEST_VIEW for count in walk.views):
            return False
        return name in FACTORIES or all(abs(n) <= LARGEST_INT for n in walk.ints)

    def describe(self, r: Record) -> str:
        name = self.names.get(r.op, r.op) if r.kind == w.OP else ""
        numbers = f"flags {r.flags} key {r.key_bytes} base {r.base}"
        return f"kind {r.kind} {name} {numbers} {r.body[:160].hex()}"


class Child:
    """A proxy as a program of its own, with an environment of its own; else like a forked one."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "singularity_proxy.device", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._err,
            env={**os.environ, **env},
        )
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self.process.kill()

    def finish(self) -> tuple[int, bytes, bytes]:
        code = self.process.wait()
        self._err.seek(0)
        return code, b"", self._err.read()

    def close(self) -> None:
        self._err.close()


class Program(Proxy):
    """A device proxy that is not forked: for environments that must be there from the start."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.socket = folder / f"{time.monotonic_ns()}.sock"
        self.process = Child(["--socket", str(self.socket)], env)  # type: ignore[assignment]
        self._peer = None
