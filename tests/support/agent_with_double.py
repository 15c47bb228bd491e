"""The node agent with `agent_proxy_double.py` as its device proxies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from singularity_scheduler.agent.app import main
from singularity_scheduler.agent.devices import proxies
from support.agent_refusing import Commands, Refusing


def command(socket: str) -> list[str]:
    double = Path(__file__).with_name("agent_proxy_double.py")
    return [sys.executable, str(double), "--socket", socket]


proxies.make_starter = lambda _: Refusing(Commands(command))
main()
