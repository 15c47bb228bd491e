"""A user's own server without a browser: files and a terminal, over the same REST API and websocket
that JupyterLab uses. The demo and the end-to-end tests drive servers with it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any
from urllib.parse import quote

from singularity_proxy.errors import SingularityError, Unavailable
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect


class Server:
    """The server at `url` (ends in a slash), with a token of its user."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"token {token}"}

    async def rest(self, method: str, path: str, body: Any) -> Any:
        """One call; its JSON answer (None when empty) or `SingularityError` with what was said."""
        request = HTTPRequest(
            self.url + path,
            method=method,
            headers=self.headers,
            body=None if body is None else json.dumps(body),
            request_timeout=60,
        )
        try:
            response = await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            said = error.response.body.decode(errors="replace") if error.response else str(error)
            try:
                said = json.loads(said).get("message", said)
            except ValueError:
                pass
            raise SingularityError(
                f"{method} {path} was answered with {error.code}: {said}"
            ) from None
        return json.loads(response.body) if response.body else None

    async def put_file(self, path: str, text: str) -> None:
        """Write a small file in the server's folder, as a save in the browser does."""
        body = {"type": "file", "format": "text", "content": text}
        await self.rest("PUT", f"api/contents/{quote(path)}", body)

    async def put_notebook(self, path: str, *cells: str, kernel: str = "singularity") -> None:
        """Write a notebook of code cells that names `kernel`."""
        content = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{number}",
                    "metadata": {},
                    "execution_count": None,
                    "outputs": [],
                    "source": source,
                }
                for number, source in enumerate(cells, start=1)
            ],
            "metadata": {
                "kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        body = {"type": "notebook", "format": "json", "content": content}
        await self.rest("PUT", f"api/contents/{quote(path)}", body)

    async def command(self, line: str, timeout: float = 60.0) -> tuple[int, str]:
        """Type `line` into a new terminal of the server; (its exit code, what was shown). Raises
        `Unavailable` when it has not ended within `timeout` seconds."""
        name = (await self.rest("POST", "api/terminals", {}))["name"]
        url = f"{self.url.replace('http', 'ws', 1)}terminals/websocket/{name}"
        shown = ""
        message: str | bytes | None = ""
        try:
            socket = await websocket_connect(HTTPRequest(url, headers=self.headers))
            try:
                # In two parts, because the terminal also shows what is typed.
                typed = f"{line}; echo 'ended '\"with $?.\"\r"
                await socket.write_message(json.dumps(["stdin", typed]))
                async with asyncio.timeout(timeout):
                    while (end := re.search(r"ended with (\d+)\.", shown)) is None:
                        message = await socket.read_message()
                        if message is None:
                            raise Unavailable(f"the terminal was closed during: {line}")
                        kind, *rest = json.loads(message)
                        shown += rest[0] if kind == "stdout" else ""
            except TimeoutError:
                raise Unavailable(f"'{line}' did not end within {timeout:g} s: {shown}") from None
            finally:
                socket.close()
                while message is not None:  # unread ones would keep its answer, and so the socket
                    message = await socket.read_message()
        finally:
            await self.rest("DELETE", f"api/terminals/{name}", None)
        return int(end[1]), shown[: end.start()]
