"""Commands of batch sessions: ranks, exit codes, and how they are ended."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.batch.__main__ import take_description
from singularity_kernel.batch.running import commands
from singularity_kernel.batch.running.commands import environments, run_command
from singularity_kernel.batch.running.fates import Cancelled, CommandFailed
from singularity_kernel.batch.running.stop import Stop

ENVIRON = {"PATH": os.environ["PATH"]}


def test_a_command_runs_once_and_without_a_rank(tmp_path: Path) -> None:
    run_command(f'echo "$0 ${{RANK-none}}" > {tmp_path}/out', 0, Stop(), ENVIRON)
    assert (tmp_path / "out").read_text() == "bash none\n"


def test_ranks_know_each_other(tmp_path: Path) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR"
    run_command(f"{script} $MASTER_PORT > {tmp_path}/$RANK", 3, Stop(), ENVIRON)
    said = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [words[:6] for words in said] == [
        [str(rank), str(rank), "3", "3", "0", "127.0.0.1"] for rank in range(3)
    ]
    assert len({words[6] for words in said}) == 1
    assert environments(1, {"MASTER_PORT": "7"})[0]["MASTER_PORT"] == "7"
    assert environments(0, {}) == [{}]


def test_a_part_of_a_gang_runs_its_own_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "OTHERS_S", 0.3)
    environ = {**ENVIRON, "SINGULARITY_GANG": "1/2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
    with pytest.raises(CommandFailed, match="rank 1 of the command ended with exit code 3"):
        run_command(f"echo $RANK $WORLD_SIZE > {tmp_path}/out; exit 3", 1, Stop(), environ)
    assert (tmp_path / "out").read_text() == "1 2\n"
    began = time.monotonic()
    with pytest.raises(CommandFailed, match=r"^the command ended"):
        run_command("exit 3", 0, Stop(), environ)
    assert time.monotonic() - began >= 0.3, "a part that was killed is to be heard first"


def test_a_part_that_was_killed_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "OTHERS_S", 3600.0)
    environ = {**ENVIRON, "SINGULARITY_GANG": "1/2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
    with pytest.raises(CommandFailed, match="signal 9"):
        run_command("kill -9 $$", 0, Stop(), environ)
    let_speak = commands._let_others_speak

    def end_it(*args: Any) -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        let_speak(*args)

    monkeypatch.setattr(commands, "_let_others_speak", end_it)
    # One that keeps its failure to itself can be ended.
    with Stop().listening() as stop, pytest.raises(CommandFailed, match="exit code 3"):
        run_command("exit 3", 0, stop, environ)


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("exit 3", 3, "the command ended with exit code 3"),
        ("kill -9 $$", 137, "the command ended with signal 9"),
        ("no-such-program", 127, "the command ended with exit code 127"),
    ],
)
def test_how_a_command_fails(command: str, code: int, sentence: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        run_command(command, 0, Stop(), ENVIRON)
    assert (failed.value.code, failed.value.message) == (code, sentence)


def test_the_first_rank_that_fails_ends_the_others() -> None:
    with pytest.raises(CommandFailed, match="rank 1 of the command ended with exit code 5"):
        run_command("[ $RANK = 1 ] && exit 5; sleep 3600", 3, Stop(), ENVIRON)


def test_a_command_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "GRACE_S", 0.5)
    made = tmp_path / "child"
    script = (
        f"trap '' TERM; (trap '' TERM; sleep 3600) & echo $! > {made}.new; "
        f"mv {made}.new {made}; wait; sleep 3600"
    )
    asked: list[float] = []

    def ask() -> None:
        while not made.exists():
            time.sleep(0.01)
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    with Stop().listening() as stop:
        asks = threading.Thread(target=ask)
        asks.start()
        with pytest.raises(Cancelled, match="the run was cancelled; what it wrote is kept"):
            run_command(script, 0, stop, ENVIRON)
        asks.join()
    assert time.monotonic() - asked[0] >= 0.5
    child = int(made.read_text())
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        state = Path(f"/proc/{child}/stat").read_text().split()[2]
        if state == "Z":  # nobody reaps it here
            break
        time.sleep(0.02)
    else:
        assert not os.path.exists(f"/proc/{child}")


def test_what_was_cancelled_before_is_not_started(tmp_path: Path) -> None:
    with Stop().listening() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Cancelled, match="nothing was run"):
            run_command(f"touch {tmp_path}/made", 0, stop, ENVIRON)
    assert list(tmp_path.iterdir()) == []


def test_the_description_of_a_command() -> None:
    described = {"command": "ls", "ranks": 2, "timeout_s": 5, "notebook": ""}
    assert take_description({"RUN_DESCRIPTION": json.dumps(described)}) == {
        **{"command": "ls", "ranks": 2, "timeout_s": 5, "left_s": 5, "attempt": 1, "attempts": 1},
    }
