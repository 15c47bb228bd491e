"""A kernel started by the real node agent: relay, session socket, extension, end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from singularity_proxy.errors import Conflict
from singularity_proxy.wire.rpc import SyncPeer
from support.agent import AgentBox, until
from support.agent_kernels import KERNEL
from support.kernel_relay import Channels

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def notebook(
    box: AgentBox, channels: Channels
) -> AsyncIterator[tuple[str, AsyncKernelClient]]:
    """A session with a kernel that loads the extension, and a client of its relay."""
    connection = json.loads(channels.client.read_text())
    sid = await box.start([*KERNEL, "--ext", "singularity_kernel"], connection=connection)
    client = AsyncKernelClient()
    found = box.started["connection"]
    client.load_connection_info({**found, "key": found["key"].encode()})
    client.start_channels(hb=False)
    try:
        await client.wait_for_ready(timeout=60)
        yield sid, client
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)
        await box.call("session.end", session=sid, reason="the test is over", grace_s=1.0)


async def run(client: AsyncKernelClient, code: str, begun: asyncio.Event | None = None) -> str:
    """What a cell writes; `begun` is set when it has written something."""
    texts = []

    def output(message: dict[str, Any]) -> None:
        if begun is not None and "text" in message["content"]:
            begun.set()
        content = message["content"]
        texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
        texts.append(content.get("evalue", ""))

    await client.execute_interactive(code, output_hook=output, timeout=60)
    return "".join(texts)


async def test_a_kernel_of_the_agent_works_through_its_relay(short_dir: Path) -> None:
    channels = Channels(short_dir)
    async with AgentBox(double=True) as box:
        async with notebook(box, channels) as (sid, client):
            seen = await run(client, "import os; print(os.environ['SINGULARITY_SESSION'])")
            assert seen.strip() == sid

            def busy() -> list[bool]:
                return [d["busy"] for s, t, d in box.events if s == sid and t == "activity"]

            await until(lambda: busy()[-2:] == [True, False])
            place = f"{box.started['connection']['ip']}-{box.started['connection']['shell_port']}"
            folder = Path(place).parent.stat()
            assert folder.st_mode & 0o777 == 0o700
            assert folder.st_uid == os.stat(box.folder(sid)).st_uid

            await run(client, "%singularity migrate --device 1")
            assert box.commands[-1] == {
                "session": sid,
                "verb": "migrate",
                "args": {"device": 1},
                "by": "user",
            }
            code = "print('on', flush=True)\nimport time\nfor _ in range(600): time.sleep(0.1)"
            begun = asyncio.Event()
            cell = asyncio.ensure_future(run(client, code, begun))
            await asyncio.wait_for(begun.wait(), 60)
            await box.call("session.signal", session=sid, signum=signal.SIGINT)
            await asyncio.wait_for(cell, 30)
            assert await run(client, "print('alive')") == "alive\n"
        assert not Path(place).parent.exists()


async def test_reports_and_magic_survive_an_agent_that_is_killed(short_dir: Path) -> None:
    channels = Channels(short_dir)
    async with AgentBox(double=True) as box, notebook(box, channels) as (sid, client):
        flag = box.work / "go"
        code = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\nx = 42"
        cell = asyncio.ensure_future(run(client, code))
        await _busy(box, sid, True)
        os.kill(box.agent_pid, signal.SIGKILL)
        flag.touch()
        await cell  # it ended while there was no agent that could be told
        await _busy(box, sid, False)
        assert await run(client, "print(x)") == "42\n"
        await run(client, "%singularity park")
        assert box.commands[-1]["verb"] == "park"


async def _busy(box: AgentBox, sid: str, expected: bool) -> None:
    """Wait until the agent says so; while it restarts nobody answers."""
    for _ in range(1500):
        found = [s for hello in await box.fleet.hello() for s in hello["sessions"]]
        if [s["busy"] for s in found if s["session"] == sid] == [expected]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"the agent did not learn that busy is {expected}")


async def test_the_agents_line_to_the_relay(short_dir: Path) -> None:
    """What a checkpoint and a way back will ask for, over the relay's own control socket."""
    channels = Channels(short_dir)
    async with AgentBox(double=True) as box, notebook(box, channels) as (sid, client):
        with SyncPeer(box.runtime / "r" / sid / "control.sock") as peer:
            before = peer.call("positions", keep=True)
            assert before["incarnation"] == 1
            await run(client, "1")
            assert peer.call("positions")["requests"]["shell"] == before["requests"]["shell"] + 1
            await box.kill_agent()
            peer.call("away", away=True)
            client.execute("2")
            await box.event("session.wanted", sid)
            peer.call("away", away=False)
            status = peer.call("begin_incarnation", number=2)
            assert (status["joined"], status["connected"]) == (False, False)
            with pytest.raises(Conflict, match="incarnation 1 is not new"):
                peer.call("begin_incarnation", number=1)
