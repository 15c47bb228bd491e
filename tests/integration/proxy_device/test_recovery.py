"""A device proxy that is killed loses nothing, repeats nothing and changes no bit.

Most kills here are images: the proxy is frozen at a random instant, everything that it shares with
the next one (ring, snapshot, journal) is copied, and another proxy continues from the copy. What a
frozen process has stored so far is what a killed one leaves behind.
"""

from __future__ import annotations

import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.device.state import Journal
from singularity_proxy.errors import ProxyFailed
from support import matrix
from support import proxy_device as w
from support.proxy_device import Device, Proxies, RingClient, T, Value
from support.proxy_zygote import Zygote

Step = Callable[[RingClient], None]
SIZES = (64,)
BYTES = 256
KINDS = (
    *("new", "noise", "in-place", "write", "free", "free", "free"),
    *("read", "item", "sync", "rng", "bad", "worse"),
)


def program(seed: int, length: int) -> list[Step]:
    """Random records of every kind that changes the state or replies, with all their results read
    at the end. Each step may be run by another client object on a copy of the ring."""
    rng = random.Random(seed)
    steps: list[Step] = [lambda c: void(c.record(w.SEED, struct.pack("<Q", seed)))]
    alive: list[int] = []
    ids = iter(range(1, 1 << 30))

    def new() -> int:
        alive.append(next(ids))
        return alive[-1]

    def tensor() -> T:
        return T(rng.choice(alive), SIZES)

    def op(name: str, *arguments: object, flags: int = 0, base: int = 0) -> None:
        steps.append(lambda c: void(c.op(name, *arguments, flags=flags, base=base)))

    def ask(kind: int, body: bytes = b"", base: int = 0) -> None:
        steps.append(lambda c: void(c.record(kind, body, flags=w.REPLY, base=base)))

    for _ in range(length):
        kind = rng.choice(KINDS)
        reply = rng.choice((0, 0, w.REPLY))
        if kind == "new" or len(alive) < 4:
            op("rand", list(SIZES), w.FLOAT, None, Device(), None, flags=reply, base=new())
        elif kind == "noise":
            source, base = tensor(), new()
            new()  # the mask
            op("native_dropout", source, 0.5, True, flags=reply, base=base)
        elif kind == "in-place":
            op("mul_.Scalar", tensor(), Value(rng.random()), flags=w.NO_OUTPUTS | reply)
        elif kind == "write":
            body = struct.pack("<QQ", 16, 8) + rng.randbytes(2) * 4
            target = rng.choice(alive)
            steps.append(lambda c, b=body, t=target: void(c.record(w.WRITE, b, base=t)))  # type: ignore[misc]
        elif kind == "free":
            gone = alive.pop(rng.randrange(len(alive)))
            body = struct.pack("<Q", gone)
            steps.append(lambda c, b=body: void(c.record(w.FREE, b, base=1)))  # type: ignore[misc]
        elif kind == "read":
            ask(w.READ, struct.pack("<QQ", 0, 64), base=rng.choice(alive))
        elif kind == "item":
            op("_local_scalar_dense", T(tensor().id, (), offset=3), flags=w.REPLY)
        elif kind == "sync":
            ask(w.SYNC)
        elif kind == "rng":
            ask(w.GET_RNG)
        elif kind == "bad":
            op("mm", tensor(), tensor(), flags=w.REPLY, base=1 << 40)
        else:
            op("mm", tensor(), tensor(), base=next(ids))
        steps.append(lambda c: c.publish())
    for storage in alive:
        ask(w.READ, struct.pack("<QQ", 0, BYTES), base=storage)
    ask(w.GET_RNG)
    return steps


def void(_: object) -> None:
    """For lambdas that return nothing."""


def drain(client: RingClient) -> None:
    while client.poll():
        pass


def run(client: RingClient, steps: list[Step]) -> list[w.Reply]:
    """All steps, then the last one's reply; returns all replies since the ring was made."""
    for step in steps:
        step(client)
        drain(client)
    client.publish()
    if client.replies[-1:] != [] and client.replies[-1].seq == client.seq:
        return client.replies
    client.reply(client.seq)
    return client.replies


@pytest.fixture
def narrow(shm: Path) -> Iterator[RingClient]:
    """A ring of 64 KiB queues, so that both wrap and fill."""
    client = w.make_ring(shm / "ring.ring", request_bytes=1 << 16, reply_bytes=1 << 16)
    yield client
    client.close()


