"""Sessions without a leader in a process image."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from singularity_proxy.capsule.images.daemons import lead_own_sessions
from singularity_proxy.capsule.images.format import encode_number, fields, messages
from singularity_proxy.errors import ImageFailed

MAGIC = b"magic8by"


def write(folder: Path, *processes: tuple[int, int, int, int]) -> None:
    """Each process: pid, parent, group, session."""
    packed = MAGIC
    for numbers in processes:
        message = b"".join(encode_number(at, value) for at, value in enumerate(numbers, 1))
        message += encode_number(5, numbers[0])
        packed += struct.pack("<I", len(message)) + message
    (folder / "pstree.img").write_bytes(packed)


def read(folder: Path) -> list[tuple[int, ...]]:
    data = (folder / "pstree.img").read_bytes()
    return [tuple(f.number_value for f in fields(m))[:4] for m in messages(data)]


def test_the_first_of_a_session_whose_leader_ended_leads_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        (5001, 0, 5001, 5001),
        (5002, 5001, 5002, 5001),  # a kernel
        (5010, 5001, 5009, 5009),  # a daemon after a double fork,
        (5011, 5010, 5009, 5009),  # its child in its group,
        (5012, 5010, 5012, 5009),  # one in a group of its own,
        (5013, 5011, 5013, 5013),  # and one with a session of its own
        (5020, 5001, 5020, 5020),
        (5031, 5001, 5030, 5030),  # two daemons of one session
        (5032, 5001, 5030, 5030),
    )
    lead_own_sessions(str(tmp_path))
    assert read(tmp_path) == [
        (5001, 0, 5001, 5001),
        (5002, 5001, 5002, 5001),
        (5010, 5001, 5010, 5010),
        (5011, 5010, 5010, 5010),
        (5012, 5010, 5012, 5010),
        (5013, 5011, 5013, 5013),
        (5020, 5001, 5020, 5020),
        (5031, 5001, 5031, 5031),
        (5032, 5001, 5032, 5032),
    ]


def test_an_image_without_daemons_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, (5001, 0, 5001, 5001), (5002, 5001, 5002, 5001))
    before = (tmp_path / "pstree.img").read_bytes()
    lead_own_sessions(str(tmp_path))
    assert (tmp_path / "pstree.img").read_bytes() == before


def test_an_image_that_is_not_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "pstree.img").write_bytes(MAGIC + b"\xff\xff\0\0abc")
    with pytest.raises(ImageFailed, match="not where they are expected"):
        lead_own_sessions(str(tmp_path))
