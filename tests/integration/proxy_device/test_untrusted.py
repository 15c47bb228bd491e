"""What user code may do to its own ring: it is refused with a sentence or breaks that ring alone.

Every test ends with `other`, a second ring of the same device proxy, still computing right.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import ProxyFailed, SingularityError
from singularity_proxy.wire import graphs
from support import proxy_device as w
from support.attacks import attack
from support.proxy_device import Device, Proxies, Proxy, RingClient, T, Value, make_ring

HUGE = [2**31, 2**32 - 1, 2**62, 2**63 - 1, -1, -(2**63)]
REQUEST_HEAD, REPLY_HEAD, REPLY_TAIL = 128, 384, 448


@pytest.fixture(autouse=True)
def other(ring_two: RingClient) -> Iterator[RingClient]:
    """Proves after each test that the proxy lives and that another ring was not touched."""
    ring_two.op("full", [64], 2.5, w.FLOAT, None, Device(), None, base=1)
    yield ring_two
    ring_two.op("add.Tensor", T(1, (64,)), T(1, (64,)), Value(1), base=2)
    assert w.floats(ring_two.read(2, 256)) == [5.0] * 64


@pytest.fixture
def victim(shared: Proxy, shm: Path) -> Iterator[RingClient]:
    """A ring of the same proxy that may be broken; closing it must work whatever was done to it."""
    client = make_ring(shm / "victim.ring", request_bytes=64 << 10, reply_bytes=8 << 10)
    shared.attach(client, ring_id=f"{shm.name}-victim", journal=1 << 20)
    yield client
    start = time.monotonic()
    shared.call("close_ring", ring_id=f"{shm.name}-victim")
    assert time.monotonic() - start < 20
    client.close()


def broken(proxy: Proxy, client: RingClient) -> str:
    """Wait until the proxy says why it serves the ring no more."""
    deadline = time.monotonic() + 30
    while not (why := proxy.call("stats")["rings"][f"{client.path.parent.name}-victim"]["broken"]):
        assert time.monotonic() < deadline, "the ring is still served"
        time.sleep(0.005)
    return str(why)


def refused(client: RingClient, *sentences: str) -> Callable[[w.Reply], None]:
    def check(reply: w.Reply) -> None:
        assert reply.status != w.OK
        assert any(s in reply.text for s in sentences), reply.text
        assert client.state == 1

    return check


# ---- records that can be read and ask for what cannot be


@pytest.mark.parametrize("size", [2**64 - 10, 2**64 - 1, 2**63, 2**63 - 1, 2**60 + 1, 2**48])
def test_impossible_sizes_are_out_of_memory(victim: RingClient, size: int) -> None:
    victim.allocate(1, 64)
    for kind in (w.ALLOCATE, w.RESIZE):
        reply = victim.ask(kind, struct.pack("<Q", size), base=1)
        assert reply.status == w.OUT_OF_MEMORY
        assert reply.text.startswith("CUDA out of memory. Tried to allocate ")
    assert len(victim.read(1, 64)) == 64


@pytest.mark.parametrize("offset", [65, 2**63, 2**64 - 1, 2**64 - 64])
def test_copies_stay_inside_their_storage(victim: RingClient, offset: int) -> None:
    victim.allocate(1, 64)
    check = refused(victim, "does not fit into device memory of 64 bytes")
    check(victim.ask(w.READ, struct.pack("<QQ", offset, 64), base=1))
    body = struct.pack("<QQ", offset, 64) + bytes(64)
    check(victim.reply(victim.record(w.WRITE, body, base=1, flags=w.REPLY) + publish(victim)))
    check = refused(victim, "shorter than it says", "too long for one reply")
    for size in (2**64 - 8, 2**63, 1 << 21):
        check(victim.ask(w.READ, struct.pack("<QQ", 0, size), base=1))
        check(victim.ask(w.WRITE, struct.pack("<QQ", 0, size) + bytes(8), base=1))


def publish(client: RingClient) -> int:
    client.publish()
    return 0


BAD_TENSORS = [
    *(T(1, (n,)) for n in HUGE),
    *(T(1, (0, n)) for n in HUGE if n < 0 or n > 2**60),
    *(T(1, (2,), (n,)) for n in HUGE),
    *(T(1, (4,), None, n) for n in HUGE),
    *(T(1, (0,), None, n) for n in HUGE if n < 0),
    T(1, (2**32, 2**32)),
    T(1, (2**62 + 1,), (4,)),
    T(1, (2**31, 2**31), (2**31, 2**31)),
    T(1, (1, 0, -1), (1, 1, 1)),
    T(1, (16,), None, 1),
    T(1, (16,), (2,)),
    T(1, (3,), None, 2**62),
    T(1, (16,), None, 0, w.DOUBLE),
    T(1, (4,), None, 0, 200),
    T(2, (1,)),
]


@pytest.mark.parametrize("tensor", BAD_TENSORS, ids=repr)
def test_tensors_that_cannot_be_are_refused(victim: RingClient, tensor: T) -> None:
    victim.allocate(1, 64)
    check = refused(
        victim,
        *("cannot be", "does not fit its device memory of 64 bytes", "unknown dtype"),
        "knows no storage",
    )
    check(victim.call("neg", tensor, base=10))
    check(victim.call("zero_", tensor, flags=w.NO_OUTPUTS))


COMPLEX = 9
TRANSFORMS = {
    "repeated": ("_fft_c2c", [0] * 70, 0, True),
    "behind": ("_fft_c2c", [0, 5], 0, True),
    "far away": ("_fft_c2c", [2**40], 0, True),
    "negative": ("_fft_c2c", [-(2**40)], 0, True),
    "of real numbers": ("_fft_r2c", [5], 0, True),
    "to real numbers": ("_fft_c2r", [5], 0, 8),
    "to less than half": ("_fft_c2r", [1], 0, 3),
}


@pytest.mark.parametrize("arguments", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_write_into_their_results_alone(
    victim: RingClient, arguments: tuple[Any, ...]
) -> None:
    """PyTorch's own kernels do not look at these arguments: they write behind their tables."""
    name, *more = arguments
    victim.allocate(1, 160)
    victim.call("zero_", T(1, (40,)), flags=w.NO_OUTPUTS)
    numbers = T(1, (4, 5), dtype=w.FLOAT if name == "_fft_r2c" else COMPLEX)
    check = refused(victim, "Dimension out of range", "appears multiple times", "does not make 3")
    check(victim.call(name, numbers, *more, base=10))
    right = victim.call("_fft_c2r", T(1, (4, 5), dtype=COMPLEX), [1], 0, 8, base=20)
    assert right.status == w.OK
    assert victim.read(20, 4 * 8 * 4) == bytes(4 * 8 * 4)


