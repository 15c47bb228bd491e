"""Device proxies that do not start, for as long as a test says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

REFUSE = "no-proxies"
"""While this file is in the work folder of the test's `AgentBox`, no device proxy starts."""


def refusing(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """`command` of a device proxy that listens at a socket, or of one that ends at once."""

    def choose(socket: str, python: str = sys.executable) -> list[str]:
        work = Path(socket).parents[2] / "work"
        return ["/bin/false"] if (work / REFUSE).exists() else command(socket, python)

    return choose