def test_frozen_anywhere_it_continues_bitwise(
    proxies: Proxies, narrow: RingClient, shm: Path
) -> None:
    rng = random.Random(matrix.seed())
    steps = program(seed=7, length=1500)
    first, second = proxies.bound(), proxies.bound()
    first.attach(narrow, journal=4096)
    wanted = 200 if matrix.is_full() else 40
    moments = set(rng.sample(range(20, len(steps) - 20), wanted))
    images: list[tuple[int, RingClient]] = []
    for number, step in enumerate(steps):
        step(narrow)
        drain(narrow)
        if number in moments:
            narrow.publish()
            time.sleep(rng.random() * 0.001)
            first.stop()
            images.append((number + 1, narrow.copy(shm / f"image{number}.ring")))
            first.go_on()
    expected = run(narrow, [])
    assert len({reply.seq for reply in expected}) == len(expected)
    error = (narrow.error_seq, narrow.failure)
    assert first.call("stats")["rings"]["ring"]["snapshots"] > 3
    replayed = 0
    for number, image in images:
        replayed += second.attach(image, journal=4096)["replayed_records"]
        assert run(image, steps[number:]) == expected
        assert (image.error_seq, image.failure) == error
        second.call("close_ring", ring_id=image.path.stem)
        assert not list(shm.glob(f"{image.path.stem}.[sj]*"))
        image.close()
    assert replayed > wanted


REPLIED, REPLIED_INTENT, DONE, TAIL, REPLY_HEAD = 704, 720, 640, 192, 384


@pytest.mark.parametrize("last", ["operator", "question", "silent"])
@pytest.mark.parametrize(
    "reached", ["journal", "intent", "published", "replied", "noted", "done", "released"]
)
def test_every_instant_of_one_record(
    both: tuple[w.Proxy, w.Proxy], shm: Path, last: str, reached: str
) -> None:
    """The stores of a record's execution in their order; everything after `reached` is taken back,
    as if the proxy had been killed in between."""
    source, target = both
    client = w.make_ring(shm / f"{last}-{reached}.ring")
    ring_id = client.path.stem
    source.attach(client, journal=1 << 20)
    client.op("rand", [64], w.FLOAT, None, Device(), None, base=1)
    client.call("add_.Scalar", T(1, SIZES), Value(1), Value(1), flags=w.NO_OUTPUTS)
    before = {at: client.word(at) for at in (REPLIED, DONE, TAIL, REPLY_HEAD)}
    journal = client.path.with_suffix(".journal")
    with Journal(journal) as entries:
        journal_end = entries.end
    if last == "operator":
        client.op("rand", [64], w.FLOAT, None, Device(), None, flags=w.REPLY, base=2)
    elif last == "question":
        client.record(w.READ, struct.pack("<QQ", 0, BYTES), flags=w.REPLY, base=1)
    else:
        client.op("mul_.Scalar", T(1, SIZES), Value(3), flags=w.NO_OUTPUTS)
    client.publish()
    client.wait(f"self.word({TAIL}) == self.word(128)")
    source.stop()
    image = client.copy(shm / f"image-{ring_id}.ring")
    source.go_on()
    order = ["journal", "intent", "published", "replied", "noted", "done", "released"]
    undone = order[order.index(reached) + 1 :]
    if "released" in undone:
        image.word(TAIL, before[TAIL])
    if "done" in undone:
        image.word(DONE, before[DONE])
    if "noted" in undone and last == "question":  # its entry follows the reply
        data = bytearray(image.path.with_suffix(".journal").read_bytes())
        data[24:32] = struct.pack("<Q", journal_end)
        image.path.with_suffix(".journal").write_bytes(data)
    if last != "silent":
        if "replied" in undone:
            image.word(REPLIED, before[REPLIED])
        if "published" in undone:
            image.word(REPLY_HEAD, before[REPLY_HEAD])
        if "intent" in undone:
            image.word(REPLIED_INTENT, before[REPLIED])
    target.attach(image, journal=1 << 20)
    for one in (client, image):
        one.call("uniform_", T(1, SIZES), 0.0, 1.0, None, flags=w.NO_OUTPUTS)
        one.read(1, BYTES)
        one.sync()
        if last == "operator":
            one.read(2, BYTES)
    assert image.replies == client.replies
    assert [r.seq for r in image.replies] == sorted({r.seq for r in image.replies})
    source.call("close_ring", ring_id=ring_id)
    target.call("close_ring", ring_id=image.path.stem)
    client.close()
    image.close()


@pytest.fixture(scope="module")
def both(shared_dir: Path, zygote: Zygote) -> Iterator[tuple[w.Proxy, w.Proxy]]:
    """Two proxies for a module's tests."""
    made = Proxies(shared_dir, zygote)
    yield made.bound(), made.bound()
    made.close()


