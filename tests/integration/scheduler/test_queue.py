"""Queued runs through the service: how many one user may have."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_proxy.errors import Conflict
from support.scheduler_service import platform

RUN = {"notebook": "/home/alice/train.ipynb"}


@pytest.mark.asyncio
async def test_one_user_cannot_fill_the_queue(tmp_path: Path) -> None:
    async with platform(tmp_path, controller={"max_queued_runs": 2}) as p:
        alice, bob = p.client("alice"), p.client("bob")
        for _ in range(4):  # two start, two are queued
            last = await alice.submit(run=RUN)
        assert last["state"] == "queued"
        with pytest.raises(Conflict, match="alice has 2 queued runs already"):
            await alice.submit(run=RUN)
        assert (await bob.submit(run=RUN))["state"] == "queued"
        await alice.end_session(last["id"])
        assert (await alice.submit(run=RUN))["state"] == "queued"
        assert (await p.client("admin").cluster())["waiting"]["standard"] == 3
