"""What a session will take in the store is known before anything of it is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_scheduler.agent.store import estimates
from support.checkpoint_data import noise

MB = 1 << 20

CODE = """
import os, sys, time
random, zeros, same = os.urandom(48 << 20), bytearray(64 << 20), b"page" * (8 << 20)
zeros[::4096] = bytes(len(zeros) // 4096)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def pid() -> Iterator[int]:
    """A process with 48 MiB of noise, 64 MiB of zeros and 32 MiB that compress to nothing."""
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_memory_counts_as_much_as_it_will_take(pid: int, tmp_path: Path) -> None:
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    memory = estimates._anonymous(pid)
    assert 144 * MB < memory < 180 * MB
    sample = estimates._sample([pid])
    assert len(sample) == estimates.PAGES * 4096
    need = memory * box.measure_pages("s", sample)
    assert 30 * MB < need < 70 * MB


def test_no_more_memory_is_read_than_is_looked_at(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    assert len(estimates._sample([pid])) == estimates.PAGES * 4096
    assert sizes.count(4096) == estimates.PAGES
    assert sizes.count(8) <= estimates.PROBES
    assert {*sizes} == {8, 4096}


def test_what_the_newest_checkpoint_has_costs_nothing(tmp_path: Path) -> None:
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    pages, image = noise(2 * MB, 1), tmp_path / "pages-1.img"
    assert box.measure_pages("s", pages) > 0.99
    image.write_bytes(pages)
    box.save(Request("s", 1, "process"), [Part("pages-1.img", "image", str(image))])
    assert box.measure_pages("s", pages) == 0
    assert 0.3 < box.measure_pages("s", pages + noise(MB, 2)) < 0.4
    assert box.measure_pages("s", b"") == 1  # nobody could look
    assert 0.6 < box.measure_pieces([noise(2 * MB, 7), bytes(MB)]) < 0.7
    box.save(Request("s", 1, "files"), [Part("x", "scratch", data=noise(MB, 3))])
    (tmp_path / "piece").write_bytes(noise(MB, 4))
    box.save(Request("s", 1, "files"), [Part("y", "scratch", str(tmp_path / "piece"))])
    assert box.measure_pieces([noise(MB, 4)]) == 0
