"""The state files of a ring read without torch: what people and the node agent see of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_proxy.checkpoint.__main__ import main
from singularity_proxy.checkpoint.device.state import DamagedState, Journal, Snapshot
from support import proxy_device as w
from support.proxy_device import Device, Proxies, RingClient, T, Value


@pytest.fixture
def files(proxies: Proxies, ring: RingClient, short_dir: Path) -> tuple[Path, Path]:
    """(snapshot, journal) of storages of 0, 16, 70,000 and 16 bytes."""
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 20)
    for storage, size in ((1, 16), (2, 0), (3, 70_000), (4, 16)):
        ring.allocate(storage, size)
    ring.op("fill_.Scalar", T(3, (17_500,)), Value(1.5), flags=w.NO_OUTPUTS)
    ring.write(4, w.pack_floats([4, 3, 2, 1]))
    ring.op("mm", T(1, (2, 2)), T(1, (4,)), base=5)
    ring.op("randn", [4], w.FLOAT, None, Device(), None, base=6)
    ring.sync()
    proxy.call("checkpoint", directory=str(short_dir / "c"))
    proxy.kill()
    return short_dir / "c" / "ring.snap", ring.path.with_suffix(".journal")


def test_a_snapshot_holds_every_storage(files: tuple[Path, Path]) -> None:
    with Snapshot(files[0]) as snapshot:
        assert snapshot.storage_bytes == {1: 16, 2: 0, 3: 70_000, 4: 16, 6: 16}
        assert snapshot.storage(2) == b""
        assert snapshot.storage(3) == w.pack_floats([1.5]) * 17_500
        assert snapshot.storage(4) == w.pack_floats([4, 3, 2, 1])
        assert snapshot.device_type == "cpu"
        assert snapshot.operators == ["aten::fill_.Scalar", "aten::mm", "aten::randn"]
        assert snapshot.failed == {5: "aten::mm: mat2 must be a matrix"}
        assert list(snapshot.generators) == [0]


def test_people_can_look_at_them(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(path) for path in files]) == 0
    out = capsys.readouterr().out
    assert "cpu device state at record 12" in out
    assert "5 storages, 70048 bytes" in out
    assert "failed earlier: aten::mm: mat2 must be a matrix" in out
    assert "journal of records 1 to 12" in out


def test_damage_is_one_sentence(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = files[0].read_bytes()
    for data, sentence in (
        (whole[:90], "is cut short"),
        (whole[:30], "too short to be a state file"),
        (whole[:80] + b"\xff" + whole[81:], "is damaged"),
        (b"x" * 200, "is not a device state of version 1"),
    ):
        path = tmp_path / "damaged"
        path.write_bytes(data)
        with pytest.raises(DamagedState, match=sentence):
            Snapshot(path)
    journal = tmp_path / "journal"
    journal.write_bytes(files[1].read_bytes()[:8] + b"\x09" + bytes(5000))
    with pytest.raises(DamagedState, match="is not a journal of version 1"):
        Journal(journal)
    assert main([str(tmp_path / "damaged"), str(tmp_path / "missing")]) == 1
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 2
