"""Tells systemd how a service of ours is (sd_notify(3)), where systemd started it: that it is
ready, and that its event loop still turns, as often as `WatchdogSec=` of its unit asks for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Systemd:
    """One per process, made before anything is started: the variables that name the socket are
    taken out of `environ`, so that nothing else speaks in the service's name."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address, period, pid = (environ.pop(name, "") for name in _VARIABLES)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = not pid or pid == str(os.getpid())
        self._period_s = int(period) / 2e6 if period.isdigit() and mine else 0.0

    def tell(self, state: str) -> None:
        """Send one state, such as "READY=1"; nothing where systemd did not start this process."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), self._address)

    async def report(self) -> None:
        """Say "ready" now and then, until cancelled, that the event loop turns."""
        self.tell("READY=1")
        while self._period_s:
            await asyncio.sleep(self._period_s)
            self.tell("WATCHDOG=1")
