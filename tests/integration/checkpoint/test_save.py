"""Saving and restoring on every kind of store."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.keys import ListedKeys, new_key
from singularity_proxy.checkpoint.manifest import ZERO
from singularity_proxy.checkpoint.progress import Progress
from singularity_proxy.checkpoint.saving.cutting import CHUNK
from singularity_proxy.errors import (
    BadRequest,
    CheckpointCancelled,
    KeyUnavailable,
    NotFound,
    StaleEpoch,
)
from support.checkpoint_data import (
    MB,
    PAGE,
    change_pages,
    contents,
    noise,
    parts_of,
    request,
    snapshot,
    some_files,
)
from support.checkpoint_stores import StoreBox


def test_everything_comes_back(stores: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    os.chmod(tmp_path / "src/text", 0o640)
    os.utime(tmp_path / "src/text", ns=(5, 1_234_567_890_123_456_789))
    parts.append(Part("record.json", "record", data=b'{"a": 1}'))
    told: list[Progress] = []
    box = stores.user()
    saved = box.save(
        request(name="before lunch", incarnation=3, reason="why", record={"rings": [1]}),
        parts,
        progress=told.append,
    )
    assert told[-1].bytes_done == told[-1].bytes_total == saved.bytes
    assert told[-1].eta_s == 0
    assert [p.bytes_done for p in told] == sorted(p.bytes_done for p in told)
    assert saved.bytes == sum(os.stat(p.path).st_size for p in parts[:-1]) + 8
    assert saved.stored_bytes == saved.sent_bytes
    assert saved.stored_bytes < saved.bytes - 2 * MB  # zeros and text
    device = next(p for p in parts if p.kind == "device")
    assert saved.parts["device"] == {"files": 1, "bytes": os.stat(device.path).st_size}

    other = stores.user()
    assert other.list("s") == [saved]
    assert other.find("s") == other.find("s", "before lunch") == other.find("s", saved.id) == saved
    restored = other.restore("s", into=tmp_path / "out")
    assert restored.record == {"rings": [1]}
    assert restored.summary == saved
    assert restored.hashes_checked > 3
    got = contents(tmp_path / "out")
    assert got.pop("record.json") == b'{"a": 1}'
    assert got == {part.name: Path(part.path).read_bytes() for part in parts[:-1]}
    info = os.stat(tmp_path / "out/scratch/text")
    assert info.st_mode & 0o7777 == 0o640
    assert info.st_mtime_ns == 1_234_567_890_123_456_789
    manifest = other.manifest("s")
    assert other.verify("s") == len(manifest.chunks)
    for kind in {part.kind for part in manifest.parts}:  # without what one kind alone needs
        read = {e.chunk for p in manifest.parts if p.kind == kind for e in p.extents} - {ZERO}
        assert other.verify("s", but=[kind]) == len(manifest.chunks) - len(read)


def test_unchanged_chunks_are_not_sent_again(stores: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    box = stores.user()
    first = box.save(request(), parts)
    second = box.save(request(), parts)
    assert second.sent_bytes < 20_000
    assert second.stored_bytes == pytest.approx(first.stored_bytes, rel=0.02)
    assert box.head("s").checkpoint == second.id
    assert [c.id for c in box.list("s")] == [first.id, second.id]
    for checkpoint in (first, second):
        box.restore("s", checkpoint.id, into=tmp_path / checkpoint.id)
    assert contents(tmp_path / first.id) == contents(tmp_path / second.id)


def test_a_small_change_sends_little(folder_store: StoreBox, tmp_path: Path) -> None:
    """A stretch of 1 %: the chunks that it is in, and no others."""
    (tmp_path / "src").mkdir()
    path = tmp_path / "src/r.snap"
    storages = [noise(8 * MB, n) for n in range(12)] + [noise(5000, n) for n in range(50)]
    snapshot(path, storages)
    box = folder_store.user()
    first = box.save(request(), parts_of(tmp_path / "src", "device"))
    with path.open("r+b") as file:
        file.seek(30 * MB + 12345)
        file.write(noise(first.bytes // 100, 99))
    second = box.save(request(), parts_of(tmp_path / "src", "device"))
    assert second.sent_bytes <= 2 * CHUNK + 20_000
    box.restore("s", into=tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "src")


def test_a_new_storage_does_not_shift_the_others(folder_store: StoreBox, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    path = tmp_path / "src/r.snap"
    storages = [noise(3 * MB + 1000 * n, n) for n in range(8)]
    snapshot(path, storages)
    box = folder_store.user()
    box.save(request(), parts_of(tmp_path / "src", "device"))
    snapshot(path, [noise(200_000, 77), *storages])
    second = box.save(request(), parts_of(tmp_path / "src", "device"))
    assert second.sent_bytes < 300_000
    box.restore("s", into=tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "src")


def test_equal_buffers_of_ranks_are_stored_once(folder_store: StoreBox, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    replicas = [noise(2 * MB + 5000, n) for n in range(4)]
    snapshot(tmp_path / "src/r0.snap", [noise(70_000, 8), *replicas])
    snapshot(tmp_path / "src/r1.snap", [*replicas, noise(50, 9)])
    saved = folder_store.user().save(request(), parts_of(tmp_path / "src", "device"))
    assert saved.bytes > 16 * MB
    assert saved.sent_bytes < 8.6 * MB


def test_scattered_and_inserted_pages(folder_store: StoreBox, tmp_path: Path) -> None:
    """A second image of a process: changed pages are sent, and little else."""
    (tmp_path / "src").mkdir()
    path = tmp_path / "src/pages-1.img"
    path.write_bytes(noise(16 * MB, 1))
    box = folder_store.user()
    first = box.save(request(), parts_of(tmp_path / "src", "image"))
    change_pages(path, list(range(0, 4096, 100)), 2)
    data = path.read_bytes()
    path.write_bytes(data[: 7 * PAGE] + noise(PAGE, 3) + data[7 * PAGE :])
    second = box.save(request(), parts_of(tmp_path / "src", "image"))
    assert second.sent_bytes * 20 < first.sent_bytes
    pages = 42
    assert second.sent_bytes < (pages + 8) * PAGE
    third = box.save(request(), parts_of(tmp_path / "src", "image"))
    assert third.sent_bytes < 5000  # the pages of both are known
    box.restore("s", into=tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "src")


def test_images_through_many_generations(folder_store: StoreBox, tmp_path: Path) -> None:
    """Chunks that are hardly used any more are given up; contents stay right all the way."""
    (tmp_path / "src").mkdir()
    path = tmp_path / "src/pages-1.img"
    path.write_bytes(noise(4 * MB, 1))
    box = folder_store.user()
    for generation in range(12):
        saved = box.save(request(), parts_of(tmp_path / "src", "image"))
        assert box.verify("s") > 0
        box.restore("s", into=tmp_path / f"out{generation}")
        assert contents(tmp_path / f"out{generation}") == contents(tmp_path / "src")
        assert saved.stored_bytes < 2.2 * 4 * MB
        change_pages(path, [(n * 37 + generation * 11) % 1024 for n in range(90)], generation)
    for checkpoint in box.list("s")[:-1]:
        box.delete("s", checkpoint.id)
    box.collect(spare_s=0)
    box.restore("s", into=tmp_path / "last")
    assert box.verify("s") > 0


def test_small_files_share_objects(folder_store: StoreBox, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(300):
        (source / f"{number}.img").write_bytes(noise(200 + number * 11, number))
    box = folder_store.user()
    box.save(request(), parts_of(source, "image"))
    assert len(box.manifest("s").chunks) < 20
    (source / "150x.img").write_bytes(b"inserted")
    again = box.save(request(), parts_of(source, "image"))
    assert again.sent_bytes < again.bytes / 2
    box.restore("s", into=tmp_path / "out")
    assert contents(tmp_path / "out") == contents(source)


def test_sparse_files_stay_sparse(folder_store: StoreBox, tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.seek(200 * MB)
        file.write(b"island")
        file.truncate(1000 * MB + 7)
    with (source / "hole").open("wb") as file:
        file.truncate(50 * MB)
    box = folder_store.user()
    for kind in ("scratch", "ring", "device"):
        saved = box.save(request(session=kind), parts_of(source, kind))
        assert saved.bytes == 1050 * MB + 7
        assert saved.stored_bytes < 10_000
        restored = box.restore(kind, into=tmp_path / kind)
        assert restored.bytes == saved.bytes
        info = os.stat(tmp_path / kind / "sparse")
        assert info.st_size == 1000 * MB + 7
        assert info.st_blocks * 512 < 5 * MB
        with (tmp_path / kind / "sparse").open("rb") as file:
            file.seek(200 * MB - 1)
            assert file.read(8) == b"\0island\0"
    extents = box.manifest("scratch").parts[0].extents
    assert all(extent.chunk == ZERO for extent in extents)


def test_wrong_requests(folder_store: StoreBox) -> None:
    box = folder_store.user()
    with pytest.raises(BadRequest, match="level"):
        request(level="everything")
    with pytest.raises(BadRequest, match="id"):
        request(id="../x")
    with pytest.raises(BadRequest, match="kind"):
        Part("x", "thing", "/x")
    with pytest.raises(BadRequest, match="two parts"):
        box.save(request(), [Part("x", "record", data=b"1"), Part("x", "record", data=b"2")])
    with pytest.raises(NotFound):
        box.find("s")
    with pytest.raises(NotFound):
        box.restore("s", "no such", into="/nowhere")


def test_cancel(stores: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    box, cancel = stores.user(), threading.Event()
    first = box.save(request(), parts)
    change_pages(tmp_path / "src/pages-1.img", list(range(100)), 1)
    steps: list[str] = []

    def stop(step: str) -> None:
        steps.append(step)
        if step == "save.pinned":
            cancel.set()

    with pytest.raises(CheckpointCancelled, match="cancelled; older checkpoints were kept"):
        box.save(request(name="n"), parts, cancel=cancel, on_step=stop)
    assert "save.published" not in steps
    assert box.list("s") == [first]
    assert box.head("s").writing == ()
    with pytest.raises(CheckpointCancelled):
        box.restore("s", into=tmp_path / "out", cancel=cancel)
    assert contents(tmp_path / "out") == {}


def test_a_save_that_broke_off_is_resumed(stores: StoreBox, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(6):
        (tmp_path / f"src/{number}").write_bytes(noise(2 * MB, number))
    parts = parts_of(tmp_path / "src")
    box, sent = stores.user(), 0

    def fail(step: str) -> None:
        nonlocal sent
        sent += step == "save.chunk"
        if sent == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        box.save(request(), parts, on_step=fail, threads=1)
    saved = box.save(request(), parts)
    assert saved.sent_bytes < 2.1 * 2 * MB
    assert saved.stored_bytes > 6 * 2 * MB
    assert box.verify("s") == 6


def test_users_share_nothing(stores: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    alice, bob = stores.user("alice"), stores.user("bob/../alice")
    first = alice.save(request(), parts)
    second = bob.save(request(), parts)
    assert second.sent_bytes == pytest.approx(first.sent_bytes, rel=0.01)
    assert [c.id for c in alice.list("s")] == [first.id]
    names = {c.id for c in alice.manifest("s").chunks} & {c.id for c in bob.manifest("s").chunks}
    assert bool(names) == (stores.keys is None)  # with keys not even the names are the same
    alice.forget("s")
    alice.collect(spare_s=0)
    assert bob.verify("s") > 0


def test_a_fenced_writer_cannot_publish(stores: StoreBox, tmp_path: Path) -> None:
    """Frozen past its lease, it wakes up and goes on: the session is another's by then."""
    parts = some_files(tmp_path / "src")
    old, new = stores.user(), stores.user()
    first = old.save(request(epoch=3), parts)
    newer: list[str] = []

    def overtaken(step: str) -> None:
        if step == "save.manifest":
            newer.append(new.save(request(epoch=4), parts).id)

    with pytest.raises(StaleEpoch, match=r"epoch 3 is over.*older checkpoints were kept"):
        old.save(request(epoch=3), parts, on_step=overtaken)
    assert [c.id for c in new.list("s")] == [first.id, *newer]
    assert new.head("s").checkpoint == newer[0]
    assert new.head("s").writing == ()
    with pytest.raises(StaleEpoch):
        old.save(request(epoch=3), parts)
    with pytest.raises(StaleEpoch):
        old.delete("s", first.id, epoch=3)
    with pytest.raises(StaleEpoch):
        old.forget("s", epoch=3)
    assert [c.id for c in new.list("s")] == [first.id, *newer]


