"""The tutorial does what it says: its own code blocks, in its order, on a real platform."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from singularity_spawner.platform.notebook import Notebook
from support.hub_platform import running_platform
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-notebook.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)


async def in_terminal(server_url: str, token: str, lines: str, until: str) -> str:
    """Types `lines` into a terminal of the server; returns what it shows up to `until`."""
    headers = {"Authorization": f"token {token}"}
    request = HTTPRequest(f"{server_url}api/terminals", method="POST", headers=headers, body="{}")
    name = json.loads((await AsyncHTTPClient().fetch(request)).body)["name"]
    url = f"{server_url.replace('http', 'ws', 1)}terminals/websocket/{name}"
    socket = await websocket_connect(HTTPRequest(url, headers=headers))
    try:
        await socket.write_message(json.dumps(["stdin", lines]))
        shown = ""
        while until not in shown:
            message = await socket.read_message()
            assert message is not None, shown
            kind, *content = json.loads(message)
            shown += content[0] if kind == "stdout" else ""
        return shown
    finally:
        socket.close()
        while await socket.read_message() is not None:
            pass  # until it is closed
        await AsyncHTTPClient().fetch(
            HTTPRequest(f"{server_url}api/terminals/{name}", method="DELETE", headers=headers)
        )


@pytest.mark.asyncio
async def test_the_tutorial_runs_as_written() -> None:
    train, ask, park, again, long_cell, history = blocks("python")
    (premium,) = [block for block in blocks("bash") if "premium.py" in block]
    async with running_platform(devices=2) as platform:
        server = await platform.start_server("ada", {"tier": "standard", "devices": 1})
        token = await platform.user_token("ada")
        notebook = await Notebook(server, token, "first").open()

        first = json.loads(await notebook.run(train))
        assert "running" in await notebook.run(ask)
        assert "Parked" in await notebook.run(park)
        assert "parked" in await notebook.run(ask)
        second = json.loads(await notebook.run(again))
        assert len(first) == len(second) == 5
        assert second[0] < first[-1] < first[0]  # it went on training, it did not start again

        cell = await notebook.start(long_cell)
        shown = await asyncio.wait_for(
            in_terminal(server, token, f"{premium}echo all-$((40 + 2))\n", "all-42"), 200
        )
        assert len(re.findall(r'premium run done(?!")', shown)) == 2, shown
        assert float((await cell.wait(200)).text) < second[-1]
        told = await notebook.run(history)
        # Whether the cell still ran or had just ended when premium asked is the machine's speed.
        assert "paused for ada/python: premium" in " ".join(told.split())
        await notebook.close()
