"""A browser without scripts, for the dashboard; it logs in as JupyterHub would let it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from support.scheduler_service import Platform


class Visitor:
    """Somebody with cookies. Addresses are below the dashboard."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.web = requests.Session()

    async def ask(self, method: str, path: str = "", **more: Any) -> requests.Response:
        """One request; redirects are not followed."""
        url = path if path.startswith("http") else self.base + path
        more = {"allow_redirects": False, "timeout": 30, **more}
        return await asyncio.to_thread(self.web.request, method, url, **more)

    async def get(self, path: str = "", **more: Any) -> requests.Response:
        return await self.ask("GET", path, **more)

    async def see(self, path: str) -> str:
        """The HTML of a page that there is."""
        answer = await self.get(path)
        assert answer.status_code == 200, (answer.status_code, answer.headers, answer.text)
        return answer.text

    async def xsrf(self) -> str:
        """What this visitor's forms send along."""
        found = re.search(r'name="xsrf" content="([^"]+)"', await self.see("sessions"))
        assert found
        return found[1]

    async def post(self, path: str, **fields: str) -> requests.Response:
        """Send a form as a page of the dashboard does."""
        return await self.ask("POST", path, data={"_xsrf": await self.xsrf(), **fields})

    async def log_in(self, token: str) -> str:
        """Go to the dashboard and do at the Hub what lets the owner of this token in; where one
        gets to."""
        first = await self.get("log?text=x")
        assert first.status_code == 302, first.text
        asked = urlsplit(first.headers["Location"])
        assert asked.path.endswith("/hub/api/oauth2/authorize"), first.headers
        state = parse_qs(asked.query)["state"][0]
        service = self.base.removesuffix("dashboard/")
        back = await self.get(f"{service}oauth_callback?code={token}&state={state}")
        assert back.status_code == 302, back.text
        return str(back.headers["Location"])


@asynccontextmanager
async def visitor(p: Platform, who: str = "") -> AsyncIterator[Visitor]:
    """Somebody at the dashboard of a platform; logged in as `who`."""
    made = Visitor(f"{p.url}dashboard/")
    try:
        if who:
            await made.log_in(f"{who}-token")
        yield made
    finally:
        made.web.close()
