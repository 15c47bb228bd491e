"""Reports how the node's devices are: read every few seconds, told to the service, never judged.

Beside them what each session uses of its devices is told (`device_use`).

What a report means is decided by the scheduler's policy (`core.health`). GPUs are asked through
NVML, in a thread that nothing waits for: a call that does not come back is told as a silence. cpu
devices report what their proxies use.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from singularity_scheduler.agent.node import Node

from .device_use import ProxyUse, Use, of_sessions
from .nvml import NvmlMissing, NvmlReader
from .squashing import SquashWatch

log = logging.getLogger("singularity.agent")

Report = dict[str, Any]

ANSWER_S = 5.0
"""How long a round waits for NVML; a longer one is told as a silence and goes on."""

FIRST_LOOK_S = 0.5
"""Pause after the start, so that a service that connects then is told soon."""


class DeviceHealth:
    """The health of all devices of the node. One object per agent; `run` until cancelled.

    `reader` is made by the first round; `NvmlReader` unless a test replays answers."""

    def __init__(self, node: Node, every_s: float) -> None:
        self._node = node
        self._every_s = every_s
        self._asked = 0.0
        """When the call to NVML that has not come back was made; 0: there is none."""
        self._answers: queue.SimpleQueue[list[Report] | NvmlMissing] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Callable[[], list[Report]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._news = asyncio.Event()
        self._last: dict[str, Report] = {}
        self._proxies = ProxyUse()
        self._squashing = SquashWatch()
        self._uses: dict[tuple[str, str], Use] = {}
        """What the proxies used at the last look."""
        gpus = {d["id"]: str(d.get("uuid", "")) for d in node.devices if d["type"] == "cuda"}
        self._reader = NvmlReader(gpus) if gpus else None

    async def run(self) -> None:
        await asyncio.sleep(FIRST_LOOK_S)
        while True:
            try:
                self._node.health = await self.look()
                shared = await self._squashing.look(self._node)
                sessions = of_sessions(self._node, self._uses, self._node.health, shared)
                self._node.emit("", "node.devices", devices=self._node.health, sessions=sessions)
            except Exception:  # the next round may be better, and nobody else reports
                log.exception("the health of the devices could not be told")
            await asyncio.sleep(self._every_s)

    async def look(self) -> list[Report]:
        """One report per device, in the order of `hello`."""
        if self._reader is not None:
            await self._ask_nvml(self._reader)
        now = time.monotonic()
        silent_s = now - self._asked if self._asked else 0.0
        self._uses = self._proxies.look(self._node, now)
        found = []
        for device in self._node.devices:
            if device["type"] == "cpu":
                found.append(_of_cpu(device, self._uses, self._node.settings.proxy_threads))
            else:
                known = self._last.get(device["id"]) or {
                    "id": device["id"],
                    "uuid": device.get("uuid", ""),
                    "memory_total_bytes": device["capacity_bytes"],
                }
                found.append({**known, "silent_s": round(silent_s, 1)})
        return found

    async def _ask_nvml(self, reader: NvmlReader) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            # A daemon: an NVML that hangs must not keep the agent from ending.
            self._thread = threading.Thread(target=self._serve, args=(loop,), daemon=True)
            self._thread.start()
        if not self._asked:
            self._asked = time.monotonic()
            self._news.clear()
            self._work.put(reader.read)
        try:
            await asyncio.wait_for(self._news.wait(), ANSWER_S)
        except (asyncio.TimeoutError, TimeoutError):
            log.warning("NVML has not answered for %.0f s", time.monotonic() - self._asked)
            return
        self._asked = 0.0
        answer = self._answers.get_nowait()
        if isinstance(answer, NvmlMissing):
            self._last = {
                d["id"]: {
                    "id": d["id"],
                    "uuid": d.get("uuid", ""),
                    "memory_total_bytes": d["capacity_bytes"],
                    "trouble": str(answer),
                }
                for d in self._node.devices
                if d["type"] != "cpu"
            }
        else:
            self._last = {report["id"]: report for report in answer}

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            work = self._work.get()
            try:
                answer: list[Report] | NvmlMissing = work()
            except NvmlMissing as missing:
                answer = missing
            except Exception as error:
                log.error("NVML could not be read", exc_info=error)
                answer = NvmlMissing(f"NVML could not be read ({error})")
            self._answers.put(answer)
            try:
                loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:
                return  # the agent has ended


def _of_cpu(device: Report, uses: Mapping[tuple[str, str], Use], threads: int) -> Report:
    """The report of a cpu device, by what the proxies there use; the figures that a processor does
    not have are missing."""
    there = [use for (_, name), use in uses.items() if name == device["id"]]
    return {
        "id": str(device["id"]),
        "uuid": device.get("uuid", ""),
        "present": True,
        "memory_used_bytes": sum(use.memory_bytes for use in there),
        "memory_total_bytes": device["capacity_bytes"],
        "utilisation_percent": round(min(100.0, sum(use.percent(threads) for use in there)), 1),
    }
