"""All of a session is stored, or none of it: kernels with what people have running beside them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from singularity_proxy.errors import DamagedCheckpoint, ImageFailed
from support.agent import AgentBox
from support.agent_kernels import NO_HISTORY, client_of, run, start_kernel
from support.agent_moves import checkpoint, gone, listed, resume, suspend
from support.capsules import needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

BESIDE = """
import _multiprocessing, os, socket, subprocess
get_ipython().system_raw("sleep 4243 >/dev/null 2>&1 &")
subprocess.run("nohup python3 -m http.server 0 --bind 127.0.0.1 >/tmp/server.log 2>&1 &", shell=True)
child = subprocess.Popen(["sleep", "4244"])
lock = _multiprocessing.SemLock(1, 1, 1, "/named-sem", False)
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()  # shares its port with nobody
near = socket.create_connection(server.getsockname()); far, _ = server.accept()
def programs():
    lines = (open(f"/proc/{p}/cmdline").read().split("\\0") for p in os.listdir("/proc") if p.isdigit())
    return sorted(word for line in lines for word in line if word in ("4243", "4244", "http.server"))
import time
while len(programs()) < 3: time.sleep(0.01)
print(programs())
"""  # noqa: E501

REAPED = """
get_ipython().system_raw("sleep 0 >/dev/null 2>&1 & echo $! >/tmp/pid")
pid = int(open("/tmp/pid").read())
while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
print("gone")
"""

STILL = """
near.send(b"x")
print(programs(), far.recv(1), lock.acquire(False), child.poll())
"""


async def debug(client: AsyncKernelClient, command: str, **arguments: Any) -> dict[str, Any]:
    """A request of JupyterLab's debugger."""
    content = {"type": "request", "command": command, "seq": 1, "arguments": arguments}
    message = client.session.msg("debug_request", content)
    client.control_channel.send(message)
    while True:
        reply = await client.control_channel.get_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return dict(reply["content"])


async def test_what_runs_beside_a_kernel_comes_back_at_once() -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box, NO_HISTORY)
        client = await client_of(info)
        try:
            assert await run(client, BESIDE) == "['4243', '4244', 'http.server']\n"
            for epoch in (1, 2):
                done = await suspend(box, session, epoch, seq=epoch)
                await gone(box, session)
                back = await resume(
                    box, session, epoch + 1, done["checkpoint"]["id"], seq=epoch, connection=info
                )
                assert back["loss"]["lost"] == []
                said = await run(client, STILL + "lock.release()")
                assert said == "['4243', '4244', 'http.server'] b'x' True None\n"
                assert await run(client, REAPED) == "gone\n"
        finally:
            client.stop_channels()


async def test_a_kernel_whose_debugger_was_used_comes_back() -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box, NO_HISTORY)
        client = await client_of(info)
        try:
            reply = await debug(client, "initialize", clientID="x", adapterID="")
            assert reply["success"], reply
            for epoch in (1, 2):  # the adapter's session has no leader any more
                done = await suspend(box, session, epoch, seq=epoch)
                id = done["checkpoint"]["id"]
                await resume(box, session, epoch + 1, id, seq=epoch, connection=info)
                assert await run(client, "print(6 * 7)") == "42\n"
        finally:
            client.stop_channels()


async def test_a_return_is_refused_while_the_session_still_runs() -> None:
    """The checkpoint's port is another program's now."""
    listen = "import socket; server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1])"  # noqa: E501
    async with AgentBox() as box:
        session, info = await start_kernel(box, NO_HISTORY)
        client = await client_of(info)
        try:
            port = int(await run(client, listen))
            made = await checkpoint(box, session, 1)
            # Its own port is no reason.
            assert await run(client, "server.close(); x = 7; print(x)") == "7\n"
            with socket.create_server(("127.0.0.1", port)):
                with pytest.raises(ImageFailed, match=f"listens on 127.0.0.1:{port}") as caught:
                    await suspend(box, session, 1, seq=2, back_to=made["id"])
                assert "the session was not touched" in caught.value.message
                assert await run(client, "print(x)") == "7\n"
            await suspend(box, session, 1, seq=3, back_to=made["id"])
            await gone(box, session)
        finally:
            client.stop_channels()


def largest_chunk(box: AgentBox) -> Path:
    chunks = [p for p in (box.root / "state/store").rglob("chunks/**/*") if p.is_file()]
    return max(chunks, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(("kind", "discard"), [("missing", False), ("flipped", True)])
async def test_a_damaged_checkpoint_is_refused_while_the_session_still_runs(
    kind: str, discard: bool
) -> None:
    """What is missing is seen without reading; all is read before a state is given up for it."""
    async with AgentBox() as box:
        session, info = await start_kernel(box, NO_HISTORY)
        client = await client_of(info)
        try:
            made = await checkpoint(box, session, 1)
            assert await run(client, "x = 7; print(x)") == "7\n"
            path = largest_chunk(box)
            if kind == "missing":
                path.unlink()
            else:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.chmod(0o600)
                path.write_bytes(data)
            before = box.everything_of(session)
            ends = {"session": session, "reason": "undone", "grace_s": 0.0, "keep": True}
            leaving = (
                box.call("session.end", back_to=made["id"], **ends)
                if discard
                else suspend(box, session, 1, seq=2, back_to=made["id"])
            )
            with pytest.raises(DamagedCheckpoint) as caught:
                await leaving
            said = caught.value.message
            assert f"checkpoint {made['id']} of session {session} is damaged in " in said
            assert said.endswith("; the session was not touched")
            assert "\n" not in said
            assert box.everything_of(session) == before
            assert await run(client, "print(x)") == "7\n"
            assert [one["id"] for one in await listed(box, session)] == [made["id"]]
        finally:
            client.stop_channels()
        await box.end(session)
