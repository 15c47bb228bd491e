"""Every test has one tier, the default run takes what the table says, second tries are counted."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import only_unit, second_tries, tiers
from support.tiers import DEFAULT, TIERS, Take, Tier

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(str(f.relative_to(ROOT)) for f in (ROOT / "tests").rglob("test_*.py"))


def exists(entry: str) -> bool:
    """Whether there is such a folder, file, test function or case of one."""
    file, _, test = entry.partition("[")[0].partition("::")
    path = ROOT / file
    return path.exists() and (not test or bool(re.search(rf"def {test}\(", path.read_text())))


def test_each_file_has_one_tier_and_each_entry_a_file() -> None:
    assert [f for f in FILES if not tiers.find_tiers(f)] == []
    used = {max((e for e in TIERS if f == e or f.startswith(f"{e}/")), key=len) for f in FILES}
    assert set(TIERS) == used
    assert {tiers.find_tier(f) for f in FILES} == set(Tier)


def test_what_the_default_run_takes_is_said_of_each_tier_and_of_what_there_is() -> None:
    named = set(Tier) | {entry for entry in DEFAULT if exists(entry)}
    assert set(DEFAULT) - named == set()
    assert set(Tier) - set(DEFAULT) == set()


def test_each_part_of_a_full_run_is_there_and_no_test_is_in_two() -> None:
    assert [entry for entry in tiers.PARTS if not exists(entry)] == []
    assert {tiers.find_part(f) for f in FILES} == set(tiers.Part)
    doubled = [f for f in FILES if sum(tiers.fits(e, f) for e in tiers.PARTS) > 1]
    assert doubled == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cases of a small tree of tests, with a table for it."""
    monkeypatch.setattr(
        tiers, "TIERS", {"t/a": Tier.UNIT, "t/b": Tier.NODE, "t/b/f.py": Tier.FAULTS}
    )
    monkeypatch.setattr(
        tiers,
        "DEFAULT",
        {
            "unit": Take.ALL,
            "node": Take.ONE_OF_EACH_TEST,
            "faults": Take.ONE_OF_EACH_FILE,
            "t/b/n.py": Take.NONE,
            "t/b/n.py::test_story": Take.ALL,
        },
    )
    return [
        *(f"t/a/x.py::test_a[{i}]" for i in range(3)),
        *(f"t/b/y.py::test_{name}[{i}]" for name in "bc" for i in range(40)),
        *(f"t/b/f.py::test_{i}" for i in range(40)),
        "t/b/n.py::test_story[1]",
        "t/b/n.py::test_story_of_another",
    ]


def test_the_most_exact_entry_says_what_is_taken(small: list[str]) -> None:
    chosen = tiers.choose_default(small, 0)
    assert {c for c in chosen if c.startswith("t/a/")} == set(small[:3])
    for name in ("t/b/y.py::test_b", "t/b/y.py::test_c", "t/b/f.py::"):
        assert len([c for c in chosen if c.startswith(name)]) == 1, name
    assert {c for c in chosen if "n.py" in c} == {"t/b/n.py::test_story[1]"}


def test_a_seed_chooses_the_same_whatever_other_files_hold(small: list[str]) -> None:
    chosen = tiers.choose_default(small, 0)
    assert chosen == tiers.choose_default(reversed(small), 0)
    assert tiers.choose_default(small[:-2], 0) == {c for c in chosen if "n.py" not in c}
    assert len({frozenset(tiers.choose_default(small, seed)) for seed in range(5)}) > 1


def test_a_file_without_a_tier_is_named(small: list[str]) -> None:
    with pytest.raises(LookupError, match="has no tier"):
        tiers.find_tier("t/c/z.py")


def test_a_unit_test_that_starts_a_process_or_opens_a_socket_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(only_unit, "seen", [])
    with only_unit.hold_to_unit("this test"):
        with pytest.raises(only_unit.NotUnit, match="this test starts a process"):
            subprocess.run(["true"], check=False)
        with pytest.raises(only_unit.NotUnit, match="starts a process"):
            os.fork()
        with pytest.raises(only_unit.NotUnit, match="opens a socket"), socket.socket() as end:
            end.bind(("127.0.0.1", 0))
        asyncio.run(asyncio.sleep(0))  # an event loop has a pair of sockets of its own
    assert len(only_unit.seen) == 3
    assert subprocess.run(["true"], check=False).returncode == 0


def test_who_may_be_tried_twice_is_there_with_a_cause_and_no_fault() -> None:
    for test, cause in second_tries.QUARANTINE.items():
        assert exists(test), test
        assert "::" in test, test
        assert tiers.find_tier(test) is not Tier.FAULTS, test
        assert cause.endswith("."), test
    marked = [f for f in FILES if re.search(r"mark\.flaky\b(?!\\b)", (ROOT / f).read_text())]
    assert marked == []


@pytest.mark.parametrize(("failures", "code"), [(3, 0), (4, 1)])
def test_a_run_with_too_many_second_tries_fails(failures: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_late.py").write_text(
        f"tries = []\ndef test_late():\n    tries.append(1)\n    assert len(tries) > {failures}\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "-q", "--reruns=4", "--rootdir", str(ROOT), str(tmp_path / "test_late.py")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("4 second tries, and a run may have 3: " in done.stdout) == (code == 1)
    assert f"{failures} rerun" in done.stdout
