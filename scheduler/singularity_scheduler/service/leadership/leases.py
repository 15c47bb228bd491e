"""Leases of the service: renewed every TTL / 6, reaped when a node does not answer for too long.

The agent counts the TTL from the moment it receives a renewal, this side from the moment the answer
is here, plus a margin: so an agent has always fenced itself before its devices are given to
anybody else. The clock is CLOCK_BOOTTIME, which no one sets and which goes on while the machine
sleeps. Nothing of this is stored: after a restart every lease gets a full TTL + margin, because
the service before may have renewed it in its last moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import SingularityError

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.service.ports import Fleet

from .node_terms import NodeTerms

log = logging.getLogger("singularity.service")

_BEGINNING = (ProcessState.STARTING, ProcessState.RESUMING)
"""What a node still has of such a session, of an older epoch, is not the session any more."""


def boot_clock() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class _Deadline:
    epoch: int
    at: float


class LeaseKeeper:
    """Made by the controller; `run` is its loop. `report` takes events and does not fail."""

    def __init__(
        self,
        state: ClusterState,
        fleet: Fleet,
        report: Callable[[ev.Event], Awaitable[None]],
        resync: Callable[[str], Awaitable[bool]],
        *,
        ttl_s: float,
        margin_s: float,
        patience_s: float = 0.0,
        before_loss: Callable[[str], Awaitable[None]] | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """`patience_s`: how much longer sessions that cannot go on elsewhere wait for a lost node;
        `before_loss(node)` is awaited before a node is given up."""
        self._state = state
        self._fleet = fleet
        self._report = report
        self._resync = resync
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._clock = clock
        self._patience_s = patience_s
        self._before_loss = before_loss
        self._deadlines: dict[str, _Deadline] = {}
        self._terms = NodeTerms(ttl_s, patience_s)
        self._heard: dict[str, float] = {}
        """node -> when it answered last; while this service was away every node counts as heard"""
        self._lost: set[str] = set()
        self._asking: set[str] = set()
        self._telling: dict[tuple[type, str], asyncio.Task[None]] = {}

    @property
    def period_s(self) -> float:
        return self._ttl_s / 6

    def changed(self, view: SessionView) -> None:
        """A session was decided on: a new lease runs from now, an ended one is forgotten."""
        if not view.leased:
            self._deadlines.pop(view.id, None)
            return
        known = self._deadlines.get(view.id)
        if known is None or known.epoch != view.epoch:
            at = self._clock() + self._ttl_s + self._margin_s
            self._deadlines[view.id] = _Deadline(view.epoch, at)

    async def run(self) -> None:
        """Renew and reap until cancelled."""
        while True:
            await asyncio.sleep(self.period_s)
            nodes = [n.id for n in self._state.nodes.values()]
            await asyncio.gather(*(self.look_after(node) for node in nodes))

    async def close(self) -> None:
        """Give up what is being told; called after `run` was cancelled."""
        tasks = list(self._telling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def heard(self, node: str, sent_at: object) -> None:
        """The node has answered: its leases run on. `sent_at`: its own time, in the answer."""
        self._heard[node] = self._clock()
        self._lost.discard(node)
        self._terms.got(node, sent_at)

    def joined(self, node: str) -> None:
        """A node is back, and may have stopped its sessions: it is to hear soon that they go on."""
        if node in self._state.nodes and (ev.NodeJoined, node) not in self._telling:
            task = asyncio.ensure_future(self.look_after(node))
            self._telling[ev.NodeJoined, node] = task
            task.add_done_callback(lambda _: self._telling.pop((ev.NodeJoined, node), None))

    def _tell(self, event: ev.LeaseLapsed | ev.LeaseReaped | ev.Tick | ev.NodeLost) -> None:
        """Report without waiting: while the ledger cannot be written, leases must be renewed."""
        of_node = isinstance(event, ev.Tick | ev.NodeLost)
        key = (type(event), event.node if of_node else event.session)  # type: ignore[union-attr]
        if key not in self._telling:
            lost = isinstance(event, ev.NodeLost)
            work = self._give_up(event) if lost else self._report(event)  # type: ignore[arg-type]
            task = asyncio.ensure_future(work)
            self._telling[key] = task
            task.add_done_callback(lambda _: self._telling.pop(key, None))

    async def look_after(self, node: str) -> None:
        """One round for one node. Never waits for a node longer than a renewal may take."""
        asked = self._state.nodes[node].connected or node in self._lost
        if asked and node not in self._asking:
            self._asking.add(node)
            try:
                await self._renew(node)
            except SingularityError as error:
                log.warning("leases of node %s were not renewed: %s", node, error.message)
            finally:
                self._asking.discard(node)
        self._reap(node)
        self._watch(node)
        entry = self._state.nodes[node]
        if entry.connected and (entry.retry or entry.queue or entry.leases or entry.duty.leaving):
            self._tell(ev.Tick(node))

    def _watch(self, node: str) -> None:
        """Give a node up that was silent for longer than it may hold anything."""
        silent = self._clock() - self._heard.setdefault(node, self._clock())
        limit = self._ttl_s + self._margin_s
        if silent >= limit and self._state.nodes[node].sessions:
            stopped = silent >= self._terms.longest_s(node) + self._margin_s
            hopeless = silent >= limit + self._patience_s
            self._tell(ev.NodeLost(node, silent, hopeless, stopped))

    async def _give_up(self, event: ev.NodeLost) -> None:
        if event.node not in self._lost and self._before_loss is not None:
            await self._before_loss(event.node)
        if self._clock() - self._heard.get(event.node, 0.0) < self._ttl_s + self._margin_s:
            return  # it answered meanwhile
        self._lost.add(event.node)
        await self._report(event)

    async def _renew(self, node: str) -> None:
        asked = {
            view.id: view
            for sid in set(self._state.nodes[node].leases.values())
            if (view := self._state.sessions[sid])
        }
        answer = await self._ask(node, asked)
        now = self._clock()
        came_back = node in self._lost
        self.heard(node, answer.get("sent_at"))
        if came_back:  # it was silent, and its connection held all the time
            await self._resync(node)
        if answer.get("over"):  # it did not know yet that it was heard
            again = await self._ask(node, {})
            self.heard(node, again.get("sent_at"))
        held = {lease["session"] for lease in answer["held"]}
        for sid, view in asked.items():
            known = self._deadlines.get(sid)
            if known is None or known.epoch != view.epoch:
                continue
            current = self._state.sessions.get(sid)
            if current is None or current.epoch != view.epoch:
                continue
            # A command under way may be executed any time from now on while its node answers.
            under_way = current.device_state is not DeviceState.HELD or current.in_flight
            if sid in held or under_way:
                known.at = now + self._ttl_s + self._margin_s
            elif view.device_state is DeviceState.HELD and sid not in answer["gone"]:
                self._tell(ev.LeaseLapsed(sid))
        here = [v for s in answer["gone"] if (v := self._state.sessions.get(s)) and s in asked]
        if any(v.here and not asked[v.id].in_flight for v in here):
            await self._resync(node)

    def terms(self, node: str) -> dict[str, Any]:
        """What this node is told of its lease as a whole; see `agent.node_lease.Renewal`."""
        others = any(other != node for other in self._state.nodes)
        # Nothing goes on there while it is being decided that it is lost.
        dying = (ev.NodeLost, node) in self._telling
        terms = self._terms.offer(node, alone=not others, dying=dying)
        here = {
            view.id: view.epoch if view.process_state in _BEGINNING else 0
            for sid in self._state.nodes[node].sessions
            if (view := self._state.sessions[sid]).here or view.in_flight
        }
        return {**terms, "here": here}

    async def _ask(self, node: str, asked: dict[str, SessionView]) -> Any:
        terms = self.terms(node)
        answer = await self._fleet.call(
            node,
            "renew",
            timeout=self._ttl_s / 3,
            leases=[{"session": v.id, "epoch": v.epoch} for v in asked.values()],
            ttl_s=self._ttl_s,
            terms=terms,
        )
        self._terms.accepted(node, terms)
        return answer

    def _reap(self, node: str) -> None:
        now = self._clock()
        for sid, deadline in list(self._deadlines.items()):
            view = self._state.sessions.get(sid)
            if view is None or view.node != node or now < deadline.at:
                continue
            silent = self._ttl_s + self._margin_s
            self._tell(
                ev.LeaseReaped(
                    sid,
                    deadline.epoch,
                    f"parked because node {node} did not answer for {silent:g} s: its agent keeps "
                    "the state and has freed the devices; it comes back with the next device call",
                )
            )
