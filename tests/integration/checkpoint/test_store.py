"""What writers and collectors rely on in every store."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from singularity_proxy.checkpoint.stores.base import Moved, ObjectMissing, ObjectStore
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import BadRequest
from support.checkpoint_stores import StoreBox


def test_objects_are_whole_or_not_there(stores: StoreBox) -> None:
    store = stores.open()
    with pytest.raises(ObjectMissing):
        store.get("u/a")
    assert store.stat("u/a") is None
    store.put("u/a", [b"one", bytearray(b"two"), memoryview(b"three")])
    store.put("u/empty", [b""], durable=False)
    store.flush()
    assert store.get("u/a") == b"onetwothree"
    entry = store.stat("u/a")
    assert entry is not None
    assert (entry.key, entry.size) == ("u/a", 11)
    store.put("u/a", [b"x"])
    assert store.get("u/a") == b"x"
    assert store.get("u/empty") == b""
    for _ in range(2):
        store.delete("u/a")
        assert store.stat("u/a") is None
    assert store.get("u/empty") == b""


def test_listing(stores: StoreBox) -> None:
    store = stores.open()
    keys = ["u/c/ab/x1", "u/c/ab/x2", "u/c/cd/x3", "u/s@x/h", "u/s%2Fy/h", "v/c/ab/x1"]
    for key in keys:
        store.put(key, [key.encode()])
    listed = {entry.key: entry for entry in store.list("u/")}
    assert sorted(listed) == sorted(keys[:5])
    assert listed["u/c/cd/x3"].size == len("u/c/cd/x3")
    assert listed["u/c/cd/x3"] == store.stat("u/c/cd/x3")
    assert {entry.key for entry in store.list("u/c/ab/")} == {"u/c/ab/x1", "u/c/ab/x2"}
    assert set(store.names("u/")) == {"c", "s@x", "s%2Fy"}
    assert {"u", "v"} <= set(store.names(""))
    assert list(store.list("nobody/")) == []
    assert list(store.names("nobody/")) == []


def test_conditional_deletes(stores: StoreBox) -> None:
    store = stores.open()
    store.put("u/a", [b"1"])
    first = store.stat("u/a")
    assert first is not None
    assert store.touch("u/a")
    second = store.stat("u/a")
    assert second is not None
    assert second.etag != first.etag
    assert store.get("u/a") == b"1"
    assert not store.delete_if("u/a", first.etag)
    store.put("u/a", [b"1"])
    assert not store.delete_if("u/a", second.etag)
    third = store.read("u/a")[1]
    assert store.delete_if("u/a", third)
    assert not store.touch("u/a")
    assert not store.delete_if("u/a", third)


def test_compare_and_swap(stores: StoreBox) -> None:
    store = stores.open()
    with pytest.raises(Moved):
        store.swap("u/head", b"0", "0-0-0")
    first = store.swap("u/head", b"1", None)
    assert store.read("u/head") == (b"1", first)
    with pytest.raises(Moved):
        store.swap("u/head", b"2", None)
    second = store.swap("u/head", b"2", first)
    with pytest.raises(Moved):
        store.swap("u/head", b"3", first)
    assert store.read("u/head") == (b"2", second)


def test_one_of_many_swaps_wins(stores: StoreBox) -> None:
    connections = [stores.open() for _ in range(4)]
    etag: str | None = None
    for round_ in range(5):
        start = threading.Barrier(len(connections))

        def race(item: tuple[int, ObjectStore]) -> str | None:
            start.wait()  # noqa: B023
            try:
                return item[1].swap("u/head", f"{round_} {item[0]}".encode(), etag)  # noqa: B023
            except Moved:
                return None

        with ThreadPoolExecutor(len(connections)) as pool:
            winners = [e for e in pool.map(race, enumerate(connections)) if e]
        assert len(winners) == 1
        etag = winners[0]
        assert connections[0].read("u/head")[1] == etag


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/.b", "a b", "a\0", "a/"])
def test_keys_stay_in_their_store(folder_store: StoreBox, key: str) -> None:
    store = folder_store.open()
    with pytest.raises(BadRequest):
        store.put(key, [b"x"])
    with pytest.raises(BadRequest):
        store.get(key)


def test_a_folder_is_its_owners_alone(folder_store: StoreBox) -> None:
    store = folder_store.open()
    old = os.umask(0)
    try:
        store.put("u/c/ab/x", [b"x"])
    finally:
        os.umask(old)
    for folder, _, files in os.walk(folder_store.url):
        assert os.stat(folder).st_mode & 0o077 == 0
        for name in files:
            assert os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0


def test_what_a_killed_writer_left_is_swept(folder_store: StoreBox) -> None:
    store = folder_store.open()
    leftover = os.path.join(folder_store.url, ".tmp", "1-2-3")
    with open(leftover, "w") as file:
        file.write("half")
    assert store.sweep(time.time() - 3600) == 0
    os.utime(leftover, (1, 1))
    assert store.sweep(time.time() - 3600) == 1
    assert not os.path.exists(leftover)


@pytest.mark.parametrize("url", ["relative/folder", "ftp://bucket/x", "file://relative"])
def test_urls_that_are_no_store(url: str) -> None:
    with pytest.raises(BadRequest):
        open_store(url)
