"""Which writers a collector takes for dead: by the store's clock alone, whatever their own say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from singularity_proxy.checkpoint import heads
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.cleaning.collect import DEAD_AFTER_S, FULL_DEAD_AFTER_S
from singularity_proxy.checkpoint.layout import SessionKeys, UserKeys
from singularity_proxy.checkpoint.stores.folder import FolderStore

SESSION = SessionKeys(UserKeys("alice").sessions + "s")


@pytest.mark.parametrize(
    "clock", ["1970-01-01T00:00:00.000+00:00", "2999-01-01T00:00:00.000+00:00"]
)
def test_the_clock_of_a_writer_s_machine_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    monkeypatch.setattr(heads, "_now", lambda: clock)
    box = Checkpoints(FolderStore(str(tmp_path)), "alice")
    box.store.prepare()
    for checkpoint in ("c1", "c2"):
        heads.Heads(box.store, UserKeys("alice")).register(SESSION, checkpoint, 1)
    assert box.collect(dead_after_s=FULL_DEAD_AFTER_S).writers == 0, "they have just begun"
    assert len(box.head("s").writing) == 2
    entry = box.store.stat(SESSION.head)
    assert entry is not None
    long_ago = entry.modified - DEAD_AFTER_S - 60
    os.utime(tmp_path / SESSION.head, (long_ago, long_ago))
    assert box.collect().writers == 2, "nothing was heard of them since"
    assert box.head("s").writing == ()


def test_what_is_half_written_is_judged_by_the_store_s_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Checkpoints(FolderStore(str(tmp_path)), "alice")
    box.store.prepare()
    half = tmp_path / ".tmp" / "1-2-3"
    half.write_text("half")
    monkeypatch.setattr("time.time", lambda: 4e9)  # of the machine of the collector
    box.collect()
    assert half.exists()
    os.utime(half, (1, 1))
    box.collect()
    assert not half.exists()
