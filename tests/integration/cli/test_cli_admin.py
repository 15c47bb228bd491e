"""Administrators change the running service by commands: checked, written down, and at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
from support.cli_commands import Commands
from support.scheduler_service import Platform, platform

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[tuple[Platform, Commands]]:
    """The platform and root's command line."""
    async with platform(tmp_path) as running:
        yield running, Commands(running.url, "admin-token")


BAD = (
    (("parameters", "idle_soft=5"), "there is no parameter 'idle_soft': did you mean"),
    (("parameters", "quantum_s=0"), "quantum_s must be a number from 1 to "),
    (
        ("parameters", "standard_fraction=0.99", "idle_soft_s=1"),
        "must not rise from tier to tier, but are 0.95, 0.99 and 0",
    ),
    (("quota", "vision", "-1"), "'-1' is no number of devices"),
    (("quota", "vision", "9999999"), "9999999 is greater than the maximum of 1000000"),
    (("drain", "locl"), "there is no node 'locl': did you mean 'local'?"),
    (("upgrade", "--begin", "--at-once", "2"), "at_once must be a whole number from 1 to 1"),
)


async def test_a_bad_value_is_one_sentence_and_changes_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as (running, cli):
        before = running.controller.state.parameters
        for words, sentence in BAD:
            done = await cli(*words)
            assert done.code != 0, words
            assert done.out == ""
            assert sentence in done.err
            assert done.err.count("\n") == 1
        assert running.controller.state.parameters == before
        assert await running.client("admin").admin_log() == []


async def test_tiers_and_quotas_count_at_once_and_are_written_down(tmp_path: Path) -> None:
    began = time.time()
    async with service(tmp_path) as (running, cli):
        done = await cli("parameters", "standard_fraction=0.8", "--reason", "a paper is due")
        assert done.code == 0, done.err
        assert running.controller.state.parameters.fraction("standard") == 0.8
        await running.client("admin").set_quota("vision", 1, may_borrow=False)
        first = await running.holder(name="a", virtual_cluster="vision")
        second = await running.kernel(name="b", virtual_cluster="vision")
        running.agent.need(second)
        await running.state(second, "waiting")
        done = await cli("quota", "vision", "2", "--no-borrow", "--reason", "a grant")
        assert done.code == 0, done.err
        await running.state(second, "running")
        assert (await running.client().get_session(first))["state"] == "running"

        lines = (await cli("changes", "--json")).json
        told = [
            (x["by"], x["verb"], x["subject"], x["before"], x["after"], x["reason"]) for x in lines
        ]
        one = {"quota_devices": 1, "may_borrow": False}
        assert told == [
            ("root", "quota", "vision", one, {**one, "quota_devices": 2}, "a grant"),
            ("root", "quota", "vision", None, one, ""),
            ("root", "set", "standard_fraction", 0.7, 0.8, "a paper is due"),
        ]
        times = [datetime.fromisoformat(x["at"]).timestamp() for x in lines]
        assert began - 1 <= times[-1] <= times[0] <= time.time() + 1
        shown = (await cli("changes", "standard_fraction")).out
        assert "a paper is due" in shown
        assert "vision" not in shown
