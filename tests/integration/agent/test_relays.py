"""The relay of a session that is on another node: what the agent there asks it and tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.blocking import BlockingKernelClient
from jupyter_core.utils import ensure_event_loop
from singularity_proxy.capsule.tree import children
from singularity_proxy.errors import NotFound
from singularity_proxy.wire.rpc import SyncPeer
from support.agent import AgentBox, until
from support.agent_kernels import NO_HISTORY, client_of, run, start_kernel
from support.agent_moves import checkpoint, gone, resume, suspend
from support.capsules import needs_criu
from support.kernel_relay import Everything
from support.processes import stop_process

pytestmark = [needs_criu, pytest.mark.asyncio]

WITH_VERBS = (NO_HISTORY, "--ext", "singularity_kernel")
ENDED = {"reason": "it lives elsewhere", "grace_s": 0.0}


@contextlib.asynccontextmanager
async def two_nodes(tmp_path: Path) -> AsyncIterator[tuple[AgentBox, AgentBox]]:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store) as one, AgentBox(store) as two:
        yield one, two


@contextlib.asynccontextmanager
async def moved(
    one: AgentBox, two: AgentBox
) -> AsyncIterator[tuple[str, dict[str, Any], AsyncKernelClient]]:
    """A kernel that was started on the first node and is on the second one now."""
    session, info = await start_kernel(one, *WITH_VERBS)
    client = await client_of(info, heartbeat=True)
    try:
        await run(client, "seen = []")
        done = await suspend(one, session, 1)
        told = await one.call("session.connection", session=session)
        await resume(two, session, 2, done["checkpoint"]["id"], connection=told["connection"])
        yield session, info, client
    finally:
        client.stop_channels()


def client_without_asking(info: dict[str, Any]) -> AsyncKernelClient:
    """One that does not wait for the kernel, which is busy."""
    client = AsyncKernelClient()
    client.load_connection_info({**info, "key": info["key"].encode()})
    client.start_channels(hb=False)
    return client


def relay_of(box: AgentBox, session: str) -> SyncPeer:
    return SyncPeer(box.runtime / "r" / session / "control.sock")


async def test_a_suspend_on_another_node_leaves_a_relay_that_answers(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), moved(one, two) as (session, info, client):
        await one.kill_agent()  # nobody but the relay itself is needed on its node
        done = await suspend(two, session, 2)
        await gone(two, session)
        with relay_of(one, session) as relay:
            assert relay.call("status")["away"] is True
        assert await client.is_alive()
        other = await client_of(info)  # a page that is opened is answered by the relay
        one.forget_events()
        later = asyncio.ensure_future(run(other, "print(seen)"))
        assert await one.event("session.wanted", session) == {"request": "execute_request"}
        told = await one.call("session.connection", session=session)
        connected = {"connection": told["connection"]}
        await resume(two, session, 3, done["checkpoint"]["id"], seq=3, **connected)
        assert await later == "[]\n"
        other.stop_channels()
        with relay_of(one, session) as relay:
            assert relay.call("status")["away"] is False
        await two.end(session)
        await one.end(session)
        assert one.relays(session) == []


async def test_a_user_who_changes_the_tunnel_file_harms_nobody(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), moved(one, two) as (session, _, client):
        path = two.folder(session) / "tunnel.json"
        told = json.loads(path.read_text())
        [init] = children((await two.session(session))["pid"])
        [shim] = children(init)
        stop_process(shim)  # it would end by what its user has written
        for number in (-1, float("inf")):
            path.write_text(json.dumps({**told, "incarnation": number}))
            await checkpoint(two, session, 2, seq=2 + (number > 0))
        await two.kill_agent()
        assert (await two.session(session))["alive"]
        path.write_text(json.dumps(told))
        os.kill(shim, signal.SIGCONT)
        assert await run(client, "print(seen)") == "[]\n"
        await two.end(session)
        await one.end(session)


async def test_back_to_a_checkpoint_of_a_node_that_died(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), moved(one, two) as (session, info, client):
        made = await checkpoint(two, session, 2, "there")
        for n in range(3):
            assert await run(client, f"seen.append({n}); print({n})") == f"{n}\n"
        # Everything of that node dies, in the middle of output; requests come meanwhile.
        client.execute("import time\nfor n in range(400): print(n, flush=True); time.sleep(0.01)")
        with relay_of(one, session) as relay:

            def output() -> int:
                return int(relay.call("positions")["outputs"]["iopub"])

            here = output()
            await until(lambda: output() > here + 20)
            stop_process(two.agent_pid)
            for process in one.everything_of(session):  # their environment names that node
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            client.execute("seen.append('waited')")
            await until(lambda: relay.call("status")["waiting"] >= 1)
        back = await resume(one, session, 3, made["id"], incarnation=2, seq=3)
        loss = back["loss"]
        assert loss["rolled_back"]
        assert loss["requests_lost"] == 0
        # Three cells and the one that was printing had reached the kernel; the last had not.
        assert loss["requests_again"] == 4
        assert loss["outputs_rolled_back"] > 20 + 3
        assert f"{loss['outputs_rolled_back']} outputs that came after it" in loss["lost"]
        assert "4 requests of its clients, carried out again" in loss["back"]
        with relay_of(one, session) as relay:
            rows = relay.call("rolled_back", incarnation=2)
        texts = [row for row in rows if row["channel"] == "iopub" and row["type"] == "stream"]
        assert len(texts) > 20
        client.stop_channels()  # it hears answers a second time, and refuses them
        other = client_without_asking(info)
        assert await run(other, "print(seen)") == "[0, 1, 2, 'waited']\n"
        other.stop_channels()
        await one.end(session)
        await two.kill_agent()


async def test_a_relay_forgets_what_no_checkpoint_needs(tmp_path: Path) -> None:
    store = (f"--NodeAgent.checkpoint_store={tmp_path}/store",)
    few = "--NodeAgent.checkpoint_keep_count=1"
    async with AgentBox(*store) as one, AgentBox(*store, few) as two:
        async with moved(one, two) as (session, _, client):
            await checkpoint(two, session, 2, seq=2)
            await run(client, "1")
            with relay_of(one, session) as relay:
                asked = relay.call("positions")["requests"]["shell"]
                await checkpoint(two, session, 2, seq=3)

                def kept() -> int:
                    return int(relay.call("status")["requests_kept_after"]["shell"])

                await until(lambda: kept() >= asked)
        await two.end(session)
        await one.end(session)


async def clients_of(box: AgentBox, session: str) -> dict[str, Any]:
    """How clients reach it, as the service is told."""
    told = await box.call("session.connection", session=session)
    return dict(told["clients"])


async def test_a_fork_has_a_relay_with_a_key_and_ports_of_its_own(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two):
        (session, info), fork = await start_kernel(one, *WITH_VERBS), "f" * 12
        client = await client_of(info)
        await run(client, "x = 'both'")
        made = await checkpoint(one, session, 1, "here")
        await run(client, "x = 'first'")
        back = await resume(
            two, fork, 1, made["id"], from_session=session, incarnation=2, undo=True
        )
        assert back["relay"] is True
        assert not any("connection" in words for words in back["loss"]["lost"])
        found = await clients_of(two, fork)
        assert found["key"] != info["key"]
        assert found["ip"] != info["ip"]
        other = await client_of(found)
        for at, text in ((client, "first"), (other, "both"), (client, "first")):
            assert await run(at, "print(x)") == f"{text}\n"
        assert await run(other, "x = input('name? ')", answer="fork") == ""
        # The other's key opens nothing, though its kernel had it.
        wrong = client_without_asking({**found, "key": info["key"]})
        wrong.kernel_info()
        with pytest.raises(queue.Empty):
            await wrong.get_shell_msg(timeout=1)
        # It moves like any session, also to where its source is, and its relay stays.
        done = await suspend(two, fork, 1)
        told = await two.call("session.connection", session=fork)
        connected = {"connection": told["connection"]}
        await resume(one, fork, 2, done["checkpoint"]["id"], incarnation=2, seq=3, **connected)
        assert await run(other, "print(x)") == "fork\n"
        # Its relay's node is lost; the new one takes the key of its clients, not of its kernel.
        done = await suspend(one, fork, 2, seq=4)
        await two.end(fork)
        back = await resume(one, fork, 3, done["checkpoint"]["id"], incarnation=2, seq=5)
        assert back["relay"] is True
        assert (await clients_of(one, fork))["key"] == found["key"]
        await other.wait_for_ready(timeout=60)  # at the same sockets, on this machine
        assert await run(other, "print(x)") == "fork\n"
        for each in (client, other, wrong):
            each.stop_channels()
        await one.end(session)
        await one.end(fork)


@pytest.mark.parametrize("place_free", [True, False])
async def test_the_node_of_the_relay_is_lost(tmp_path: Path, place_free: bool) -> None:
    async with two_nodes(tmp_path) as (one, two):
        session, info = await start_kernel(one, *WITH_VERBS)
        client = await client_of(info)
        await run(client, "x = 1")
        made = await checkpoint(one, session, 1)
        await run(client, "x = 2")
        stop_process(one.agent_pid)
        with contextlib.ExitStack() as stack:
            for process in one.everything_of(session):
                with contextlib.suppress(ProcessLookupError):  # it ended with one before
                    os.kill(process.pid, signal.SIGKILL)
            [relay] = one.relays(session)
            if place_free:
                os.kill(relay, signal.SIGKILL)
                await until(lambda: one.relays(session) == [])
            # Else it lives on and its clients stay connected to it, without a kernel.
            back = await resume(two, session, 2, made["id"], incarnation=2)
            assert back["relay"] is True
            lost = back["loss"]["lost"]
            assert "what Jupyter's clients had sent and not seen answered" in lost
            assert any("connect to the new ones" in words for words in lost) is not place_free
            found = await clients_of(two, session)
            assert found["key"] == info["key"]
            assert (found["ip"] == info["ip"]) is place_free
            assert (found["shell_port"] == info["shell_port"]) is place_free
            if place_free:
                await client.wait_for_ready(timeout=60)
            else:
                client.stop_channels()
                client = await client_of(found)
            assert await run(client, "print(x)") == "1\n"
            client.stop_channels()
            stack.callback(os.kill, one.agent_pid, signal.SIGCONT)
        # The node is back: what it had of the session ends, its relay too.
        await one.call("session.end", session=session, keep=True, keep_relay=False, **ENDED)
        assert one.relays(session) == []
        await two.end(session)


@pytest.mark.parametrize("agent_dies", [True, False])
async def test_the_files_of_a_relay_that_waits_are_lost(tmp_path: Path, agent_dies: bool) -> None:
    async with AgentBox(f"--NodeAgent.checkpoint_store={tmp_path}/store") as box:
        session, info = await start_kernel(box, *WITH_VERBS)
        client = await client_of(info)
        await run(client, "x = 1")
        done = await suspend(box, session, 1)
        await gone(box, session)
        [relay] = box.relays(session)
        shutil.rmtree(box.runtime / "r")
        os.kill(relay, signal.SIGKILL)
        if agent_dies:
            await box.kill_agent()
        await until(lambda: box.relays(session) == [])
        with pytest.raises(NotFound):
            await box.call("session.connection", session=session)
        back = await resume(box, session, 2, done["checkpoint"]["id"])
        assert back["relay"] is True
        await client.wait_for_ready(timeout=60)  # at the sockets it had
        assert await run(client, "print(x)") == "1\n"
        client.stop_channels()
        await box.end(session)


@contextlib.asynccontextmanager
async def a_thread() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """For a blocking client, whose calls need an event loop of their own."""
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        yield lambda call, *args: loop.run_in_executor(pool, call, *args)
        await loop.run_in_executor(pool, lambda: ensure_event_loop().close())


async def test_everything_works_on_another_node_and_after_a_rollback_there(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, two), a_thread() as blocking:
        session, info = await start_kernel(one, *WITH_VERBS)
        found = BlockingKernelClient()
        found.load_connection_info({**info, "key": info["key"].encode()})
        found.start_channels(hb=False)
        try:
            await blocking(found.wait_for_ready)
            everything = await blocking(Everything, found)
            done = await suspend(one, session, 1)
            told = await one.call("session.connection", session=session)
            connected = {"connection": told["connection"]}
            await resume(two, session, 2, done["checkpoint"]["id"], **connected)
            await blocking(everything.works)
            # Back to that image, on the node where it is.
            await two.call("session.end", session=session, keep=True, **ENDED)
            told = await one.call("session.connection", session=session, incarnation=2, undo=True)
            connected = {"connection": told["connection"], "undo": True}
            back = await resume(
                two, session, 3, done["checkpoint"]["id"], incarnation=2, seq=3, **connected
            )
            assert back["loss"]["requests_again"] == 0
            assert back["loss"]["outputs_rolled_back"] > 10
            await blocking(everything.works)
        finally:
            found.stop_channels()
            found.context.destroy(linger=0)
        await two.end(session)
        await one.end(session)