def test_transforms_in_a_captured_graph_write_into_their_results_alone(victim: RingClient) -> None:
    packed = graphs.pack(
        {
            "symbols": [],
            "inputs": [["t", "complex64", [4, 5], [5, 1], 0, 0]],
            "nodes": [["op.aten._fft_c2r.default", [{"n": 0}, [1], 0, 3], {}]],
            "outputs": [1],
            "static": [],
            "visible": [0],
            "backward": False,
            "inference": True,
            "options": {},
        }
    )
    body = struct.pack("<IIQ", len(graphs.NAME), len(packed), 0) + graphs.NAME.encode() + packed
    victim.record(w.DEFINE, body)
    victim.defined["graph"] = 0
    form = graphs.form_of(json.loads(victim.ask(w.COMPILE).payload))
    victim.allocate(1, 160)
    check = refused(victim, "a transform of 5 complex numbers does not make 3 real ones")
    check(victim.call("graph", T(1, (4, 5), dtype=COMPLEX), form, base=10))


def host_tensor(dtype: int, sizes: list[int], size: int, data: bytes) -> tuple[bytes, bytes]:
    key = struct.pack(f"<H3B{len(sizes)}q", 1, 4, dtype, len(sizes), *sizes)
    return key, struct.pack("<Q", size) + data


@pytest.mark.parametrize("sizes", [[2**40], [2**32, 2**32], [-1], [2**62, 0], [8]])
def test_host_tensors_cannot_be_larger_than_their_record(
    victim: RingClient, sizes: list[int]
) -> None:
    victim.call("neg", T(1, (1,)))  # defines the operator
    count = 1
    for n in sizes:
        count *= n
    for claimed in (16, (4 * count) % 2**64):
        key, values = host_tensor(w.FLOAT, sizes, claimed, bytes(16))
        body = key.ljust((len(key) + 7) & ~7, b"\0") + values
        seq = victim.record(w.OP, body, flags=w.REPLY, op=0, key=len(key), base=5)
        victim.publish()
        refused(victim, "a host tensor of", "cannot be", "shorter than it says")(victim.reply(seq))


