"""A suspended notebook whose relay is gone with the platform that stopped: it is listed by the next
server, opens on the kernel it had, and is ended like any other."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from singularity_spawner.platform import Platform
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.run import put_notebooks_away
from support.capsules import needs_criu
from support.hub_notebooks import Page, leave_all, session_of
from support.hub_platform import state_folder

pytestmark = [pytest.mark.asyncio, needs_criu, pytest.mark.timeout(300)]


async def server_of_alice(platform):
    return await platform.start_server("alice", {}), await platform.user_token("alice")


@pytest.mark.parametrize("end", ["of the server", "of the platform"])
async def test_a_suspended_notebook_outlives_the_platform(end, capsys):
    folder = state_folder()
    kept, other = Page("kept.ipynb"), Page("other.ipynb")
    try:
        async with Platform(folder, port=free_ports(1)[0], devices=1) as platform:
            place = await server_of_alice(platform)
            for page in (kept, other):
                await page.open(*place)
                await page.run(f"x = '{page.path}'")
            kernels = [kept.kernel, other.kernel]
            if end == "of the server":
                await platform.stop_server("alice")
            else:
                await put_notebooks_away(platform, asyncio.Event())
                assert "2 notebooks wait in the store" in capsys.readouterr().out
            states = {s["state"] for s in await platform.service().sessions("active")}
            assert states == {"suspended"}
            for page in (kept, other):
                page.close()
        async with Platform(folder, port=free_ports(1)[0], devices=1) as platform:
            place = await server_of_alice(platform)
            await kept.open(*place)
            server = kept.server
            listed = {k["id"] for k in await server.rest("GET", "api/kernels", None)}
            assert listed == set(kernels)
            rows = await server.rest("GET", "api/sessions", None)
            assert {r["path"]: r["kernel"]["id"] for r in rows} == {
                "kept.ipynb": kernels[0],
                "other.ipynb": kernels[1],
            }
            assert await kept.run("print(x)") == "kept.ipynb"
            # One that nobody opened is ended as it is, and the other one by itself.
            await server.rest("DELETE", f"api/kernels/{kernels[1]}", None)
            await session_of(platform.service(), "alice", "live")
            await platform.stop_server("alice")  # it belongs to this server, and is hibernated
            assert (await session_of(platform.service(), "alice"))["state"] == "suspended"
            kept.close()
            place = await server_of_alice(platform)
            await kept.open(*place)
            assert kept.kernel == kernels[0]
            assert await asyncio.wait_for(kept.run("print(x)"), 60) == "kept.ipynb"
    finally:
        await leave_all()
        shutil.rmtree(folder)
