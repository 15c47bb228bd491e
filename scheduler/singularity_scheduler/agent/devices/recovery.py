"""What happens when a device proxy ended without being told to: another one takes its rings over.

Snapshot and journal rebuild the state bitwise, so nothing is lost and workers only wait. A record
at which one proxy after another ends is executed by no further one: it fails, with a sentence that
names its operation, and everything before and after it is kept. Only a record that was executed
before and ends the proxies that repeat it makes its ring fail, and no other ring.

That no proxy can take over now (none can be started, each is killed while it restores, there is no
memory) says nothing about the state, which is on file. So the session is set down: it gives its
devices back and is attached again by the service, which says why it waits. Where not even that is
possible, because the state of another of its devices cannot be written, it is tried again here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase
from singularity_scheduler.agent.sessions.rings import LiveRing

from .binding import ProxyBinder, blame
from .proxies import Proxy

log = logging.getLogger("singularity.agent")

MANY_DEATHS = 5
"""More proxy deaths of one session than this within `MANY_DEATHS_S` seconds, while none of its
records was finished: give up."""

MANY_DEATHS_S = 60.0

RETRY_S = 1.0
RETRY_MAX_S = 30.0
"""A session that could neither go on nor be set down is tried again after such pauses."""


class Recovery:
    """`park(live)` frees the session's devices; the caller holds the session's lock."""

    def __init__(
        self, node: Node, binder: ProxyBinder, park: Callable[[LiveSession], Awaitable[object]]
    ) -> None:
        self._node = node
        self._binder = binder
        self._park = park
        self._trying: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Those that are tried again, by session and device."""

    async def recover(self, live: LiveSession, device: str, dead: Proxy | None) -> None:
        """Replace the proxy of `device` that ended (None: there is none, after a restart)."""
        await self._replace(live, device, dead, ended=True)

    async def serve(self, live: LiveSession, device: str) -> None:
        """Have a proxy on `device`, where there is none and none has just ended."""
        await self._replace(live, device, None, ended=False)

    def is_trying(self, live: LiveSession, device: str) -> bool:
        """Whether `try_again` is under way."""
        return (live.record.session, device) in self._trying

    def try_again(self, live: LiveSession, device: str) -> None:
        """Have a proxy on `device` a little later, and again until there is one: the session holds
        the device, and there is none behind it now."""
        key = (live.record.session, device)
        if key not in self._trying:
            task = self._node.spawn(self._try_again(live, device), "start of a device proxy")
            self._trying[key] = task
            task.add_done_callback(lambda _: self._trying.pop(key, None))

    async def _try_again(self, live: LiveSession, device: str) -> None:
        record, pause = live.record, RETRY_S
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_MAX_S)
            if not record.alive or record.phase is not Phase.HELD:
                return
            if device not in record.devices or device in live.proxies:
                return
            await self.serve(live, device)

    async def _replace(
        self, live: LiveSession, device: str, dead: Proxy | None, ended: bool
    ) -> None:
        record, node = live.record, self._node
        async with live.lock:
            if live.proxies.get(device) is not dead or record.phase is not Phase.HELD:
                return  # it was parked or replaced in good order
            if not record.alive:
                return
            started = time.monotonic()
            rings = self._binder.rings_of(live, device)
            if dead is not None:
                await self._binder.discard(live, device, dead)
            pardoned = not ended or (dead is not None and dead.pardoned)
            blame(rings, pardoned=pardoned)
            if not pardoned and self._is_hopeless(live, rings):
                node.try_save(live)
                return  # a process that comes later gets a proxy again
            for ring in rings:
                ring.file.set_state(RingState.DETACHED)
            try:
                done = await self._binder.attach_device(live, device, rings)
            except (SingularityError, OSError) as error:
                if record.alive:
                    await self._set_down(live, str(error))
                return
            node.try_save(live)
            ms = round((time.monotonic() - started) * 1e3, 3)
            why = dead.given_up if dead else ""
            log.warning(
                "session %s: a device proxy %s, another one took over in %s ms",
                record.session,
                why or "ended",
                ms,
            )
            node.emit(
                record.session,
                "proxy.recovered",
                records=done["replayed_records"],
                ms=ms,
                why=why,
            )

    async def _set_down(self, live: LiveSession, why: str) -> None:
        """No proxy can serve the session now (no memory for one, for instance), but its state is on
        file: it gives its devices back and waits for the service to try again. Where the state of
        its other devices cannot be written it keeps them, and `try_again` follows (see `parks`)."""
        record = live.record
        log.error("session %s gives its devices back: %s", record.session, why)
        record.reason = f"its device proxy ended and cannot be replaced now: {why}"
        with contextlib.suppress(SingularityError):
            await self._park(live)
        self._node.emit(record.session, "lease.lapsed", reason=why)

    def _is_hopeless(self, live: LiveSession, rings: list[LiveRing]) -> bool:
        """Proxies that end again and again before anything is done: all their rings fail."""
        now = time.monotonic()
        done = sum(ring.file.read().done_seq for ring in live.rings.rings.values())
        live.deaths.append((now, done))
        alike = sum(at > now - MANY_DEATHS_S and before == done for at, before in live.deaths)
        if alike <= MANY_DEATHS:
            return False
        self._binder.fail_rings(
            live,
            rings,
            f"the device proxy ended {alike} times within a minute and nothing could be done in "
            "between; variables in host memory were kept: restart the kernel, and tell your "
            "administrator",
        )
        return True
