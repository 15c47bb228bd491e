"""What a proof asks of the files that a session has open, and how it opens them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.files.kinds import Kind, Lock
from singularity_proxy.capsule.files.record import Descriptor, OpenFile, Record
from singularity_proxy.capsule.files.rehearsal import Rehearsal, rehearse
from singularity_proxy.capsule.files.rules import Action
from singularity_proxy.capsule.sockets import TcpSocket
from singularity_proxy.errors import OpenFilesChanged

LOCK = Lock("flock", True, 0, None)


class User:
    """Stands for the helper with the user's rights; `found`: path -> how the file is."""

    def __init__(self, **found: str) -> None:
        self.found = found
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __call__(
        self, do: str, files: list[dict[str, Any]], *rights: Any, **more: Any
    ) -> list[dict[str, Any]]:
        self.asked += [(do, one) for one in files]
        if do != "examine":
            return [{"copy": one["path"], "inode": [1, 99]} for one in files]
        return [
            {
                "found": self.found.get(os.path.basename(one["path"]), "same"),
                "locked": False,
                "size": 10,
                "inode": [1, 2],
                "device": 1,
                "folder": [1, 3],
            }
            for one in files
        ]


def opened(path: Path, use: str = "write", flags: int = os.O_RDWR, **more: Any) -> OpenFile:
    held = [] if use == "mapped" else [Descriptor(5001, 7, flags, 4, [LOCK])]
    return OpenFile(str(path), "outside", use, 10, 0, device=1, folder=3, held=held, **more)


def tried(
    monkeypatch: pytest.MonkeyPatch, user: User, *files: OpenFile, made: tuple[str, ...] = ()
) -> Rehearsal:
    monkeypatch.setattr(reconcile, "as_user", user)
    record = Record([], list(files), [TcpSocket("127.0.0.1:80", "", True)])
    return rehearse(record, own=("/s", "/away/s"), made=made)


def test_nothing_is_made_locked_or_opened_for_writing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = User(grown="longer", gone="missing", shrunk="shorter")
    names = ("same", "grown", "gone", "shrunk")
    got = tried(monkeypatch, user, *(opened(tmp_path / name) for name in names))
    assert {one["use"] for do, one in user.asked if do == "examine"} == {"read"}
    assert not any(one["locks"] for do, one in user.asked if do == "examine")
    made = [one["path"] for do, one in user.asked if do == "put right"]
    assert made == ["/away/s/closed-files/0"], "in the folder that is thrown away"
    actions = {os.path.basename(one.path): one.action for one in got.plan.changes}
    assert actions == {
        "same": Action.READ,
        "grown": Action.READ,
        "gone": Action.SEVER,
        "shrunk": Action.READ,
    }
    assert got.plan.unlocked == {(5001, 7)}
    assert got.views == ()
    assert all(one.inode is None for one in got.plan.changes if not one.target)


def test_what_is_written_in_memory_or_made_has_a_view(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b", "b/c", "d"):
        (tmp_path / name).mkdir()
    got = tried(
        monkeypatch,
        User(),
        opened(tmp_path / "a/data", mapped=True),
        opened(tmp_path / "b/weights", "mapped"),
        opened(tmp_path / "d/library", "library"),
        made=(str(tmp_path / "b/c/socket"), str(tmp_path / "nowhere/deleted"), "\0abstract"),
    )
    assert got.views == (str(tmp_path / "a"), str(tmp_path / "b"))
    actions = {os.path.basename(one.path): one.action for one in got.plan.changes}
    assert actions == {"data": Action.KEEP, "weights": Action.KEEP}


def test_the_index_of_a_database_has_a_stand_in_that_can_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = User(**{"db-shm": "missing"})
    got = tried(
        monkeypatch,
        user,
        opened(tmp_path / "db", kind=Kind.SQLITE.value, wal=True),
        opened(tmp_path / "db-shm", kind=Kind.WAL_INDEX.value, mapped=True),
    )
    [index] = [one for one in got.plan.changes if one.path.endswith("-shm")]
    assert (index.action, index.target) == (Action.ANEW, "/s/closed-files/0")


def test_a_part_of_its_memory_that_is_gone_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(OpenFilesChanged, match="weights"):
        tried(monkeypatch, User(weights="missing"), opened(tmp_path / "weights", "mapped"))
