"""How soon a device proxy that is killed, stopped or hung is noticed (`-s` shows the times)."""

from __future__ import annotations

import pytest
from support import matrix
from support.agent import AgentBox, alive
from support.agent_noticing import Served, seconds_until

BOUND_S = 20.0
"""Time that bounds a failure; how soon it is on a machine with a core to spare says `-s`."""


@pytest.mark.asyncio
@pytest.mark.parametrize("double", [True, *matrix.some_of([False], 0)])
async def test_a_killed_and_a_stopped_proxy_are_noticed(double: bool) -> None:
    async with AgentBox(double=double, warm=1) as box:
        served = await Served.start(box, BOUND_S, double=double)
        killed, stopped = await served.killed(), await served.stopped()
        await box.event("proxy.recovered", served.session, count=2)
        served.ring.close()
        print(f"noticed after: killed {killed:.3f} s, stopped {stopped:.3f} s")


@pytest.mark.asyncio
async def test_a_proxy_that_hangs_is_noticed() -> None:
    async with AgentBox("--NodeAgent.hung_proxy_s=2", double=True) as box:
        served = await Served.start(box, BOUND_S, double=True)
        pid = served.pid
        said = await served.hung()
        await seconds_until(lambda: not alive(pid), BOUND_S)  # given up after `hung_proxy_s`
        await box.event("proxy.recovered", served.session)
        served.ring.close()
        print(f"noticed after: hung {said:.3f} s")