def test_killed_again_and_again(proxies: Proxies, narrow: RingClient, shm: Path) -> None:
    """Real kills, some of them while the proxy still replays; one worker goes on through all."""
    rng = random.Random(matrix.seed())
    steps = program(seed=3, length=900)
    kills = 12 if matrix.is_full() else 3
    moments = set(rng.sample(range(50, len(steps) - 50), kills))
    proxy = proxies.bound()
    proxy.attach(narrow, journal=1 << 20)
    for number, step in enumerate(steps):
        step(narrow)
        drain(narrow)
        if number in moments:
            narrow.publish()
            time.sleep(rng.random() * 0.002)
            proxy.kill()
            assert narrow.state == 1  # nobody told the worker
            proxy = proxies.bound()
            proxy.attach(narrow, journal=1 << 20)
    got = run(narrow, [])
    calm = w.make_ring(shm / "calm.ring")
    proxy.attach(calm)
    assert got == run(calm, steps)
    calm.close()


def test_the_number_of_records_bounds_the_journal(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 30, journal_records=10)
    for number in range(45):
        ring.allocate(number + 1, 64)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["snapshots"] == 4
    proxy.kill()
    again = proxies.bound()
    answer = again.attach(ring, journal=1 << 30, journal_records=10)
    assert 0 < answer["replayed_records"] < 10
    assert ring.sync()[1] == 45


def test_a_record_that_ends_proxies_fails_and_nothing_else(
    proxies: Proxies, ring: RingClient
) -> None:
    """The agent says which record that was; it is not executed again, in no later life either."""
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 26)
    side = 1500
    ring.allocate(1, side * side * 4)
    large = T(1, (side, side))
    ring.op("fill_.Scalar", large, Value(3), flags=w.NO_OUTPUTS)
    ring.sync()
    poison = ring.op("mm", large, large, base=2)
    ring.wait(f"self.word(664) == {poison}")
    proxy.kill()
    assert ring.word(664) == poison
    proxy = proxies.bound()
    answer = proxy.attach(ring, journal=1 << 26, give_up_seq=poison, deaths=3)
    assert answer["given_up"] == "aten::mm"
    assert (ring.word(664), ring.error_seq) == (0, poison)
    assert "the device proxy ended 3 times while it executed aten::mm" in ring.failure
    ring.word(648, 0)
    for last in (False, True):
        assert ring.read(1, 8) == w.pack_floats([3, 3])
        assert "ended 3 times" in ring.call("abs", T(2, (4,)), base=3).text
        if not last:
            proxy.kill()
            proxy = proxies.bound()
            proxy.attach(ring, journal=1 << 26)


