"""Reports how the node's devices are: read every few seconds, told to the service, never judged.

What a report means is decided by the scheduler's policy (`core.health`). GPUs are asked through
NVML, in a thread that nothing waits for: a call that does not come back is told as a silence. cpu
devices report what their proxies use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from singularity_proxy.wire.ring import RingState

from .node import Node
from .nvml import NvmlMissing, NvmlReader

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
        self._cpu = CpuUse()
        gpus = {d["id"]: str(d.get("uuid", "")) for d in node.devices if d["type"] == "cuda"}
        self._reader = NvmlReader(gpus) if gpus else None

    async def run(self) -> None:
        await asyncio.sleep(FIRST_LOOK_S)
        while True:
            try:
                self._node.health = await self.look()
                self._node.emit("", "node.devices", devices=self._node.health)
            except Exception:  # the next round may be better, and nobody else reports
                log.exception("the health of the devices could not be told")
            await asyncio.sleep(self._every_s)

    async def look(self) -> list[Report]:
        """One report per device, in the order of `hello`."""
        if self._reader is not None:
            await self._ask_nvml(self._reader)
        now = time.monotonic()
        silent_s = now - self._asked if self._asked else 0.0
        found = []
        for device in self._node.devices:
            if device["type"] == "cpu":
                found.append(self._cpu.report(self._node, device, now))
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


class CpuUse:
    """How much memory and time the device proxies of cpu devices use."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, dict[int, float]]] = {}

    def report(self, node: Node, device: Report, now: float) -> Report:
        """The figures of one device: those a processor does not have are None."""
        name, used = str(device["id"]), 0
        seconds: dict[int, float] = {}
        for live in node.sessions.values():
            proxy = live.proxies.get(name)
            if proxy is None or not proxy.watch.alive:
                continue
            seconds[proxy.identity.pid] = _cpu_seconds(proxy.identity.pid)
            used += max(
                (
                    ring.file.read().memory_current
                    for ring_id in proxy.attached
                    if (ring := live.rings.rings.get(ring_id))
                    and ring.file.state is RingState.ATTACHED
                ),
                default=0,
            )
        since, before = self._before.get(name, (now, {}))
        self._before[name] = now, seconds
        worked = sum(s - before[pid] for pid, s in seconds.items() if pid in before)
        cores = max(1, node.settings.proxy_threads)
        share = worked / (now - since) / cores if now > since else 0.0
        return {
            "id": name,
            "uuid": device.get("uuid", ""),
            "present": True,
            "memory_used_bytes": used,
            "memory_total_bytes": device["capacity_bytes"],
            "utilisation_percent": round(min(100.0, max(0.0, share * 100)), 1),
        }


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0.0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