def raw_op(client: RingClient, key: bytes, values: bytes = b"", key_bytes: int = -1) -> w.Reply:
    body = key.ljust((len(key) + 7) & ~7, b"\0") + values
    size = len(key) if key_bytes < 0 else key_bytes
    seq = client.record(w.OP, body, flags=w.REPLY, op=0, key=size, base=5)
    client.publish()
    return client.reply(seq)


@pytest.mark.parametrize("tag", [16, 17])
def test_lists_cannot_be_nested_until_the_stack_ends(shm: Path, shared: Proxy, tag: int) -> None:
    client = make_ring(shm / "wide.ring", request_bytes=4 << 20)
    shared.attach(client, ring_id=f"{shm.name}-wide")
    client.call("neg", T(1, (1,)))
    nested = struct.pack("<BI", tag, 1) * 400_000
    refused(client, "a list of lists")(raw_op(client, b"\x01\x00" + nested))
    shared.call("close_ring", ring_id=f"{shm.name}-wide")
    client.close()


@pytest.mark.parametrize(
    ("key", "key_bytes"),
    [
        (b"", 0),
        (b"\x01", -1),
        (b"\x01\x00", -1),
        (b"\x01\x00\x01", -1),
        (b"\x01\x00\xff", -1),
        (b"\xff\xff" + b"\0" * 64, -1),
        (b"\x01\x00" + struct.pack("<BI", 13, 2**32 - 1), -1),
        (b"\x01\x00" + struct.pack("<BI", 16, 2**32 - 1), -1),
        (b"\x01\x00" + struct.pack("<BI", 18, 2**32 - 1), -1),
        (b"\x01\x00" + struct.pack("<BI", 19, 2**32 - 1), -1),
        (b"\x01\x00\x00", 2**32 - 1),
        (b"\x01\x00\x00", 2**32 - 8),
        (b"\x01\x00\x00", 17),
    ],
)
def test_keys_that_lie_about_their_length(victim: RingClient, key: bytes, key_bytes: int) -> None:
    victim.call("neg", T(1, (1,)))
    reply = raw_op(victim, key, key_bytes=key_bytes)
    refused(
        victim,
        *("shorter than it says", "longer than the record", "instead of", "unknown argument"),
    )(reply)


def test_counts_and_numbers_that_lie(victim: RingClient) -> None:
    check = refused(victim, "frees more storages than it names")
    for count in (2, 2**61, 2**64 - 1):
        check(victim.ask(w.FREE, struct.pack("<Q", 1), base=count))
    check = refused(victim, "shorter than it says", "too large", "too long")
    check(victim.ask(w.DEFINE, struct.pack("<II", 2**32 - 1, 2**32 - 1)))
    check(victim.reply(define(victim, 1 << 30, b"aten::mm")))
    check(victim.reply(define(victim, 3, b"a" * 5000)))
    check = refused(victim, "never defined", "has no such value")
    check(victim.call("zeros", [4], 1000, None, Device(), None))
    check(victim.call("zeros", [4], -1, None, Device(), None))
    check(victim.call("zeros", [4], w.FLOAT, 77, Device(), None))
    check(victim.call("empty.memory_format", [4], w.FLOAT, None, Device(), None, 99))
    for kind in (0, 14_000, 0xFF01, 65535):
        refused(victim, "knows no record of kind")(victim.ask(kind))


def define(client: RingClient, index: int, name: bytes) -> int:
    body = struct.pack("<IIQ", len(name), 0, 0) + name
    seq = client.record(w.DEFINE, body, op=index, flags=w.REPLY)
    client.publish()
    return seq


def test_generator_states_that_lie(victim: RingClient) -> None:
    good = victim.ask(w.GET_RNG).payload[8:]

    def put(state: bytes) -> w.Reply:
        return victim.ask(w.SET_RNG, struct.pack("<Q", len(state)) + state)

    assert put(good).status == w.OK
    check = refused(victim, "mt19937", "wrong size", "RNG state")
    for left, place in [(300, 624), (624, 2), (0, 0), (-5, 0), (2, 624), (1, 2**40), (625, 0)]:
        check(put(good[:8] + struct.pack("<i", left) + good[12:16] + struct.pack("<Q", place)
                  + good[24:]))  # fmt: skip
    for size in (0, 8, 24, 5000, len(good) - 1, len(good) + 8):
        check(put(good.ljust(size, b"\1")[:size]))
    assert victim.ask(w.GET_RNG).payload[8:] == good
    reply = victim.ask(w.SET_RNG, struct.pack("<Q", 2**64 - 1) + good)
    refused(victim, "shorter than it says")(reply)


