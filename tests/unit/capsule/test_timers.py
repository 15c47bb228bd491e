"""Periodic timers in a process image."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from singularity_proxy.capsule.images.format import encode_message, encode_number, fields, messages
from singularity_proxy.capsule.images.timers import wind_up
from singularity_proxy.errors import ImageFailed

MAGIC = b"magic8by"


def entry(ticks: int, value: tuple[int, int], every: tuple[int, int]) -> bytes:
    numbers = [
        (1, 7),
        (2, 0),
        (4, 1),
        (5, ticks),
        (6, 0),
        *zip((7, 8, 9, 10), (*value, *every), strict=True),
    ]
    timer = encode_message(3, b"") + b"".join(encode_number(*one) for one in numbers)
    return encode_number(1, 17) + encode_number(2, 7) + encode_message(12, timer)


def after(folder: Path, one: bytes) -> list[int]:
    """Seconds and nanoseconds until it rings, and between two rings."""
    path = folder / "files.img"
    path.write_bytes(MAGIC + struct.pack("<I", len(one)) + one)
    wind_up(str(folder))
    [changed] = messages(path.read_bytes())
    [timer] = [f.value for f in fields(changed) if f.number == 12]
    return [f.number_value for f in fields(timer) if f.number >= 7]


@pytest.mark.parametrize(
    ("ticks", "value", "every", "expected"),
    [
        (1, (0, 0), (2, 5), [2, 5, 2, 5]),  # it has rung and nobody has read that
        (0, (1, 4), (2, 5), [1, 4, 2, 5]),
        (1, (0, 0), (0, 0), [0, 0, 0, 0]),  # it rings once
        (0, (0, 0), (2, 5), [0, 0, 2, 5]),  # it is off
    ],
)
def test_a_periodic_timer_that_has_rung_rings_again(
    ticks: int,
    value: tuple[int, int],
    every: tuple[int, int],
    expected: list[int],
    tmp_path: Path,
) -> None:
    assert after(tmp_path, entry(ticks, value, every)) == expected


def test_an_image_that_is_not_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "files.img").write_bytes(MAGIC + b"\xff\xff\0\0abc")
    with pytest.raises(ImageFailed, match="not where they are expected"):
        wind_up(str(tmp_path))
