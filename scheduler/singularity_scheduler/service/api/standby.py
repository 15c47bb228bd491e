"""What a service answers while another one leads or it starts, and the door that leads to either.

The service listens all the time. `Door` passes each request on to the application of the moment:
the scheduler's own, or this one, which knows only how the service is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from html import escape
from typing import Any

from singularity_proxy.errors import Unavailable
from tornado.httputil import (
    HTTPConnection,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
)
from tornado.web import Application, RequestHandler

from singularity_scheduler.service.dashboard import PLACE

from .problems import problem

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Singularity</title>
<h1>Not here now</h1>
<p role="alert">{}</p>
<p>This page looks again every 5 seconds.</p>
</html>
"""
"""For people, who come for the dashboard."""


class Standby(RequestHandler):
    """Every address: 503 with the sentence, for browsers as a page; ``healthz`` in its own form."""

    def initialize(self, why: Callable[[], str]) -> None:
        self._why = why

    def prepare(self) -> None:
        self.set_status(503)
        self.clear_header("Server")
        self.set_header("Cache-Control", "no-store")
        sentence = self._why()
        if self.request.path.endswith("/healthz"):
            self.set_header("Content-Type", "application/json")
            self.finish(json.dumps({"status": "standby", "nodes": 0, "detail": sentence}))
            return
        self.set_header("Retry-After", "5")
        if "text/html" in self.request.headers.get("Accept", ""):
            self.set_header("Content-Type", "text/html; charset=utf-8")
            self.set_header("Refresh", "5")
            self.finish(PAGE.format(escape(sentence)))
            return
        self.set_header("Content-Type", "application/problem+json")
        self.finish(json.dumps(problem(Unavailable(sentence), 503)))

    def check_xsrf_cookie(self) -> None:
        """Nothing can be done here."""


def standby_application(why: Callable[[], str]) -> Application:
    """`why`: the sentence of the moment."""
    return Application([(r".*", Standby, {"why": why})], log_function=lambda _: None)


class Later(RequestHandler):
    """Every page while they are loaded: the browser is sent to the same address once they are."""

    def initialize(self, loaded: asyncio.Event) -> None:
        self._loaded = loaded

    async def prepare(self) -> None:
        await self._loaded.wait()
        self.clear_header("Server")
        self.set_header("Cache-Control", "no-store")
        self.redirect(self.request.uri or "", status=307)  # with the method and the form


def later_pages(base: str, loaded: asyncio.Event) -> list[tuple[Any, ...]]:
    """The addresses of the dashboard until it is `loaded`; `base`: where the service is, ending in
    a slash."""
    return [(rf"{base}(?:{PLACE}.*|oauth_callback)", Later, {"loaded": loaded})]


class Door(HTTPServerConnectionDelegate):
    """What the server of the service's port calls."""

    def __init__(self, standby: Application) -> None:
        self._standby = standby
        self._application = standby

    def open(self, application: Application) -> None:
        """The scheduler works: its application answers from now on."""
        self._application = application

    def shut(self) -> None:
        """It does not, any more."""
        self._application = self._standby

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        return self._application.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        self._application.on_close(server_conn)
