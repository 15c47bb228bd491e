"""What people see: how soon the pages follow, the sidebar with 1,000 sessions, size, accessibility.

Everything is real: a platform on this machine (JupyterHub, scheduler service, node agent), alice's
JupyterLab with the extension that `./dev setup` built, and a Chromium that logs in through the Hub.
A change is timed from the moment that the scheduler writes down in the session's history to the
frame in which the page shows it, on the one clock of this machine. The 1,000 sessions are alice's
notebook, which is parked, a run of hers that works on the only device, and runs that wait for it.

`panel_1000_sessions_s` is from the click that opens the sidebar to the frame with its first card,
in a page just loaded that knows all sessions. `reload_*` is from the beginning of a reload, with
the sidebar open: mostly JupyterLab's own start, so the one with one session is beside it.
"""

from __future__ import annotations

import asyncio
import datetime
import gzip
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from singularity_scheduler.client import ServiceClient

from .api import RUN, p95
from .figures import Figure
from .tools import see_support

DESCRIPTION = "the pages: state to page, 1,000 sessions in the sidebar, size, accessibility"
BOUNDS = {
    "state_to_page_ms_p95": 500.0,
    "panel_1000_sessions_s": 1.0,
    "bundle_kb_gzip": 300.0,
    "axe_serious": 0.0,
}
BESIDE = (
    "reload_1_session_s",
    "reload_1000_sessions_s",
    "dashboard_state_to_page_ms_p95",
    "dashboard_page_kb_gzip",
)
"""Keys without a promise."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCRIPTS = (
    Path(__file__).resolve().parent.parent / "ui_labext/singularity_labext/labextension/static"
)
THEMES = ("Light", "Dark")
CELL = 'import torch; x = torch.ones(2, device="cuda"); print("sum", float(x.sum()))'
WORK = """
import time, torch
x = torch.ones(2, device="cuda")
while True:
    x += 1
    time.sleep(0.05)
"""
DASHBOARD_PAGE = "sessions"


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "sessions": 1000,
        "rounds": 1 if quick else 3,
        "changes": 10 if quick else 60,
        "dashboard_changes": 6 if quick else 20,
        "reloads": 1 if quick else 5,
    }


def bundle_kb() -> float:
    """All scripts that the extension ships, each compressed."""
    scripts = sorted(SCRIPTS.glob("*.js"))
    if not scripts:
        raise SystemExit(f"there are no scripts in {SCRIPTS}; run ./dev setup, which builds them")
    return sum(len(gzip.compress(script.read_bytes())) for script in scripts) / 1024


async def changed_at(service: ServiceClient, session: str, state: str) -> float:
    """When the session came into this state, in ms since 1970, by its history."""
    entries = await service.history(session, 20)
    at = next(entry["at"] for entry in reversed(entries) if entry["state"] == state)
    return 1e3 * datetime.datetime.fromisoformat(at).timestamp()


async def time_changes(
    page: Any, service: ServiceClient, session: str, count: int, *step: str
) -> list[float]:
    """Parks and resumes the session in turns; from each change to the page that `step` waits for,
    in ms."""
    took = []
    for number in range(count):
        state, verb = ("running", service.resume) if number % 2 else ("parked", service.park)
        seen, _ = await asyncio.gather(page.do(*step, state), verb(session))
        took.append(seen["at"] - await changed_at(service, session, state))
    return took


class Axe:
    """Asks axe about the page as it is, in both themes."""

    def __init__(self, page: Any, say: Callable[[str], object]) -> None:
        self._page, self._say = page, say
        self.found: list[float] = []

    async def look(self, what: str) -> None:
        """What is open, the menu included, and then what is there without it."""
        for theme in THEMES:
            await self._page.do("theme", f"JupyterLab {theme}")
            await self._ask(f"{what}, {theme.lower()}")
            await self._page.do("menu")
            await self._ask(f"{what}, menu open, {theme.lower()}")
            await self._page.do("nomenu")

    async def _ask(self, what: str) -> None:
        answer = await self._page.do("axe")
        if not answer["rules"]:
            raise SystemExit(f"axe has looked at nothing: {what}")
        for line in answer["serious"]:
            self._say(f"{what}: {line}")
        self.found.append(float(len(answer["serious"])))


async def fill(platform: Any, url: str, count: int) -> None:
    """So many more sessions of alice: a run that works on the only device, and those that wait for
    it to end."""
    from singularity_spawner.platform.demo.runs import submit
    from singularity_spawner.platform.server import Server

    token = await platform.user_token("alice")
    server, alice = Server(url, token), platform.service(token)
    await server.put_notebook("work.ipynb", WORK)
    (first,) = await submit(server, "work", options="--tier premium")
    for _ in range(600):
        if (await alice.get_session(first))["state"] == "running":
            break
        await asyncio.sleep(0.1)
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with gate:
            await alice.submit(run=RUN, name=f"run {number}", tier="basic")

    await asyncio.gather(*(one(number) for number in range(count - 1)))
    states = Counter(found["state"] for found in await alice.sessions("active"))
    if states["queued"] != count - 1 or states["running"] != 1:
        raise SystemExit(f"one run was to work and {count - 1} to wait: {dict(states)}")


async def jupyterlab(
    platform: Any, folder: Path, size: dict[str, Any], say: Callable[[str], object]
) -> dict[str, Figure]:
    """alice's JupyterLab: a notebook that holds a device, then 1,000 sessions."""
    from support.browser_page import lab_page

    url = await platform.start_server("alice", {"tier": "standard", "devices": 1})
    service = platform.service()
    figures: dict[str, list[float]] = {}

    def note(key: str, *values: float) -> None:
        figures.setdefault(key, []).extend(values)

    async with lab_page(platform, f"{url}lab", folder) as page:
        await page.do("notebook")
        await page.do("run", CELL)
        await page.do("output", "sum 2.0")
        await page.do("status", "running")
        (session,) = await service.sessions("active")
        await page.do("panel")
        for round_ in range(size["rounds"]):
            say(f"{size['changes']} changes, round {round_ + 1} of {size['rounds']} ...")
            step = ("changed", session["id"])
            took = await time_changes(page, service, session["id"], size["changes"], *step)
            note("state_to_page_ms_p95", p95(took))
        say("reloading the page with one session ...")
        for _ in range(size["reloads"]):
            note("reload_1_session_s", (await page.do("reloaded", "1"))["ms"] / 1e3)

        say("asking axe ...")
        axe = Axe(page, say)
        await service.preempt(session["id"])
        await page.do("banner", "Your session is parked")
        await page.do("open", session["name"], "timeline", "parked")
        await axe.look("parked, with the banner and an open card")
        note("axe_serious", *axe.found)

        say(f"submitting {size['sessions'] - 1} runs ...")
        await fill(platform, url, size["sessions"] - 1)
        for _ in range(size["reloads"]):
            seen = await page.do("reloaded", str(size["sessions"]))
            note("reload_1000_sessions_s", seen["ms"] / 1e3)
        for _ in range(size["reloads"]):
            seen = await page.do("opened", str(size["sessions"]))
            note("panel_1000_sessions_s", seen["ms"] / 1e3)
        if errors := await page.end():
            say(f"the page reported errors: {errors}")
    return {key: Figure(values) for key, values in figures.items()}


