"""Histories of kernels in the one that their user shares: each line once, under its numbers."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import histories
from singularity_proxy.capsule.files.histories import About, merge, write_about

IPYTHON = (
    "create table sessions (session integer primary key autoincrement, start timestamp, "
    "end timestamp, num_cmds integer, remark text)",
    "create table history (session integer, line integer, source text, source_raw text, "
    "primary key (session, line))",
    "create table output_history (session integer, line integer, output text, "
    "primary key (session, line), foreign key (session, line) references history(session, line))",
)


class Kernel:
    """A kernel's own history as `singularity_kernel.kernel.history` makes it."""

    def __init__(self, shared: Path, name: str) -> None:
        self.name, self.path = name, shared.parent / f"{name}.sqlite"
        db = sqlite3.connect(shared)
        with db:
            made = db.execute(
                "insert into sessions values (null, ?, null, null, '')", (f"start of {name}",)
            )
        assert made.lastrowid is not None
        self.number = made.lastrowid
        db.close()
        own = sqlite3.connect(self.path)
        with own:
            for words in IPYTHON:
                own.execute(words)
            own.execute(
                "insert into sessions values (?, ?, null, null, '')",
                (self.number, f"start of {name}"),
            )
        write_about(own, About(str(shared), name, self.number))
        own.close()

    def run(self, lines: Iterable[tuple[int, str]], session: int | None = None) -> None:
        own = sqlite3.connect(self.path)
        with own:
            own.executemany(
                "insert into history values (?, ?, ?, ?)",
                [(session or self.number, n, text, text) for n, text in lines],
            )
        own.close()

    def merge(self, incarnation: int = 1, session: str = "") -> int:
        return merge(str(self.path), session or self.name, incarnation)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared.sqlite"
    db = sqlite3.connect(path)
    with db:
        for words in IPYTHON:
            db.execute(words)
    db.close()
    return path


def lines(shared: Path) -> dict[int, list[tuple[int, str]]]:
    db = sqlite3.connect(shared)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    out: dict[int, list[tuple[int, str]]] = {}
    for session, line, raw in db.execute(
        "select session, line, source_raw from history order by session, line"
    ):
        out.setdefault(session, []).append((line, raw))
    db.close()
    return out


def test_lines_are_there_once_under_the_kernels_own_number(shared: Path) -> None:
    first, second = Kernel(shared, "a"), Kernel(shared, "b")
    first.run([(1, "x = 1"), (2, "x")])
    second.run([(1, "x = 1")])
    assert (first.merge(), first.merge(), second.merge()) == (2, 0, 1)
    first.run([(3, "x")])
    assert first.merge() == 1
    assert lines(shared) == {
        first.number: [(1, "x = 1"), (2, "x"), (3, "x")],
        second.number: [(1, "x = 1")],
    }


def test_a_kernel_that_went_back_has_a_new_number_from_its_first_new_line_on(shared: Path) -> None:
    kernel = Kernel(shared, "a")
    kernel.run([(1, "a"), (2, "b")])
    kept = shutil.copy(kernel.path, shared.parent / "checkpoint")
    kernel.run([(3, "c"), (4, "d")])
    kernel.merge()
    shutil.copy(kept, kernel.path)
    assert kernel.merge(incarnation=2) == 0
    kernel.run([(3, "c"), (4, "other"), (5, "e")])
    assert kernel.merge(incarnation=2) == 2
    kernel.run([(6, "f")])
    assert kernel.merge(incarnation=2) == 1
    assert lines(shared) == {
        kernel.number: [(1, "a"), (2, "b"), (3, "c"), (4, "d")],
        kernel.number + 1: [(4, "other"), (5, "e"), (6, "f")],
    }


