"""State that leaves one device proxy and comes back in another; what must not change on the way."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.device.state import Journal, Snapshot
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NoSpace,
    NotFound,
    ProxyFailed,
    StaleEpoch,
)
from support import proxy_device as w
from support.proxy_device import Device, Proxies, RingClient, T, Value


def fill(client: RingClient) -> None:
    """Storages, an operator table, a used generator, an event, a failed operation."""
    client.record(w.SEED, struct.pack("<Q", 11))
    client.op("randn", [256], w.FLOAT, None, Device(), None, base=1)
    client.allocate(2, 1 << 20)
    client.op("fill_.Scalar", T(2, (1 << 18,)), Value(3.5), flags=w.NO_OUTPUTS)
    client.allocate(3, 0)
    client.record(w.EVENT_RECORD, base=1)
    client.op("mm", T(1, (16, 16)), T(1, (256,)), base=4)
    client.sync()
    client.word(648, 0)


def contents(client: RingClient) -> list[bytes]:
    return [client.read(1, 1024), client.read(2, 1 << 19), client.ask(w.GET_RNG).payload]


def test_a_parked_session_goes_on_in_another_proxy(proxies: Proxies, ring: RingClient) -> None:
    first = proxies.bound()
    assert first.attach(ring, journal=1 << 20) == {
        "restored_bytes": 0,
        "replayed_records": 0,
        "given_up": "",
        "ms": pytest.approx(0, abs=60_000),
    }
    fill(ring)
    before = contents(ring)
    answer = first.call("park")
    assert answer["rings"] == ["ring"]
    assert answer["bytes"] > 1 << 20
    assert first.finish() == (0, b"", b"")
    assert not first.socket.exists()
    assert ring.state == 0
    assert {p.name for p in ring.path.parent.iterdir()} == {"ring.ring", "ring.snap"}

    waiting = ring.op("add.Tensor", T(1, (256,)), T(1, (256,)), Value(1), base=5)
    second = proxies.bound(epoch=2)
    restored = second.attach(ring, journal=1 << 20, epoch=2)
    assert restored["restored_bytes"] == 1024 + (1 << 20)
    assert (ring.state, ring.word(68, bits=32), ring.word(72)) == (1, 2, 2)
    assert contents(ring) == before
    assert ring.done_seq >= waiting
    doubled = [2 * x for x in w.floats(before[0])]
    assert w.floats(ring.read(5, 1024)) == doubled
    victim = ring.call("neg", T(4, (16, 16)), base=6)
    assert "earlier operation failed: aten::mm: mat2 must be a matrix" in victim.text
    assert ring.error_seq == 0
    ring.record(w.EVENT_RECORD, base=2)
    (ms,) = struct.unpack("<d", ring.ask(w.EVENT_TIME, struct.pack("<Q", 2), base=1).payload)
    assert ms >= 0  # the clock of the ring went on


def test_an_unchanged_state_is_not_written_again(proxies: Proxies, ring: RingClient) -> None:
    first = proxies.bound()
    first.attach(ring)
    fill(ring)
    before = contents(ring)
    first.call("park")
    snapshot = ring.path.with_suffix(".snap")
    inode = snapshot.stat().st_ino
    for journal in (0, 1 << 20):
        proxy = proxies.bound()
        proxy.attach(ring, journal=journal)
        assert contents(ring) == before  # asks only
        proxy.call("park")
        assert snapshot.stat().st_ino == inode
    last = proxies.bound()
    last.attach(ring)
    assert contents(ring) == before
    last.call("exit")
    last.finish()


def test_a_ring_that_was_never_used_parks_to_nothing(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    proxy.call("park")
    assert {p.name for p in ring.path.parent.iterdir()} == {"ring.ring"}
    again = proxies.bound()
    again.attach(ring)
    assert ring.sync() == (0, 0)


def test_a_worker_that_does_not_read_cannot_delay_a_park(
    proxies: Proxies, small_ring: RingClient
) -> None:
    """The reply queue is full in the middle of the work: the reply that has no place, and all
    records behind it, are answered by the next proxy, once each, in order."""
    proxy = proxies.bound()
    proxy.attach(small_ring)
    small_ring.allocate(1, 4096)
    asked = []
    for i in range(8):  # 4 KiB of queue, 1 KiB and a header for each reply
        asked.append(small_ring.record(w.READ, struct.pack("<QQ", 0, 1000), base=1, flags=w.REPLY))
        asked.append(small_ring.op("rand", [8], w.FLOAT, None, Device(), None, flags=1, base=2 + i))
    small_ring.wait("self.word(384) - self.word(448) > 3000")
    time.sleep(0.05)
    first = small_ring.done_seq
    assert proxy.call("park")["rings"] == ["small"]
    assert small_ring.done_seq == first
    for _ in range(2):  # also a proxy that gets nowhere loses nothing
        proxy = proxies.bound()
        proxy.attach(small_ring)
        proxy.call("park")
    proxy = proxies.bound()
    proxy.attach(small_ring)
    small_ring.reply(asked[-1])
    assert [r.seq for r in small_ring.replies] == asked
    assert all(r.status == w.OK for r in small_ring.replies)


def test_a_park_waits_for_the_running_record_only(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring)
    ring.op("randn", [512 * 512], w.FLOAT, None, Device(), None, base=1)
    square = T(1, (512, 512))
    last = [ring.op("mm", square, square, base=2 + i) for i in range(300)][-1]
    ring.wait("self.done_seq > 5")
    proxy.call("park")
    assert 5 < ring.done_seq < last
    after = proxies.bound()
    after.attach(ring)
    ring.sync()
    ring.wait(f"self.done_seq > {last}")  # it is counted behind its reply


def test_a_failed_park_changes_nothing(
    proxies: Proxies, ring: RingClient, tiny: Path, shm: Path
) -> None:
    """Two rings; the state of the second has no room, so neither is parked."""
    other = w.make_ring(shm / "other.ring")
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    proxy.attach(other, state_prefix=str(tiny / "other"))
    fill(ring)
    other.allocate(1, 3 << 20)
    other.op("fill_.Scalar", T(1, (3 << 18,)), Value(2.5), flags=w.NO_OUTPUTS)
    before = contents(ring)
    with pytest.raises(NoSpace) as error:
        proxy.call("park")
    assert "Nothing was changed and the session goes on" in error.value.message
    assert list(tiny.iterdir()) == []
    assert {p.name for p in shm.iterdir()} == {"ring.ring", "ring.journal", "other.ring"}
    assert (ring.state, other.state) == (1, 1)
    assert contents(ring) == before
    assert other.read(1, 4) == struct.pack("<f", 2.5)
    with pytest.raises(NoSpace):
        proxy.call("checkpoint", directory=str(tiny / "checkpoint"))
    assert list((tiny / "checkpoint").iterdir()) == []
    other.record(w.FREE, struct.pack("<Q", 1), base=1)
    other.sync()
    (tiny / "checkpoint").rmdir()
    proxy.call("park")
    assert (ring.state, other.state) == (0, 0)
    other.close()


def test_a_checkpoint_leaves_the_session_running(
    proxies: Proxies, ring: RingClient, short_dir: Path
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    fill(ring)
    before = contents(ring)
    ring.sync()
    folder = short_dir / "a" / "checkpoint"
    answer = proxy.call("checkpoint", directory=str(folder))
    assert answer["files"] == {"ring": str(folder / "ring.snap")}
    assert answer["bytes"] == (folder / "ring.snap").stat().st_size
    ring.op("fill_.Scalar", T(2, (1 << 18,)), Value(0), flags=w.NO_OUTPUTS)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["recovery"] is True
    proxy.call("exit")
    proxy.finish()
    with Snapshot(folder / "ring.snap") as saved:
        assert saved.seq == ring.seq - 2
        assert bytes(saved.storage(1)) == before[0]
        assert bytes(saved.storage(2)) == 2 * before[1]
        assert saved.storage_bytes == {1: 1024, 2: 1 << 20, 3: 0}
        assert "aten::mm" in saved.operators
        assert list(saved.failed.values()) == ["aten::mm: mat2 must be a matrix"]
        assert saved.pending_reply is None
    with Journal(ring.path.with_suffix(".journal")) as journal:
        assert [entry.seq for entry in journal] == list(range(1, ring.seq + 1))


def test_what_may_not_be_attached(proxies: Proxies, ring: RingClient) -> None:
    first, second = proxies.start(), proxies.bound()
    with pytest.raises(Conflict, match="belongs to no session yet"):
        first.attach(ring)
    with pytest.raises(BadRequest, match="serves cpu:N or cuda:N"):
        first.bind(device="tpu:0")
    with pytest.raises(BadRequest, match="missing a required argument"):
        first.call("bind", session="x")
    with pytest.raises(BadRequest, match="at least 1 thread"):
        first.bind(threads=0)
    first.bind(epoch=5)
    with pytest.raises(Conflict, match="already belongs to session 0123456789ab"):
        first.bind()
    with pytest.raises(StaleEpoch, match="epoch 4"):
        first.attach(ring, epoch=4)
    first.attach(ring, epoch=6)
    with pytest.raises(Conflict, match="already served by this device proxy"):
        first.attach(ring, epoch=6)
    with pytest.raises(Conflict, match="another device proxy still serves this ring"):
        second.attach(ring, epoch=7)
    assert ring.word(72) == 6
    first.call("close_ring", ring_id="ring")
    with pytest.raises(NotFound):
        first.call("close_ring", ring_id="ring")
    with pytest.raises(StaleEpoch, match="older lease of the session"):
        second.attach(ring, epoch=5)
    ring.word(64, 4, bits=32)
    with pytest.raises(Conflict, match="closed: its worker has ended"):
        second.attach(ring, epoch=7)
    assert ring.state == 4
    ring.word(64, 0, bits=32)
    ring.path.with_suffix(".snap").write_bytes(b"no state" * 100)
    with pytest.raises(ProxyFailed, match="is not a device state"):
        second.attach(ring, epoch=7)
    ring.path.with_suffix(".snap").unlink()
    second.attach(ring, epoch=7)
    assert ring.sync() == (0, 0)


def test_a_state_that_does_not_fit_the_next_device_stays_parked(
    proxies: Proxies, ring: RingClient
) -> None:
    proxy = proxies.bound()
    proxy.attach(ring)
    fill(ring)
    proxy.call("park")
    small = proxies.bound(capacity=1 << 19)
    with pytest.raises(Conflict, match="do not fit the 524288 bytes that are free"):
        small.attach(ring)
    assert ring.state == 0
    large = proxies.bound()
    large.attach(ring)
    assert ring.read(2, 4) == struct.pack("<f", 3.5)


def test_damage_is_noticed(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring)
    fill(ring)
    proxy.call("park")
    snapshot = ring.path.with_suffix(".snap")
    whole = snapshot.read_bytes()
    after = proxies.bound()
    for damaged, sentence in (
        (whole[:-5], "cut short"),
        (whole[:100] + b"\xff" + whole[101:], "is damaged"),
        (whole[:8] + b"\x09" + whole[9:], "not a device state of version 1"),
        (None, "nothing was saved: recovery was off"),
    ):
        snapshot.unlink()
        if damaged is not None:
            snapshot.write_bytes(damaged)
        with pytest.raises(ProxyFailed, match=sentence):
            after.attach(ring)
        snapshot.write_bytes(whole)
    after.attach(ring)
    assert ring.read(2, 4) == struct.pack("<f", 3.5)


def test_an_orphan_parks_before_it_ends(proxies: Proxies, ring: RingClient) -> None:
    unused = proxies.start("--orphan-s", "0.5")
    proxy = proxies.start("--orphan-s", "0.5")
    proxy.bind()
    proxy.attach(ring)
    fill(ring)
    before = contents(ring)
    unused.disconnect()
    proxy.disconnect()
    assert unused.finish() == (0, b"", b"")
    assert proxy.finish() == (0, b"", b"")
    assert ring.state == 0
    again = proxies.bound()
    again.attach(ring)
    assert contents(ring) == before


def test_an_orphan_that_cannot_park_stays(proxies: Proxies, ring: RingClient, tiny: Path) -> None:
    proxy = proxies.start("--orphan-s", "0.3")
    proxy.bind()
    proxy.attach(ring, state_prefix=str(tiny / "ring"))
    ring.allocate(1, 3 << 20)
    ring.sync()
    proxy.disconnect()
    while not (line := proxy.process.stderr.read_text()):
        time.sleep(0.01)
    assert line.startswith("device proxy: no agent is connected, but it cannot park: ")
    assert ring.state == 1
    assert ring.sync()[1] == 1
    proxy.peer()  # someone came back in time
    ring.record(w.FREE, struct.pack("<Q", 1), base=1)
    ring.sync()
    proxy.call("park")
    assert proxy.finish()[0] == 0


@pytest.mark.parametrize("terminated", [True, False])
def test_a_held_proxy_that_nobody_wants_ends_and_its_state_is_rebuilt(
    proxies: Proxies, ring: RingClient, terminated: bool
) -> None:
    proxy = proxies.start("--orphan-s", "0.3")
    proxy.bind()
    proxy.attach(ring, journal=1 << 20)
    fill(ring)
    before = contents(ring)
    assert len(proxy.call("hold")["rings"]) == 1
    assert proxy.call("stats")["held"] is True
    if terminated:
        proxy.process.terminate()
    else:
        proxy.disconnect()
    assert proxy.finish() == (0, b"", b"")
    assert ring.state == 0
    again = proxies.bound()
    again.attach(ring)
    assert contents(ring) == before


def test_a_terminated_proxy_parks(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring)
    fill(ring)
    proxy.process.terminate()
    assert proxy.finish() == (0, b"", b"")
    assert ring.state == 0
    assert ring.path.with_suffix(".snap").exists()


@pytest.mark.root
def test_a_proxy_becomes_its_user_before_the_first_record(
    proxies: Proxies, ring: RingClient
) -> None:
    uid, gid = 61001, 61002
    for path in (ring.path, ring.path.parent):
        os.chown(path, uid, gid)
    proxy = proxies.bound(uid=uid, gid=gid)
    proxy.attach(ring)
    fill(ring)
    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status
    assert f"Gid:\t{gid}\t{gid}\t{gid}\t{gid}" in status
    assert "Name:\tsg-cpu:0-012345" in status
    proxy.call("park")
    proxy.finish()
    snapshot = ring.path.with_suffix(".snap").stat()
    assert (snapshot.st_uid, snapshot.st_mode & 0o777) == (uid, 0o600)
    proxy.socket.unlink(missing_ok=True)
    stranger = proxies.bound(uid=61003, gid=61003)
    os.chmod(ring.path.parent, 0o755)
    with pytest.raises(Exception, match="Permission denied"):
        stranger.attach(ring)
    refused = stranger.call("stats")
    assert refused["rings"] == {}
    with pytest.raises(Conflict):
        stranger.bind(uid=uid, gid=gid)
