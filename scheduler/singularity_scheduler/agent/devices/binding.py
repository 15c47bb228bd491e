"""Puts device proxies behind rings: start one, bind it, attach rings, end it.

The steps that attach, recovery and late rings have in common. Callers hold the session's lock and
move its phase; nothing here decides anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from singularity_proxy.errors import ProxyFailed, ProxyNotReady, Unavailable
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.ranks import barrier as ranks
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.rings import LiveRing

from .proxies import Proxy

log = logging.getLogger("singularity.agent")

MAX_DEATHS = 3
"""A record at which this many proxies ended is not executed by another one."""

MANY_RECORDS = 4
"""So many different records of one ring may end proxies while it is restored, one after another."""

IDLE_DEATHS = 4
"""So many proxies may end one after another while they restore, without being at any record."""

STEPS = {
    "taken": "a device proxy runs that nobody knows of yet",
    "kept": "the ledger knows it",
    "bound": "it belongs to the session, and serves nothing",
    "attached": "it has rebuilt the state of a ring, and serves it",
}
"""Where an agent can die while a device proxy takes the place of another one; `Node.on_step` is
called there, by tests alone."""


def blame(rings: list[LiveRing], *, pardoned: bool = False) -> bool:
    """Count the death of a proxy against the records it was executing; False when there was none.
    `pardoned`: it ended for a reason that has nothing to do with them."""
    found = False
    for ring in rings:
        record, seq = ring.record, ring.file.read().executing_seq
        if not seq:
            continue
        ring.file.clear_executing()
        if not pardoned:
            found = True
            record.deaths = record.deaths + 1 if record.last_death == seq else 1
            record.last_death = seq
    return found


class ProxyBinder:
    """`on_exit(live, device, proxy)` is called when a bound proxy's process has ended."""

    def __init__(self, node: Node, on_exit: Callable[[LiveSession, str, Proxy], None]) -> None:
        self._node = node
        self._on_exit = on_exit

    def rings_of(self, live: LiveSession, device: str) -> list[LiveRing]:
        """The rings that the proxy of `device` has to serve."""
        return [
            live.rings.rings[r.ring_id]
            for r in live.record.rings_of(device)
            if r.ring_id in live.rings.rings
            and live.rings.rings[r.ring_id].file.state is not RingState.FAILED
        ]

    async def attach_device(
        self, live: LiveSession, device: str, rings: list[LiveRing]
    ) -> dict[str, int]:
        """Start serving `rings` on `device` by a new proxy. A proxy that dies while it restores is
        replaced, until the record that ends it is known and left out. Raises `ProxyNotReady` when
        none can be started, or one after another ends, however often this is tried: what is on
        file stays as it is, so the caller sets the session down and tries again later. Returns how
        much was restored and replayed."""
        idle, at_records = IDLE_DEATHS, MAX_DEATHS * MANY_RECORDS
        while True:
            proxy = await self._node.pool.take(lambda: live.record.alive)
            self._step("taken")
            if not live.record.alive:  # it ended while the proxy started
                await proxy.end()
                live.record.check_live()
            self._keep(live, device, proxy)
            try:
                return await self._bind(live, device, proxy, rings)
            except BaseException as error:
                died = not proxy.connected
                await self.discard(live, device, proxy)
                if not (died and isinstance(error, Unavailable)):
                    raise
                if blame(rings, pardoned=proxy.pardoned):
                    at_records -= 1
                else:
                    idle -= 1
                if not (idle and at_records):
                    often = "again and again" if idle else f"{IDLE_DEATHS} times"
                    raise ProxyNotReady(
                        f"the device proxy ended {often} while it restored the state on {device}",
                        device=device,
                    ) from None

    def _keep(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        # In the ledger before it is bound: an agent that is killed next finds it again. (One that
        # is not in the ledger is ended by the next agent; its state is on file.)
        live.proxies[device] = proxy
        live.record.proxies[device] = proxy.record(device)
        self.watch(live, device, proxy)
        self._node.try_save(live)
        self._step("kept")

    def _step(self, name: str) -> None:
        self._node.on_step(f"replace.{name}")

    def watch(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        """Have the end of the proxy told."""
        proxy.on_exit = lambda gone: self._on_exit(live, device, gone)

    async def discard(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        """End the proxy's process and forget it; the state files stay."""
        if live.proxies.get(device) is proxy:
            del live.proxies[device]
        live.record.proxies.pop(device, None)
        ranks.forget(live, proxy)
        await proxy.end()

    async def _bind(
        self, live: LiveSession, device: str, proxy: Proxy, rings: list[LiveRing]
    ) -> dict[str, int]:
        record, settings = live.record, self._node.settings
        await proxy.call(
            "bind",
            session=record.session,
            uid=record.uid,
            gid=record.gid,
            device=device,
            capacity_bytes=self._node.device(device)["capacity_bytes"],
            threads=settings.proxy_threads,
            check_squashing_every=settings.check_squashing_every,
            epoch=record.epoch,
        )
        await ranks.join(live, proxy)
        self._step("bound")
        return await self.attach_rings(live, proxy, rings)

    async def attach_rings(
        self, live: LiveSession, proxy: Proxy, rings: list[LiveRing]
    ) -> dict[str, int]:
        """Have a bound proxy serve `rings`; one that cannot be rebuilt fails alone. Returns how
        much was restored and replayed."""
        total = {"restored_bytes": 0, "replayed_records": 0}
        for ring in rings:
            try:
                answer = await self.attach_ring(live, proxy, ring)
            except ProxyFailed as error:  # this ring's state cannot be rebuilt, ever
                self.fail_rings(live, [ring], error.message)
                continue
            for key in total:
                total[key] += int(answer.get(key, 0))
        return total

    async def attach_ring(self, live: LiveSession, proxy: Proxy, ring: LiveRing) -> dict[str, Any]:
        """Have the proxy rebuild the ring's state and serve it; returns its answer."""
        record = ring.record
        ring.file.set_epoch(live.record.epoch)
        give_up = record.last_death if record.deaths >= MAX_DEATHS else 0
        answer: dict[str, Any] = await proxy.call(
            "attach",
            timeout=None,
            ring_id=ring.ring_id,
            path=ring.record.path,
            state_prefix=ring.record.prefix,
            journal_bytes=self._node.settings.journal_bytes,
            journal_records=self._node.settings.journal_records,
            give_up_seq=give_up,
            deaths=record.deaths,
            epoch=live.record.epoch,
        )
        proxy.attached.add(ring.ring_id)
        self._step("attached")
        if name := answer.get("given_up"):
            log.error(
                "session %s: %d device proxies ended at %s; that call was given up",
                live.record.session,
                record.deaths,
                name,
            )
            self._node.emit(
                live.record.session, "proxy.gave_up", operation=name, deaths=record.deaths
            )
            record.last_death = record.deaths = 0
        return answer

    def detach_headers(self, live: LiveSession, device: str | None = None) -> None:
        """Rings whose proxy did not get to say so itself: detached."""
        for ring in live.rings.rings.values():
            mine = device is None or device == live.record.device_of(ring.record.virtual_device)
            if mine and ring.file.state in (RingState.ATTACHED, RingState.MOVING):
                ring.file.set_state(RingState.DETACHED)

    def fail_rings(self, live: LiveSession, rings: list[LiveRing], sentence: str) -> None:
        """End the rings for good: their workers' next device call raises `sentence`."""
        for ring in rings:
            ring.file.fail(sentence)
        if rings:
            log.error("session %s: %s", live.record.session, sentence)
            left = sum(r.file.state is not RingState.FAILED for r in live.rings.rings.values())
            self._node.emit(live.record.session, "proxy.failed", sentence=sentence, left=left)
