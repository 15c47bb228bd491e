"""The end of `up` with notebooks that live: what is waited for, and what is said of each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from singularity_proxy.errors import Unavailable
from singularity_spawner.platform.run import put_notebooks_away

pytestmark = pytest.mark.asyncio


class Service:
    """Knows a notebook and a run of ada's; hibernating ends as `does` says."""

    def __init__(self, does):
        self.does = does
        self.asked = []
        self.state = "live"

    async def sessions(self, which):
        common = {"user": "ada", "reason": "the store is full"}
        return [
            {**common, "id": "n1", "kind": "interactive", "process_state": self.state},
            {**common, "id": "b1", "kind": "batch", "process_state": "live"},
        ]

    async def hibernate(self, user, wait_s):
        self.asked.append(user)
        await self.does(self)


async def put_away(does, hurry=None):
    service = Service(does)
    platform = SimpleNamespace(service=lambda: service)
    async with asyncio.timeout(10):
        await put_notebooks_away(platform, hurry or asyncio.Event())
    return service


async def test_what_is_stored_waits_for_the_next_start(capsys):
    async def stores(service):
        service.state = "suspended"

    assert (await put_away(stores)).asked == ["ada"]
    out, err = capsys.readouterr()
    assert "Suspending 1 notebook; Ctrl-C again" in out
    assert "1 notebook waits in the store for the next start." in out
    assert err == ""


async def test_a_second_signal_does_not_wait_and_says_what_ends(capsys):
    hurry = asyncio.Event()

    async def hangs(_):
        hurry.set()
        await asyncio.sleep(3600)

    await put_away(hangs, hurry)
    assert capsys.readouterr().err == (
        "Session n1 of ada ends with the platform: the store is full\n"
    )


async def test_without_a_scheduler_the_end_goes_on(capsys):
    class Gone(Service):
        async def sessions(self, which):
            raise Unavailable("the scheduler does not answer")

    platform = SimpleNamespace(service=lambda: Gone(None))
    await put_notebooks_away(platform, asyncio.Event())
    assert capsys.readouterr().err == (
        "Notebooks end with the platform: the scheduler does not answer\n"
    )
