"""Handlers of the server extension: authenticated requests, relayed with the server's own token."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from tornado import web
from tornado.iostream import StreamClosedError

HEARTBEAT_S = 15.0
"""A comment line this often keeps the event stream open through proxies."""

PREFIX = "/singularity/api/v1"


class _Handler(APIHandler):  # type: ignore[misc]
    auth_resource = "singularity"
    _track_activity = False  # a page that polls must not keep an idle server alive

    @property
    def client(self) -> ServiceClient:
        """Raises the sentence that says why there is no platform."""
        client = self.settings["singularity_client"]
        if isinstance(client, SingularityError):
            raise client
        assert isinstance(client, ServiceClient)
        return client

    def refuse(self, error: SingularityError) -> None:
        """Answer with the scheduler's own status and sentence."""
        self.set_status(error.http_status)
        self.finish(
            json.dumps({"message": error.message, "reason": error.reason, "fields": error.fields})
        )


class SessionsHandler(_Handler):
    """GET sessions[?state=]: this user's sessions."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        try:
            sessions = await self.client.list_sessions(self.get_query_argument("state", None))
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps({"sessions": sessions}))


class SessionHandler(_Handler):
    """GET sessions/ID, sessions/ID/why, sessions/ID/history[?limit=]; DELETE sessions/ID."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self, session: str, part: str | None = None) -> None:
        answer: Any
        try:
            if part == "why":
                answer = await self.client.why(session)
            elif part == "history":
                answer = {"history": await self.client.history(session, self._limit())}
            else:
                answer = await self.client.get_session(session)
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def delete(self, session: str, part: str | None = None) -> None:
        if part:
            raise web.HTTPError(405)
        try:
            answer = await self.client.end_session(session, "cancelled in JupyterLab")
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))

    def _limit(self) -> int:
        text = self.get_query_argument("limit", "100")
        if not text.isdigit() or not 0 < int(text) <= 10_000:
            raise web.HTTPError(400, f"limit is {text!r}, it must be a number from 1 to 10000")
        return int(text)


class VerbHandler(_Handler):
    """POST sessions/ID/VERB, with the keys of the scheduler's own API in a JSON object."""

    KEYS = {
        "checkpoint": ("name", "level"),
        "suspend": ("name",),
        "resume": ("checkpoint", "node"),
        "migrate": ("device", "node", "cluster"),
        "park": (),
    }
    """What a page may ask for: verb -> keys of its body."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def post(self, session: str, verb: str) -> None:
        body = self.get_json_body() or {}
        known = self.KEYS[verb]
        if not isinstance(body, dict) or not body.keys() <= {*known}:
            raise web.HTTPError(
                400, f"{verb} takes a JSON object with {' and '.join(known) or 'no keys'}"
            )
        try:
            answer = await getattr(self.client, verb)(session, **body)
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))


class KernelsHandler(_Handler):
    """GET kernels: the session behind each kernel of this server, by kernel id."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        kernels = self.kernel_manager
        behind = {
            kernel_id: getattr(kernels.get_kernel(kernel_id).provisioner, "session_id", None)
            for kernel_id in kernels.list_kernel_ids()
        }
        self.finish(json.dumps({"kernels": {k: s for k, s in behind.items() if s}}))


class ClusterHandler(_Handler):
    """GET cluster: nodes, devices, tiers, how many wait."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        try:
            answer = await self.client.cluster()
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))


class EventsHandler(_Handler):
    """GET events: the scheduler's event stream (text/event-stream), this user's sessions only.

    Ids are passed on, those of heartbeats too, so a browser that comes back with `Last-Event-ID`
    reads what it missed. When the scheduler goes away the stream says so with an ``away`` event and
    ends; the browser's EventSource then comes back by itself.
    """

    _relaying: asyncio.Task[None] | None = None

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        # A task of its own, so that a closed tab ends it at once, not at the next event.
        self._relaying = asyncio.ensure_future(self._relay())
        with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
            await self._relaying

    def on_connection_close(self) -> None:
        if self._relaying:
            self._relaying.cancel()
        super().on_connection_close()

    async def _relay(self) -> None:
        try:
            events = self.client.events(self.request.headers.get("Last-Event-ID"))
        except SingularityError as error:
            self.refuse(error)
            return
        started = False
        following = asyncio.ensure_future(anext(events))
        try:
            while True:
                await asyncio.wait({following}, timeout=HEARTBEAT_S)
                if not started and not (following.done() and following.exception()):
                    self.set_header("Content-Type", "text/event-stream")
                    self.set_header("Cache-Control", "no-cache")
                    self.set_header("X-Accel-Buffering", "no")
                    started = True
                if not following.done():
                    self.write(f": still here\n{_place(events.last_id)}\n")
                else:
                    self.write(_lines(following.result()))
                    following = asyncio.ensure_future(anext(events))
                await self.flush()
        except SingularityError as error:
            if not started:
                self.refuse(error)
                return
            self.write(f"event: away\ndata: {json.dumps({'message': error.message})}\n\n")
            self.finish()
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, SingularityError):
                await following
            await events.aclose()


def _place(number: str | None) -> str:
    """The line that moves the browser's last event id to this one."""
    return f"id: {number}\n" if number else ""


def _lines(event: dict[str, Any]) -> str:
    """An event as the stream has it."""
    return f"{_place(event['id'])}event: {event['event']}\ndata: {json.dumps(event['data'])}\n\n"


def handlers() -> list[tuple[str, type[_Handler]]]:
    """The routes below the server's base URL."""
    session = r"/sessions/([^/]+)"
    return [
        (url_path_join(PREFIX, "sessions"), SessionsHandler),
        (PREFIX + session + r"(?:/(why|history))?", SessionHandler),
        (PREFIX + session + rf"/({'|'.join(VerbHandler.KEYS)})", VerbHandler),
        (url_path_join(PREFIX, "kernels"), KernelsHandler),
        (url_path_join(PREFIX, "cluster"), ClusterHandler),
        (url_path_join(PREFIX, "events"), EventsHandler),
    ]
