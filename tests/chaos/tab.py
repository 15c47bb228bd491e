"""A browser's tab with a notebook, as JupyterLab has it: it connects again for as long as it is
open, with the same id, and finds the notebook's kernel anew when its server was started anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from singularity_proxy.errors import SingularityError, Unavailable
from singularity_spawner.platform.server import Server
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from .world import World

RETRY_S = 0.5
CONNECT_S = 20.0


class KernelReplaced(Exception):
    """The notebook has another kernel than before, or none: its variables are gone."""


class Closed(Exception):
    """The campaign itself has closed the notebook."""


@dataclass
class Cell:
    """An executed cell as the tab sees it."""

    id: str
    code: str
    sent_at: float
    sent: int = 0
    """How often: each time the kernel may have run it, unless all of that was lost."""
    text: str = ""
    status: str = ""
    error: str = ""
    idle: bool = False
    on_text: Callable[[str], None] | None = None

    @property
    def done(self) -> bool:
        return bool(self.status) and self.idle


@dataclass
class Tab:
    """One tab of `user`, for the notebook `path`."""

    world: World
    user: str
    path: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    kernel: str = ""
    connections: int = 0
    """How often it was connected."""
    reconnected_at: float = 0.0
    _url: str = ""
    _cells: dict[str, Cell] = field(default_factory=dict)
    _socket: WebSocketClientConnection | None = None
    _keeper: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _gone: str = ""
    _closed: bool = False

    # -- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the notebook and keep it connected."""
        self._keeper = asyncio.create_task(self._keep())
        await self.until(lambda: self._socket is not None, 240.0, "no connection to the notebook")

    async def close(self, end: bool) -> None:
        """Close the tab; `end`: and shut the kernel down, as a person does."""
        self._closed = True
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._keeper
            self._keeper = None
        self._disconnect()
        if end and self.kernel:
            kernel, self.kernel = self.kernel, ""
            with contextlib.suppress(SingularityError):
                await self.rest("DELETE", f"api/kernels/{kernel}")

    async def rest(self, method: str, path: str, body: Any = None) -> Any:
        """A call of the user's server, through everything that may be away."""

        async def call() -> Any:
            try:
                return await (await self._server()).rest(method, path, body)
            except SingularityError as error:
                if method == "DELETE" and "Kernel does not exist" in error.message:
                    return None  # it was done before, and the answer was lost on its way
                raise

        return await self.world.persist(call, what=f"{method} {path} of {self.user}")

    async def _server(self) -> Server:
        """The user's server, which is started when it is not there."""
        hub, user = self.world.hub, self.user
        token = await self.world.token(user)
        model = await hub.server(user)
        if model is None:
            await hub.call("POST", f"users/{user}/server", {"user_options": {}}, timeout=30.0)
            model = await hub.server(user)
        if model is None or not model["ready"]:
            raise Unavailable(f"the server of {user} is not ready")
        return Server(self.world.url.rstrip("/") + str(model["url"]), token)

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    socket = await self._connect()
            except KernelReplaced as error:
                self._gone = str(error)
                self._news.set()
                return
            except (SingularityError, OSError, TimeoutError, HTTPClientError, WebSocketClosedError):
                await asyncio.sleep(RETRY_S)
                continue
            self._socket = socket
            self.connections += 1
            self.reconnected_at = self.world.timeline.now
            if self.connections > 1:
                self.world.timeline.add("tab", f"{self.user}/{self.path} is connected again")
            self._news.set()
            await self._read(socket)
            self._disconnect()
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> WebSocketClientConnection:
        server = await self._server()
        found = [
            s for s in await server.rest("GET", "api/sessions", None) if s["path"] == self.path
        ]
        if not found:
            if self.kernel:
                kernels = await server.rest("GET", "api/kernels", None)
                if self.kernel not in [k["id"] for k in kernels]:
                    raise KernelReplaced("its server knows neither the notebook nor its kernel")
            body = {"path": self.path, "name": self.path, "type": "notebook"}
            body["kernel"] = {"id": self.kernel} if self.kernel else {"name": "singularity"}
            found = [await server.rest("POST", "api/sessions", body)]
        kernel = found[0]["kernel"]["id"]
        if self.kernel not in ("", kernel):
            raise KernelReplaced(f"the notebook has kernel {kernel} instead of {self.kernel}")
        self.kernel = kernel
        address = f"{server.url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
        request = HTTPRequest(f"{address}?session_id={self.id}", headers=server.headers)
        return await websocket_connect(request, ping_interval=5, ping_timeout=5)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- messages ---------------------------------------------------------------------------------

    async def _read(self, socket: WebSocketClientConnection) -> None:
        while (raw := await socket.read_message()) is not None:
            self._take(json.loads(raw))
            self._news.set()

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] in (
            "restarting",
            "autorestarting",
            "dead",
        ):
            self._gone = f"Jupyter says that its kernel is {content['execution_state']}"
            return
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        if kind == "stream":
            cell.text += content["text"]
            if cell.on_text is not None:
                cell.on_text(content["text"])
        elif kind == "error":
            cell.error = f"{content['ename']}: {content['evalue']}"
        elif kind == "execute_reply":
            cell.status = content["status"]
            cell.error = cell.error or content.get("evalue", "")
        elif kind == "status" and content["execution_state"] == "idle":
            cell.idle = True

    # -- cells ------------------------------------------------------------------------------------

    async def execute(self, code: str, on_text: Callable[[str], None] | None = None) -> Cell:
        """Send a cell as soon as there is a connection."""
        cell = Cell(uuid.uuid4().hex, code, self.world.timeline.now, on_text=on_text)
        self._cells[cell.id] = cell
        await self.send(cell)
        return cell

    async def send(self, cell: Cell) -> None:
        """Send a cell, again when the request was lost with the process that it was in."""
        header = {"msg_id": cell.id, "msg_type": "execute_request", "username": ""}
        # As JupyterLab does. Without it two sendings have one signature, and a kernel that has run
        # the first one refuses the second one unanswered, as a message that somebody plays back.
        header["date"] = datetime.now(UTC).isoformat()
        content = {"code": cell.code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {
            "header": {**header, "session": self.id, "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {**content, "user_expressions": {}, "stop_on_error": True},
            "channel": "shell",
            "buffers": [],
        }
        while True:
            await self.until(lambda: self._socket is not None, 300.0, "no connection")
            socket = self._socket
            assert socket is not None
            with contextlib.suppress(WebSocketClosedError):
                await socket.write_message(json.dumps(message))
                cell.sent += 1
                return
            await asyncio.sleep(RETRY_S)

    async def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `done()`, looked at with each message. Raises KernelReplaced or
        Unavailable."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    if self._closed:
                        raise Closed(self.path)
                    if self._gone:
                        raise KernelReplaced(self._gone)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Unavailable(f"{self.user}/{self.path}: {what} after {seconds:g} s") from None