@attack(
    "ids-without-end",
    "a session fills the tables of its device proxy",
    "each has a bound, and the ring goes on",
    root=False,
)
def test_tables_are_bounded(victim: RingClient) -> None:
    for number in range(1, (1 << 14) + 10):
        victim.record(w.SEED, struct.pack("<Q", 1), base=number)
        if number % 500 == 0:
            victim.sync()
    victim.sync()
    assert victim.error_seq > 0
    assert "at most 16384 random number generators" in victim.failure


# ---- records that cannot be read: the ring breaks, and says so


def header(length: int, seq: int, kind: int = w.SYNC) -> bytes:
    return w.HEADER.pack(length & 0xFFFFFFFF, kind, w.REPLY, seq, 0, 0, 0)


@pytest.mark.parametrize(
    ("length", "seq"),
    [(0, 1), (8, 1), (33, 1), (40, 1), (64 << 10, 1), (2 << 20, 1), (2**32 - 8, 1),
     (32, 3), (32, 2**64 - 1), (32, 2**63)],
)  # fmt: skip
def test_a_record_that_cannot_be_read_breaks_the_ring(
    shared: Proxy, victim: RingClient, length: int, seq: int
) -> None:
    victim._put(header(length, seq))
    victim.publish()
    assert broken(shared, victim).startswith(
        "the worker wrote a record that the device proxy cannot read"
    )
    assert victim.state == 3
    assert victim.failure == broken(shared, victim)


def test_a_number_may_not_come_again(shared: Proxy, victim: RingClient) -> None:
    victim.sync()
    victim._put(header(32, victim.seq))
    victim.publish()
    assert "cannot read" in broken(shared, victim)


@pytest.mark.parametrize("position", [1 << 16 | 8, 1 << 40, 2**64 - 8, 2**63])
def test_a_head_that_cannot_be_breaks_the_ring(
    shared: Proxy, victim: RingClient, position: int
) -> None:
    victim.sync()
    victim.word(REQUEST_HEAD, (victim.word(REQUEST_HEAD) + position) % 2**64)
    assert broken(shared, victim)


@pytest.mark.parametrize("position", [8, 1 << 40, 2**64 - (1 << 20)])
def test_a_reply_tail_that_cannot_be_breaks_the_ring(
    shared: Proxy, victim: RingClient, position: int
) -> None:
    victim.allocate(1, 1 << 20)
    for _ in range(4):  # more than the queue holds
        victim.record(w.READ, struct.pack("<QQ", 0, 4096), base=1, flags=w.REPLY)
    victim.word(REPLY_TAIL, (victim.word(REPLY_HEAD) + (1 << 14) + position) % 2**64)
    victim.publish()
    assert broken(shared, victim) == (
        "the positions in this ring's header were changed to impossible ones, "
        "so the ring is not served any more"
    )


def test_words_that_change_all_the_time_hold_nobody(shared: Proxy, victim: RingClient) -> None:
    end = threading.Event()

    def scribble() -> None:
        while not end.is_set():
            for offset, bits in ((64, 32), (88, 32), (80, 64), (112, 64), (640, 64), (712, 64)):
                victim.word(offset, int(time.monotonic_ns()) % 5, bits=bits)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for number in range(200):
            victim.op("add.Tensor", T(1, (4,)), T(1, (4,)), Value(1), base=number)
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            assert shared.call("stats")["pid"]
    finally:
        end.set()
        thread.join()


# ---- files that their owner shortens


@pytest.mark.parametrize("size", [0, 4096, 64 << 10, (64 << 10) + 8192, (128 << 10) + 4096])
@pytest.mark.parametrize("busy", [False, True])
def test_a_shortened_ring_breaks_alone(shared: Proxy, shm: Path, size: int, busy: bool) -> None:
    client = make_ring(shm / "cut.ring", request_bytes=64 << 10, reply_bytes=8 << 10)
    ring_id = f"{shm.name}-victim"
    shared.attach(client, ring_id=ring_id)
    client.sync()
    if busy:
        client.allocate(1, 1 << 20)
        for _ in range(6):
            client.record(w.READ, struct.pack("<QQ", 0, 1 << 10), base=1, flags=w.REPLY)
        client.publish()
    os.truncate(client.path, size)
    time.sleep(0.15)
    os.truncate(client.path, (64 + 64 + 8) << 10)  # else this process would end at its next look
    for _ in range(20):
        client.record(w.SYNC, flags=w.REPLY)
        client.publish()
    client.wait("True")
    time.sleep(0.15)
    shared.call("stats")
    shared.call("close_ring", ring_id=ring_id)
    client.close()


