"""How agents of tests start their device proxies: by a command of the test's, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from singularity_proxy.capsule.launcher import CapsuleSpec, helper_environment, spawn
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import Unavailable
from singularity_scheduler.agent.devices.proxies import Starter

REFUSE = "no-proxies"
"""While this file is in the work folder of the test's `AgentBox`, no device proxy starts."""


class Commands:
    """Starts each proxy as a process of its own: `command(socket)`."""

    def __init__(self, command: Callable[[str], list[str]]) -> None:
        self._command = command

    async def start(self, socket_path: str, log_path: str) -> ProcessIdentity:
        env = {**helper_environment(os.environ), "HOME": "/"}
        command = self._command(socket_path)
        return spawn(CapsuleSpec(argv=command, env=env, cwd="/", log_path=log_path))

    async def close(self) -> None:
        pass


class Refusing:
    """Starts proxies as `starter` does, but when the test wants none."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self.close = starter.close

    async def start(self, socket_path: str, log_path: str) -> ProcessIdentity:
        if (Path(socket_path).parents[2] / "work" / REFUSE).exists():
            raise Unavailable("the test wants none")
        return await self._starter.start(socket_path, log_path)
