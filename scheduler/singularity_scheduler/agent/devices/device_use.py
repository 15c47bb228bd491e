"""How much memory and time each session uses of each of its devices. Part of `health`.

Of a GPU the time is the card's own figure, because one session at a time has a GPU; of a cpu device
it is that of the session's proxy there. The memory is what the session itself has on the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from singularity_proxy.wire.ring import RingHeader, RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase

from .proxies import Proxy

Report = dict[str, Any]


@dataclass(frozen=True)
class Use:
    """Of one device proxy."""

    memory_bytes: int
    seconds: float
    """Processor time since the look before; 0.0 at the first one."""
    since_s: float
    """Seconds since then."""

    def percent(self, threads: int) -> float:
        """Of the processor time that it may use."""
        return 100 * self.seconds / self.since_s / max(1, threads) if self.since_s > 0 else 0.0


class ProxyUse:
    """Looks at all device proxies of a node; one object per agent."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}
        """pid -> (when, its processor time until then)"""

    def look(self, node: Node, now: float) -> dict[tuple[str, str], Use]:
        """(session, device) -> what its proxy there uses. `now`: CLOCK_MONOTONIC."""
        found: dict[tuple[str, str], Use] = {}
        seen: dict[int, tuple[float, float]] = {}
        for live in node.sessions.values():
            for device, proxy in live.proxies.items():
                if not proxy.watch.alive:
                    continue
                pid = proxy.identity.pid
                seconds = _cpu_seconds(pid)
                seen[pid] = now, seconds
                since, before = self._before.get(pid, (now, seconds))
                memory = max((h.memory_current for h in _attached(live, proxy)), default=0)
                found[live.record.session, device] = Use(
                    memory, max(0.0, seconds - before), now - since
                )
        self._before = seen
        return found


def of_sessions(
    node: Node,
    uses: Mapping[tuple[str, str], Use],
    devices: Iterable[Report],
    squashing: Mapping[tuple[str, str], Report],
) -> dict[str, list[Report]]:
    """session -> a report for each of its virtual devices that has a proxy; `control`: the reports
    of the physical ones, `squashing`: of `squashing.SquashWatch`."""
    cards = {report["id"]: report for report in devices}
    found: dict[str, list[Report]] = {}
    for session, live in node.sessions.items():
        if live.record.phase is Phase.HELD:
            reports = list(_of_session(node, live, uses, cards))
            for report in reports:
                report["squashing"] = squashing.get((session, report["device"]))
            if reports:
                found[session] = reports
    return found


def _of_session(
    node: Node,
    live: LiveSession,
    uses: Mapping[tuple[str, str], Use],
    cards: Mapping[str, Report],
) -> Iterator[Report]:
    placed = live.record.devices
    for number, device in enumerate(placed):
        use, card = uses.get((live.record.session, device)), cards.get(device)
        if use is None or card is None:
            continue
        if placed.count(device) > 1:  # virtual devices that share it: each by its own rings
            proxy = live.proxies[device]
            rings = _attached(live, proxy, number)
            memory = sum(header.ring_memory_current for header in rings)
        else:
            memory = use.memory_bytes
        busy = card.get("utilisation_percent")
        if not device.startswith("cuda:"):
            busy = round(min(100.0, use.percent(node.settings.proxy_threads)), 1)
        yield {
            "virtual_device": number,
            "device": device,
            "memory_used_bytes": memory,
            "utilisation_percent": busy,
        }


def _attached(
    live: LiveSession, proxy: Proxy, virtual_device: int | None = None
) -> Iterator[RingHeader]:
    """The headers of the rings that a proxy serves; of one virtual device only, or of all."""
    for ring_id in proxy.attached:
        ring = live.rings.rings.get(ring_id)
        if ring is None or virtual_device not in (None, ring.record.virtual_device):
            continue
        header = ring.file.read()
        if header.state is RingState.ATTACHED:
            yield header


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0.0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
