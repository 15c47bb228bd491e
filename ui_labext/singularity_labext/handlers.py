"""Handlers of the server extension: authenticated requests, relayed with the server's own token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.model.verbs import VERBS
from tornado import web
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError

from . import planned

HEARTBEAT_S = 15.0
"""A comment line this often keeps the event stream open through proxies."""

TAKEN_S = 60.0
"""So long a browser may leave a piece of a stream unread. How many streams there may be is the
scheduler's word: each is one of its own."""

PREFIX = "/singularity/api/v1"

MAX_OFFSET = (1 << 53) - 1
"""The scheduler's largest offset into a log."""

PAGE = 1000
"""Most sessions of a page."""


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

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query; refused with a sentence when it is none or out of range."""
        text = self.get_query_argument(name, str(default))
        if not re.fullmatch(r"[0-9]{1,16}", text) or not least <= int(text) <= most:
            raise web.HTTPError(
                400, f"{name} is {text!r}, it must be a number from {least} to {most}"
            )
        return int(text)

    def refuse(self, error: SingularityError) -> None:
        """Answer with the scheduler's own status and sentence."""
        self.set_status(error.http_status)
        self.finish(
            json.dumps({"message": error.message, "reason": error.reason, "fields": error.fields})
        )


def below(file: str, root: str | None) -> str | None:
    """The path of `file` below `root`, as a page opens it; None: it is elsewhere, or unknown."""
    if not file or not root:
        return None
    there, top = Path(root, file).resolve(), Path(root).resolve()
    return there.relative_to(top).as_posix() if there.is_relative_to(top) else None


class SessionsHandler(_Handler):
    """GET sessions[?state=]: this user's sessions; with ?limit=[&cursor=] a page of them, newest
    first, whose `next` is the cursor of the one after it."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        state = self.get_query_argument("state", None)
        try:
            if self.get_query_argument("limit", None) is None:
                answer: Any = {"sessions": await self.client.sessions(state)}
            else:
                cursor = self.get_query_argument("cursor", None)
                answer = await self.client.sessions_page(
                    state=state, limit=self.number("limit", 100, 1, PAGE), cursor=cursor
                )
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))


class SessionHandler(_Handler):
    """GET sessions/ID, sessions/ID/why, sessions/ID/history[?limit=&cursor=],
    sessions/ID/checkpoints, sessions/ID/devices, sessions/ID/output; DELETE sessions/ID."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self, session: str, part: str | None = None) -> None:
        answer: Any
        try:
            if part == "why":
                answer = await self.client.why(session)
            elif part == "history":
                cursor = self.get_query_argument("cursor", None)
                answer = await self.client.history_page(
                    session, self.number("limit", 100, 1, 10_000), cursor
                )
            elif part == "checkpoints":
                answer = {"checkpoints": await self.client.checkpoints(session)}
            elif part == "devices":
                answer = await self.client.devices(session)
            elif part == "output":
                answer = self._output(await self.client.get_session(session))
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
            answer = await self.client.end_session(session, "ended in JupyterLab")
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))

    def _output(self, session: dict[str, Any]) -> dict[str, Any]:
        """Where the notebook that a run writes is: its `file`, whether that is there as this server
        sees it, and its `path` below the server's root, by which a page opens it (None: it is
        elsewhere)."""
        file: str = (session.get("run") or {}).get("output") or ""
        path = below(file, getattr(self.contents_manager, "root_dir", None))
        return {"file": file or None, "path": path, "exists": bool(file) and Path(file).exists()}


