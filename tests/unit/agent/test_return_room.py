"""Whether there is room for a checkpoint that a live session is to go back to, looked at before."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import NoSpace
from singularity_scheduler.agent.store import return_checks

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """A node whose disk has 8 MiB free, and its shared memory 4."""
    for name in ("images", "shm/s1"):
        (tmp_path / name).mkdir(parents=True)
    settings = SimpleNamespace(
        images_dir=str(tmp_path / "images"),
        shm_dir=str(tmp_path / "shm"),
        session_shm=lambda session: str(tmp_path / "shm" / session),
    )
    return SimpleNamespace(settings=settings)


@pytest.fixture(autouse=True)
def free(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = {node.settings.images_dir: 8 * MIB, node.settings.shm_dir: 4 * MIB}

    def statvfs(path: str) -> Any:
        return SimpleNamespace(f_bavail=blocks[path] // 4096, f_frsize=4096)

    monkeypatch.setattr(return_checks.os, "statvfs", statvfs)


def look(node: Any, **parts: int) -> None:
    live = SimpleNamespace(record=SimpleNamespace(session="s1"))
    stored = {kind: {"bytes": size} for kind, size in parts.items()}
    summary: Any = SimpleNamespace(parts=stored, name="", id="k1")
    return_checks._check_room(node, live, summary)  # type: ignore[arg-type]


def test_what_fits_is_let_through(node: Any) -> None:
    look(node, image=6 * MIB, scratch=2 * MIB, device=3 * MIB, ring=MIB)


def test_what_does_not_fit_is_named(node: Any) -> None:
    with pytest.raises(NoSpace) as caught:
        look(node, image=6 * MIB, scratch=3 * MIB)
    assert caught.value.message == (
        f"checkpoint k1 needs 9 MiB in {node.settings.images_dir} and 8 MiB are free"
    )
    with pytest.raises(NoSpace, match=f"in {node.settings.shm_dir} and 4 MiB are free"):
        look(node, device=5 * MIB)


def test_what_the_session_has_itself_is_free_once_it_has_left(node: Any) -> None:
    own = Path(node.settings.session_shm("s1")) / "state.snap"
    own.write_bytes(os.urandom(2 * MIB))
    look(node, device=6 * MIB)
    with pytest.raises(NoSpace):
        look(node, device=7 * MIB)
