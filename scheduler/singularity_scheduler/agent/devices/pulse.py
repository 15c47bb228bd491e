"""Notices device proxies that live but do not work: stopped, hung, or at one operation for long.

The end of a process is told by its pidfd at once. A process that is stopped (SIGSTOP, a debugger)
or hung is not: so a thread of each proxy, its heart, writes the time into the headers of its rings
every 200 ms, and the agent looks several times a second whether that goes on. A heart that waits
for a core of a busy machine is late and not dead: the kernel tells the two apart, and it is called
silent later.

A proxy that is stopped is ended at once, a silent one after `NodeAgent.hung_proxy_s`, for whatever
reason it is silent; 0 keeps both. What follows is the same as after a kill (see `recovery`). A
heart that beats while the proxy works on one operation for minutes is only told: nobody can know
how long an operation should take.

The same looks find sessions that hold devices which no call reaches (`use`).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import signal
import time
from dataclasses import dataclass, field

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase
from singularity_scheduler.agent.sessions.use import UseWatch

from .proxies import Proxy

log = logging.getLogger("singularity.agent")

LOOK_S = 0.2
"""Between two looks at all proxies that serve."""

SILENT_S = 0.7
"""A heart beats every 0.2 s; without a beat for this long it is called silent."""

LATE_S = 5.0
"""The same when the kernel says that the heart only waits for a core."""

HELD_UP_S = 1.0
"""Two looks further apart than this: the agent, or the whole machine, stood still, and nothing can
be said about others."""

TELL_AGAIN = (1.0, 10.0, 60.0, 360.0)
"""A long operation is told when it has taken this many times `long_operation_s`."""


class Verdict(enum.Enum):
    """What a look at a proxy found."""

    WELL = "well"
    SILENT = "silent"
    """For the first time in this silence."""
    BACK = "back"
    """It beats again after it was called silent."""
    STOPPED = "stopped"
    HUNG = "hung"


@dataclass
class HeartWatch:
    """What is known of one proxy's heart. Pure: times in seconds come from the caller."""

    beat: int = 0
    """The newest heartbeat word; 0: it never beat, so nothing is expected of it."""
    since: float = 0.0
    """When that was first seen."""
    stopped_looks: int = 0
    told: bool = False

    def silent_for(self, now: float) -> float:
        """Seconds since the last beat that was seen."""
        return now - self.since if self.beat else 0.0

    def look(self, now: float, beat: int, stopped: bool, starved: bool, limit_s: float) -> Verdict:
        """One look: the heartbeat word, whether the process is stopped, whether the heart only
        waits for a core, and after how long a silent proxy is given up, even one that only waits
        for a core: its session would wait as long (0: never, and neither is a stopped one)."""
        if beat != self.beat:
            was_told, self.told = self.told, False
            self.beat, self.since, self.stopped_looks = beat, now, 0
            return Verdict.BACK if was_told else Verdict.WELL
        # A tracer stops a process for an instant; two looks without a beat are no instant.
        self.stopped_looks = self.stopped_looks + 1 if stopped else 0
        if limit_s and self.stopped_looks > 2:
            return Verdict.STOPPED
        silent = self.silent_for(now)
        if limit_s and silent >= limit_s:
            return Verdict.HUNG
        if not self.told and silent >= (LATE_S if starved else SILENT_S):
            self.told = True
            return Verdict.SILENT
        return Verdict.WELL

    def forgive(self, now: float) -> None:
        """Begin to count anew: the one who looks was held up itself."""
        self.since, self.stopped_looks = now, 0


@dataclass
class WorkWatch:
    """How long a ring has been at one record. Pure."""

    executing: int = 0
    since: float = 0.0
    told: int = 0
    """How many of `TELL_AGAIN` were told."""

    def look(self, now: float, executing: int, long_s: float) -> float | None:
        """Seconds it has taken, when that is to be told; 0.0: a long one that was told is over."""
        if executing != self.executing:
            over, self.told = self.told > 0, 0
            self.executing, self.since = executing, now
            return 0.0 if over else None
        took = now - self.since
        if not executing or not long_s or self.told >= len(TELL_AGAIN):
            return None
        if took < TELL_AGAIN[self.told] * long_s:
            return None
        self.told += 1
        return took


@dataclass
class _Watched:
    heart: HeartWatch = field(default_factory=HeartWatch)
    works: dict[str, WorkWatch] = field(default_factory=dict)