class VerbHandler(_Handler):
    """POST sessions/ID/VERB, with the keys of the scheduler's own API in a JSON object. A `fork`
    may have an Idempotency-Key: with the same one again it is the session that was begun."""

    KEYS = {row.name: tuple(each.name for each in row.arguments) for row in VERBS if row.in_server}
    """What a page may ask for: verb -> keys of its body."""

    NEEDED = {row.name: row.needs.name for row in VERBS if row.needs}
    """Verb -> the key that it cannot do without."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def post(self, session: str, verb: str) -> None:
        body = self.get_json_body() or {}
        known = self.KEYS[verb]
        if not isinstance(body, dict) or not body.keys() <= {*known}:
            raise web.HTTPError(
                400, f"{verb} takes a JSON object with {' and '.join(known) or 'no keys'}"
            )
        if (needed := self.NEEDED.get(verb)) and body.get(needed) in (None, ""):
            raise web.HTTPError(400, f"{verb} needs {needed}: nothing was done")
        try:
            once = {"key": self.request.headers.get("Idempotency-Key")} if verb == "fork" else {}
            answer = await getattr(self.client, verb)(session, **body, **once)
            if verb == "reopen":
                answer = {**answer, "kernel": await self._find("find_again", session)}
            elif verb == "fork":
                answer = {**answer, "kernel": await self._find("find_fork", answer["id"])}
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))

    async def _find(self, finder: str, session: str) -> dict[str, Any] | None:
        """What `_kernel` finds; None when that fails: the verb was done, whatever comes of this."""
        try:
            return await self._kernel(finder, session)
        except Exception as error:
            self.log.warning(
                "Singularity: the kernel of session %s was not found: %s",
                session,
                error,
                exc_info=not isinstance(error, SingularityError),
            )
            return None

    async def _kernel(self, finder: str, session: str) -> dict[str, Any] | None:
        """The kernel of a session that is back, or a fork, once this server lists it: its `id`, and
        the `path` of its notebook below the server's root. `finder`: what the kernel manager finds
        it with. None: the session is of another server, or this one finds no kernels again."""
        find = getattr(self.kernel_manager, finder, None)
        found = await find(session) if find else None
        if found is None:
            return None
        root = getattr(self.contents_manager, "root_dir", None)
        return {"id": found["kernel_id"], "path": below(found["notebook"], root)}


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


class PlannedHandler(_Handler):
    """GET planned: what is going to be done with kernels of this server by who stops servers and
    kernels, by kernel id, and after how many seconds to ask again (None: no need)."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        rules = self._rules()
        found = planned.planned(map(self._facts, self.kernel_manager.list_kernel_ids()), rules)
        self.finish(json.dumps({"planned": found, "again_s": planned.again_s(rules)}))

    def _rules(self) -> planned.Rules:
        manager = self.kernel_manager
        return planned.Rules(
            until=planned.until_of(os.environ),
            hibernates=getattr(manager, "hibernates", False),
            culls=manager.cull_idle_timeout > 0 and manager.cull_interval > 0,
            culls_connected=manager.cull_connected,
            culls_busy=manager.cull_busy,
        )

    def _facts(self, kernel_id: str) -> planned.Kernel:
        manager = self.kernel_manager
        kernel, model = manager.get_kernel(kernel_id), manager.kernel_model(kernel_id)
        own = (kernel.kernel_spec.metadata if kernel.kernel_spec else {}).get("cull_idle_timeout")
        return planned.Kernel(
            id=kernel_id,
            last_activity=datetime.fromisoformat(model["last_activity"].replace("Z", "+00:00")),
            busy=model["execution_state"] == "busy",
            connections=model["connections"],
            limit_s=manager.cull_idle_timeout if own is None else own,
        )


class ClusterHandler(_Handler):
    """GET cluster: nodes, devices, the tiers that are open to this user, how many wait."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        try:
            answer = await self.client.cluster()
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))


class TiersHandler(_Handler):
    """GET users/USER/tiers: the tiers that are open to a user's sessions."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self, user: str) -> None:
        try:
            answer = {"tiers": await self.client.tiers(user)}
        except SingularityError as error:
            self.refuse(error)
            return
        self.finish(json.dumps(answer))


