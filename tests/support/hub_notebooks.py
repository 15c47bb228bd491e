"""Notebooks on a Hub user's server as JupyterLab opens them: a Jupyter session for a path, and a
page whose websocket may go away and come back with the same id."""

from __future__ import annotations

import asyncio
import json
import uuid

from singularity_proxy.errors import SingularityError
from singularity_spawner.platform.server import Server
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

OPEN = set()
"""Pages with a connection."""

LEAVING = set()
"""What reads the connections of pages until their servers have let them go."""


async def leave_all():
    """Close what tests have left open and wait until servers have let all connections go: a loop
    that ends before would keep the sockets."""
    for page in list(OPEN):
        page.close()
    late = {reader for reader in LEAVING if not reader.done()}
    LEAVING.clear()
    if late:
        _, late = await asyncio.wait(late, timeout=20)
    assert not late, "a server keeps the connection of a page that has left"


class Page:
    """One page of a browser; `open` it again after its server was started anew."""

    def __init__(self, path="train.ipynb"):
        self.path = path
        self.id = uuid.uuid4().hex
        self.kernel = None
        self.seen = []
        self._socket = None
        self._reader = None
        self._news = asyncio.Event()

    async def open(self, url, token):
        """Find or start the kernel of the notebook, as Lab does, and connect to it."""
        self.server = Server(url, token)
        found = [s for s in await self.server.rest("GET", "api/sessions", None) if self.mine(s)]
        if not found:
            body = {"path": self.path, "name": self.path, "type": "notebook"}
            body["kernel"] = {"name": "singularity"}
            found = [await self.server.rest("POST", "api/sessions", body)]
        self.kernel = found[0]["kernel"]["id"]
        address = f"{url.replace('http', 'ws', 1)}api/kernels/{self.kernel}/channels"
        request = HTTPRequest(f"{address}?session_id={self.id}", headers=self.server.headers)
        self._socket = await websocket_connect(request)
        OPEN.add(self)
        self._reader = asyncio.create_task(self._read(self._socket))
        LEAVING.add(self._reader)
        return self

    def mine(self, session):
        return session["path"] == self.path

    async def _read(self, socket):
        while (raw := await socket.read_message()) is not None:
            self.seen.append(json.loads(raw))
            self._news.set()

    def close(self):
        """The page goes away; the kernel stays."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        OPEN.discard(self)

    async def leave(self):
        """`close`, and wait until the server has let the connection go; before a loop ends, which
        would keep the socket."""
        self.close()
        await asyncio.wait_for(self._reader, 20)

    async def execute(self, code):
        """Send a cell; its message id."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {
            "header": {**header, "session": self.id, "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {**content, "user_expressions": {}, "stop_on_error": True},
            "channel": "shell",
            "buffers": [],
        }
        await self._socket.write_message(json.dumps(message))
        return header["msg_id"]

    def text(self, cell):
        """What a cell has printed, as far as this page knows."""
        return "".join(
            m["content"]["text"]
            for m in self.seen
            if m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == cell
        )

    def replies(self, cell):
        """Status of each reply to a cell."""
        return [
            m["content"]["status"]
            for m in self.seen
            if m["msg_type"] == "execute_reply" and m["parent_header"].get("msg_id") == cell
        ]

    async def until(self, done, seconds=60):
        """Wait for `done()`, looked at with each message."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            last = [(m["msg_type"], m["content"]) for m in self.seen[-20:]]
            raise AssertionError(f"{self.path}: not seen after {seconds} s; last: {last}") from None

    async def run(self, code):
        """Run a cell to its end; what it printed."""
        cell = await self.execute(code)
        await self.until(lambda: self.replies(cell) and self.idle(cell))
        return self.text(cell).strip()

    def idle(self, cell):
        """Whether the kernel says that it has done a cell."""
        return any(
            m["msg_type"] == "status"
            and m["content"]["execution_state"] == "idle"
            and m["parent_header"].get("msg_id") == cell
            for m in self.seen
        )


async def session_of(service, user, state=None, seconds=60):
    """The one session of a user that has not ended; with `state`, once its state is that."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                found = [s for s in await service.sessions("active") if s["user"] == user]
            except SingularityError:  # it is just started anew
                found = []
            if len(found) == 1 and state in (None, found[0]["state"], found[0]["process_state"]):
                return found[0]
            await asyncio.sleep(0.1)
