"""The sidebar of the JupyterLab extension in a real browser: cards that open, checkpoints to go
back to and to fork, the log and the output of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from singularity_spawner.platform.demo_runs import submit
from singularity_spawner.platform.server import Server
from support import pictures
from support.browser_page import Page, lab_page
from support.hub_platform import running_platform

SHOTS = ("checkpoints", "timeline", "devices", "log")
PARTS = {
    "timeline": "came back",
    "log": "ipython kernel",
    "devices": "cuda:0 on",
    "checkpoints": "before lr",
}


async def check_views(page: Page, name: str) -> None:
    """Everything that the sidebar can show, in both themes, by the keyboard too."""
    for theme in ("Dark", "Light"):
        await page.do("theme", f"JupyterLab {theme}")
        for part, text in PARTS.items():
            await page.do("open", name, part, text)
            found = await page.do("axe")
            assert found["rules"] > 5
            assert found["serious"] == [], (theme, part)
        await pictures.take(page, f"jupyterlab-checkpoints-{theme.lower()}", 1280, 800)
        await page.do("filter", "no such session")
        assert (await page.do("axe"))["serious"] == [], (theme, "nothing fits")
        await page.do("filter", "")
    found = await page.do("keys")
    assert found["rows"] >= 3
    assert found["missed"] == []


@pytest.mark.browser
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_person_goes_back_forks_and_follows_a_run(tmp_path: Path) -> None:
    async with running_platform(devices=2) as platform:
        url = await platform.start_server("alice", {"tier": "standard", "devices": 1})
        service = platform.service()
        await service.set_tiers("alice", ["standard", "basic"])
        async with lab_page(platform, f"{url}lab", tmp_path) as page:
            await page.do("notebook")
            await page.do("run", 'import torch; x = torch.ones(2, device="cuda"); n = 1; print(x)')
            await page.do("status", "running")
            (session,) = await service.sessions("active")
            await page.do("panel")
            await page.do("verb", "Checkpoint", "before lr")
            await page.do("see", 'checkpoint "before lr"')
            await page.do("run", 'n = 2; x += 41; print("changed", x.sum().item())')
            await page.do("output", "changed 84.0")

            stored = await page.do("open", session["name"], "checkpoints", "before lr")
            assert "everything" in stored["text"]
            await page.do("shot", "checkpoints", "1280", "800")
            assert (await page.do("axe"))["serious"] == []
            asked = await page.do("press", "Restore before lr")
            assert "Everything the session did since then is undone" in asked["text"]
            assert "so this can be undone as well" in asked["text"]
            back = await page.do("open", session["name"], "timeline", "came back on node")
            assert "what it did after that checkpoint is undone" in back["text"]
            await page.do("status", "parked")
            await page.do("run", 'print("now", n, x.sum().item())')
            await page.do("output", "now 1 2.0")
            assert (await service.get_session(session["id"]))["incarnation"] == 2
            await page.do("shot", "timeline", "1280", "800")
            assert (await page.do("axe"))["serious"] == []

            await page.do("open", session["name"], "checkpoints", "before lr")
            await page.do("press", "Fork before lr", "variant")
            await page.do("see", "variant")
            (fork,) = [s for s in await service.sessions() if s["name"] == "variant"]
            assert fork["forked_from"] == session["id"]
            await page.do("open", session["name"], "devices", "cuda:0 on cpu:")
            await page.do("shot", "devices", "1280", "800")
            assert (await page.do("axe"))["serious"] == []
            assert "Devices, the last 5 min" in (await page.do("spark", session["name"]))["text"]

            kept = await page.do("choose", session["name"], "Keep alive", "30 min")
            assert {"30 min", "2 h", "4 h", "No longer"} <= {*kept["items"]}
            assert (await page.do("escape", session["name"]))["focused"]
            tiers = await page.do("choose", session["name"], "Change tier", "basic")
            assert "premium" not in tiers["items"]
            assert "standard" not in tiers["items"], "it has that one"
            await page.do("see", "running · basic")
            changed = await service.get_session(session["id"])
            assert (changed["tier"], bool(changed["keep_until"])) == ("basic", True)

            server = Server(url, await platform.user_token("alice"))
            await server.put_notebook("job.ipynb", "for i in range(3): print('epoch', i)")
            await submit(server, "job", options="--tier standard")
            await page.do("open", "job.ipynb", "log", "epoch 2")
            await page.do("see", "completed")
            await page.do("shot", "log", "1280", "800")
            assert (await page.do("axe"))["serious"] == []
            await page.do("click", "Open output notebook")
            await page.do("tab", "job-out.ipynb")
            assert (await page.do("filter", "job completed"))["names"] == ["job.ipynb"]
            await page.do("filter", "")
            await check_views(page, session["name"])
            assert await page.end() == []
        if keep := os.environ.get("SCREENSHOTS"):
            for name in SHOTS:
                shutil.copy(tmp_path / f"{name}.png", keep)