class _StreamHandler(_Handler):
    """Relays what the scheduler streams as server-sent events. When the scheduler goes away the
    stream says so with an ``away`` event and ends."""

    _relaying: asyncio.Task[None] | None = None

    def on_connection_close(self) -> None:
        if self._relaying:
            self._relaying.cancel()
        super().on_connection_close()

    async def relay(
        self, stream: Any, lines: Callable[[Any], str], beat: Callable[[], str]
    ) -> None:
        """Send `lines` of each item of `stream` until it ends or the browser leaves, and `beat`
        while there is none."""
        # A task of its own, so that a closed tab ends it at once, not at the next item.
        self._relaying = asyncio.ensure_future(self._relay(stream, lines, beat))
        with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
            await self._relaying

    async def _relay(
        self, stream: Any, lines: Callable[[Any], str], beat: Callable[[], str]
    ) -> None:
        started = False
        following = asyncio.ensure_future(anext(stream))
        try:
            while True:
                await asyncio.wait({following}, timeout=HEARTBEAT_S)
                if not started and not (following.done() and _refused(following)):
                    self.set_header("Content-Type", "text/event-stream")
                    self.set_header("Cache-Control", "no-cache")
                    self.set_header("X-Accel-Buffering", "no")
                    started = True
                if not following.done():
                    self.write(f": still here\n{beat()}\n")
                else:
                    self.write(lines(following.result()))
                    following = asyncio.ensure_future(anext(stream))
                await self._push()
        except StopAsyncIteration:
            self.finish("event: end\ndata: {}\n\n")
        except SingularityError as error:
            if not started:
                self.refuse(error)
                return
            self.finish(f"event: away\ndata: {json.dumps({'message': error.message})}\n\n")
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, SingularityError):
                await following
            await stream.aclose()

    async def _push(self) -> None:
        """Send what was written; a browser that does not take it in time is left."""
        try:
            async with asyncio.timeout(TAKEN_S):
                await self.flush()
        except TimeoutError:
            connection = self.request.connection
            if isinstance(connection, HTTP1Connection):
                connection.close()
            raise StreamClosedError from None


class EventsHandler(_StreamHandler):
    """GET events: the scheduler's event stream (text/event-stream), this user's sessions only.

    Ids are passed on, those of heartbeats too, so a browser that comes back with `Last-Event-ID`
    reads what it missed.
    """

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        try:
            events = self.client.events(self.request.headers.get("Last-Event-ID"))
        except SingularityError as error:
            self.refuse(error)
            return
        await self.relay(events, _lines, lambda: _place(events.last_id))


class LogHandler(_StreamHandler):
    """GET sessions/ID/log[?offset=|tail=][&follow=true]: what its process printed, as ``log``
    events ``{"text", "next"}`` (`next`: the byte to go on from) and an ``end`` event when that is
    all. `tail`: begin so many bytes before the end; `follow`: until the session has ended."""

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator]
    async def get(self, session: str) -> None:
        offset = self.number("offset", 0, 0, MAX_OFFSET)
        tail = self.number("tail", 0, 0, MAX_OFFSET)
        follow = self.get_query_argument("follow", "false") == "true"
        try:
            if tail:
                offset = max(offset, await self._end(session) - tail)
            log = self.client.logs(session, offset=offset, follow=follow)
        except SingularityError as error:
            self.refuse(error)
            return
        await self.relay(
            log,
            lambda text: f"event: log\ndata: {json.dumps({'text': text, 'next': log.offset})}\n\n",
            lambda: "",
        )

    async def _end(self, session: str) -> int:
        """The byte behind the last one: where a log that is read from too far on begins."""
        log = self.client.logs(session, offset=MAX_OFFSET)
        try:
            async for _ in log:
                pass
        finally:
            await log.aclose()
        return log.offset


def _refused(following: asyncio.Future[Any]) -> bool:
    """Whether it ended with something that can be answered instead of a stream."""
    return isinstance(following.exception(), SingularityError)


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
        (PREFIX + session + r"(?:/(why|history|checkpoints|devices|output))?", SessionHandler),
        (PREFIX + session + r"/log", LogHandler),
        (PREFIX + session + rf"/({'|'.join(VerbHandler.KEYS)})", VerbHandler),
        (url_path_join(PREFIX, "kernels"), KernelsHandler),
        (url_path_join(PREFIX, "planned"), PlannedHandler),
        (url_path_join(PREFIX, "cluster"), ClusterHandler),
        (PREFIX + r"/users/([^/]+)/tiers", TiersHandler),
        (url_path_join(PREFIX, "events"), EventsHandler),
    ]