async def dashboard(
    platform: Any, folder: Path, size: dict[str, Any], say: Callable[[str], object]
) -> dict[str, Figure]:
    """bob's own sessions on the dashboard, one notebook."""
    from singularity_spawner.platform.notebook import Notebook
    from support.browser_page import page_of

    url = await platform.start_server("bob", {"tier": "standard", "devices": 1})
    notebook = Notebook(url, await platform.user_token("bob"), "bob")
    await notebook.open()
    await notebook.run(CELL)
    service = platform.service()
    (session,) = await service.sessions("active")
    changes, kb = [], []
    async with page_of(
        "dashboard.cjs",
        folder,
        hub=platform.url,
        dashboard=f"{platform.url}services/singularity/dashboard/",
    ) as page:
        await page.do("login", "bob", platform.password)
        files = (await page.do("weight", DASHBOARD_PAGE))["files"]
        kb.append(sum(files.values()) / 1024)
        await page.do("open", DASHBOARD_PAGE)
        await page.do("follow")
        say("changes on the dashboard ...")
        for _ in range(size["rounds"]):
            took = await time_changes(
                page, service, session["id"], size["dashboard_changes"], "changed"
            )
            changes.append(p95(took))
        await page.end()
    await notebook.close()
    return {
        "dashboard_state_to_page_ms_p95": Figure(changes),
        "dashboard_page_kb_gzip": Figure(kb),
    }


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    if not any(map(shutil.which, BROWSERS)):
        raise SystemExit(f"there is no browser; install Chromium, one of {', '.join(BROWSERS)}")
    see_support()
    from support.hub_platform import running_platform

    size = sizes(quick)
    figures = {"bundle_kb_gzip": Figure([bundle_kb()])}
    folder = Path(tempfile.mkdtemp(prefix="sgu-"))
    try:
        async with running_platform(devices=1) as platform:
            figures |= await dashboard(platform, folder, size, say)
            figures |= await jupyterlab(platform, folder, size, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures["axe_serious"].quote = max
    return {key: figures[key] for key in (*BOUNDS, *BESIDE)}
