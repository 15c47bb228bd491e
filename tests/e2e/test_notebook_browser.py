"""What a person sees in the notebook when a session is taken and comes back, in JupyterLab and in
Notebook 7, in a real browser on a real platform."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from singularity_spawner.platform.demo.runs import submit
from singularity_spawner.platform.processes import of_run
from singularity_spawner.platform.server import Server
from support import pictures
from support.browser_page import Page, lab_page
from support.hub_platform import running_platform

TRAIN = 'import torch; x = torch.ones(2, device="cuda"); print("sum", float(x.sum()))'
PREMIUM = """
import pathlib, time, torch
x = torch.ones(2, device="cuda")
while not pathlib.Path("go").exists():
    x += 1
    time.sleep(0.05)
"""
NEVER = {"unknown", "dead", "restarting", "autorestarting", "disconnected"}
"""What no kernel status may say of a session that is parked or suspended."""
COUNTS = r"\d+ (with a device|with devices|waiting|at rest|ended)"
"""What the line of the sidebar says while it is connected."""
PAGES = {"lab": "lab/tree/train.ipynb", "notebook": "notebooks/train.ipynb"}


async def state_of(service: Any, session: str, *wanted: str, seconds: float = 60) -> dict[str, Any]:
    """The session once it is in one of these states."""
    for _ in range(int(seconds / 0.2)):
        found: dict[str, Any] = await service.get_session(session)
        if found["state"] in wanted:
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"it is {found['state']}, not {wanted}: {found['reason']}")


def hurry(run: dict[str, Any]) -> None:
    """Let the cell of a run end."""
    Path(run["run"]["folder"], "go").touch()


def kill_service(instance: str) -> None:
    """The Hub starts it again."""
    for process in of_run(instance):
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        if b"singularity_scheduler.service" in arguments:
            os.kill(process.pid, signal.SIGKILL)


async def shots(page: Page, folder: Path, name: str) -> None:
    """Screenshots of both sizes in both themes, where `SCREENSHOTS` says; left light."""
    if not (keep := os.environ.get("SCREENSHOTS")):
        return
    for theme in ("Dark", "Light"):
        await page.do("theme", f"JupyterLab {theme}")
        for width, height in (("1920", "1080"), ("1280", "800")):
            shot = f"{name}-{theme.lower()}-{width}x{height}"
            await page.do("shot", shot, width, height)
            shutil.copy(folder / f"{shot}.png", keep)


@pytest.mark.browser
@pytest.mark.asyncio
@pytest.mark.timeout(400)
@pytest.mark.parametrize("app", list(PAGES))
async def test_a_notebook_says_that_it_was_taken_and_is_back(app: str, tmp_path: Path) -> None:
    lab = app == "lab"
    async with running_platform(devices=1) as platform:
        url = await platform.start_server("alice", {"tier": "standard", "devices": 1})
        server = Server(url, await platform.user_token("alice"))
        await server.put_notebook("train.ipynb", "")
        await server.put_notebook("urgent.ipynb", PREMIUM)
        service = platform.service()
        async with lab_page(platform, url + PAGES[app], tmp_path) as page:
            await page.do("button", "ready")
            await page.do("idle")
            await page.do("run", TRAIN)
            running = await page.do("button", "running")
            assert {"Checkpoint…", "Suspend", "Park"} <= set(running["found"])
            assert running["found"][-1] == "End session…"
            assert "Resume" not in running["found"]
            assert running["focused"], "the menu gives the focus back"
            (session,) = await service.sessions("active")
            mine = session["id"]

            (urgent,) = await submit(server, "urgent", options="--tier premium")
            await page.do("button", "parked")
            taken = await page.do("banner", "went to")
            to = r"alice/urgent\.ipynb \(premium\)\. Nothing is lost"
            assert re.search(rf"Your device (was idle and )?went to {to}", taken["text"])
            assert "Run any cell to come back." in taken["text"]
            await page.do("run", 'print("again", float(x.sum()))')
            prompt = await page.do("prompt")
            assert prompt["title"].startswith("Waits for a device: ")
            assert prompt["title"] == prompt["label"]
            assert prompt["marked"] == 1
            waits = await page.do("banner", "you are next")
            assert "Your cell goes on by itself." in waits["text"]
            if lab:
                await page.do("panel")
            await shots(page, tmp_path, f"{app}-taken")
            if lab:
                await check_axe(page)
                await check_keys(page)

            run = await state_of(service, urgent, "running")
            hurry(run)
            await page.do("output", "again 2.0")
            await page.do("noprompt")
            await page.do("nobanner")
            if not lab:
                assert await page.end() == []
                return
            await page.do("ended", "completed")

            await service.suspend(mine)
            await page.do("button", "suspended")
            away = await page.do("banner", "is suspended")
            assert "resume or the next request from its notebook brings it back" in away["text"]
            await page.do("saved")
            notebook = await server.rest("GET", "api/contents/train.ipynb", None)
            metadata = [cell["metadata"] for cell in notebook["content"]["cells"]]
            assert not [found for found in metadata if found.keys() - {"trusted"}]
            await page.do("watch")
            await page.do("run", 'print("back", float(x.sum()))')
            await page.do("output", "back 2.0")
            back = await page.do("banner", "is back")
            assert "Nothing was lost" in back["text"]
            assert re.search(r"its own files \([\d.]+ [KM]?i?B\)", back["text"]), back["text"]
            words = set((await page.do("kernel"))["words"])
            assert words
            assert not words & NEVER
            await service.suspend(mine)
            await page.do("button", "suspended")
            await page.do("reload")
            words = set((await page.do("kernel"))["words"])
            assert not words & NEVER
            await check_trouble(page, platform)
            # Its session is in the store: while the service is killed the kernel cannot be reached.
            assert [error for error in await page.end() if "/channels?" not in error] == []


async def check_keys(page: Page) -> None:
    """What can be done is done by the keyboard as well."""
    way = await page.do("keysToBanner")
    assert way["toolbar"][-1].startswith("Session: ")
    assert way["banner"][-1] == "Dismiss"
    menu = await page.do("keyMenu")
    assert set(menu["reached"]) == set(menu["entries"])
    assert menu["reached"]["Keep alive"] == ["30 min", "2 h", "4 h", "Stop keeping it"]
    assert menu["focused"], "Escape leads back to the button"
    await page.do("keysToStatus")
    found = await page.do("keys")
    assert found["rows"] == 2
    assert found["missed"] == []


async def check_axe(page: Page) -> None:
    """In both themes, which are photographed; left light."""
    for theme in ("Dark", "Light"):
        await page.do("theme", f"JupyterLab {theme}")
        await pictures.take(page, f"jupyterlab-taken-{theme.lower()}")
        found = await page.do("axe")
        assert found["rules"] > 5
        assert found["serious"] == [], theme
        await page.do("menu")
        assert (await page.do("axe"))["serious"] == [], f"the menu, {theme}"
        await page.do("nomenu")


async def check_trouble(page: Page, platform: Any) -> None:
    """A scheduler that fails, is slow, is of another version, and one that is gone for a while:
    one line each, and the page goes on."""
    await page.do("panel")
    await page.do("fault", "500")
    line = await page.do("line", "no connection to the scheduler")
    assert "the ledger cannot be written" in line["text"]
    await page.do("fault", "slow")
    await page.do("line", "connecting to the scheduler")
    await page.do("line", COUNTS)
    await page.do("fault", "version")
    await page.do("line", "of another version|connection lost")
    await page.do("fault", "")
    line = await page.do("line", COUNTS)
    assert line["cards"] > 0

    kill_service(platform.settings.instance)
    line = await page.do("line", r"connection lost, last known state of \d")
    assert line["cards"] > 0, "what was known is shown on"
    await page.do("line", COUNTS)
