"""The dashboard in a real browser, on a real platform of two nodes: what an administrator and a
user see, and what they may do."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from pathlib import Path

import pytest
from singularity_spawner.platform.hubapi import HubApi
from singularity_spawner.platform.notebook import Notebook
from support import matrix, pictures
from support.browser_page import Page, page_of
from support.hub_platform import running_platform

ADMIN_PAGES = ("map", "queue", "day", "usage", "quotas", "sessions", "log", "nodes/node-1")
LOOKS = (("light", "1280", "800"), ("dark", "1920", "1080"))
PICTURES = ("map", "nodes-drain")
"""Pages that the documentation shows."""
OWN_PAGES = ("sessions", "sessions?show=all", "queue", "usage", "log")
LOOKS_OF_ADMIN, LOOKS_OF_OWN = matrix.some_of(ADMIN_PAGES, 3), matrix.some_of(OWN_PAGES, 1)
"""Pages of those that everybody must be able to use and that must fit; all are opened and read."""
CHANGES = 6 if matrix.is_full() else 2
"""How often a state changes while the time until the page shows it is measured."""


async def nothing_serious(page: Page, where: str) -> None:
    """The page can be used by everybody and fits the window, in its colour schemes."""
    name = where.replace("/", "-") or "home"
    # Of the pages that the documentation does not show, a full run looks at both.
    looks = LOOKS if name in PICTURES else matrix.some_of(LOOKS, 1)
    for scheme, width, height in looks:
        assert (await page.do("look", scheme, width, height))["wide"] <= 0, (where, scheme)
        assert (await page.do("axe"))["found"] == [], (where, scheme)
        await page.do("shot", f"dashboard-{name}-{scheme}")
        if name in PICTURES:
            await pictures.take(page, f"dashboard-{name}-{scheme}", 1280, 540)
    await page.do("look", "light", "1280", "800")
    assert (await page.do("keys"))["missed"] == [], where


@pytest.mark.browser
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_an_admin_drains_a_node_and_a_user_sees_own_sessions(tmp_path: Path) -> None:
    async with running_platform(devices=2, nodes=2) as platform:
        service = platform.service()
        notebooks = []
        for user, tier in (("alice", "premium"), ("bob", "basic")):
            server = await platform.start_server(user, {"tier": tier, "devices": 1})
            notebook = Notebook(server, await platform.user_token(user), user)
            await notebook.open()
            await notebook.run("import torch; x = torch.ones(2, device='cuda')")
            notebooks.append(notebook)
        sessions = {s["user"]: s for s in await service.sessions("active")}
        home = sessions["alice"]["node"]
        root = platform.folder.secret("admin_password", 40)
        async with page_of(
            "dashboard.cjs",
            tmp_path,
            hub=platform.url,
            dashboard=f"{platform.url}services/singularity/dashboard/",
        ) as page:
            begun = await page.do("login", "admin", root)
            assert begun["title"] == "Cluster map"
            assert "4 devices: 1 premium, 1 basic, 2 free, on 2 of 2 nodes" in begun["text"]
            for where in ADMIN_PAGES:
                shown = await page.do("open", where)
                assert shown["status"] == 200, where
                if where in LOOKS_OF_ADMIN or where in PICTURES:
                    await nothing_serious(page, where)
            assert "alice/" in (await page.do("open", "sessions"))["text"]
            assert "alice/" in (await page.do("plain"))["text"], "also without scripts"

            await page.do("open", "map")
            found = (await page.do("tab", "12"))["found"]
            assert found[0] == "Skip to the content"
            assert "Queue" in found

            await page.do("open", "usage")
            file = await page.do("download", "Download as CSV")
            rows = {row["user"]: row for row in csv.DictReader(io.StringIO(file["text"]))}
            assert float(rows["alice"]["device_s"]) > 0
            assert float(rows["bob"]["device_s"]) > 0

            await page.do("open", f"nodes/{home}")
            asked = await page.do("click", "Drain")
            assert asked["title"] == f"Drain {home}?"
            assert "alice/" in asked["text"]
            await page.do("fill", "Reason, shown to everybody", "a fan")
            await page.do("tick", "may wait in the store")
            await nothing_serious(page, "nodes/drain")
            done = await page.do("press", "Drain")
            assert done["status"] == 200
            await page.do("follow")
            await page.do("see", "#duty", "by admin (a fan)")
            images = next(n for n in (await service.cluster())["nodes"] if n["id"] == home)
            if images["images"]["available"]:
                moved = await page.do("see", "#duty", f"Node {home} is drained by admin (a fan)")
                after = await service.get_session(sessions["alice"]["id"])
                assert after["node"] != home or after["state"] == "suspended"
            else:
                moved = await page.do("see", "#sessions", "because it cannot be stored")
            assert moved["stayed"], "the page followed, it was not loaded again"
            log = await page.do("open", f"log?node={home}")
            assert "drain" in log["text"]
            assert "node.drain" in log["text"]
            await page.do("open", f"nodes/{home}/cordon")
            refused = await page.do("press", "Cordon")
            assert refused["status"] == 409
            assert "there is nothing to cordon" in refused["text"]
            await nothing_serious(page, "nodes/refused")

            mine = await page.do("login", "bob", platform.password)
            assert mine["title"] == "My sessions"
            assert "You hold 1 device now" in mine["text"]
            assert "Quotas" not in mine["nav"]
            for where in OWN_PAGES:
                shown = await page.do("open", where)
                assert shown["status"] == 200
                assert "alice" not in shown["text"], where
                if where in LOOKS_OF_OWN:
                    await nothing_serious(page, f"own-{where.replace('?', '-')}")
            other = "node-1" if home == "node-2" else "node-2"
            refused = await page.do("open", f"nodes/{other}/drain")
            assert refused["status"] == 403
            assert "bob may not see this: it takes an administrator" in refused["text"]
            await nothing_serious(page, "forbidden")
            assert (await page.do("post", f"nodes/{other}/drain", "reason=mine"))["status"] == 403
            duties = {n["id"]: n["duty"] for n in (await service.cluster())["nodes"]}
            assert duties[other] == "open"

            await page.do("open", "sessions")
            await page.do("follow")
            delays = []
            own = sessions["bob"]["id"]
            for number in range(CHANGES):
                word = "parked" if number % 2 == 0 else "running"
                await (service.park if word == "parked" else service.resume)(own)
                known = time.time() * 1000
                seen = await page.do("see", "#rows", word)
                assert seen["stayed"]
                delays.append(max(0.0, seen["at"] - known))
            print("state_to_page_ms", [round(delay) for delay in delays])
            await page.do("fault", "500")
            await service.park(own)
            await page.do("see", "#link", "What is shown is of")
            await page.do("see", "#link", "the scheduler answered 500). It is tried again.")
            await page.do("push", "Try now")
            await page.do("see", "#link", "the scheduler answered 500). It is tried again.")
            await page.do("fault", "")
            assert (await page.do("see", "#link", "Live: changes appear by themselves."))["stayed"]
            await page.do("see", "#rows", "parked")
            # What the browser itself says of the refusals; nothing else went wrong.
            told = ("status of 403", "status of 409", "status of 500")
            errors = [e for e in await page.end() if not any(status in e for status in told)]
            assert errors == []
        for notebook in notebooks:
            await notebook.close()
    if keep := os.environ.get("SCREENSHOTS"):
        for name in os.listdir(tmp_path):
            if name.startswith("dashboard-"):
                shutil.copy(tmp_path / name, keep)


@pytest.mark.browser
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_who_is_made_an_admin_of_the_hub_is_an_administrator(tmp_path: Path) -> None:
    async with (
        running_platform(devices=1) as platform,
        page_of(
            "dashboard.cjs",
            tmp_path,
            hub=platform.url,
            dashboard=f"{platform.url}services/singularity/dashboard/",
        ) as page,
    ):
        assert (await page.do("login", "carol", platform.password))["title"] == "My sessions"
        alice = platform.service(await platform.user_token("alice"))
        hers = await alice.submit(run={"notebook": "/home/alice/train.ipynb"}, tier="basic")
        theirs = await platform.user_token("carol")
        assert await platform.service(theirs).sessions() == []
        hub = HubApi(platform.url, await platform.user_token("admin"))
        await hub.call("PATCH", "users/carol", {"admin": True})
        await page.do("forget")
        seen = await page.do("open", "map")
        assert (seen["status"], seen["title"]) == (200, "Cluster map")
        theirs = await platform.user_token("carol")
        assert hers["id"] in [s["id"] for s in await platform.service(theirs).sessions()]
        assert await page.end() == []
