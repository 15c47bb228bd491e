"""Files in a process image: what is changed in it, and what is left."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from singularity_proxy.capsule.files.links import use_names
from singularity_proxy.capsule.files.reconcile import Change, Plan
from singularity_proxy.capsule.files.rules import Action
from singularity_proxy.capsule.images.files import apply
from singularity_proxy.capsule.images.format import (
    change_messages,
    encode_message,
    encode_number,
    fields,
)
from singularity_proxy.errors import ImageFailed

MAGIC = b"magic8by"


def reg(id: int, path: str, flags: int, position: int, size: int = 10) -> bytes:
    numbers = [(1, id), (2, flags), (3, position)]
    body = b"".join(encode_number(field, value) for field, value in numbers)
    body += encode_message(6, path.encode()) + encode_number(8, size) + encode_number(10, 0o100644)
    return encode_number(1, 1) + encode_number(2, id) + encode_message(3, body)


def image(folder: Path, name: str, *messages: bytes) -> None:
    packed = b"".join(struct.pack("<I", len(one)) + one for one in messages)
    (folder / name).write_bytes(MAGIC + packed)


def files(folder: Path) -> dict[int, dict[int, int | bytes]]:
    found: dict[int, dict[int, int | bytes]] = {}

    def see(message: bytes) -> bytes:
        for one in fields(message):
            if one.number == 3:
                values = {f.number: f.value or f.number_value for f in fields(one.value)}
                found[int(values[1])] = values
        return message

    change_messages((folder / "files.img").read_bytes(), see)
    return found


def test_what_was_decided_is_what_criu_will_open(tmp_path: Path) -> None:
    image(
        tmp_path,
        "files.img",
        reg(1, "/home/log", os.O_WRONLY, 10),
        reg(2, "/home/log", os.O_RDONLY, 4),
        reg(3, "/home/data", os.O_RDWR, 5),
        reg(4, "/home/gone", os.O_RDWR | os.O_CLOEXEC, 5),
        reg(5, "/home/made", os.O_WRONLY, 10),
        reg(6, "/lib/x.so", os.O_RDONLY, 0),
        reg(7, "/home/log", os.O_WRONLY, 10),
    )
    image(tmp_path, "remap-fpath.img", encode_number(1, 7) + encode_number(2, 9))
    before = files(tmp_path)
    plan = Plan(
        [
            Change("/home/log", Action.END, 10, 50),
            Change("/home/data", Action.READ),
            Change("/home/gone", Action.SEVER, target="/s/closed-files/0"),
            Change("/home/made", Action.ANEW),
        ]
    )
    for _ in range(2):  # the second time from how it was taken, too
        apply(str(tmp_path), plan)
        now = files(tmp_path)
        assert now[1] == {1: 1, 2: os.O_WRONLY, 3: 50, 6: b"/home/log"}
        assert now[2] == {1: 2, 2: os.O_RDONLY, 3: 4, 6: b"/home/log"}
        assert now[3] == {1: 3, 2: os.O_RDONLY, 3: 5, 6: b"/home/data"}
        assert now[4][2] == os.O_PATH | os.O_CLOEXEC
        assert now[4][6] == b"/s/closed-files/0"
        assert now[5][3] == 0
        # A library is CRIU's to check, and a deleted file's name is not this one's.
        assert (now[6], now[7]) == (before[6], before[7])


def test_locks_that_were_lost_are_not_waited_for(tmp_path: Path) -> None:
    image(tmp_path, "files.img")
    locks = [encode_number(3, 5001) + encode_number(4, fd) for fd in (6, 7)]
    image(tmp_path, "filelocks.img", *locks)
    apply(str(tmp_path), Plan([], frozenset({(5001, 6)})))
    kept = struct.pack("<I", len(locks[1])) + locks[1]
    assert (tmp_path / "filelocks.img").read_bytes() == MAGIC + kept


def test_an_image_that_is_not_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "files.img").write_bytes(MAGIC + b"\xff\xff\0\0abc")
    with pytest.raises(ImageFailed, match="not where they are expected"):
        apply(str(tmp_path), Plan())


def test_a_file_is_opened_by_the_name_that_is_left(tmp_path: Path) -> None:
    image(
        tmp_path,
        "files.img",
        reg(1, "/dev/shm/sem.x", os.O_RDWR, 0),
        reg(2, "/dev/shm/link_remap.2", os.O_RDWR, 0),
        reg(3, "/tmp/deleted", os.O_RDWR, 0),
    )
    link = encode_number(1, 1) + encode_number(2, 2) + encode_number(3, 0)
    ghost = encode_number(1, 3) + encode_number(2, 9) + encode_number(3, 1)
    image(tmp_path, "remap-fpath.img", link, ghost)
    with pytest.raises(ImageFailed, match=r"/dev/shm/sem\.x, which was deleted"):
        use_names(str(tmp_path), {})
    use_names(str(tmp_path), {"/dev/shm/sem.x": "/dev/shm/sem.named"})
    now = files(tmp_path)
    assert (now[1][6], now[3][6]) == (b"/dev/shm/sem.named", b"/tmp/deleted")
    kept = struct.pack("<I", len(ghost)) + ghost
    assert (tmp_path / "remap-fpath.img").read_bytes() == MAGIC + kept
