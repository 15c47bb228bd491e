"""Saving files while others of the same checkpoint are still being written."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.checkpoint.progress import Progress
from singularity_proxy.checkpoint.saving.feed import Feed
from singularity_proxy.errors import BadRequest, ImageFailed
from support.checkpoint_data import MB, contents, noise, parts_of, request
from support.checkpoint_stores import StoreBox


def two_files(folder: Path) -> list[Any]:
    folder.mkdir()
    (folder / "first").write_bytes(noise(80 * MB, 1))
    (folder / "second").write_bytes(noise(3 * MB, 2))
    return parts_of(folder, "device")


def test_what_is_complete_is_sent_while_the_rest_is_made(stores: StoreBox, tmp_path: Path) -> None:
    first, second = two_files(tmp_path / "src")
    feed, record, told = Feed(90 * MB), {}, list[Progress]()
    sent = threading.Event()

    def progress(now: Progress) -> None:
        told.append(now)
        if now.bytes_sent:
            sent.set()

    wanted = request(record=record)
    with ThreadPoolExecutor() as pool:
        saving = pool.submit(stores.user().save, wanted, feed, progress=progress)
        feed.add([first])
        in_time = sent.wait(60)
        listed = stores.user().list("s")
        record["known"] = "at the end"
        feed.add([second])
        feed.finish()
        saved = saving.result(60)
    assert in_time
    assert listed == []
    assert told[0].bytes_total == 90 * MB  # as it was expected; at last as it is
    assert told[-1].bytes_done == told[-1].bytes_total == saved.bytes == 83 * MB
    restored = stores.user().restore("s", into=tmp_path / "out")
    assert restored.record == {"known": "at the end"}
    names = {part.name: Path(part.path).read_bytes() for part in (first, second)}
    assert contents(tmp_path / "out") == names


def test_a_feed_that_fails_lists_nothing(stores: StoreBox, tmp_path: Path) -> None:
    first, second = two_files(tmp_path / "src")
    box = stores.user()
    before = box.save(request(), [second])
    feed = Feed()
    feed.add([first])
    feed.fail(ImageFailed("no image", step="dump", log=[]))
    with pytest.raises(ImageFailed, match="no image; older checkpoints were kept"):
        box.save(request(), feed)
    assert box.list("s") == [before]
    assert not box.head("s").writing


def test_a_feed_has_no_name_twice(stores: StoreBox, tmp_path: Path) -> None:
    second = two_files(tmp_path / "src")[1]
    feed = Feed()
    feed.add([second])
    feed.add([second])
    feed.finish()
    with pytest.raises(BadRequest, match="two parts"):
        stores.user().save(request(), feed)
    assert stores.user().list("s") == []