def test_a_shortened_journal_switches_recovery_off(shared: Proxy, victim: RingClient) -> None:
    victim.allocate(1, 64)
    victim.sync()
    os.truncate(victim.path.with_suffix(".journal"), 0)
    victim.write(1, bytes(range(64)))
    assert victim.read(1, 64) == bytes(range(64))
    stats = shared.call("stats")["rings"][f"{victim.path.parent.name}-victim"]
    victim.write(1, bytes(64))
    victim.sync()
    stats = shared.call("stats")["rings"][f"{victim.path.parent.name}-victim"]
    assert not stats["recovery"]
    assert "someone shortened the journal" in stats["recovery_off"]


@pytest.mark.parametrize("end", [0, 8, 1 << 20, 2**63, 2**64 - 8])
def test_the_journals_end_is_not_believed_while_it_is_written(victim: RingClient, end: int) -> None:
    victim.allocate(1, 64)
    victim.sync()
    with victim.path.with_suffix(".journal").open("r+b") as file:
        file.seek(24)
        file.write(struct.pack("<Q", end))
    victim.write(1, bytes(range(64)))
    assert victim.read(1, 64) == bytes(range(64))


@attack(
    "state-files-that-lie",
    "saved states and journals with offsets and sizes that cannot be",
    "each is refused in a sentence; the proxy lives on",
    root=False,
)
def test_state_files_that_lie_are_refused(proxies: Proxies, shm: Path) -> None:
    client = make_ring(shm / "lies.ring")
    first = proxies.bound()
    first.attach(client, journal=1 << 20)
    client.op("full", [64], 1.5, w.FLOAT, None, Device(), None, base=1)
    client.record(w.SEED, struct.pack("<Q", 5))
    client.sync()
    first.call("park")
    first.finish()
    path = client.path.with_suffix(".snap")
    good = path.read_bytes()
    second = proxies.bound(epoch=2)

    def attempt(data: bytes) -> Any:
        path.write_bytes(data)
        with pytest.raises(SingularityError) as caught:
            second.attach(client, epoch=2)
        assert caught.type in (ProxyFailed, SingularityError, *SingularityError.__subclasses__())
        assert second.process.poll() is None

    for offset in (32, 40, 48, 56):
        for value in (0, 1, 2**63, 2**64 - 1, len(good) + 1):
            if value != struct.unpack_from("<Q", good, offset)[0] and offset != 40:
                attempt(good[:offset] + struct.pack("<Q", value) + good[offset + 8 :])
    table_bytes = struct.unpack_from("<Q", good, 32)[0]
    for field, value in ((0, 2**61), (16, 2**63), (16, 2**64 - 1), (24, 2**64 - 64)):
        table = bytearray(good[64 : 64 + table_bytes])
        struct.pack_into("<Q", table, field, value)
        lie = bytearray(good)
        lie[64 : 64 + table_bytes] = table
        struct.pack_into("<Q", lie, 56, fnv1a(bytes(table)))
        attempt(bytes(lie))
    for size in (0, 8, 63, 64, 100, len(good) - 1):
        attempt(good[:size])
    path.write_bytes(good)
    assert second.attach(client, epoch=2)["restored_bytes"] == 256
    assert w.floats(client.read(1, 256)) == [1.5] * 64
    client.close()


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def test_a_tensor_that_was_used_before_is_not_believed_either(victim: RingClient) -> None:
    """An operator changes the tensor, another one takes the memory away below it."""
    victim.allocate(1, 16)
    assert victim.call("zero_", T(1, (4,)), flags=w.NO_OUTPUTS).status == w.OK
    assert victim.call("resize_", T(1, (4,)), [4096], None, flags=w.NO_OUTPUTS).status == w.OK
    assert victim.call("zero_", T(1, (4096,)), flags=w.NO_OUTPUTS).status == w.OK
    shrink = victim.call("inductor::resize_storage_bytes_", T(1, (4,)), 16, flags=w.NO_OUTPUTS)
    assert shrink.status == w.OK, shrink.text
    check = refused(victim, "does not fit its device memory of 16 bytes")
    check(victim.call("neg", T(1, (4096,)), base=10))
    check(victim.call("zero_", T(1, (4096,)), flags=w.NO_OUTPUTS))
    assert victim.call("neg", T(1, (4,)), base=10).status == w.OK