def test_a_question_that_ends_proxies_is_answered_with_an_error(
    proxies: Proxies, ring: RingClient
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    ring.allocate(1, 64)
    ring.sync()
    proxy.stop()
    asked = ring.record(w.READ, struct.pack("<QQ", 0, 8), flags=w.REPLY, base=1)
    ring.publish()
    proxy.kill()
    proxy = proxies.bound()
    answer = proxy.attach(ring, journal=1 << 20, give_up_seq=asked, deaths=3)
    assert answer["given_up"] == "copy from the device"
    reply = ring.reply(asked)
    assert reply.status == w.RUNTIME
    assert "ended 3 times while it executed copy from the device" in reply.text
    assert len(ring.read(1, 8)) == 8


def test_a_record_that_ends_the_proxies_that_repeat_it_is_named(
    proxies: Proxies, ring: RingClient
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    ring.allocate(1, 64)
    done = ring.op("neg_", T(1, (4,)), flags=w.NO_OUTPUTS)
    ring.sync()
    proxy.kill()
    proxy = proxies.bound()
    with pytest.raises(ProxyFailed, match=r"ended 3 times while it repeated aten::neg_ \(record"):
        proxy.attach(ring, journal=1 << 20, give_up_seq=done, deaths=3)


def test_without_a_journal_a_kill_is_told(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=0)
    ring.allocate(1, 64)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["recovery"] is False
    proxy.call("park")
    proxy = proxies.bound()
    proxy.attach(ring, journal=0)
    ring.sync()
    assert ring.path.with_suffix(".snap").exists()  # nothing has changed since
    ring.allocate(2, 64)
    ring.sync()
    assert not ring.path.with_suffix(".snap").exists()
    proxy.kill()
    after = proxies.bound()
    with pytest.raises(ProxyFailed, match=r"cannot be rebuilt: record 5 .*recovery was off"):
        after.attach(ring, journal=1 << 20)


def test_out_of_memory_is_not_undone_by_a_replay(proxies: Proxies, ring: RingClient) -> None:
    """The replay has more room than the first run had; what failed then must fail again."""
    proxy = proxies.bound(capacity=8 << 20)
    proxy.attach(ring, journal=1 << 20)
    ring.allocate(1, 5 << 20)
    whole = T(1, (5 << 18,))
    assert ring.call("neg", whole, base=2).status == w.OUT_OF_MEMORY
    ring.op("neg", whole, base=2)
    ring.op("fill_.Scalar", T(1, (2,)), Value(4), flags=w.NO_OUTPUTS)
    ring.sync()
    assert ring.failure.startswith("aten::neg: CUDA out of memory. Tried to allocate 5.00 MiB.")
    ring.word(648, 0)
    proxy.kill()
    proxy = proxies.bound(capacity=8 << 20)
    assert proxy.attach(ring, journal=1 << 20)["replayed_records"] == 6
    assert ring.error_seq == 0
    assert ring.sync()[1] == 1
    assert ring.read(1, 8) == w.pack_floats([4, 4])
    assert "aten::neg: CUDA out of memory" in ring.call("abs", T(2, (4,)), base=3).text
    assert proxy.call("stats")["memory_current"] < 6 << 20


def test_a_full_disk_ends_recovery_not_the_work(
    proxies: Proxies, ring: RingClient, tiny: Path
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 30, state_prefix=str(tiny / "ring"))
    ring.allocate(1, 4 << 20)
    block = bytes(1 << 19)
    for i in range(8):
        ring.write(1, block, offset=i << 19)
    ring.op("fill_.Scalar", T(1, (1 << 20,)), Value(2), flags=w.NO_OUTPUTS)
    assert ring.read(1, 8, offset=(4 << 20) - 8) == w.pack_floats([2, 2])
    stats = proxy.call("stats")["rings"]["ring"]
    assert stats["recovery"] is False
    assert "No space left on device" in stats["recovery_off"]
    assert list(tiny.iterdir()) == []
    assert ring.error_seq == 0


def test_no_room_for_a_new_base_keeps_the_old_one(
    proxies: Proxies, ring: RingClient, tiny: Path
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=4096, state_prefix=str(tiny / "ring"))
    ring.allocate(1, 100 << 10)
    noise = T(1, (25 << 10,))
    ring.op("uniform_", noise, 0.0, 1.0, None, flags=w.NO_OUTPUTS)
    ring.allocate(2, 3 << 20)  # never fits the disk
    for _ in range(1200):
        ring.op("mul_.Scalar", noise, Value(1.0001), flags=w.NO_OUTPUTS)
    for i in range(10):  # more than the journal may be long
        ring.write(1, bytes(90 << 10), offset=i)
    ring.op("uniform_", noise, 0.0, 1.0, None, flags=w.NO_OUTPUTS)
    expected = ring.read(1, 100 << 10)
    stats = proxy.call("stats")["rings"]["ring"]
    assert stats["recovery"] is True
    proxy.kill()
    proxy = proxies.bound()
    proxy.attach(ring, journal=4096, state_prefix=str(tiny / "ring"))
    assert ring.read(1, 100 << 10) == expected


def test_a_damaged_journal_is_noticed(proxies: Proxies, ring: RingClient, shm: Path) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    ring.op("rand", [64], w.FLOAT, None, Device(), None, base=1)
    ring.allocate(2, 64)
    ring.sync()
    proxy.kill()
    journal = ring.path.with_suffix(".journal")
    whole = journal.read_bytes()
    after = proxies.bound()
    with Journal(journal) as entries:
        end = entries.end
    missing = whole[:24] + struct.pack("<Q", end - 40) + whole[32:]
    for damaged, sentence in (
        (b"\xff" * 64 + whole[64:], "is not a journal"),
        (whole[:4096] + b"\x07" + whole[4097:], "is damaged behind byte 4096"),
        (whole[:4104] + struct.pack("<Q", 9) + whole[4112:], "goes on with record 9"),
        (missing, r"was executed, but what is saved ends at record 3|is damaged"),
    ):
        journal.write_bytes(damaged)
        with pytest.raises(ProxyFailed, match=sentence):
            after.attach(ring, journal=1 << 20)
        assert ring.state == 1
    shutil.copyfile(journal, shm / "last")
    journal.write_bytes(whole)
    after.attach(ring, journal=1 << 20)
    assert ring.sync()[1] == 2


def test_kills_after_records_that_only_asked_lose_nothing(
    proxies: Proxies, ring: RingClient
) -> None:
    data = bytes(range(256)) * 4
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    ring.allocate(1, len(data))
    ring.write(1, data)
    ring.sync()
    proxy.call("park")
    proxy.finish()
    for _ in range(3):  # each one leaves only numbers behind
        proxy = proxies.bound()
        proxy.attach(ring, journal=1 << 20)
        assert ring.read(1, len(data)) == data
        proxy.kill()
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    ring.write(1, b"\xff" * 8)
    assert ring.read(1, len(data)) == b"\xff" * 8 + data[8:]