class Pulse:
    """Looks after all proxies of the node. One object per agent; `run` until cancelled."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watched: dict[Proxy, _Watched] = {}
        self._last = time.monotonic()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look(time.monotonic())
            except Exception:  # the next look may be better, and nobody else looks
                log.exception("the device proxies could not be looked at")

    def look(self, now: float) -> None:
        """One look at every proxy that belongs to a living session."""
        held_up, self._last = now - self._last > HELD_UP_S, now
        seen: dict[Proxy, _Watched] = {}
        for live in list(self._node.sessions.values()):
            if not live.record.alive or live.record.phase in (Phase.NONE, Phase.PARKED):
                live.use = UseWatch()
                continue
            self._look_at_use(live, now)
            for proxy in list(live.proxies.values()):
                if proxy.watch.alive and not proxy.given_up:
                    watched = seen[proxy] = self._watched.get(proxy) or _Watched()
                    if held_up:
                        watched.heart.forgive(now)
                    self._look_at(live, proxy, watched, now)
        self._watched = seen

    def _look_at_use(self, live: LiveSession, now: float) -> None:
        published, working = 0, False
        for ring in list(live.rings.rings.values()):
            pulse = ring.file.pulse()
            if pulse is not None:
                published += pulse.published
                working |= pulse.state is RingState.ATTACHED and pulse.executing_seq != 0
        quiet_s = live.use.look(now, published, working)
        if quiet_s is not None:
            self._node.emit(live.record.session, "device.use", quiet_s=round(quiet_s, 1))

    def _look_at(self, live: LiveSession, proxy: Proxy, watched: _Watched, now: float) -> None:
        settings = self._node.settings
        beat = 0
        for ring_id in list(proxy.attached):
            ring = live.rings.rings.get(ring_id)
            pulse = ring.file.pulse() if ring else None
            if pulse is None or pulse.state is not RingState.ATTACHED:
                watched.works.pop(ring_id, None)
                continue
            beat = max(beat, pulse.heartbeat_ns)
            work = watched.works.setdefault(ring_id, WorkWatch())
            took = work.look(now, pulse.executing_seq, settings.long_operation_s)
            if took is not None:
                self._node.spawn(self._tell_work(live, proxy, ring_id, took), "a long operation")
        heart, pid = watched.heart, proxy.identity.pid
        quiet = beat == heart.beat
        stopped = quiet and _state(f"/proc/{pid}/stat") in ("T", "t")
        starved = quiet and heart.silent_for(now) >= SILENT_S and _heart_is_runnable(pid)
        verdict = heart.look(now, beat, stopped, starved, settings.hung_proxy_s)
        silent = heart.silent_for(now)
        session = live.record.session
        if verdict is Verdict.SILENT:
            log.warning("session %s: device proxy %d is silent", session, pid)
            self._node.emit(session, "proxy.silent", limit_s=settings.hung_proxy_s)
        elif verdict is Verdict.BACK:
            self._node.emit(session, "proxy.answers")
        elif verdict is Verdict.STOPPED:
            self._give_up(live, proxy, "was stopped (by a signal or a debugger)", pardoned=True)
        elif verdict is Verdict.HUNG:
            self._give_up(live, proxy, f"had not answered for {silent:.0f} s")

    def _give_up(self, live: LiveSession, proxy: Proxy, why: str, pardoned: bool = False) -> None:
        log.warning(
            "session %s: device proxy %d %s; it is ended and replaced",
            live.record.session,
            proxy.identity.pid,
            why,
        )
        proxy.given_up, proxy.pardoned = why, pardoned
        proxy.watch.signal(signal.SIGKILL)

    async def _tell_work(
        self, live: LiveSession, proxy: Proxy, ring_id: str, seconds: float
    ) -> None:
        name = ""
        if seconds:
            try:
                stats = await proxy.call("stats", timeout=5.0)
            except SingularityError:
                return
            name = str(stats.get("rings", {}).get(ring_id, {}).get("running", ""))
            if not name:
                return  # it has just ended
        self._node.emit(
            live.record.session, "device.working", operation=name, seconds=round(seconds, 1)
        )


def _state(path: str) -> str:
    """The state letter of a process or thread (proc(5)); "" when it is gone."""
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _heart_is_runnable(pid: int) -> bool:
    """Whether the heart of the proxy `pid` wants to run and is not given a core."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
                if file.read().strip() != "heart":
                    continue
        except OSError:
            continue
        return _state(f"/proc/{pid}/task/{thread}/stat") == "R"
    return False