def test_a_fork_never_takes_the_number_of_the_first_one(shared: Path) -> None:
    kernel = Kernel(shared, "a")
    kernel.run([(1, "a")])
    kernel.merge()
    fork = Kernel.__new__(Kernel)
    fork.name, fork.number = "f", kernel.number
    fork.path = Path(shutil.copy(kernel.path, shared.parent / "f.sqlite"))
    fork.run([(2, "fork")])
    kernel.run([(2, "first")])
    assert (fork.merge(), kernel.merge()) == (1, 1)
    assert lines(shared) == {
        kernel.number: [(1, "a"), (2, "first")],
        kernel.number + 1: [(2, "fork")],
    }


def test_a_second_history_session_of_a_kernel_gets_a_number_that_is_free(shared: Path) -> None:
    """After %reset; another kernel has taken the number by then."""
    kernel = Kernel(shared, "a")
    kernel.run([(1, "a")])
    own = sqlite3.connect(kernel.path)
    with own:
        own.execute("insert into sessions values (null, 'second', null, null, '')")
    own.close()
    other = Kernel(shared, "b")
    assert other.number == kernel.number + 1
    other.run([(1, "other")])
    other.merge()
    kernel.run([(1, "after reset")], session=kernel.number + 1)
    assert kernel.merge() == 2
    assert lines(shared) == {
        kernel.number: [(1, "a")],
        other.number: [(1, "other")],
        other.number + 1: [(1, "after reset")],
    }


def test_a_shared_file_that_was_removed_is_made_anew(shared: Path) -> None:
    kernel = Kernel(shared, "a")
    kernel.run([(1, "a")])
    shared.unlink()
    assert kernel.merge() == 1
    assert list(lines(shared).values()) == [[(1, "a")]]


def test_a_locked_shared_file_is_left_for_the_next_time(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("singularity_proxy.capsule.files.histories.BUSY_S", 0.05)
    kernel = Kernel(shared, "a")
    kernel.run([(1, "a")])
    db = sqlite3.connect(shared, isolation_level=None)
    db.execute("begin immediate")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        kernel.merge()
    db.execute("rollback")
    db.close()
    assert kernel.merge() == 1


@pytest.mark.parametrize("seed", range(3))
def test_ten_kernels_that_come_and_go_in_any_order(shared: Path, seed: int) -> None:
    dice = random.Random(seed)
    kernels = [Kernel(shared, f"k{n}") for n in range(10)]
    written = dict.fromkeys(range(10), 0)
    ran: set[str] = set()
    incarnations = dict.fromkeys(range(10), 1)
    kept: dict[int, tuple[Path, int]] = {}
    for step in range(80):
        n = dice.randrange(10)
        kernel = kernels[n]
        match dice.choice(("run", "run", "merge", "keep", "back")):
            case "run":
                written[n] += 1
                text = f"{n} at {step}"
                kernel.run([(written[n], text)])
                ran.add(text)
            case "merge":
                kernel.merge(incarnations[n])
            case "keep":
                copy = Path(shutil.copy(kernel.path, shared.parent / f"kept-{n}"))
                kept[n] = (copy, written[n])
            case "back" if n in kept:
                kernel.merge(incarnations[n])  # as at each end
                shutil.copy(kept[n][0], kernel.path)
                written[n] = kept[n][1]
                incarnations[n] += 1
    for n, kernel in enumerate(kernels):
        kernel.merge(incarnations[n])
        assert kernel.merge(incarnations[n]) == 0
    found = [raw for session in lines(shared).values() for _, raw in session]
    assert sorted(found) == sorted(ran)


def test_the_program_tells_what_went_wrong_and_changes_nothing(shared: Path) -> None:
    """As the agent starts it: with nothing of ours to import."""

    def run(path: Path) -> dict[str, object]:
        asked = {"path": str(path), "session": "a", "incarnation": 1}
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", histories.__file__],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout))

    kernel = Kernel(shared, "a")
    kernel.run([(1, "a")])
    assert run(shared.parent / "none") == {"added": 0}
    assert run(kernel.path) == {"added": 1}
    assert "no such table" in str(run(shared)["error"])  # no kernel's own
    damaged = shared.parent / "damaged"
    damaged.write_bytes(kernel.path.read_bytes()[:5000])
    assert "error" in run(damaged)
    assert lines(shared) == {kernel.number: [(1, "a")]}
