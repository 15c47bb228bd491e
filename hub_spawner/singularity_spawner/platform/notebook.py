"""A notebook without a browser: a kernel on a Hub user's own server, over the real kernel protocol.

The demo and the end-to-end tests drive notebooks with it exactly as JupyterLab does: REST to start
the kernel, one websocket for its messages (Jupyter Server's kernel websocket protocol, JSON form).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field

from singularity_proxy.errors import SingularityError, Unavailable
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from .server import Server


@dataclass
class Cell:
    """One executed cell. `text` is what it printed so far; `done` is set at its end."""

    msg_id: str
    text: str = ""
    status: str = ""
    error: str = ""
    replied: bool = False
    idle: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout: float) -> Cell:
        """Until the cell is over; raises `Unavailable` after `timeout` s, `SingularityError` with
        the cell's own error."""
        try:
            await asyncio.wait_for(self.done.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            raise Unavailable(f"the cell did not end within {timeout:g} s") from None
        if self.status != "ok":
            raise SingularityError(f"the cell failed: {self.error}")
        return self


class Notebook:
    """A kernel on the server at `server_url` (ends in a slash); use `open`, `run`, `close`."""

    def __init__(self, server_url: str, token: str, name: str) -> None:
        self._server = Server(server_url, token)
        self.name = name
        self.kernel_id = ""
        self._socket: WebSocketClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._cells: dict[str, Cell] = {}

    async def open(self, kernel: str = "singularity") -> Notebook:
        """Start the kernel and connect to it."""
        answer = await self._server.rest("POST", "api/kernels", {"name": kernel})
        self.kernel_id = str(answer["id"])
        await self.connect()
        return self

    async def connect(self) -> None:
        """Connect to the kernel; again when the server has closed the connection, as a browser
        does."""
        await self._disconnect()
        url = f"{self._server.url.replace('http', 'ws', 1)}api/kernels/{self.kernel_id}/channels"
        self._socket = await websocket_connect(HTTPRequest(url, headers=self._server.headers))
        self._reader = asyncio.create_task(self._read(self._socket))

    async def start(self, code: str) -> Cell:
        """Send a cell and return at once."""
        if self._socket is None:
            raise Unavailable("the notebook has no kernel")
        cell = Cell(uuid.uuid4().hex)
        self._cells[cell.msg_id] = cell
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        header = {
            "msg_id": cell.msg_id,
            "msg_type": "execute_request",
            "username": "",
            "session": self.kernel_id,
            "version": "5.3",
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }
        await self._socket.write_message(json.dumps(message))
        return cell

    async def run(self, code: str, timeout: float = 120.0) -> str:
        """Run a cell to its end and return what it printed."""
        return (await (await self.start(code)).wait(timeout)).text

    async def interrupt(self) -> None:
        """What the stop button does."""
        await self._server.rest("POST", f"api/kernels/{self.kernel_id}/interrupt", {})

    async def put_file(self, path: str, text: str) -> None:
        """Write a small file in the server's folder, as a save in the browser does."""
        await self._server.put_file(path, text)

    async def close(self) -> None:
        """Shut the kernel down, as closing a notebook with "Shut down kernel" does. Idempotent."""
        await self._disconnect()
        if self.kernel_id:
            kernel, self.kernel_id = self.kernel_id, ""
            await self._server.rest("DELETE", f"api/kernels/{kernel}", None)

    async def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=5)  # it ends with the closed socket
            self._reader.cancel()
            self._reader = None

    async def _read(self, socket: WebSocketClientConnection) -> None:
        while (raw := await socket.read_message()) is not None:
            message = json.loads(raw)
            cell = self._cells.get(message["parent_header"].get("msg_id", ""))
            if cell is None:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.text += content["text"]
            elif kind in ("execute_result", "display_data"):
                cell.text += content["data"].get("text/plain", "") + "\n"
            elif kind == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"
            elif kind == "execute_reply":
                cell.status, cell.replied = content["status"], True
                cell.error = cell.error or content.get("evalue", "")
            elif kind == "status" and content["execution_state"] == "idle":
                cell.idle = True
            # The reply may arrive before the last output: a cell is over with both.
            if cell.replied and cell.idle:
                cell.done.set()
