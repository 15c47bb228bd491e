"""The driver helpers of this node: which exist, and the end of those that an agent left behind.

A helper that was in a call of the driver when its agent was killed stays until the call returns,
and changes the state of a device proxy behind the back of the agent that comes next. So each one is
written down before it is asked anything. Used by `driver_parks` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.checkpoint.device.driver import END_SECONDS, DriverFailed

log = logging.getLogger("singularity.agent")

IDLE_SECONDS = 1.0
"""A helper that is in no call leaves within this time after its agent ended."""


class HelperFiles:
    """One file per helper in `folder`: its device, its pid and start time."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def writer(self, device: str) -> Callable[[int], None]:
        """For `DriverHelper.on_start`, which calls it in any thread; raises DriverFailed when it
        cannot be written."""

        def write(pid: int) -> None:
            try:
                body = [device, *ProcessIdentity.of(pid).to_json()]
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial = self._folder / f".{pid}"
                partial.write_text(json.dumps(body))
                os.replace(partial, self._folder / str(pid))
            except OSError as error:
                raise DriverFailed(
                    f"the driver's helper cannot be written down in {self._folder} ({error})"
                ) from None

        return write

    async def end_left_over(self) -> set[str]:
        """End the helpers of the agent before this one. Returns the devices of those that were in
        a call: what it does to its device proxy goes on, and may be half done."""
        ended = await asyncio.gather(*(self._end(path) for path in sorted(self._paths())))
        return {device for device in ended if device is not None}

    def forget(self) -> None:
        """All helpers ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _paths(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.name.isdigit()]
        except FileNotFoundError:
            return []

    async def _end(self, path: Path) -> str | None:
        try:
            device, identity = _read(path)
            watch = ProcessWatch(identity)
        except (OSError, ValueError, TypeError) as error:
            log.warning("the driver's helper in %s cannot be told: %s", path, error)
            return None
        try:
            if await watch.wait(IDLE_SECONDS):
                busy = None
            else:
                busy = device
                log.warning("a driver's helper of %s was left in a call; it is ended", device)
                watch.signal(signal.SIGKILL)
                if not await watch.wait(END_SECONDS):
                    log.error("process %d, a helper of %s, does not end", identity.pid, device)
                    return busy  # and is looked for again
        finally:
            watch.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
        return busy


def _read(path: Path) -> tuple[str, ProcessIdentity]:
    device, pid, start = json.loads(path.read_text())
    return str(device), ProcessIdentity(int(pid), int(start))
