"""The commands for whole sessions as processes, asking the real service about agents of paper."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cli_commands import Commands, Terminal
from support.scheduler_service import Platform, platform, until

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[tuple[Platform, Commands]]:
    """Two nodes and alice's command line."""
    async with platform(tmp_path, nodes=("node-1", "node-2")) as running:
        yield running, Commands(running.url, "alice-token")


async def test_store_suspend_move_and_undo(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.holder(name="train.ipynb")
        done = await cli("checkpoint", "train.ipynb", "before fine tuning")
        assert "checkpoint stored: 'before fine tuning', k0001" in done.out, done
        away = await cli("suspend", "train.ipynb", "at noon")
        assert (away.code, away.err) == (0, "")
        assert "suspended: everything of it is in checkpoint 'at noon'" in away.out
        again = await cli("suspend", session)
        assert (again.code, again.out) == (70, "")
        assert again.err == (
            "jupyter singularity suspend: alice/train.ipynb is suspended already: resume brings it "
            "back\n"
        )
        listed = (await cli("checkpoints", session)).out.splitlines()
        assert [line.split("  ")[0] for line in listed] == ["NAME", "at noon", "before fine tuning"]
        proved = (await cli("checkpoints", session, "--prove", "at noon")).out.splitlines()
        assert ["proved 0 s ago" in line for line in proved] == [False, True, False]
        running.agent.faults["k0001"] = "a chunk is missing"
        running.agents["node-2"].faults["k0001"] = "a chunk is missing"
        bad = await cli("checkpoints", session, "--prove", "before fine tuning")
        assert "could not be proved: a chunk is missing" in bad.out
        for words in (("--prove", "x"), (session, "--prove", "x", "--delete", "y")):
            assert (await cli("checkpoints", *words)).code == 64
        back = await cli("resume", "train.ipynb", "--on", "node-2")
        assert back.code == 0, back
        assert "12 hashes" in back.out
        moved = await cli("migrate", "train.ipynb", "--node", "node-1", "--json")
        assert (moved.json["node"], moved.json["state"]) == ("node-1", "running")
        wrong = await cli("restore", "train.ipynb", "before finetuning")
        assert (wrong.code, wrong.out) == (66, "")
        assert "did you mean 'before fine tuning'?" in wrong.err
        undone = await cli("restore", "train.ipynb", "before fine tuning")
        assert "Rolled back       yes, to that checkpoint" in undone.out
        forked = await cli("fork", session, "at noon", "--called", "b.ipynb")
        assert "(b.ipynb)" in forked.out
        place = tmp_path / "b.json"
        made = await cli("connect", "b.ipynb", "--file", str(place))
        assert f"jupyter console --existing {place}" in made.out
        assert json.loads(place.read_text())["shell_port"] == 5001
        assert place.stat().st_mode & 0o777 == 0o600
        again = await cli("connect", "b.ipynb", "--file", str(place))
        assert (again.code, again.out) == (70, "")
        assert "was not written: File exists" in again.err
        shown = (await cli("show", session)).out
        assert "what it did after that is undone" in shown
        left = await cli("checkpoints", session, "--delete", "at noon", "--json")
        assert "at noon" not in [c["name"] for c in left.json]
        nowhere = await cli("migrate", session, "--node", "node-9")
        assert (nowhere.code, nowhere.out) == (66, "")


async def test_a_transfer_shows_its_rate_and_ctrl_c_ends_the_looking_only(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        session = await running.holder(name="train.ipynb")
        gate = running.agent.hold["session.suspend"] = asyncio.Event()
        terminal = Terminal()
        try:
            async with cli.running(
                "suspend", session, stdin=terminal.theirs, stderr=terminal.theirs
            ) as process:
                await running.state(session, "suspending")
                running.agent.event(
                    session,
                    "checkpoint.progress",
                    bytes_done=300 << 20,
                    bytes_total=1 << 30,
                    bytes_sent=1,
                    rate=float(150 << 20),
                    eta_s=5.0,
                )
                await terminal.until("150 MiB/s, 5 s left")
                gate.set()
                out, _ = await process.communicate()
                assert process.returncode == 0
                assert b"is suspended: everything of it is in checkpoint" in out
        finally:
            terminal.close()


async def test_what_takes_longer_than_an_answer_is_waited_for(tmp_path: Path) -> None:
    quick = {"settle_s": 0.1}
    async with platform(tmp_path, nodes=("node-1", "node-2"), controller=quick) as running:
        cli = Commands(running.url, "alice-token")
        session = await running.holder(name="train.ipynb")
        gate = running.agents["node-2"].hold["session.resume"] = asyncio.Event()
        moving = asyncio.ensure_future(cli("migrate", session, "--node", "node-2"))
        await until(
            lambda: running.controller.state.sessions[session].node == "node-2", "on its way"
        )
        await asyncio.sleep(1.0)
        assert not moving.done()
        gate.set()
        done = await moving
        assert done.code == 0, done
        assert "Not brought back  nothing" in done.out
