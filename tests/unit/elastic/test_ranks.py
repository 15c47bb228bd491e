"""One program as several ranks: environment, output, failures, interrupts, the launcher's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from singularity_proxy.elastic.ranks import GRACE_S, RankFailed, environments, run_ranks


def program(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(code)]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pids: list[int], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not all(map(gone, pids)):
        assert time.monotonic() < until, [pid for pid in pids if not gone(pid)]
        time.sleep(0.02)


def test_environment_is_torchruns() -> None:
    one, two = environments(2, {})
    assert [x["RANK"] for x in (one, two)] == [x["LOCAL_RANK"] for x in (one, two)] == ["0", "1"]
    assert one["WORLD_SIZE"] == one["LOCAL_WORLD_SIZE"] == "2"
    assert one["MASTER_ADDR"] == "127.0.0.1"
    assert one["MASTER_PORT"] == two["MASTER_PORT"]
    assert environments(1, {"MASTER_PORT": "7", "MASTER_ADDR": "h"})[0]["MASTER_PORT"] == "7"


def test_environment_of_a_part_of_a_gang() -> None:
    """Number 1 of 3, with 2 ranks on each node."""
    environ = {"SINGULARITY_GANG": "1/3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7"}
    one, two = environments(2, environ)
    assert [x["RANK"] for x in (one, two)] == ["2", "3"]
    assert [x["LOCAL_RANK"] for x in (one, two)] == ["0", "1"]
    assert (one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) == ("6", "2")
    assert one["NODE_RANK"] == one["GROUP_RANK"] == "1"
    assert one["GROUP_WORLD_SIZE"] == "3"
    assert one["MASTER_PORT"] == "7"
    # Nothing else counts, and what a rank starts itself is a program of its own.
    left_over = {"NODE_RANK": "1", "NNODES": "3", "GROUP_RANK": "1", "RANK": "3", "WORLD_SIZE": "6"}
    for inside in ({**environ, **two}, left_over):
        nested = environments(2, inside)
        assert [x["RANK"] for x in nested] == ["0", "1"]
        assert {x["WORLD_SIZE"] for x in nested} == {"2"}
        assert {x["NODE_RANK"] for x in nested} == {"0"}


def test_ranks_of_a_part_are_told_by_their_number_in_the_gang() -> None:
    environ = {**os.environ, "SINGULARITY_GANG": "2/3", "MASTER_PORT": "7"}
    lines: list[tuple[int, str]] = []
    code = "import os, sys; print(os.environ['RANK']); sys.exit(int(os.environ['LOCAL_RANK']))"
    with pytest.raises(RankFailed, match="rank 5 ended with exit code 1"):
        run_ranks(program(code), 2, environ, lambda rank, line: lines.append((rank, line)))
    assert set(lines) <= {(4, "4\n"), (5, "5\n")}
    assert (5, "5\n") in lines


def test_lines_come_whole_and_with_their_rank() -> None:
    code = """
        import os, sys, time
        rank = os.environ["RANK"]
        for i in range(50):
            sys.stdout.write("a" * 2000 + rank); sys.stdout.flush()
            sys.stdout.write("b\\n"); sys.stderr.write(f"e{rank}\\n")
        sys.stdout.write("no end")
    """
    lines: list[tuple[int, str]] = []
    run_ranks(program(code), 3, os.environ, lambda rank, line: lines.append((rank, line)))
    for rank in range(3):
        mine = [line for r, line in lines if r == rank]
        assert mine.count("a" * 2000 + f"{rank}b\n") == 50
        assert mine.count(f"e{rank}\n") == 50
        assert mine[-1] == "no end\n"


def test_a_line_without_an_end_is_seen_in_time(tmp_path: Path) -> None:
    """Each rank goes on only when what it wrote was seen."""
    code = f"""
        import os, sys, time
        rank = os.environ["RANK"]
        out = sys.stdout
        for done in range(3):
            out.write(f"\\r{{done}} \u00e4"); out.flush()
            while not os.path.exists({str(tmp_path)!r} + f"/{{rank}}-{{done}}"): time.sleep(0.01)
        os.write(1, b"\\xc3"); time.sleep(0.4); os.write(1, b"\\xa4.")  # half a character each
        if rank == "0": print()
    """
    seen: dict[int, list[str]] = {0: [], 1: []}
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}

    def see(rank: int, text: str) -> None:
        seen[rank].append(text)
        for done in range(3):
            if f"{done} ä" in text:
                (tmp_path / f"{rank}-{done}").touch()

    run_ranks(program(code), 2, environ, see, pieces=True)
    for mine in seen.values():
        assert "".join(mine) == "\r0 ä\r1 ä\r2 ää.\n"
        assert len(mine) >= 3


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_rank_leaves_behind_is_ended(tmp_path: Path, fails: bool) -> None:
    code = f"""
        import os, subprocess, sys, time
        rank = os.environ["RANK"]
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True);"
        sleep = "import time; time.sleep(3600)"
        child = subprocess.Popen(
            [sys.executable, "-c", (stubborn if rank == "1" else "print(1, flush=True);") + sleep],
            stdout=subprocess.PIPE,
        )
        child.stdout.readline()
        with open({str(tmp_path)!r} + "/" + rank, "w") as file: file.write(str(child.pid))
        if {fails} and rank == "1":
            while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
            sys.exit(3)
    """
    lines: list[tuple[int, str]] = []
    began = time.monotonic()
    failure = pytest.raises(RankFailed, match="exit code 3") if fails else nullcontext()
    with failure:
        run_ranks(program(code), 2, os.environ, lambda rank, line: lines.append((rank, line)))
    left = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(left) == 2
    wait_gone(left, 2)
    assert GRACE_S - 1 < time.monotonic() - began < 300  # the stubborn one was given time


@pytest.mark.parametrize(("how", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_the_first_that_fails_ends_the_others(tmp_path: Path, how: str, code: int) -> None:
    source = f"""
        import os, sys, time
        open({str(tmp_path)!r} + "/" + os.environ["RANK"], "w").write(str(os.getpid()))
        if os.environ["RANK"] == "1":
            while len(os.listdir({str(tmp_path)!r})) < 3: time.sleep(0.01)
            {how}
        time.sleep(3600)
    """
    with pytest.raises(RankFailed, match=r"rank 1 ended with .*; the other ranks were ended") as it:
        run_ranks(program(source), 3, os.environ)
    assert (it.value.rank, it.value.code) == (1, code)
    wait_gone([int(p.read_text()) for p in tmp_path.iterdir()])


LAUNCHER = """
import os, sys
from singularity_proxy.elastic.ranks import run_ranks
code = '''
import os, sys, time
rank = os.environ["RANK"]
try:
    print(os.getpid(), flush=True)
    time.sleep(3600)
except KeyboardInterrupt:
    print("interrupted", rank, flush=True)
    if rank == "1":
        time.sleep(3600)  # does not end
'''
def write(rank, line):
    print(line, end="", flush=True)
try:
    run_ranks([sys.executable, "-u", "-c", code], 2, os.environ, write)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def launcher() -> tuple[subprocess.Popen[str], list[int]]:
    started = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert started.stdout is not None
    return started, [int(started.stdout.readline()) for _ in range(2)]


def test_an_interrupt_reaches_all_and_they_end() -> None:
    started, pids = launcher()
    began = time.monotonic()
    os.kill(started.pid, signal.SIGINT)
    out, _ = started.communicate(timeout=120)
    assert sorted(out.split("\n")) == ["", "ended", "interrupted 0", "interrupted 1"]
    assert time.monotonic() - began > 4  # the one that did not end was told again
    assert all(map(gone, pids))


def test_ranks_of_a_killed_launcher_end_with_it() -> None:
    started, pids = launcher()
    started.kill()
    started.communicate(timeout=10)
    wait_gone(pids)
