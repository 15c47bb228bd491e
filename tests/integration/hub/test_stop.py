"""However the platform ends while people work, nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal

import pytest
import requests
from singularity_spawner.platform import Platform
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.processes import agents_of, of_run
from support import matrix
from support.hub_platform import left_of, state_folder


@pytest.fixture
def folder():
    made = state_folder()
    yield made
    shutil.rmtree(made)


async def work(platform):
    """A server with a kernel for alice."""
    url = await platform.start_server("alice", {"devices": 1})
    headers = {"Authorization": f"token {await platform.user_token('alice')}"}
    answer = await asyncio.to_thread(
        requests.post,
        f"{url}api/kernels",
        json={"name": "singularity"},
        headers=headers,
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    (session,) = await platform.service().sessions("active")
    return session


@pytest.mark.asyncio
@pytest.mark.parametrize("victim", matrix.some_of(["agent", "everything"], 1))
async def test_a_platform_whose_parts_were_killed_leaves_nothing(folder, victim):
    platform = Platform(folder, devices=1, port=free_ports(1)[0])
    await platform.start()
    settings = platform.settings
    try:
        await work(platform)
        run = of_run(settings.instance)
        agents, _ = agents_of(run)
        assert len(agents) == 1
        for process in agents if victim == "agent" else run:
            with contextlib.suppress(ProcessLookupError):  # it went with its capsule
                os.kill(process.pid, signal.SIGKILL)
    finally:
        await platform.stop()
    assert left_of(settings) == []
    await platform.stop()


@pytest.mark.asyncio
async def test_homes_accounts_and_passwords_stay_for_the_next_run(folder):
    async with Platform(folder, devices=1, port=free_ports(1)[0]) as platform:
        await work(platform)
        password, first = platform.password, platform.settings
        home = folder / "homes" / "alice"
        owner = home.stat().st_uid
    (home / "work.txt").write_text("kept")
    async with Platform(folder, devices=2, port=free_ports(1)[0]) as platform:
        assert platform.password == password
        assert len((await platform.service().cluster())["devices"]) == 2
        assert await platform.service().sessions("active") == []
        assert await platform.hub.server("alice") is None, "its process has ended"
        await work(platform)
        assert home.stat().st_uid == owner
        second = platform.settings
    assert (home / "work.txt").read_text() == "kept"
    assert left_of(first) == left_of(second) == []
