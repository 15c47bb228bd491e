"""The JupyterLab extension in a real browser, on a real platform: what a person sees."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.client import ServiceClient
from support import matrix, pictures
from support.browser_page import Page, lab_page
from support.hub_platform import running_platform

TIERS = ("premium", "standard", "basic")
CHANGES = 10 if matrix.is_full() else 2
"""How often the state changes while the time until the page shows it is measured."""


UNITS = ["KiB", "MiB", "GiB", "AM", "PM", "Ctrl+Alt+S"]
"""Written in the same way in all languages, or by JupyterLab."""


def strings(value: Any) -> list[str]:
    """All that are in a JSON document."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inside for text in strings(each)]


async def check_language(page: Page, service: ServiceClient) -> None:
    """With a language pack nothing of ours is in English but what the scheduler says; left in
    English."""
    await page.do("language", "pseudo")
    await page.do("menu")
    data = [*strings(await service.sessions()), *TIERS, *UNITS]
    found = await page.do("untranslated", json.dumps(data))
    assert found["translated"] > 20
    assert found["found"] == []
    await page.do("nomenu")
    await page.do("language", "")


async def check_countdown(page: Page, service: ServiceClient, session: str) -> None:
    """Devices that nothing uses are announced to be freed, with the seconds until then; who keeps
    the session alive keeps them, who does not sees why they are gone. Left without devices."""
    await service.set_parameters({"idle_soft_s": 60, "min_run_s": 0})
    told = await page.do("banner", "Its devices are about to be freed")
    assert "Nothing is lost" in told["text"]
    counted = await page.do("countdown")
    assert 0 < counted["now"] < counted["first"] <= 60
    assert counted["offers"] == "Keep alive"
    await page.do("offered", "Keep alive")
    await page.do("nobanner")
    assert (await service.get_session(session))["keep_until"]
    await service.keep(session, 0)
    await page.do("banner", "Its devices are about to be freed")
    await service.set_parameters({"idle_soft_s": 5})
    await page.do("status", "parked")
    await page.do("banner", "no call reached its devices for")
    await service.set_parameters({"idle_soft_s": None, "min_run_s": None})


async def check_taken_back(page: Page, service: ServiceClient, session: dict[str, Any]) -> None:
    """The end of a session is taken back by the card of its kernel, which was shut down: its
    notebook goes on with it, as at its newest checkpoint. It has `n` = 1, and `x` two ones."""
    await page.do("idle")
    await service.checkpoint(session["id"])
    await page.do("run", 'n = 2; x += 41; print("changed", x.sum().item())')
    await page.do("output", "changed 84.0")
    await page.do("mainmenu", "Kernel", "Shut Down Kernel")
    await page.do("see", "completed")
    over = await service.get_session(session["id"])
    assert "is kept for 24.0 h: reopen brings it back from there" in over["reason"]
    assert (await page.do("axe"))["serious"] == []
    await page.do("act", "Take back", session["name"])
    await page.do("idle")
    await page.do("run", 'print("back", n, x.sum().item())')
    await page.do("output", "back 1 2.0")
    (again,) = await service.sessions("active")
    assert (again["id"], again["process_state"]) == (session["id"], "live")


@pytest.mark.browser
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_person_sees_the_session_of_a_notebook(tmp_path: Path) -> None:
    async with running_platform(devices=1) as platform:
        server = await platform.start_server("alice", {"tier": "standard", "devices": 1})
        service = platform.service()
        async with lab_page(platform, f"{server}lab", tmp_path) as page:
            await page.do("notebook")
            ready = await page.do("status", "ready")
            assert "standard · no checkpoint" in ready["text"]
            await page.do("run", 'import torch; x = torch.ones(2, device="cuda"); n = 1; print(x)')
            running = await page.do("status", "running")
            assert "cpu:0" in running["text"]
            (session,) = await service.sessions("active")
            assert running["title"] == session["reason"]

            shown = await page.do("panel")
            assert shown["status"] == "1 with a device"
            assert session["name"] in shown["text"]
            assert session["reason"] in shown["text"]

            await service.preempt(session["id"])
            await page.do("status", "parked")
            taken = await service.get_session(session["id"])
            banner = await page.do("banner")
            assert f"Your session is parked: {taken['reason']}" in banner["text"]
            await page.do("shot", "taken", "1280", "800")
            await service.resume(session["id"])
            await page.do("status", "running")
            await page.do("nobanner")

            asked = await page.do("verb", "Checkpoint", "before lr")
            assert "Name (optional)" in asked["text"]
            await page.do("see", 'ago: "before lr"')
            assert (await service.checkpoints(session["id"]))[0]["name"] == "before lr"

            asked = await page.do("verb", "Migrate", "no-such-node")
            refused = await page.do("dialog")
            assert "no-such-node" in refused["text"]

            found = await page.do("palette", "suspend session")
            assert any("Suspend session" in item for item in found["found"])

            delays = []
            for number in range(CHANGES):
                verb = service.park if number % 2 == 0 else service.resume
                await verb(session["id"])
                known = time.time() * 1000
                seen = await page.do("status", "parked" if number % 2 == 0 else "running")
                delays.append(max(0.0, seen["at"] - known))
            print("state_to_page_ms", [round(delay) for delay in delays])

            await check_countdown(page, service, session["id"])
            await service.resume(session["id"])
            await page.do("status", "running")

            await page.do("menu")
            await pictures.take(page, "jupyterlab-menu", 1280, 480)
            await page.do("nomenu")
            await check_language(page, service)
            await check_taken_back(page, service, session)
            await page.do("shot", "panel", "1920", "1080")
            await page.do("theme", "JupyterLab Dark")
            await page.do("shot", "dark", "1280", "800")
            asked = await page.do("verb", "End session…")
            assert "Its variables are lost" in asked["text"]
            await page.do("see", "ended in JupyterLab")
            # What the browser itself says of the refused migration; nothing else went wrong.
            errors = [error for error in await page.end() if "/migrate?" not in error]
            assert errors == []
        ended = await service.get_session(session["id"])
        assert "ended in JupyterLab" in ended["reason"]
        if keep := os.environ.get("SCREENSHOTS"):
            for name in ("taken", "panel", "dark"):
                shutil.copy(tmp_path / f"{name}.png", keep)


@pytest.mark.asyncio
async def test_a_cell_that_is_run_before_the_page_knows_its_kernel_runs_in_it(
    tmp_path: Path,
) -> None:
    async with running_platform(devices=1) as platform:
        server = await platform.start_server("alice", {"tier": "standard", "devices": 1})
        service = platform.service()
        async with lab_page(platform, f"{server}lab", tmp_path) as page:
            await page.do("notebook")
            await page.do("run", "n = 41; print('first', n)")
            await page.do("output", "first 41")
            (session,) = await service.sessions("active")
            await page.do("early", "print('early', n + 1)")
            await page.do("output", "early 42")
            assert [one["id"] for one in await service.sessions("active")] == [session["id"]]
            assert await page.end() == []