def test_a_claim_fences_before_anything_is_saved(stores: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    old, new = stores.user(), stores.user()

    def claim(step: str) -> None:
        if step == "save.chunks":
            new.claim("s", 2)

    with pytest.raises(StaleEpoch):
        old.save(request(epoch=1), parts, on_step=claim)
    assert new.list("s") == []
    with pytest.raises(StaleEpoch):
        old.claim("s", 1)
    new.claim("s", 2)


def test_two_writers_at_once(stores: StoreBox, tmp_path: Path) -> None:
    """Of one epoch and session: both are listed, one is the head's."""
    parts = some_files(tmp_path / "src")
    failures: list[BaseException] = []

    def save(number: int) -> None:
        try:
            stores.user().save(request(id=f"c{number}"), parts)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    box = stores.user()
    assert {c.id for c in box.list("s")} == {"c0", "c1", "c2"}
    assert box.head("s").checkpoint == box.list("s")[-1].id
    for number in range(3):
        assert box.verify("s", f"c{number}") > 0


def test_keys_rotate(folder_store: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    store = folder_store.open()
    first, second = new_key("first"), new_key("second")
    before = Checkpoints(store, "alice", ListedKeys(first, "test")).save(request(), parts)
    rotated = Checkpoints(store, "alice", ListedKeys(f"{second}\n{first}", "test"))
    after = rotated.save(request(), parts)
    assert (before.key, after.key) == ("first", "second")
    for checkpoint in (before, after):
        rotated.restore("s", checkpoint.id, into=tmp_path / checkpoint.id)
    assert contents(tmp_path / before.id) == contents(tmp_path / after.id)
    for box, missing in (
        (Checkpoints(store, "alice", ListedKeys(second, "the file")), "first"),
        (Checkpoints(store, "alice"), "first"),
    ):
        with pytest.raises(KeyUnavailable, match=missing):
            box.restore("s", before.id, into=tmp_path / "nothing")
        assert [c.id for c in box.list("s")] == [before.id, after.id]


def test_nothing_readable_is_stored_when_encrypted(folder_store: StoreBox, tmp_path: Path) -> None:
    secret = b"the quick brown fox " * 10_000
    (tmp_path / "my-secret-plan.txt").write_bytes(secret)
    part = Part("my-secret-plan.txt", "scratch", str(tmp_path / "my-secret-plan.txt"))
    key = folder_store.keys.current()  # type: ignore[union-attr]
    folder_store.user().save(request(), [part])
    stored = b"".join(contents(Path(folder_store.url)).values())
    assert b"quick" not in stored
    assert b"plan" not in stored
    assert key.secret not in stored
    assert key.secret.hex() not in repr(key)
    assert repr(key.secret) not in repr(key)


def test_lists_do_not_read_manifests(folder_store: StoreBox, tmp_path: Path) -> None:
    parts = some_files(tmp_path / "src")
    box = folder_store.user()
    for number in range(3):
        box.save(request(name=f"n{number}"), parts)
    read: list[str] = []
    original = box.store.read
    box.store.read = lambda key: read.append(key) or original(key)  # type: ignore[method-assign,func-returns-value]
    assert [c.name for c in box.list("s")] == ["n0", "n1", "n2"]
    assert read == ["alice/sessions/s/head"]
    assert len(json.dumps(box.head("s").to_bytes().decode())) < 5000
