"""What a session printed, and what the agent says about it, through the real agent."""

from __future__ import annotations

import json

import pytest
from singularity_proxy.errors import Conflict, NotFound
from support.agent import AgentBox, sleeper, stop, until


@pytest.mark.asyncio
async def test_the_log_is_read_while_it_grows_and_after_the_end() -> None:
    code = (
        "import sys, time; print('one', flush=True);\n"
        "import os\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print('two'); sys.exit('the reason')"
    )
    async with AgentBox() as box:
        session = await box.python(code)

        async def read(offset: int) -> dict[str, object]:
            found = await box.call("session.log", session=session, offset=offset, limit=1000)
            return dict(found)

        await until(lambda: box.log(session) == "one\n")
        assert await read(0) == {"text": "one\n", "offset": 0, "next_offset": 4, "size": 4}
        (box.work / "go").touch()
        await box.event("process.exited", session)
        assert not box.folder(session).exists()
        assert (await read(4))["text"] == "two\nthe reason\n"
        await box.end(session)  # the service has heard of the end: the agent forgets the session
        assert (await read(0))["text"] == "one\ntwo\nthe reason\n"
        await box.kill_agent()
        assert (await read(8))["text"] == "the reason\n"
        with pytest.raises(NotFound, match="not kept any more"):
            await box.call("session.log", session="0" * 12, offset=0, limit=10)


@pytest.mark.asyncio
async def test_a_joined_command_has_no_log_here() -> None:
    async with AgentBox() as box:
        own = sleeper(**await box.user_options())
        try:
            session = await box.start([], mode="joined", owner_pid=own.pid)
            with pytest.raises(Conflict, match="its output is there"):
                await box.call("session.log", session=session, offset=0, limit=10)
        finally:
            stop(own)


@pytest.mark.asyncio
async def test_the_agents_own_log_names_node_and_session_in_every_line() -> None:
    async with AgentBox() as box:
        session = await box.python("pass")
        await box.event("process.exited", session)
        await box.end(session)
        text = (box.root / "state" / "agent.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        ours = [line for line in lines if line.get("session") == session]
        assert [line["message"].split(" as ")[0] for line in ours] == [
            "session of alice started",
            "session of alice ended: its process ended with exit code 0",
        ]
        assert {line["node"] for line in lines} == {box.fleet.node}
        assert all({"time", "level", "logger"} <= line.keys() for line in lines)
