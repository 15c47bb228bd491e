"""What happens when a device proxy ended without being told to: another one takes its rings over.

Snapshot and journal rebuild the state bitwise, so nothing is lost and workers only wait. A record
at which one proxy after another ends is executed by no further one: it fails, with a sentence that
names its operation, and everything before and after it is kept. Only a record that was executed
before and ends the proxies that repeat it makes its ring fail, and no other ring.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from singularity_proxy.errors import ProxyFailed, SingularityError
from singularity_proxy.wire.ring import RingState

from .binding import ProxyBinder, blame
from .live import LiveSession
from .node import Node
from .proxies import Proxy
from .rings import LiveRing
from .sessions import Phase

log = logging.getLogger("singularity.agent")

MANY_DEATHS = 5
"""More proxy deaths of one session than this within `MANY_DEATHS_S` seconds, while none of its
records was finished: give up."""

MANY_DEATHS_S = 60.0


class Recovery:
    """`park(live)` frees the session's devices; the caller holds the session's lock."""

    def __init__(
        self, node: Node, binder: ProxyBinder, park: Callable[[LiveSession], Awaitable[object]]
    ) -> None:
        self._node = node
        self._binder = binder
        self._park = park

    async def recover(self, live: LiveSession, device: str, dead: Proxy | None) -> None:
        """Replace the proxy of `device` that ended (None: there is none, after a restart)."""
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
            pardoned = dead is not None and dead.pardoned
            blame(rings, pardoned=pardoned)
            if not pardoned and self._is_hopeless(live, rings):
                node.try_save(live)
                return  # a process that comes later gets a proxy again
            for ring in rings:
                ring.file.set_state(RingState.DETACHED)
            try:
                done = await self._binder.attach_device(live, device, rings)
            except ProxyFailed as error:
                self._binder.fail_rings(live, rings, error.message)
                node.try_save(live)
                return
            except SingularityError as error:
                await self._set_down(live, error)
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

    async def _set_down(self, live: LiveSession, error: SingularityError) -> None:
        """No proxy can serve the session now (no memory for one, for instance), but its state is on
        file: it gives its devices back and waits for the service to try again."""
        record = live.record
        log.error("session %s gives its devices back: %s", record.session, error.message)
        record.reason = f"its device proxy ended and cannot be replaced now: {error.message}"
        with contextlib.suppress(SingularityError):
            await self._park(live)
        self._node.emit(record.session, "lease.lapsed")

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
