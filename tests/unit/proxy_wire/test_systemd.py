"""What systemd is told by the service and the node agent."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from singularity_proxy.wire.systemd import Systemd


@pytest.fixture(params=["path", "abstract"])
def bound(request, tmp_path: Path):
    """A socket of systemd's, and its name as systemd says it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@sg-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(10)
        yield sock, name


@pytest.mark.asyncio
async def test_it_says_that_it_is_ready_and_that_it_lives(bound) -> None:
    sock, name = bound
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "OTHER": "kept"}
    report = asyncio.ensure_future(Systemd(environ).report())
    heard = [await asyncio.to_thread(sock.recv, 100) for _ in range(3)]
    report.cancel()
    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert environ == {"OTHER": "kept"}  # what it starts speaks to nobody


@pytest.mark.asyncio
@pytest.mark.parametrize("pid", ["1", ""])
async def test_the_watchdog_of_another_process_is_not_fed(bound, pid: str) -> None:
    sock, name = bound
    usec = "20000" if pid else "no number"
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
    await asyncio.wait_for(Systemd(environ).report(), 10)
    assert sock.recv(100) == b"READY=1"


@pytest.mark.asyncio
async def test_without_systemd_nothing_is_said() -> None:
    await asyncio.wait_for(Systemd({}).report(), 10)
    Systemd({"NOTIFY_SOCKET": "/no/such/socket"}).tell("READY=1")
