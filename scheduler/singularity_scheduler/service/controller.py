"""The controller: events in, decisions made durable, actions out. One per service.

Every event, from people and from nodes, takes the same way, one at a time: `core.decide`, the
ledger, the state in memory, then the actions and the listeners. What cannot be made durable is
not done and not answered; what nodes report then waits and is tried again, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from singularity_proxy.errors import NoSpace, NotFound, SingularityError, Unavailable
from traitlets import Float, Integer, Unicode, default
from traitlets.config import LoggingConfigurable

from singularity_scheduler import logs
from singularity_scheduler.client.verbs import CHANGES
from singularity_scheduler.core import events as ev
from singularity_scheduler.core import health
from singularity_scheduler.core.cluster import ClusterState
from singularity_scheduler.core.explain import explain
from singularity_scheduler.core.model import Retention, SessionView
from singularity_scheduler.core.placement import choose_node
from singularity_scheduler.core.policy import decide

from . import documents, translate
from .archive import Archive
from .commander import Commander
from .desk import Desk
from .keys import Keys
from .leases import LeaseKeeper
from .ledger import Command, Ledger
from .ports import Fleet
from .progress import ProgressBoard
from .store import StoreKeeper

Json = dict[str, Any]

RETRY_S = 1.0
"""Pause before something that could not be written or started is tried again."""


@dataclass(frozen=True)
class Submitted:
    """A durable decision and its actions under way."""

    decision: ev.Decision
    tasks: dict[ev.Action, asyncio.Task[Any]]


class Controller(LoggingConfigurable):  # type: ignore[misc]
    """Owns the state. Made and started by `SchedulerApp`; called by the REST handlers."""

    lease_ttl_s = Float(
        30.0,
        min=1.0,
        config=True,
        help="""Seconds a node may hold devices without hearing from the service. Shorter: devices
        of a lost node are free sooner. It is renewed six times in this time.""",
    )
    lease_margin_s = Float(
        5.0,
        min=0.0,
        config=True,
        help="Seconds added on this side before devices of a silent node are given to others.",
    )
    settle_s = Float(
        20.0,
        min=0.0,
        config=True,
        help="""Longest time in seconds a park, resume or migrate request waits for its result
        before it answers with the state reached so far. 0: answer at once.""",
    )

    batch_python = Unicode(
        config=True,
        help="""Interpreter that runs papermill for batch runs that name none; it needs
        jupyter-singularity with the extra "kernel". Default: the service's own.""",
    )

    max_queued_runs = Integer(
        1000,
        min=0,
        config=True,
        help="""Most runs of one user that may be queued, not yet started, at a time; a further one
        is refused. 0: no limit.""",
    )

    checkpoint_every_s = Float(
        0.0,
        min=0.0,
        config=True,
        help="""Seconds between two checkpoints that are made of every live session by itself, while
        something happens in it. A node that dies costs at most so much. 0: none; a session may
        have its own wish.""",
    )
    checkpoint_every_steps = Integer(
        0,
        min=0,
        config=True,
        help="""Optimizer steps (or barriers) between such checkpoints. 0: none by steps.""",
    )
    keep_checkpoints = Integer(
        5,
        min=1,
        config=True,
        help="""How many checkpoints without a name are kept of a session, the newest ones. Those
        with a name stay until they are deleted or too old.""",
    )
    keep_checkpoint_days = Float(
        0.0,
        min=0.0,
        config=True,
        help="""Days after which checkpoints are deleted, named ones too; what a session would come
        back from stays. 0: never.""",
    )
    lost_patience_s = Float(
        300.0,
        min=0.0,
        config=True,
        help="""Longest time in seconds that sessions wait, after their node was given up, for it to
        come back. Those with a checkpoint of their process go on elsewhere as soon as they have
        waited for as long as they lose by that; those without one have failed then.""",
    )

    @default("batch_python")  # type: ignore[untyped-decorator]
    def _default_batch_python(self) -> str:
        return sys.executable

    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        clock: Callable[[], float] = time.time,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ledger = ledger
        self.fleet = fleet
        self.state = ClusterState()
        self.node_trouble = "the node agent is being started"
        """What keeps a node from working, for `healthz`; "" when nothing does."""
        self.ledger_trouble = ""
        """The same of the ledger."""
        self.observers: list[Callable[[ev.Decision], None]] = []
        """Called after each durable decision, in order; must neither block nor fail."""
        self.on_magic: Callable[[str, SessionView, Exception | None], None] = (
            lambda verb, view, refused: None
        )
        """Told what a session asked about itself, and how it was refused (None: done)."""
        self.archive = Archive(self.state, ledger)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._stopped = False
        self._reports: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self.keys = Keys(ledger, clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.commander = Commander(
            fleet,
            self.report_now,
            self.state.sessions.get,
            ttl_s=self.lease_ttl_s,
            batch_python=self.batch_python,
            whole=lambda node: self.state.node(node).abilities.stores,
        )
        self.desk = Desk(self)
        self.store = StoreKeeper(self)
        self.progress = ProgressBoard(self.state)
        self.commander.over = self.progress.over
        self.leases = LeaseKeeper(
            self.state,
            fleet,
            self.report_now,
            self.resync,
            ttl_s=self.lease_ttl_s,
            margin_s=self.lease_margin_s,
            patience_s=self.lost_patience_s,
            before_loss=self.store.look,
        )

    def now(self) -> float:
        """UNIX seconds."""
        return self._clock()

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the ledger and begin to work; the fleet may come up later."""
        self.state.retention = Retention(self.keep_checkpoints, self.keep_checkpoint_days)
        self.state.load(await self.ledger.active(), await self.ledger.marks())
        for view in self.state.sessions.values():
            self.leases.changed(view)
        self.fleet.on_event(self._on_event)
        self.fleet.on_command(self._on_command)
        self.fleet.on_connection(self._on_connection)
        self._spawn(self._work_off_reports())
        self._spawn(self.leases.run())
        self._spawn(self.store.run())
        self._spawn(self._start_fleet())

    async def stop(self) -> None:
        """Stop working; sessions and agents go on, the ledger has everything."""
        async with self._lock:  # let a decision that is being written become complete
            self._stopped = True
        async with self._changed:
            self._changed.notify_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.leases.close()
        await self.commander.close()
        await self.fleet.stop()

    async def _start_fleet(self) -> None:
        while True:
            try:
                await self.fleet.start()
                return
            except SingularityError as error:
                self.node_trouble = error.message
                self.log.error("%s", error.message)
                await asyncio.sleep(RETRY_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.log.error("a task of the scheduler ended", exc_info=error)

    # -- the one way of every event ---------------------------------------------------------

    async def submit(self, event: ev.Event, command: Command | None = None) -> Submitted:
        """Decide on an event. Returns when the decision is durable and its actions have begun;
        raises the typed error otherwise, and then nothing has changed. Goes on to its end even
        when the caller is cancelled."""
        return await asyncio.shield(asyncio.ensure_future(self._submit_locked(event, command)))

    async def _submit_locked(self, event: ev.Event, command: Command | None) -> Submitted:
        async with self._lock:
            return await self._submit(event, command)

    async def _submit(self, event: ev.Event, command: Command | None = None) -> Submitted:
        if self._stopped:
            raise Unavailable("the scheduler service is stopping: try again in a moment")
        decision = decide(self.state, event, self._clock())
        if decision.empty and command is None:
            return Submitted(decision, {})
        await self.ledger.write(decision, command)
        self.state.apply(decision)
        for view in decision.sessions:
            self.leases.changed(view)
        for mark in decision.marks:
            state = f"drained ({mark.reason})" if mark.drained else "given to sessions"
            self.log.warning("device %s of node %s is %s", mark.device, mark.node, state)
        tasks = {}
        for action in decision.actions:
            with logs.bind(session=action.session, node=action.node):
                self.log.info(
                    "%s %s: %s (%s)",
                    type(action).__name__,
                    action.session,
                    action.reason,
                    action.rule,
                )
                tasks[action] = self.commander.carry_out(action)
        for observer in self.observers:
            observer(decision)
        if any(reference.dropped for _, reference in decision.stored):
            self.store.kick()
        for view in decision.sessions:
            if view.ended:
                self.commander.forget(view.id)
        async with self._changed:
            self._changed.notify_all()
        return Submitted(decision, tasks)

    async def report_now(self, event: ev.Event) -> None:
        """Decide on something that happened and cannot be refused: tried until it is durable."""
        while True:
            try:
                await self.submit(event)
            except (NoSpace, Unavailable) as error:
                if self._stopped:
                    return
                self.ledger_trouble = error.message
                self.log.error("%s", error.message)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                self.log.error("%r was not taken in", event, exc_info=error)
                return
            else:
                self.ledger_trouble = ""
                return

    async def _work_off_reports(self) -> None:
        while True:
            await (await self._reports.get())()

    def _report_later(self, event: ev.Event) -> None:
        """In order with everything else that nodes say."""
        self._reports.put_nowait(lambda: self.report_now(event))

    # -- what nodes say ---------------------------------------------------------------------

    def _on_event(self, node: str, session: str, type_: str, data: Json) -> None:
        if type_ == "node.devices":
            self._observe(node, data.get("devices"))
            self._report_later(ev.DevicesLooked(node))
            return
        view = self.state.sessions.get(session)
        if type_ == "session.wanted" and view is not None and node == view.origin:
            self._report_later(ev.Wanted(session))
            return
        if view is not None and view.node != node:
            with logs.bind(session=session, node=node):
                self.log.warning("node %s spoke of a session of node %s", node, view.node)
            return
        if type_ == "checkpoint.progress":
            self.progress.told(session, data)
            return
        if type_ == "steps":
            self.store.stepped(session, int(data["count"]))
            return
        event = translate.agent_event(session, type_, data, self._clock())
        if type_ in translate.TOLD_TWICE:
            return
        if event is None:
            self.log.warning("node %s sent an event of unknown type %r", node, type_)
        else:
            self._report_later(event)

    def _observe(self, node: str, reports: Any) -> None:
        now = self._clock()
        before = self.state.node(node).health
        told = translate.device_health(reports)
        self.state.observe(node, (health.observed(before.get(h.id), h, now) for h in told))

    def _on_connection(self, node: str, connected: bool) -> None:
        self.commander.connection(node, connected)
        if connected:
            self._reports.put_nowait(lambda: self._resync_until_done(node))
        else:
            self.node_trouble = f"node {node} does not answer"
            self._report_later(ev.NodeAway(node))

    async def _resync_until_done(self, node: str) -> None:
        while True:
            try:
                if await self.resync(node):
                    self.node_trouble = ""
                return
            except SingularityError as error:
                if self._stopped:
                    return
                self.node_trouble = error.message
                self.log.error("node %s could not be taken over: %s", node, error.message)
                await asyncio.sleep(RETRY_S)

    async def resync(self, node: str) -> bool:
        """Ask the agent for its truth and put ledger and agent right; False when it is gone again.
        No decision is made in between, so what it says is not older than what we know."""
        return await asyncio.shield(asyncio.ensure_future(self._resync(node)))

    async def _resync(self, node: str) -> bool:
        async with self._lock:
            hello = next((h for h in await self.fleet.hello() if h["node"] == node), None)
            if hello is None:
                return False  # the next connection asks anew
            unknown = [
                s["session"] for s in hello["sessions"] if s["session"] not in self.state.sessions
            ]
            over = await self.ledger.ended_among(unknown) if unknown else set()
            self.leases.heard(node)
            there = {s["session"] for s in hello["sessions"]}
            known = self.state.node(node).sessions
            gone = [s for s in sorted(known - there) if self.state.sessions[s].here]
            for event in await self.store.found(gone):
                await self._submit(event)
            await self._submit(translate.node_joined(hello, self.commander.starting(), over))
            self._observe(node, hello.get("health"))
            await self._submit(ev.DevicesLooked(node))
        for session in over:
            self.commander.carry_out(
                ev.End(session, node, "it ended while its node was away", "recover", 0, 0)
            )
        return True

    async def _on_command(
        self, node: str, session: str, verb: str, args: Json, by: str
    ) -> Json | list[Json]:
        view = await self.find(session)
        if view.node != node:
            raise NotFound(f"there is no session {session} on node {node}", session=session)
        if verb == "status":
            return self.status(view)
        if verb == "why":
            return self.why(view)
        if verb == "history":
            return await self.archive.history(view, translate.limit(args.get("limit"), 20))
        if verb == "checkpoints":
            return documents.checkpoints_document(view)
        if verb in CHANGES or verb == "fork":
            try:
                if verb == "fork":
                    view = await self.desk.fork(view, args, view.user)
                else:
                    await self.desk.act(view, verb, args, view.user)
            except Exception as error:
                self.on_magic(verb, view, error)
                raise
            self.on_magic(verb, view, None)
            return self.status(await self.find(view.id))
        raise NotFound(f"there is no command '{verb}' for a session", verb=verb)

    # -- what people ask --------------------------------------------------------------------

    async def find(self, session: str) -> SessionView:
        """A session, ended ones included; raises `NotFound`."""
        return await self.archive.find(session)

    async def drain(self, node: str, device: str, by: str, reason: str) -> Json:
        """Give a device to nobody any more and move its sessions off; its document."""
        await self.submit(ev.DrainAsked(node, device, by, reason))
        return documents.device_document(self.state, node, device, None)

    async def give_back(self, node: str, device: str, by: str) -> Json:
        """Let sessions have a drained device again; its document."""
        await self.submit(ev.ReturnAsked(node, device, by))
        return documents.device_document(self.state, node, device, None)

    def status(self, view: SessionView) -> Json:
        """The session's document with who else waits."""
        document = documents.session_document(self.state, view)
        return document | {"others_waiting": documents.others_waiting(self.state, view)}

    def why(self, view: SessionView) -> Json:
        return explain(self.state, view, self._clock())

    async def read_log(self, view: SessionView, offset: int, limit: int) -> Json:
        """What its process printed, from byte `offset` on and at most `limit` bytes:
        ``{"text", "offset", "next_offset", "ended"}``. Bytes that are not kept any more are
        skipped, then the answered "offset" is larger; "ended": nothing will follow."""
        if view.run is not None and view.seq == 0:  # it was never started
            return {"text": "", "offset": 0, "next_offset": 0, "ended": view.ended}
        answer: Json = await self.fleet.call(
            view.node, "session.log", session=view.id, offset=offset, limit=limit
        )
        # The agent keeps the whole log before it confirms the end.
        at_end = answer["next_offset"] >= answer.pop("size")
        return {**answer, "ended": view.ended and at_end}

    def cluster(self, user: str | None) -> Json:
        """The cluster as `user` may see it; None: all of it."""
        visible = (
            None
            if user is None
            else {sid for sid, view in self.state.sessions.items() if view.user == user}
        )
        return documents.cluster_document(self.state, visible)

    async def identity(self, user: str) -> Json:
        """The uid and gid of a user's processes, by the agent of the first node that answers."""
        node = choose_node(self.state, 0)
        return cast(Json, await self.fleet.call(node, "identity", user=user))

    @property
    def largest(self) -> int | None:
        """Most devices one session can have; None while no node is connected."""
        return max((len(n.devices) for n in self.state.nodes.values() if n.connected), default=None)

    # -- waiting ----------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], limit_s: float | None = None) -> None:
        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._stopped or condition())

        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(wait(), self.settle_s if limit_s is None else limit_s)

    def require_node(self) -> None:
        """Raise `Unavailable` with what is known about it while no node is there."""
        if self.largest is None:
            raise Unavailable(
                f"nothing can be started now ({self.node_trouble or 'no node is connected'}): try "
                "again in a few seconds"
            )
