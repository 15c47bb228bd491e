"""The whole platform with two nodes in network namespaces: notebooks of its servers, moved."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from singularity_proxy.errors import Unsupported
from singularity_scheduler.fleet import namespaces
from singularity_spawner.platform import Platform
from singularity_spawner.platform.notebook import Notebook
from support.capsules import needs_criu
from support.hub_platform import running_platform, state_folder

WHY_NOT = namespaces.why_not()


@needs_criu
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_notebook_of_the_hub_moves_between_namespaces():
    async with running_platform(devices=1, nodes=2, netns=True) as platform:
        service = platform.service()
        for user in ("ada", "bob"):
            url = await platform.start_server(user)
            notebook = Notebook(url, await platform.user_token(user), user)
            await notebook.open()
            await notebook.run("import os, torch; x = torch.arange(5., device='cuda')")
            [session] = [s for s in await service.sessions("active") if s["user"] == user]
            other = {"node-1": "node-2", "node-2": "node-1"}[session["node"]]
            assert (await service.migrate(session["id"], node=other))["node"] == other
            # The user is the same there: home can be written, and it is its owner's.
            said = await notebook.run(
                "open('here', 'w').close(); print(x.sum().item(), os.getuid(), "
                "os.stat('here').st_uid == os.stat('.').st_uid == os.getuid())"
            )
            uid = (await service.identity(user))["uid"]
            assert said.split() == ["10.0", str(uid), "True"]
            await notebook.interrupt()
            assert await notebook.run("print(x.device)") == "cuda:0\n"
            await notebook.close()


@needs_criu
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_a_notebook_outlives_the_node_of_its_relay():
    quick = ["--Controller.lease_ttl_s=3", "--Controller.lease_margin_s=1"]
    async with running_platform(devices=1, nodes=2, netns=True, service_args=quick) as platform:
        service = platform.service()
        url = await platform.start_server("ada")
        notebook = Notebook(url, await platform.user_token("ada"), "ada")
        await notebook.open()
        await notebook.run("import torch; x = torch.arange(5., device='cuda')")
        [session] = await service.sessions("active")
        await service.checkpoint(session["id"])
        await asyncio.to_thread(namespaces.destroy, platform.settings.netns[session["node"]])
        async with asyncio.timeout(120):
            while (back := await service.get_session(session["id"]))["incarnation"] == 1 or (
                back["process_state"] != "live"
            ):
                await asyncio.sleep(0.1)
        assert (back["incarnation"], back["node"] != session["node"]) == (2, True)
        # The new relay is at the sockets of the one that is gone: the page's connection goes on.
        assert await notebook.run("print(x.sum().item())") == "10.0\n"
        await notebook.close()


@pytest.mark.asyncio
async def test_why_there_are_no_namespaces_is_one_sentence(monkeypatch):
    monkeypatch.setattr(namespaces, "why_not", lambda: "network namespaces need root")
    folder = state_folder()
    platform = Platform(folder, nodes=2, netns=True)
    with pytest.raises(Unsupported) as refused:
        await platform.start()
    shutil.rmtree(folder)
    assert refused.value.message == (
        "The nodes cannot have network namespaces of their own (network namespaces need root); "
        "nothing was started: leave out --netns."
    )
