"""How soon the node agent notices that a device proxy was killed, was stopped or hangs."""

from __future__ import annotations

from .figures import Figure
from .tools import see_support

BOUNDS = {"noticed_killed_s": 1.0, "noticed_stopped_s": 1.0, "noticed_hung_s": 1.0}

LIMIT_S = 30.0


async def measure(times: int) -> dict[str, Figure]:
    """Seconds from the fault to the agent's first deed, `times` times each. The proxy that hangs
    is a stand-in, because a real one does not do that on request."""
    see_support()
    from support.agent import AgentBox
    from support.agent_noticing import Served

    killed, stopped, hung = [], [], []
    for _ in range(times):
        async with AgentBox(double=False, warm=1) as box:
            served = await Served.start(box, LIMIT_S, double=False)
            killed.append(await served.killed())
            stopped.append(await served.stopped())
            served.ring.close()
        async with AgentBox("--NodeAgent.hung_proxy_s=2", double=True) as box:
            served = await Served.start(box, LIMIT_S, double=True)
            hung.append(await served.hung())
            served.ring.close()
    return {
        "noticed_killed_s": Figure(killed),
        "noticed_stopped_s": Figure(stopped),
        "noticed_hung_s": Figure(hung),
    }
