"""A flipped bit, a lost object, a full disk: found, named, and nothing else is harmed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.manifest import Summary
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.base import Entry, decimal_size
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.errors import DamagedCheckpoint, NoSpace, StoreUnavailable
from support.checkpoint_data import contents, noise, parts_of
from support.checkpoint_stores import StoreBox

MB = 1 << 20


def two_checkpoints(box: Checkpoints, folder: Path) -> tuple[Summary, Summary]:
    """They share `same`; `different` is another file in each."""
    folder.mkdir()
    (folder / "same").write_bytes(noise(300_000, 1))
    (folder / "different").write_bytes(noise(300_000, 2))
    first = box.save(Request("s", 1, "files", name="first"), parts_of(folder))
    (folder / "different").write_bytes(noise(300_000, 3))
    second = box.save(Request("s", 1, "files"), parts_of(folder))
    return first, second


def chunk_entry(box: Checkpoints, checkpoint: Summary, part: str) -> Entry:
    manifest = box.manifest("s", checkpoint.id)
    extent = next(p for p in manifest.parts if p.name == part).extents[0]
    id = manifest.chunks[extent.chunk].id
    return next(e for e in box.store.list("alice/chunks/") if e.key.endswith(id))


def flip(box: Checkpoints, key: str, at: int) -> None:
    data = bytearray(box.store.get(key))
    data[at] ^= 0x10
    box.store.put(key, [data])


@pytest.mark.parametrize("at", [0, 5, 100, -1])
def test_a_flipped_bit_is_found_and_named(stores: StoreBox, tmp_path: Path, at: int) -> None:
    box = stores.user()
    first, second = two_checkpoints(box, tmp_path / "src")
    entry = chunk_entry(box, second, "different")
    flip(box, entry.key, at)
    with pytest.raises(DamagedCheckpoint) as caught:
        box.restore("s", into=tmp_path / "out")
    fields = caught.value.fields
    assert (fields["part"], fields["checkpoint"]) == ("different", second.id)
    assert entry.key.endswith(fields["chunk"])
    assert fields["older"] == first.id
    assert first.id in caught.value.message
    assert contents(tmp_path / "out") == {}
    with pytest.raises(DamagedCheckpoint):
        box.verify("s")
    restored = box.restore("s", fields["older"], into=tmp_path / "older")
    assert restored.summary == first
    assert (tmp_path / "older/different").read_bytes() == noise(300_000, 2)


def test_a_missing_chunk_is_found(stores: StoreBox, tmp_path: Path) -> None:
    box = stores.user()
    first, second = two_checkpoints(box, tmp_path / "src")
    box.store.delete(chunk_entry(box, second, "different").key)
    with pytest.raises(DamagedCheckpoint, match="missing") as caught:
        box.restore("s", into=tmp_path / "out")
    assert caught.value.fields["older"] == first.id


def test_what_is_not_there_is_found_without_reading_it(stores: StoreBox, tmp_path: Path) -> None:
    box = stores.user()
    first, second = two_checkpoints(box, tmp_path / "src")
    box.check_chunks("s")
    entry = chunk_entry(box, second, "different")
    whole = box.store.get(entry.key)
    box.store.put(entry.key, [whole[:-1]])
    with pytest.raises(DamagedCheckpoint, match="its length is wrong") as caught:
        box.check_chunks("s")
    assert caught.value.fields["part"] == "different"
    box.store.put(entry.key, [whole])
    box.check_chunks("s")  # what was found damaged is read, and is not any more
    flip(box, entry.key, -1)
    with pytest.raises(DamagedCheckpoint):
        box.check_chunks("s")
    box.store.delete(entry.key)
    with pytest.raises(DamagedCheckpoint, match="it is missing") as caught:
        box.check_chunks("s")
    assert caught.value.fields["older"] == first.id
    box.check_chunks("s", first.id)


def test_an_older_checkpoint_that_shares_the_damage_is_not_offered(
    folder_store: StoreBox, tmp_path: Path
) -> None:
    box = folder_store.user()
    _, second = two_checkpoints(box, tmp_path / "src")
    flip(box, chunk_entry(box, second, "same").key, 50)
    with pytest.raises(DamagedCheckpoint, match="no older checkpoint") as caught:
        box.restore("s", into=tmp_path / "out")
    assert caught.value.fields["older"] is None


@pytest.mark.parametrize("how", ["flip", "delete"])
def test_a_damaged_manifest(folder_store: StoreBox, tmp_path: Path, how: str) -> None:
    box = folder_store.user()
    first, second = two_checkpoints(box, tmp_path / "src")
    key = f"alice/sessions/s/checkpoints/{second.id}"
    if how == "flip":
        flip(box, key, 40)
    else:
        box.store.delete(key)
    with pytest.raises(DamagedCheckpoint) as caught:
        box.restore("s", into=tmp_path / "out")
    assert caught.value.fields["part"] == "manifest"
    assert caught.value.fields["older"] == first.id
    # Nothing is removed while it is not known what that checkpoint needs.
    before = {e.key for e in box.store.list("alice/chunks/")}
    with pytest.raises(DamagedCheckpoint):
        box.collect(spare_s=0)
    assert {e.key for e in box.store.list("alice/chunks/")} == before
    # The next save goes on without it, and once it is off the list all is well.
    third = box.save(Request("s", 1, "files"), parts_of(tmp_path / "src"))
    box.delete("s", second.id)
    box.collect(spare_s=0)
    assert box.verify("s", first.id) == box.verify("s", third.id) == 2


def test_the_next_save_repairs_what_was_found_damaged(stores: StoreBox, tmp_path: Path) -> None:
    box = stores.user()
    first, second = two_checkpoints(box, tmp_path / "src")
    flip(box, chunk_entry(box, second, "same").key, 50)
    with pytest.raises(DamagedCheckpoint):
        box.verify("s")
    third = box.save(Request("s", 1, "files"), parts_of(tmp_path / "src"))
    assert 300_000 < third.sent_bytes < 400_000
    for checkpoint in (first, second, third):
        assert box.verify("s", checkpoint.id) == 2
    assert list(box.store.list("alice/damaged/")) == []


def test_an_object_of_another_checkpoint_is_noticed(folder_store: StoreBox, tmp_path: Path) -> None:
    """Somebody who can write to the store swaps two whole, encrypted objects."""
    box = folder_store.user()
    _, second = two_checkpoints(box, tmp_path / "src")
    one, other = (chunk_entry(box, second, name).key for name in ("same", "different"))
    box.store.put(one, [box.store.get(other)])
    with pytest.raises(DamagedCheckpoint):
        box.verify("s")


def test_a_damaged_head_is_told(folder_store: StoreBox, tmp_path: Path) -> None:
    box = folder_store.user()
    two_checkpoints(box, tmp_path / "src")
    box.store.put("alice/sessions/s/head", [b"{}"])
    with pytest.raises(DamagedCheckpoint, match="head"):
        box.list("s")


@pytest.mark.parametrize("step", ["folder.written", "folder.swap"])
def test_a_full_disk_is_one_sentence(folder_store: StoreBox, tmp_path: Path, step: str) -> None:
    box = folder_store.user()
    _, second = two_checkpoints(box, tmp_path / "src")
    (tmp_path / "src/different").write_bytes(noise(300_000, 9))
    assert isinstance(box.store, FolderStore)
    count = 0

    def full(name: str) -> None:
        nonlocal count
        count += name == step
        if name == step and count > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    box.store.on_step = full
    with pytest.raises(NoSpace) as caught:
        box.save(Request("s", 1, "files", name="n"), parts_of(tmp_path / "src"))
    assert caught.value.message == (
        "checkpoint 'n' of session s was not made: the checkpoint store "
        f"{folder_store.url} is full (No space left on device): deleting the older checkpoints of "
        f"session s would free {decimal_size(box.freeable()[0].older)}; older checkpoints were kept"
    )
    box.store.on_step = lambda name: None
    assert box.find("s") == second
    assert box.verify("s") == 2
    assert os.listdir(Path(folder_store.url) / ".tmp") == []


@pytest.mark.root
def test_a_really_full_disk(folder_store: StoreBox, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=2m tmpfs {small} 2>/dev/null"):
        pytest.skip("mounting a tmpfs is not possible here")
    try:
        box = Checkpoints(FolderStore(str(small / "store")), "alice")
        part = Part("x", "scratch", data=noise(1_200_000, 1))
        first = box.save(Request("s", 1, "files"), [part])
        big = Part("x", "scratch", data=noise(1_500_000, 2))
        with pytest.raises(NoSpace, match="older checkpoints were kept"):
            box.save(Request("s", 1, "files"), [big])
        assert box.find("s") == first
        assert box.verify("s") == 1
        box.restore("s", into=tmp_path / "out")
        with pytest.raises(NoSpace, match="what was written was removed, the checkpoint is kept"):
            box.restore("s", into=small / "out")
        assert contents(small / "out") == {}
        del box
    finally:
        assert os.system(f"umount {small}") == 0


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        FolderStore(str(tmp_path / "file/store"))
