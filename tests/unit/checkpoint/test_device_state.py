"""Snapshots and journals as their users could have changed them; and contents put back."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.device import contents
from singularity_proxy.checkpoint.device import state as device_state
from singularity_proxy.checkpoint.device.contents import PutBack, put_back
from singularity_proxy.checkpoint.device.state import DamagedState, Journal, Snapshot, has_records
from singularity_proxy.errors import Conflict

Places = dict[int, tuple[int, int]]
"""Storage -> (bytes, offset)."""


def laid_out(sizes: dict[int, int], begin: int = 4096) -> Places:
    """Where the device proxy puts small storages of these sizes."""
    places: Places = {}
    for number, size in sizes.items():
        begin = (begin + 63) & ~63
        places[number] = (size, begin)
        begin += size
    return places


def snapshot(
    path: Path,
    places: Places,
    fill: int = 0,
    *,
    state: bytes = b"",
    name: bytes = b"aten::mm",
    device: int = 0,
    **changed: int,
) -> Path:
    """A snapshot with one operator and one generator; every byte of its storages is `fill`."""
    table = struct.pack("<Q", len(places))
    for number, (size, offset) in places.items():
        table += struct.pack("<QQQII", number, size, offset, 0, 0)
    table += struct.pack("<IIIQ", 1, len(name), 0, 7) + name
    table += struct.pack("<IQI", 1, 0, len(state)) + state
    table += struct.pack("<IIQI", 0, 0, 0, 0) + bytes(64)
    ends = [size + offset for size, offset in places.values()]
    end = min(max([4096, *ends]), 8192)
    words = {
        "table_bytes": len(table),
        "data_offset": 4096,
        "file_bytes": end,
        "checksum": device_state._fnv1a(table),
        **changed,
    }
    head = struct.pack("<8sIIQQQQQQ", b"SINGSNAP", 1, device, 9, 0, *words.values())
    path.write_bytes((head + table).ljust(4096, b"\0") + bytes([fill]) * (end - 4096))
    return path


def journal(path: Path, end: int, entries: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<8sIIQQ", b"SINGJRNL", 1, 0, 3, end).ljust(4096, b"\0") + entries)
    return path


def test_a_storage_beside_an_empty_one_is_put_back(tmp_path: Path) -> None:
    places = laid_out({1: 16, 2: 0, 3: 16, 4: 0})
    assert places[2][1] == places[3][1]
    old = snapshot(tmp_path / "old", places, 1, state=b"then")
    now = snapshot(tmp_path / "now", places, 2, state=b"here")
    assert put_back(old, now) == PutBack(storages=4, bytes=32, generators=1)
    with Snapshot(now) as after:
        assert [after.storage(number) for number in (1, 2, 3)] == [b"\1" * 16, b"", b"\1" * 16]
        assert after.generators == {0: b"then"}


def test_two_numbers_of_one_storage_count_once_and_others_stay(tmp_path: Path) -> None:
    then = laid_out({1: 16, 5: 32, 6: 8})
    here = laid_out({1: 16, 5: 48, 7: 8})
    then[2], here[2] = then[1], here[1]
    old, now = snapshot(tmp_path / "old", then, 1), snapshot(tmp_path / "now", here, 2)
    done = put_back(old, now)
    assert (done.storages, done.missing, done.newer) == (2, 2, 2)
    with Snapshot(now) as after:
        assert after.storage(2) == b"\1" * 16
        assert after.storage(5) == b"\2" * 48
    assert contents.missing_from(old).missing == 4


def test_states_of_other_devices_are_kept_apart(tmp_path: Path) -> None:
    old = snapshot(tmp_path / "old", {}, device=1)
    with pytest.raises(Conflict, match="of a cuda device and the session now has a cpu"):
        put_back(old, snapshot(tmp_path / "now", {}))


@pytest.mark.parametrize(
    "places",
    [
        {1: (16, 8192)},
        {1: (16, 1 << 63)},
        {1: (0, 1 << 63)},
        {1: (16, 4096), 2: (1 << 40, 4112)},
        {1: ((1 << 64) - 4096, 4096)},
        {1: (64, 4096), 2: (64, 4097)},
        {1: (64, 4096), 2: (32, 4096)},
        {1: (16, 0)},
    ],
    ids=str,
)
def test_storages_that_cannot_be_there_are_refused(tmp_path: Path, places: Places) -> None:
    """The agent would copy nothing for ever, or one byte a million times."""
    bad = snapshot(tmp_path / "bad", places, file_bytes=4160)
    os.truncate(bad, 4160)
    with pytest.raises(DamagedState, match="is damaged"):
        put_back(bad, snapshot(tmp_path / "good", laid_out({1: 16})))


def test_contents_that_end_too_early_end_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = laid_out({1: 16})
    old, now = snapshot(tmp_path / "old", places), snapshot(tmp_path / "now", places)
    monkeypatch.setattr(Snapshot, "storage", lambda *_: b"")
    with pytest.raises(DamagedState, match="ends in the middle of storage 1"):
        put_back(old, now)


def test_a_table_has_an_end(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "x", {}, table_bytes=1 << 32, file_bytes=1 << 33)
    os.truncate(path, 1 << 33)  # a hole
    with pytest.raises(DamagedState, match="longer than 64 MiB"):
        Snapshot(path)
    path = snapshot(tmp_path / "x", {}, table_bytes=4096)
    with pytest.raises(DamagedState, match="cut short"):
        Snapshot(path)


def test_a_name_that_is_no_text_is_no_reason_to_fail(tmp_path: Path) -> None:
    with Snapshot(snapshot(tmp_path / "x", {}, name=b"\xff\xfe")) as found:
        assert found.operators == ["\ufffd\ufffd"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", [Snapshot, Journal])
def test_only_a_plain_file_is_read(reader: type[Snapshot | Journal], short_dir: Path) -> None:
    folder = short_dir
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    snapshot(folder / "state", {})
    (folder / "link").symlink_to(folder / "state")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        for name in ("fifo", "folder", "link", "socket", "/dev/null"):
            with pytest.raises(DamagedState, match="is not a plain file"):
                reader(folder / name)
    with pytest.raises(FileNotFoundError):
        reader(folder / "none")


def test_whether_a_journal_holds_anything(tmp_path: Path) -> None:
    def said(path: Path) -> bool:
        fd = os.open(path, os.O_RDONLY)
        try:
            return has_records(fd, str(path))
        finally:
            os.close(fd)

    assert not said(journal(tmp_path / "j", 4096))
    assert said(journal(tmp_path / "j", 4128))
    journal(tmp_path / "j", 4128)
    for size in (0, 31):
        os.truncate(tmp_path / "j", size)
        with pytest.raises(DamagedState, match="is not a journal"):
            said(tmp_path / "j")


@pytest.mark.parametrize(
    ("end", "entries", "sentence"),
    [
        (100, b"", "is not a journal"),
        (5000, b"", "is cut short"),
        (4104, bytes(8), "is damaged behind byte 4096"),
        (4128, bytes(32), "is damaged behind byte 4096"),
        (4128, struct.pack("<I", 1 << 31).ljust(32, b"\0"), "is damaged behind byte 4096"),
        (4160, struct.pack("<I", 40).ljust(64, b"\0"), "is damaged behind byte 4136"),
    ],
)
def test_a_journal_ends_where_its_file_does(
    tmp_path: Path, end: int, entries: bytes, sentence: str
) -> None:
    path = journal(tmp_path / "j", end, entries)
    with pytest.raises(DamagedState, match=sentence), Journal(path) as found:
        list(found)
