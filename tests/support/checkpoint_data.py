"""Files to save: snapshots as the device proxy writes them, page images, small files."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request

PAGE = 4096
MB = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress; the same for one seed."""
    return random.Random(seed).randbytes(size)


def snapshot(path: Path, storages: list[bytes], seq: int = 1) -> None:
    """A device state file with these storages, laid out as `snapshot.h` says."""
    table_bytes = 8 + 32 * len(storages) + 4 * 4 + 12 + 64
    at = data = -(-(64 + table_bytes) // PAGE) * PAGE
    rows, places = b"", []
    for number, contents in enumerate(storages):
        align = PAGE if len(contents) >= 65536 else 64
        at = -(-at // align) * align
        rows += struct.pack("<QQQII", number + 1, len(contents), at, 0, 0)
        places.append(at)
        at += len(contents)
    table = struct.pack("<Q", len(storages)) + rows
    table += bytes(table_bytes - len(table))
    checksum = 0xCBF29CE484222325
    for byte in table:
        checksum = ((checksum ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    head = struct.pack("<8sIIQQQQQQ", b"SINGSNAP", 1, 0, seq, 0, table_bytes, data, at, checksum)
    with path.open("wb") as file:
        file.write(head + table)
        for place, contents in zip(places, storages, strict=True):
            file.seek(place)
            file.write(contents)
        file.truncate(at)


def parts_of(folder: Path, kind: str = "scratch") -> list[Part]:
    """All files below a folder, one part each."""
    return [
        Part(str(path.relative_to(folder)), kind, str(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def change_pages(path: Path, numbers: list[int], seed: int) -> None:
    """New contents for some pages of a file."""
    with path.open("r+b") as file:
        for number in numbers:
            file.seek(number * PAGE)
            file.write(noise(PAGE, seed * 1000003 + number))
        file.flush()
        os.utime(path)


def request(**changes: object) -> Request:
    return Request(**{"session": "s", "epoch": 1, "level": "process", **changes})  # type: ignore[arg-type]


def some_files(folder: Path) -> list[Part]:
    """A bit of everything."""
    folder.mkdir()
    snapshot(folder / "r0.snap", [noise(3 * MB, 1), noise(100, 2), bytes(MB), noise(300_000, 3)])
    (folder / "pages-1.img").write_bytes(noise(2 * MB, 4) + bytes(MB) + noise(5 * PAGE, 5) + b"xy")
    (folder / "core-1.img").write_bytes(b"core" * 50)
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_bytes(b"compressible " * 200_000)
    kinds = {".snap": "device", ".img": "image"}
    parts = []
    for path in sorted(folder.iterdir()):
        kind = kinds.get(path.suffix, "scratch")
        parts.append(Part(f"{kind}/{path.name}", kind, str(path)))
    return parts
