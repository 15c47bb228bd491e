"""The sidebar of the JupyterLab extension in a real browser: cards that open, checkpoints to go
back to and to fork, the log and the output of a run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from singularity_spawner.platform.demo.runs import submit
from singularity_spawner.platform.server import Server
from support import pictures
from support.browser_page import Page, lab_page
from support.hub_platform import running_platform

SHOTS = ("checkpoints", "timeline", "devices", "log")
PARTS = {
    "timeline": "came back",
    "log": "ipython kernel",
    "devices": "cuda:1 on cpu:0",
    "checkpoints": "before lr",
}
COUNTS = """
import pathlib, time
a = torch.zeros(4, device="cuda:0", dtype=torch.float64)
b = torch.zeros(4, device="cuda:1", dtype=torch.float64)
steps = 0
for mark in ("began", "shared", "apart"):
    while not pathlib.Path(mark).exists():
        a += 1
        b += a.to("cuda:1")
        steps += 1
        time.sleep(0.02)
    right = bool((a == steps).all() and (b == steps * (steps + 1) / 2).all())
    print(mark, "right" if right else f"wrong after {steps} steps: {a} {b}")
"""
"""A cell that computes on both devices, and says at each mark whether its numbers are those of as
many steps."""
KEY_OF_NINE = {"command": "singularity:resize", "keys": ["Alt R"], "selector": "body"}
"""A shortcut of one's own, which asks for what no menu offers."""


async def set_shortcut(server: Server, shortcut: dict[str, Any]) -> None:
    """As the editor of settings does it."""
    raw = json.dumps({"shortcuts": [shortcut]})
    path = "lab/api/settings/@jupyterlab/shortcuts-extension:shortcuts"
    await server.rest("PUT", path, {"raw": raw})


async def check_resize(page: Page, server: Server, session: dict[str, Any]) -> None:
    """Its two devices become one physical one and two again while a cell computes on both; what
    cannot be is refused. Left on one."""
    name, one, two = session["name"], "2 virtual on 1 physical (cpu:", "cpu:0, cpu:1"
    await page.do("run", COUNTS)
    await server.put_file("began", "")
    await page.do("output", "began right")
    await page.do("status", "running", two)
    sizes = await page.do("choose", name, "Resize", "on 1 physical device")
    assert [item for item in sizes["items"] if "physical" in item] == ["on 1 physical device"]
    await page.do("see", one)
    await page.do("status", "running", one)
    await page.do("open", name, "devices", "cuda:1 on cpu:")
    await page.do("close", name)
    assert await page.do("cut", name) == {"step": "cut", "beyond": [], "devices": 0}
    await server.put_file("shared", "")
    await page.do("output", "shared right")

    refused = await page.do("shortcut", "Alt+r")
    assert refused["text"].startswith(f"Refused: Resize {name}")
    assert "has 2 virtual devices, so it runs on 1 to 2 physical ones, not on 9" in refused["text"]
    await page.do("choose", name, "Resize", "on 2 physical devices")
    await page.do("see", "cuda:0 on cpu:0, cuda:1 on cpu:1")
    await page.do("status", "running", two)
    await server.put_file("apart", "")
    await page.do("output", "apart right")
    await page.do("choose", name, "Resize", "on 1 physical device")
    await page.do("status", "running", one)


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
        url = await platform.start_server("alice", {"tier": "standard", "devices": 2})
        server = Server(url, await platform.user_token("alice"))
        await set_shortcut(server, {**KEY_OF_NINE, "args": {"devices": 9}})
        service = platform.service()
        await service.set_tiers("alice", ["standard", "basic"])
        async with lab_page(platform, f"{url}lab", tmp_path) as page:
            await page.do("notebook")
            await page.do("run", 'import torch; x = torch.ones(2, device="cuda"); n = 1; print(x)')
            await page.do("status", "running")
            (session,) = await service.sessions("active")
            await page.do("panel")
            await page.do("verb", "Checkpoint", "before lr")
            await page.do("see", 'ago: "before lr"')
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
            await page.do("tab", "variant.ipynb")
            (fork,) = [s for s in await service.sessions() if s["name"] == "variant"]
            assert fork["forked_from"] == session["id"]
            await page.do("insert", 'print("forked", n, x.shape)')
            await page.do("output", "forked 1 torch.Size([2])")
            copy = await server.rest("GET", "api/contents/variant.ipynb", None)
            assert "changed" in copy["content"]["cells"][1]["source"], "as it was in the page"
            await page.do("leave", "variant.ipynb")
            await page.do("open", session["name"], "devices", "cuda:0 on cpu:")
            await page.do("shot", "devices", "1280", "800")
            assert (await page.do("axe"))["serious"] == []
            assert "Devices, the last 5 min" in (await page.do("spark", session["name"]))["text"]

            kept = await page.do("choose", session["name"], "Keep alive", "30 min")
            assert {"30 min", "2 h", "4 h", "Stop keeping it"} <= {*kept["items"]}
            assert (await page.do("escape", session["name"]))["focused"]
            tiers = await page.do("choose", session["name"], "Change tier", "basic")
            assert "premium" not in tiers["items"]
            assert "standard" not in tiers["items"], "it has that one"
            await page.do("see", "running · basic")
            changed = await service.get_session(session["id"])
            assert (changed["tier"], bool(changed["keep_until"])) == ("basic", True)

            await check_resize(page, server, session)

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
            # What the browser itself says of the refused resize; nothing else went wrong.
            assert [error for error in await page.end() if "/resize?" not in error] == []
        if keep := os.environ.get("SCREENSHOTS"):
            for name in SHOTS:
                shutil.copy(tmp_path / f"{name}.png", keep)
