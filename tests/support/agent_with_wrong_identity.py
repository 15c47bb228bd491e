"""The node agent with real device proxies in which the identity of one operator is wrong.

It is the operator that `OPERATOR` names: its values do not count, so that results that differ are
taken for equal ones.
"""

import sys
from pathlib import Path

OPERATOR = "aten::add.Tensor"


def proxy() -> int:
    from singularity_proxy import build
    from singularity_proxy.device.__main__ import main

    build.load().break_identity_of(OPERATOR)
    return main()


def command(socket: str) -> list[str]:
    return [sys.executable, __file__, "--socket", socket, "--warm"]


if __name__ == "__main__":
    if "--socket" in sys.argv:
        sys.exit(proxy())
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from singularity_scheduler.agent.app import main
    from singularity_scheduler.agent.devices import proxies
    from support.agent_refusing import Commands

    proxies.make_starter = lambda _: Commands(command)
    main()
