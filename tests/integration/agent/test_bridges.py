"""The bridge of a part of a gang: it comes and ends with its session, and is replaced meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import Any

import pytest
from singularity_proxy.errors import Conflict, SingularityError, Unsupported
from support.agent import AgentBox, alive, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio]

SCRIPT = "agent_with_bridge_double.py"
GANG = {"id": "ab12", "number": 1, "parts": 2, "key": "c" * 64}
SHOWS = "import os, json, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(600)"


async def ask(address: str) -> dict[str, Any]:
    """What the bridge at the address says of itself."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        told: dict[str, Any] = json.loads(await reader.read())
    finally:
        writer.close()
    return told


async def answers(address: str) -> dict[str, Any]:
    """The same as soon as there is one."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError, ValueError):
                return await ask(address)
            await asyncio.sleep(0.05)


async def part(box: AgentBox, code: str = SHOWS, **options: Any) -> tuple[str, str]:
    """A session that is part 1 of 2; -> (session, address of its bridge)."""
    session = await box.python(code, gang=GANG, **options)
    return session, str(box.started["bridge"])


async def test_a_part_has_a_bridge_and_knows_its_number() -> None:
    async with AgentBox(script=SCRIPT) as box:
        session, address = await part(box)
        bridge = await ask(address)
        assert (bridge["number"], bridge["peers"]) == (1, {})
        assert address == f"127.0.0.1:{bridge['port']}"
        assert (await box.session(session))["bridge"] == address
        assert (await box.event("session.bridge", session))["bridge"] == address
        identity = await box.call("identity", user="alice")
        assert bridge["uid"] == identity["uid"]
        await until(lambda: box.log(session).endswith("\n"))
        environ = json.loads(box.log(session))
        wanted = {
            "SINGULARITY_GANG": "1/2",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "NNODES": "2",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(bridge["master_port"]),
        }
        assert {name: environ.get(name) for name in wanted} == wanted
        assert GANG["key"] not in box.log(session)
        peers = {"0": "10.0.0.1:7000", "1": address}
        for _ in range(2):
            assert await box.call("session.peers", session=session, peers=peers) == {}
        assert (await ask(address))["peers"] == peers
        folder = box.runtime / "b" / session
        assert folder.exists()
        await box.end(session)
        assert not alive(bridge["pid"])
        assert not folder.exists()


async def test_one_that_is_killed_is_replaced_at_the_same_ports() -> None:
    async with AgentBox(script=SCRIPT) as box:
        session, address = await part(box)
        peers = {"0": "10.0.0.1:7000"}
        await box.call("session.peers", session=session, peers=peers)
        before = await ask(address)
        for killed in (1, 2):
            os.kill((await ask(address))["pid"], signal.SIGKILL)
            assert (await box.event("session.bridge", session, 1 + killed))["bridge"] == address
        after = await answers(address)
        assert before["pid"] != after["pid"]
        assert {**before, "pid": 0, "peers": peers} == {**after, "pid": 0}
        assert len(box.processes(session)) == 1, "its session did not notice"
        await box.end(session)
        assert not alive(after["pid"])


async def test_the_next_agent_adopts_it_or_replaces_it() -> None:
    async with AgentBox(script=SCRIPT) as box:
        session, address = await part(box)
        lost, other = await part(box)
        first, second = await ask(address), await ask(other)
        await box.call("session.peers", session=lost, peers={"0": "10.0.0.1:7000"})
        os.kill(box.agent_pid, signal.SIGSTOP)
        os.kill(second["pid"], signal.SIGKILL)
        await box.kill_agent()
        assert (await ask(address))["pid"] == first["pid"]
        replaced = await answers(other)
        assert {**second, "pid": 0, "peers": {"0": "10.0.0.1:7000"}} == {**replaced, "pid": 0}
        assert (await box.session(lost))["bridge"] == other
        os.kill(first["pid"], signal.SIGKILL)
        await box.event("session.bridge", session)
        last = await answers(address)
        # It ends also when its session does so without an agent.
        for one in box.processes(session):
            os.kill(box.agent_pid, signal.SIGSTOP)
            os.kill(one.pid, signal.SIGKILL)
        await box.kill_agent()
        await box.event("process.exited", session)
        assert not alive(last["pid"])
        assert not (box.runtime / "b" / session).exists()


async def test_it_ends_with_its_session_however_that_ends() -> None:
    async with AgentBox(script=SCRIPT) as box:
        session, address = await part(box, "import time; time.sleep(1.0)")
        pid = (await ask(address))["pid"]
        await box.event("process.exited", session)
        assert not alive(pid)
        # The next attempt of a run begins while there is something of the one before.
        session, address = await part(box)
        pid, box._seq = (await ask(address))["pid"], box._seq + 1
        again = {**GANG, "key": "d" * 64}
        launch = {"mode": "capsule", "argv": ["/bin/sleep", "600"], "env": {}, "gang": again}
        who = {"session": session, "user": "alice", "kind": "batch", "tier": "standard"}
        place = {"virtual_devices": 1, "epoch": 3, "seq": box._seq}
        started = await box.call("session.start", **who, **place, launch=launch)
        assert not alive(pid)
        assert alive((await ask(started["bridge"]))["pid"])
        # A start that fails leaves none.
        with pytest.raises(SingularityError, match="cannot be started"):
            await box.start(["/no/such/program"], gang=GANG)
        [left] = os.listdir(box.runtime / "b")
        assert left == session


async def test_what_a_part_cannot_do() -> None:
    why = "it is part 1 of a gang on 2 nodes, which cannot be stored or moved yet"
    async with AgentBox(script=SCRIPT) as box:
        session, _ = await part(box)
        of = {"session": session, "epoch": 1}
        for method in ("session.suspend", "session.checkpoint", "device.checkpoint"):
            with pytest.raises(Unsupported, match=why):
                await box.call(method, **of)
        with pytest.raises(Unsupported, match=why):
            await box.call("device.put_back", **of, checkpoint="x")
        assert len(box.processes(session)) == 1
        alone = await box.python("import os, time; print(dict(os.environ)); time.sleep(600)")
        assert "bridge" not in await box.session(alone)
        with pytest.raises(Conflict, match="is no part of a gang"):
            await box.call("session.peers", session=alone, peers={})
