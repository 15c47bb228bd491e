"""What becomes of TCP sockets in an image: kept on the loopback address, or closed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from singularity_proxy.capsule.connections import (
    are_in,
    changed_files,
    close_others,
    needing_them,
)
from singularity_proxy.errors import ImageFailed

MAGIC = bytes.fromhex("1943565438313056")
ESTABLISHED, CLOSE, LISTEN = 1, 7, 10


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def words(address: str) -> list[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    return list(struct.unpack(f"={len(packed) // 4}I", packed))


def socket_entry(
    inode: int, state: int, source: tuple[str, int], target: tuple[str, int], more: bytes = b""
) -> bytes:
    """A `file_entry` of a TCP socket, as CRIU writes it."""
    family = socket.AF_INET6 if ":" in source[0] else socket.AF_INET
    isk = b"".join(
        [
            *(number(1 + n, v) for n, v in enumerate((inode + 100, inode, family, 1, 6, state))),
            number(7, source[1]),
            number(8, target[1]),
            text(14, b"options"),
            *(number(11, word) for word in words(source[0])),
            *(number(12, word) for word in words(target[0])),
            more,
        ]
    )
    return number(1, 4) + number(2, inode + 100) + text(4, isk)


def image(*entries: bytes) -> bytes:
    return MAGIC + b"".join(struct.pack("<I", len(entry)) + entry for entry in entries)


PLAIN_FILE = number(1, 1) + number(2, 9) + text(3, b"a file") + varint(21 << 3 | 5) + b"four"
LISTENS = socket_entry(1, LISTEN, ("::", 80), ("::", 0))
SHUT = number(19, 3)


def test_what_is_kept_stays_as_it_is_and_the_rest_is_closed() -> None:
    near = socket_entry(2, ESTABLISHED, ("127.0.0.1", 5000), ("127.0.0.1", 80))
    mapped = socket_entry(3, ESTABLISHED, ("::ffff:127.0.0.1", 80), ("::ffff:127.0.0.1", 5000))
    far = socket_entry(4, ESTABLISHED, ("10.0.0.7", 5001), ("10.0.0.1", 443), number(19, 1))
    changed, found = changed_files(image(PLAIN_FILE, LISTENS, near, mapped, far), {2, 3})
    closed = socket_entry(4, CLOSE, ("10.0.0.7", 0), ("10.0.0.1", 0), SHUT)
    assert changed == image(PLAIN_FILE, LISTENS, near, mapped, closed)
    assert found == {n: f"tcp-stream-{n:x}.img" for n in (2, 3, 4)}


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("10.0.0.7", "127.0.0.1"),
        ("::ffff:10.0.0.7", "::ffff:127.0.0.1"),
        ("fd00::2", "::1"),
        ("127.9.9.9", "127.9.9.9"),
        ("::1", "::1"),
    ],
)
def test_a_kept_connection_does_not_depend_on_the_node(address: str, loopback: str) -> None:
    ends = (address, 5000), (address, 80)
    before = image(socket_entry(2, ESTABLISHED, *ends, text(17, b"eth0")))
    changed, _ = changed_files(before, {2})
    if address == loopback:
        assert changed == before
    else:
        there = (loopback, 5000), (loopback, 80)
        assert changed == image(socket_entry(2, ESTABLISHED, *there))


def test_the_data_of_what_is_closed_is_removed(tmp_path: Path) -> None:
    near, far = ("127.0.0.1", 5000), ("127.0.0.1", 80)
    entries = [socket_entry(10, ESTABLISHED, near, far), socket_entry(11, ESTABLISHED, far, near)]
    (tmp_path / "files.img").write_bytes(image(*entries, LISTENS))
    for inode in (10, 11):
        (tmp_path / f"tcp-stream-{inode:x}.img").write_bytes(b"data")
    close_others(str(tmp_path), {10})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["files.img", "tcp-stream-a.img"]
    assert are_in(str(tmp_path))
    close_others(str(tmp_path), set())
    assert not are_in(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (image(PLAIN_FILE), "1 connections are not in it"),
        (image(LISTENS)[:-3], "cut off"),
        (MAGIC + struct.pack("<I", 1) + b"\x0b", "a field of kind 3"),
        (MAGIC + struct.pack("<I", 2) + b"\x0a\x09", "cut off"),
        (MAGIC + b"\x01", ""),
    ],
)
def test_an_image_of_another_kind_is_refused_with_one_sentence(
    data: bytes, why: str, tmp_path: Path
) -> None:
    (tmp_path / "files.img").write_bytes(data)
    with pytest.raises(ImageFailed, match=r"not where they are expected.*goes on as it was") as got:
        close_others(str(tmp_path), {7})
    assert why in got.value.message
    assert got.value.fields["intact"] is True
    assert (tmp_path / "files.img").read_bytes() == data


def test_ranks_of_torchrun_need_their_connections() -> None:
    environ = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    with subprocess.Popen(["cat"], env=environ, stdin=-1, stdout=-1, bufsize=0) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdin.write(b"x")
        assert rank.stdout.read(1) == b"x"  # it runs
        try:
            assert needing_them([os.getpid(), rank.pid]) == rank.pid
            assert needing_them([os.getpid()]) is None
        finally:
            rank.kill()
    assert needing_them([rank.pid]) is None
