"""What nodes say: events in their order, connections, and what sessions ask through their agents.

Part of the controller, which decides on what is taken in here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import NotFound, SingularityError

from singularity_scheduler import logs
from singularity_scheduler.client.verbs import CHANGES, RUNS
from singularity_scheduler.core.operations import health
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import NoticeGiven
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.service.api import translate
from singularity_scheduler.service.desk import cell_runs
from singularity_scheduler.service.schemas import documents
from singularity_scheduler.text.errors import in_words

if TYPE_CHECKING:
    from singularity_scheduler.service.controller import Controller

Json = dict[str, Any]

log = logging.getLogger("singularity.service")

RETRY_S = 1.0
"""Pause before a node that could not be taken over is asked again."""

CATCH_UP_S = 10.0
"""So long a session that asks how it stands waits for what its node has done already."""

MAX_REPORTS = 100
"""Most reports of nodes that are decided on in one go."""


_DONE_THERE = {(DeviceState.ATTACHING, "held"), (DeviceState.PARKING, "parked")}
"""(device state in the ledger, that on the node)."""


class NodeReports:
    """One per controller; `run` is its loop. The fleet calls `on_event`, `on_command` and
    `on_connection`."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller
        self._reports: asyncio.Queue[ev.Event | Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._looking: dict[str, asyncio.Future[None]] = {}
        """Nodes that are to be asked what they have; done when they were."""

    async def run(self) -> None:
        """Decide on what was said, in order, until cancelled."""
        left: ev.Event | Callable[[], Awaitable[None]] | None = None
        while True:
            item, left = left or await self._reports.get(), None
            if callable(item):
                await item()
                continue
            events = [item]
            while not self._reports.empty() and len(events) < MAX_REPORTS and left is None:
                item = self._reports.get_nowait()
                if callable(item):
                    left = item
                else:
                    events.append(item)
            await self._c.report(events)

    def _later(self, event: ev.Event) -> None:
        """In order with everything else that nodes say."""
        self._reports.put_nowait(event)

    def on_event(self, node: str, session: str, type_: str, data: Json) -> None:
        """An agent tells of a session ("": of its node)."""
        if type_ == "node.devices":
            self._observe(node, data.get("devices"))
            self._c.device_board.seen(node, data.get("sessions") or {})
            self._later(ev.DevicesLooked(node))
            return
        if type_ == "node.abilities":
            self._reports.put_nowait(lambda: self._resync_until_done(node))
            return
        if type_ == "node.notice":
            self._later(NoticeGiven(node, self._c.now() + float(data["in_s"])))
            return
        view = self._c.state.sessions.get(session)
        if type_ == "session.wanted" and view is not None and node == view.origin:
            self._later(ev.Wanted(session))
            return
        if view is not None and view.node != node:
            with logs.bind(session=session, node=node):
                log.warning("node %s spoke of a session of node %s", node, view.node)
            return
        if type_ == "checkpoint.progress":
            self._c.progress.told(session, data)
            return
        if type_ == "session.bridge":
            self._c.peers.told(session, str(data.get("bridge") or ""))
            return
        if type_ == "steps":
            self._c.store.stepped(session, int(data["count"]))
            return
        event = translate.agent_event(session, type_, data, self._c.now())
        if type_ in translate.TOLD_TWICE:
            return
        if event is None:
            log.warning("node %s sent an event of unknown type %r", node, type_)
        else:
            self._later(event)

    def _observe(self, node: str, reports: Any) -> None:
        now = self._c.now()
        before = self._c.state.node(node).health
        told = [health.observed(before.get(h.id), h, now) for h in translate.device_health(reports)]
        for state in (self._c.state, self._c.ahead):
            state.observe(node, told)

    def on_connection(self, node: str, connected: bool) -> None:
        """An agent is there, or is not any more."""
        self._c.commander.connection(node, connected)
        if connected:
            self._reports.put_nowait(lambda: self._resync_until_done(node))
        else:
            self._c.node_trouble = f"node {node} does not answer"
            self._later(ev.NodeAway(node))

    def look_again(self, node: str) -> asyncio.Future[None]:
        """Ask a node what it has, in order with everything else: its agent did not know a session
        that the ledger has there. Once while that is not begun. Returns what is done when that
        has been decided on, or the node is away: then it is asked when it is back."""
        if node not in self._looking:
            self._looking[node] = asyncio.get_running_loop().create_future()
            self._reports.put_nowait(lambda: self._look_again(node))
        return self._looking[node]

    async def _look_again(self, node: str) -> None:
        looked = self._looking.pop(node)
        try:
            if self._c.state.node(node).connected:
                await self._resync_until_done(node)
        finally:
            if not looked.done():
                looked.set_result(None)

    async def _resync_until_done(self, node: str) -> None:
        while True:
            try:
                if await self.resync(node):
                    self._c.node_trouble = ""
                return
            except SingularityError as error:
                if self._c.stopped:
                    return
                self._c.node_trouble = error.message
                log.error("node %s could not be taken over: %s", node, error.message)
                await asyncio.sleep(RETRY_S)

    async def resync(self, node: str) -> bool:
        """Ask the agent for its truth and put ledger and agent right; False when it is gone again.
        No decision is made in between, so what it says is not older than what we know."""
        return await asyncio.shield(asyncio.ensure_future(self._resync(node)))

    async def _resync(self, node: str) -> bool:
        async with self._c.alone() as submit:
            hello = next((h for h in await self._c.fleet.hello() if h["node"] == node), None)
            if hello is None:
                return False  # the next connection asks anew
            unknown = [
                s["session"]
                for s in hello["sessions"]
                if s["session"] not in self._c.state.sessions
            ]
            over = await self._c.ledger.ended_among(unknown) if unknown else set()
            self._c.leases.heard(node, hello.get("sent_at"))
            there = {s["session"] for s in hello["sessions"] if not s.get("suspended")}
            known = self._c.state.node(node).sessions
            gone = [s for s in sorted(known - there) if self._c.state.sessions[s].here]
            for event in await self._c.store.found(gone):
                await submit(event)
            await submit(
                translate.node_joined(hello, self._c.commander.starting(), over, self._c.now())
            )
            self._observe(node, hello.get("health"))
            await submit(ev.DevicesLooked(node))
        self._c.leases.joined(node)
        self._c.peers.joined(
            node, {s["session"]: s["bridge"] for s in hello["sessions"] if s.get("bridge")}
        )
        for session in over:
            self._c.commander.carry_out(
                ev.End(session, node, run_reasons.ended_while_away(), "recover", 0, 0)
            )
        return True

    def _is_behind(self, session: str, here: Json | None) -> bool:
        """Whether the node of a session has done what is still under way in the ledger. `here`:
        what the node says of its devices; None: one of an older version, which does not."""
        view = self._c.state.sessions.get(session)
        if view is None or here is None or view.epoch != here["epoch"]:
            return False
        return (view.device_state, here["device_state"]) in _DONE_THERE

    async def on_command(
        self, node: str, session: str, verb: str, args: Json, by: str
    ) -> Json | list[Json]:
        """A session asks about itself, or for something, through its agent (`%singularity`)."""
        view = await self._c.find(session)
        if view.node != node:
            raise NotFound(f"there is no session {session} on node {node}", session=session)
        if verb in ("status", "why") and self._is_behind(session, args.get("here")):
            await self._c.until(lambda: not self._is_behind(session, args.get("here")), CATCH_UP_S)
            view = await self._c.find(session)
        if verb == "status":
            return self._c.status(view)
        if verb == "why":
            return self._c.why(view)
        if verb == "history":
            return await self._c.archive.history(view, translate.limit(args.get("limit"), 20))
        if verb == "checkpoints":
            return documents.checkpoints_document(view)
        if verb in CHANGES or verb == "fork":
            try:
                with in_words():
                    if verb == "fork":
                        view = await self._c.desk.fork(view, args, view.user)
                    else:
                        await self._c.desk.act(view, verb, args, view.user)
            except Exception as error:
                self._c.on_magic(verb, view, error)
                raise
            self._c.on_magic(verb, view, None)
            return self._c.status(await self._c.find(view.id))
        if verb in RUNS:
            return await (cell_runs.submit if verb == "submit" else cell_runs.look)(
                self._c, view, args
            )
        raise NotFound(f"there is no command '{verb}' for a session", verb=verb)
