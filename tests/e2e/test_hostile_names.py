"""Names and outputs that are HTML and scripts, in a real browser: in JupyterLab's own pages, the
sidebar and its cards, and the dashboard nothing of them is an element and nothing runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_scheduler.client import ServiceClient
from singularity_spawner.platform.server import Server
from support.attacks import attack
from support.browser_page import Page, lab_page, page_of
from support.capsules import needs_criu
from support.hub_platform import running_platform

IMAGE = "<img src=x onerror=window.owned=1 data-owned>"
FRAME = "</p><iframe srcdoc='<script>parent.owned=2</script>' data-owned></iframe>"
LINK = "[x](javascript:window.owned=3) <a href=javascript:window.owned=3 data-owned>x</a>"
TEMPLATE = "{{ 7 * 7 }}${window.owned=4}"

NOTEBOOK = f"{IMAGE}.ipynb"
CHECKPOINT = f"before {IMAGE}"
RUNS = (FRAME, LINK, TEMPLATE)


async def check_nothing_owned(page: Page, where: str) -> None:
    assert await page.do("owned") == {"step": "owned", "ran": 0, "elements": []}, where


async def submit_failing(service: ServiceClient, home: Path, name: str) -> dict[str, Any]:
    """A run of this name whose last words are the same; the session, once it has failed."""
    code = f"import sys; print({name!r}); sys.exit({name!r})"
    run = {
        "command": f"exec {sys.executable} -c {code!r}",
        "folder": str(home),
        "python": sys.executable,
        "variables": passed_on({"HOME": str(home), "PATH": "/usr/bin:/bin"}),
    }
    made = await service.submit(run=run, name=name)
    async with asyncio.timeout(60):
        while (found := await service.get_session(made["id"]))["state"] != "failed":
            await asyncio.sleep(0.2)
    return dict(found)


@needs_criu
@pytest.mark.browser
@pytest.mark.timeout(300)
@attack(
    "hostile-names-in-a-browser",
    "a notebook, runs, checkpoints and outputs that are named with HTML and scripts, in "
    "JupyterLab, the sidebar, its cards and the dashboard of a real browser",
    "no page has an element of theirs, nothing of theirs runs, and all of it can be read and used",
    root=False,
    slow=True,
)
async def test_hostile_names_in_a_browser(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with running_platform(devices=1) as platform:
        url = await platform.start_server("alice", {"tier": "standard", "devices": 1})
        token = await platform.user_token("alice")
        server, service = Server(url, token), platform.service(token)
        await server.put_notebook(NOTEBOOK, f"print({IMAGE!r})")
        home = platform.folder.homes / "alice"
        runs = [await submit_failing(service, home, name) for name in RUNS]
        assert all(run["name"] == name for run, name in zip(runs, RUNS, strict=True))
        async with lab_page(platform, f"{url}lab/tree/{quote(NOTEBOOK)}", tmp_path) as page:
            await page.do("status", "ready")
            (session,) = await service.sessions("active")
            assert session["name"].endswith(NOTEBOOK)
            await check_nothing_owned(page, "notebook")
            await page.do("panel")
            await page.do("verb", "Checkpoint", CHECKPOINT)
            await page.do("see", CHECKPOINT)
            await check_nothing_owned(page, "card")
            for part, text in (("timeline", ""), ("log", ""), ("checkpoints", CHECKPOINT)):
                await page.do("open", session["name"], part, text)
                await check_nothing_owned(page, part)
            asked = await page.do("press", f"Restore {CHECKPOINT}")
            assert CHECKPOINT in asked["text"]
            await check_nothing_owned(page, "restored")
            errors = await page.end()
            assert errors == []
        async with page_of(
            "dashboard.cjs",
            tmp_path,
            hub=platform.url,
            dashboard=f"{platform.url}services/singularity/dashboard/",
        ) as page:
            looked = 0
            for user, password in (
                ("alice", platform.password),
                ("admin", platform.folder.secret("admin_password", 40)),
            ):
                await page.do("login", user, password)
                pages = ["sessions", "sessions?show=all", "log", "queue", "usage"]
                pages += [f"sessions?show=all&text={quote(name)}" for name in (*RUNS, IMAGE)]
                for where in pages:
                    shown = await page.do("open", where)
                    assert shown["status"] == 200, where
                    await check_nothing_owned(page, where)
                    looked += 1
                shown = (await page.do("open", "sessions?show=all"))["text"]
                assert all(name in shown for name in (*RUNS, IMAGE)), user
            assert await page.end() == []
        record_property("measured", f"nothing in Lab, the sidebar and {looked} dashboard pages")
