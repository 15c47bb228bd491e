"""The ring file from Python: layout, states, wake-ups, hostile files."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NoSpace
from singularity_proxy.wire import ring as ring_module
from singularity_proxy.wire.ring import HEADER_BYTES, RingFile, RingState


def make(path: Path, **changes: object) -> RingFile:
    options: dict[str, object] = {
        "virtual_device": 3,
        "device_type": "cuda",
        "memory_capacity": 1 << 32,
        "request_bytes": 8192,
        "reply_bytes": 4096,
    }
    options.update(changes)
    return RingFile.create(path, **options)  # type: ignore[arg-type]


def test_layout_is_the_agreed_one(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = make(path)
    data = path.read_bytes()
    assert len(data) == HEADER_BYTES + 8192 + 4096
    assert struct.unpack_from("<QIIQQ", data, 0) == (0x53494E4752494E47, 1, 3, 8192, 4096)
    assert struct.unpack_from("<II", data, 64) == (0, 0)
    assert struct.unpack_from("<I", data, 88) == (1,)
    assert struct.unpack_from("<Q", data, 96) == (1 << 32,)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring.set_epoch(9)
    ring.fail("the device is gone; restart the kernel")
    data = path.read_bytes()
    assert struct.unpack_from("<Q", data, 72) == (9,)
    assert struct.unpack_from("<I", data, 64) == (3,)
    assert data[1024:].split(b"\0", 1)[0] == b"the device is gone; restart the kernel"
    ring.close()


def test_all_memory_is_reserved(tmp_path: Path) -> None:
    ring = make(tmp_path / "a.ring")
    assert os.stat(ring.path).st_blocks * 512 >= HEADER_BYTES + 8192 + 4096
    ring.close()


def test_header_words_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = make(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        for offset, value in {92: 1, 68: 7}.items():
            page[offset : offset + 4] = struct.pack("<I", value)
        for offset, value in {80: 11, 104: 12, 112: 13, 120: 14, 640: 15, 648: 16, 704: 17}.items():
            page[offset : offset + 8] = struct.pack("<Q", value)
        page[128:136] = struct.pack("<Q", 5)
        head = ring.read()
    assert (head.worker_waiting, head.generation, head.heartbeat_ns) == (True, 7, 11)
    assert (head.memory_current, head.memory_peak, head.last_record_ns) == (12, 13, 14)
    assert (head.done_seq, head.error_seq, head.replied_seq, head.pending) == (15, 16, 17, True)
    ring.close()


def test_long_failure_is_cut_and_terminated(tmp_path: Path) -> None:
    ring = make(tmp_path / "a.ring")
    ring.fail("x" * 9000)
    assert ring.failure() == "x" * 7167
    ring.close()


def test_set_state_wakes_a_sleeper_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = make(path)
    sleeper = f"""
import ctypes, mmap
file = open({str(path)!r}, "r+b")
page = mmap.mmap(file.fileno(), 4096)
word = ctypes.c_uint32.from_buffer(page, 64)
print("ready", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
while word.value == 0:
    libc.syscall(ctypes.c_long({ring_module._SYS_FUTEX["x86_64"]}),
                 ctypes.c_void_p(ctypes.addressof(word)), 0, 0, None, None, 0)
print(word.value, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        ring.set_state(RingState.ATTACHED)
        assert child.stdout.readline() == b"1\n"
        assert child.wait(20) == 0
    ring.close()


def test_a_truncated_file_never_ends_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = make(path)
    os.truncate(path, 0)
    assert ring.read().done_seq == 0
    ring.fail("gone")
    os.truncate(path, 0)
    ring.wake()
    ring.retire()
    assert not path.exists()


def test_open_refuses_what_is_no_ring(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    for name in ("short", "link", "fifo", "dir"):
        with pytest.raises(Conflict, match="not a ring file"):
            RingFile.open(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        RingFile.open(tmp_path / "none")


def test_create_refuses_bad_sizes_types_and_existing_files(tmp_path: Path) -> None:
    for changes in ({"request_bytes": 5000}, {"reply_bytes": 0}, {"device_type": "tpu"}):
        with pytest.raises(BadRequest):
            make(tmp_path / "a.ring", **changes)
    assert not (tmp_path / "a.ring").exists()
    make(tmp_path / "a.ring").close()
    with pytest.raises(FileExistsError):
        make(tmp_path / "a.ring")


def test_no_room_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpace, match="no room for a device ring"):
        make(tmp_path / "a.ring")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_the_file_is_handed_to_its_user(tmp_path: Path) -> None:
    ring = make(tmp_path / "a.ring", owner=(12345, 12346))
    info = os.stat(ring.path)
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (12345, 12346, 0o600)
    ring.close()


def test_retire_closes_for_the_worker_and_removes(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    ring = make(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
        ring.retire()
        ring.retire()
        assert ctypes.c_uint32.from_buffer_copy(page, 64).value == RingState.CLOSED
    assert not path.exists()
