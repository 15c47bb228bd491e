"""The bridge of a part of a gang: it comes and ends with its session, and is replaced meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import pytest
from singularity_proxy.capsule.process import uid_of
from singularity_proxy.errors import BadRequest, Conflict, SingularityError, Unsupported
from support.agent import AgentBox, alive, until
from support.agent_gang import bridges
from support.processes import stop_process

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio]

GANG = {"id": "ab12", "number": 1, "parts": 2, "key": "c" * 64}
SHOWS = "import os, json, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(14400)"


def bridge(box: AgentBox, session: str) -> int:
    """Pid of the bridge of a session; 0: there is none."""
    pids = bridges(box, session)
    assert len(pids) < 2
    return next(iter(pids), 0)


def ports(box: AgentBox, session: str) -> dict[str, int]:
    """Where it says that it listens."""
    found: dict[str, int] = json.loads((box.runtime / "b" / session / "ports.json").read_text())
    return found


def peers(box: AgentBox, session: str) -> dict[str, str]:
    """What it is told of the others."""
    found: dict[str, str] = json.loads((box.runtime / "b" / session / "peers.json").read_text())
    return found


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


async def part(box: AgentBox, code: str = SHOWS, **options: Any) -> tuple[str, str]:
    """A session that is part 1 of 2; -> (session, address of its bridge)."""
    session = await box.python(code, gang=GANG, **options)
    return session, str(box.started["bridge"])


async def test_a_part_has_a_bridge_and_knows_its_number() -> None:
    async with AgentBox() as box:
        session, address = await part(box)
        pid, at = bridge(box, session), ports(box, session)
        assert address == f"127.0.0.1:{at['port']}"
        assert listens(address)
        assert (await box.session(session))["bridge"] == address
        assert (await box.event("session.bridge", session))["bridge"] == address
        assert uid_of(pid) == (await box.call("identity", user="alice"))["uid"]
        await until(lambda: box.log(session).endswith("\n"))
        environ = json.loads(box.log(session))
        wanted = {
            "SINGULARITY_GANG": "1/2",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "NNODES": "2",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(at["master_port"]),
        }
        assert {name: environ.get(name) for name in wanted} == wanted
        inside = json.loads((box.runtime / "s" / session / "rendezvous.json").read_text())
        assert listens(f"127.0.0.1:{inside['port']}")
        assert GANG["key"] not in json.dumps(inside)
        assert GANG["key"] not in box.log(session)
        others = {"0": "127.0.0.1:1", "1": address}
        assert peers(box, session) == {}
        for _ in range(2):
            assert await box.call("session.peers", session=session, peers=others) == {}
        assert peers(box, session) == others
        await box.end(session)
        assert not alive(pid)
        assert not (box.runtime / "b" / session).exists()


async def test_one_that_is_killed_is_replaced_at_the_same_ports() -> None:
    async with AgentBox() as box:
        session, address = await part(box)
        others = {"0": "127.0.0.1:1"}
        await box.call("session.peers", session=session, peers=others)
        before, at = bridge(box, session), ports(box, session)
        for killed in (1, 2):
            os.kill(bridge(box, session), signal.SIGKILL)
            assert (await box.event("session.bridge", session, 1 + killed))["bridge"] == address
        after = bridge(box, session)
        assert after not in (0, before)
        assert (ports(box, session), peers(box, session)) == (at, others)
        assert listens(address)
        assert len(box.processes(session)) == 1, "its session did not notice"
        await box.end(session)
        assert not alive(after)


async def test_the_next_agent_adopts_it_or_replaces_it() -> None:
    async with AgentBox() as box:
        session, address = await part(box)
        lost, other = await part(box)
        first, second, at = bridge(box, session), bridge(box, lost), ports(box, lost)
        await box.call("session.peers", session=lost, peers={"0": "127.0.0.1:1"})
        stop_process(box.agent_pid)
        os.kill(second, signal.SIGKILL)
        await box.kill_agent()
        await until(lambda: bridge(box, lost) != 0 and listens(other))
        assert bridge(box, lost) != second
        assert (ports(box, lost), peers(box, lost)) == (at, {"0": "127.0.0.1:1"})
        assert (await box.session(lost))["bridge"] == other
        assert bridge(box, session) == first
        assert listens(address)
        # It ends also when its session has ended while there was no agent.
        [process] = box.processes(session)
        stop_process(box.agent_pid)
        os.kill(process.pid, signal.SIGKILL)
        await box.kill_agent()
        await until(lambda: not alive(first))
        await until(lambda: not (box.runtime / "b" / session).exists())


async def test_it_ends_with_its_session_however_that_ends() -> None:
    async with AgentBox() as box:
        session, _ = await part(box, "import time; time.sleep(1.0)")
        pid = bridge(box, session)
        assert pid
        await box.event("process.exited", session)
        assert not alive(pid)
        # The next attempt of a run begins while there is something of the one before.
        session, _ = await part(box)
        pid, box._seq = bridge(box, session), box._seq + 1
        launch = {
            "mode": "capsule",
            "argv": ["/bin/sleep", "600"],
            "env": {},
            "gang": {**GANG, "key": "d" * 64},
        }
        who = {"session": session, "user": "alice", "kind": "batch", "tier": "standard"}
        place = {"virtual_devices": 1, "epoch": 3, "seq": box._seq}
        started = await box.call("session.start", **who, **place, launch=launch)
        assert not alive(pid)
        assert bridge(box, session) not in (0, pid)
        assert listens(started["bridge"])
        # A start that fails leaves none.
        with pytest.raises(SingularityError, match="cannot be started"):
            await box.start(["/no/such/program"], gang=GANG)
        assert os.listdir(box.runtime / "b") == [session]


async def test_what_a_part_cannot_do() -> None:
    why = "it is part 1 of a gang on 2 nodes, which is stored only as a whole"
    async with AgentBox() as box:
        session, _ = await part(box)
        of = {"session": session, "epoch": 1}
        for method in ("session.suspend", "session.checkpoint", "device.checkpoint"):
            with pytest.raises(Unsupported, match=why):
                await box.call(method, **of)
        with pytest.raises(Unsupported, match=why):
            await box.call("device.put_back", **of, checkpoint="x")
        for method in ("session.suspend", "session.checkpoint"):
            with pytest.raises(Conflict, match="do not stand together with those of the other"):
                await box.call(method, **of, standing=True)
        hold = {"call": "hold", "targets": {}, "deadline_s": 0.1, "grace_s": 0.0}
        for call in ({"call": "ask"}, hold):
            with pytest.raises(Conflict, match="it has no devices now, and a gang can be stopped"):
                await box.call("session.barrier", **of, **call)
        assert await box.call("session.barrier", **of, call="release") == {}
        with pytest.raises(BadRequest, match="'call' is 'ask', 'hold' or 'release'"):
            await box.call("session.barrier", **of, call="stop")
        assert len(box.processes(session)) == 1
        alone = await box.python("import time; time.sleep(14400)")
        assert "bridge" not in await box.session(alone)
        with pytest.raises(Conflict, match="is no part of a gang"):
            await box.call("session.peers", session=alone, peers={})
        with pytest.raises(Conflict, match="it is no part of a gang"):
            await box.call("session.barrier", session=alone, epoch=1, call="ask")
