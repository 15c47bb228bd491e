"""A real ipykernel behind the agent and the relay, spoken to with the real protocol."""

from __future__ import annotations

import os
import signal

import pytest
from singularity_proxy.capsule.tree import inner_pid
from support.agent import AgentBox, alive, until
from support.agent_kernels import client_of, run, start_kernel


@pytest.mark.asyncio
async def test_a_kernel_lives_behind_its_relay_and_through_an_agent_restart() -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box)
        assert box.started["connection"] == info
        client = await client_of(info)
        try:
            said = await run(client, "x = 21; import os; print(os.getpid(), os.getuid())")
            identity = await box.call("identity", user="alice")
            [kernel] = box.below(session)  # the first one is the shim
            assert said.split() == [str(inner_pid(kernel.pid)), str(identity["uid"])]
            await box.kill_agent()
            assert await run(client, "print(2 * x)") == "42\n"
            sleep = client.execute("import time; print('asleep'); time.sleep(600)")
            assert sleep
            while (await client.get_iopub_msg(timeout=30))["header"]["msg_type"] != "stream":
                pass
            await box.call("session.signal", session=session, signum=signal.SIGINT)
            reply = await client.get_shell_msg(timeout=30)
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            [relay] = box.relays(session)
            pid = box.started["pid"]
            os.kill(pid, signal.SIGKILL)
            await box.event("process.exited", session)
            await until(lambda: not alive(relay))
        finally:
            client.stop_channels()
