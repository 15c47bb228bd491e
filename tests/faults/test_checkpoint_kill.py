"""kill -9 at every step of a checkpoint, a collection, a deletion and a restore.

Afterwards the checkpoint before is whole, nothing half-written is listed, the next save works, and
what was left behind is collected.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from singularity_proxy.checkpoint import steps
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.errors import StaleEpoch, Superseded
from support.checkpoint_data import change_pages, contents, noise
from support.matrix import some_of

PROGRAM = Path(__file__).parent.parent / "support/checkpoint_program.py"
MB = 1 << 20


def start(what: dict[str, object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(what)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(what: dict[str, object]) -> int:
    with start(what) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "pages-1.img").write_bytes(noise(2 * MB, 1))
    (folder / "state").write_bytes(noise(9 * MB, 2))
    (folder / "small.img").write_bytes(noise(1000, 3))
    return folder


def save(tmp_path: Path, source: Path, **more: object) -> int:
    options = {"session": "s", "epoch": 1, **more.pop("options", {})}  # type: ignore[dict-item]
    what = {"action": "save", "store": str(tmp_path / "store"), "source": str(source)}
    return run({**what, "options": options, **more})


def check(tmp_path: Path, listed: int, newest: dict[str, bytes]) -> Checkpoints:
    """So many checkpoints are listed, each is whole, and the newest has these contents; after a
    collection nothing is stored that nobody needs."""
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    assert len(box.list("s")) == listed
    assert box.collect(spare_s=0, dead_after_s=0) is not None
    for checkpoint in box.list("s"):
        assert box.verify("s", checkpoint.id) > 0
    box.restore("s", into=tmp_path / "restored")
    assert contents(tmp_path / "restored") == newest
    needed = {c.id for x in box.list("s") for c in box.manifest("s", x.id).chunks}
    expected = {f"alice/chunks/{id[:2]}/{id}" for id in needed}
    expected |= {"alice/clock", "alice/sessions/s/head"}
    expected |= {f"alice/sessions/s/checkpoints/{c.id}" for c in box.list("s")}
    assert {e.key for e in box.store.list("alice/")} == expected
    assert box.head("s").writing == ()
    return box


SAVE_POINTS = [
    *((step, 1) for step in steps.SAVE),
    *(
        (step, count)
        for step in ("folder.written", "folder.synced", "folder.renamed")
        for count in (1, 4, 8)
    ),
    *(("folder.swap", count) for count in (1, 2)),
    ("save.chunk", 3),
]


def test_every_step_has_a_test() -> None:
    assert {step for step, _ in SAVE_POINTS} | {"folder.delete"} == {*steps.SAVE, *steps.FOLDER}


@pytest.mark.parametrize(("step", "count"), some_of(SAVE_POINTS, 9))
def test_killed_while_saving(tmp_path: Path, source: Path, step: str, count: int) -> None:
    assert save(tmp_path, source) == 0
    before = contents(source)
    change_pages(source / "pages-1.img", [3, 99, 400], 5)
    (source / "state").write_bytes(noise(9 * MB, 6))
    after = contents(source)
    assert save(tmp_path, source, step=step, count=count) == -signal.SIGKILL
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    made = len(box.list("s")) == 2
    if step.startswith("save."):  # one of "folder." may be before or after the head moved
        assert made == (step in ("save.published", "save.unpinned"))
    box = check(tmp_path, 2 if made else 1, after if made else before)
    assert save(tmp_path, source) == 0
    box.restore("s", into=tmp_path / "again")
    assert contents(tmp_path / "again") == after


@pytest.mark.parametrize("step", some_of([*steps.COLLECT, "folder.delete"], 6))
def test_killed_while_collecting(tmp_path: Path, source: Path, step: str) -> None:
    for generation in range(3):
        (source / "state").write_bytes(noise(9 * MB, generation))
        assert save(tmp_path, source) == 0
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    for checkpoint in box.list("s")[:2]:
        box.delete("s", checkpoint.id)
    what = {"action": "collect", "store": str(tmp_path / "store"), "options": {"spare_s": 0}}
    assert run({**what, "step": step}) == -signal.SIGKILL
    # A save that wants what was condemned, right after: that content was in the first checkpoint.
    (source / "state").write_bytes(noise(9 * MB, 0))
    assert save(tmp_path, source) == 0
    check(tmp_path, 2, contents(source))


@pytest.mark.parametrize("step", list(steps.DELETE))
def test_killed_while_deleting(tmp_path: Path, source: Path, step: str) -> None:
    assert save(tmp_path, source, options={"id": "one"}) == 0
    (source / "state").write_bytes(noise(9 * MB, 7))
    assert save(tmp_path, source) == 0
    what = {"action": "delete", "store": str(tmp_path / "store"), "checkpoint": "one"}
    assert run({**what, "step": step}) == -signal.SIGKILL
    check(tmp_path, 1, contents(source))


@pytest.mark.parametrize("step", list(steps.RESTORE))
def test_killed_while_restoring(tmp_path: Path, source: Path, step: str) -> None:
    assert save(tmp_path, source) == 0
    what = {"action": "restore", "store": str(tmp_path / "store"), "target": str(tmp_path / "out")}
    assert run({**what, "step": step}) == -signal.SIGKILL
    check(tmp_path, 1, contents(source))


def stopped(tmp_path: Path, what: dict[str, object]) -> subprocess.Popen[str]:
    """A process that has stopped itself at its step."""
    process = start({"store": str(tmp_path / "store"), "signal": "SIGSTOP", **what})
    status = Path(f"/proc/{process.pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize("step", ["save.registered", "save.chunk", "save.manifest", "folder.swap"])
def test_a_writer_that_wakes_up_too_late(tmp_path: Path, source: Path, step: str) -> None:
    """Frozen past its lease: another agent has the session, and its garbage has been collected."""
    assert save(tmp_path, source) == 0
    first = contents(source)
    (source / "state").write_bytes(noise(9 * MB, 8))
    options = {"session": "s", "epoch": 1}
    what = {"action": "save", "source": str(source), "options": options, "step": step}
    if step == "folder.swap":  # it holds the lock of the head there, so nobody can overtake it
        process = stopped(tmp_path, {**what, "count": 2})
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
        process.communicate()
        check(tmp_path, 2, contents(source))
        return
    process = stopped(tmp_path, what)
    try:
        box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
        box.claim("s", 2)
        box.collect(spare_s=0, dead_after_s=0)
    finally:
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert StaleEpoch.__name__ in errors
    check(tmp_path, 1, first)


def test_a_writer_that_was_taken_for_dead(tmp_path: Path, source: Path) -> None:
    """Of the same epoch, but silent for so long that its chunks were collected."""
    assert save(tmp_path, source) == 0
    first = contents(source)
    (source / "state").write_bytes(noise(9 * MB, 8))
    options = {"session": "s", "epoch": 1}
    process = stopped(
        tmp_path,
        {"action": "save", "source": str(source), "options": options, "step": "save.manifest"},
    )
    try:
        box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
        collected = box.collect(spare_s=0, dead_after_s=0)
        assert (collected.writers, collected.chunks) == (1, 3)
    finally:
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert Superseded.__name__ in errors
    check(tmp_path, 1, first)


@pytest.mark.parametrize("step", ["collect.listed", "collect.condemned", "collect.judged_again"])
@pytest.mark.parametrize("pardoned", [False, True])
def test_a_collector_that_wakes_up_too_late(
    tmp_path: Path, source: Path, step: str, pardoned: bool
) -> None:
    """What it was about to remove has been taken into use meanwhile."""
    assert save(tmp_path, source, options={"id": "one"}) == 0
    wanted = contents(source)
    (source / "state").write_bytes(noise(9 * MB, 8))
    assert save(tmp_path, source) == 0
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    box.delete("s", "one")
    process = stopped(tmp_path, {"action": "collect", "options": {"spare_s": 0}, "step": step})
    try:
        if pardoned:
            box.collect(dead_after_s=-1)
        (source / "state").write_bytes(wanted["state"])
        assert save(tmp_path, source) == 0
        saved = box.list("s")[-1]
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert box.verify("s", saved.id) > 0
    check(tmp_path, 2, contents(source))
