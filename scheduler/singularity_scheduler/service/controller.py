"""The controller: events in, decisions made durable, actions out. One per service.

Every event, from people and from nodes, takes the same way: `core.decide`, one at a time, on the
state `ahead`; the ledger, several at a time (`committer`); then the `state` that everybody reads,
the actions and the listeners. What cannot be made durable is not done and not answered; what nodes
report then waits and is tried again, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from singularity_proxy.errors import BadRequest, NoSpace, SingularityError, Unavailable
from traitlets import Dict, Float, Integer, TraitError, Unicode, default, validate
from traitlets.config import LoggingConfigurable

from singularity_scheduler import logs
from singularity_scheduler.client import words
from singularity_scheduler.core.placement.choice import choose_node
from singularity_scheduler.core.placement.geography import HOME, Geography
from singularity_scheduler.core.policy import decide
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.stored import Retention
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import Administration
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.explain.why import explain, told
from singularity_scheduler.text.errors import in_words
from singularity_scheduler.text.reasons import render, render_words

from .committer import Committer, DecideAgain, Waiting
from .desk.group_limits import GroupLimits
from .desk.groups import GroupDesk
from .desk.keys import Keys
from .desk.sessions import Desk
from .leadership.leader import GuardedFleet, Leader
from .leadership.leases import LeaseKeeper
from .ledger.database import Refused
from .ledger.ledger import Command, Ledger, Write
from .nodes.commander import Commander
from .nodes.device_board import DeviceBoard
from .nodes.peers import Peers
from .nodes.progress import ProgressBoard
from .nodes.proofs import ProofKeeper
from .nodes.reports import NodeReports
from .nodes.store import StoreKeeper
from .operations.archive import Archive
from .ports import Fleet
from .schemas import documents

Json = dict[str, Any]

RETRY_S = 1.0
"""Pause before something that could not be written or started is tried again."""

STOP_S = 5.0
"""Longest time that a stopping service waits for its ledger."""

REMEMBERED = 10_000
"""Lines of history from which a restarted service knows how long sessions waited."""


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
        help="Seconds added before others get what a silent node has: its sessions stop meanwhile.",
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
    prove_every_s = Float(
        60.0,
        min=0.0,
        config=True,
        help="""Seconds that a node rests after it has proved a checkpoint, before it proves the
        next one that nobody has tried yet: all of it is read, and its processes are brought back
        without a trace and thrown away. One at a time, read with the least priority, where it
        takes no more than a quarter of the free memory, and given up when the session moves. 0:
        only when somebody asks.""",
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
    undo_end_s = Float(
        86_400.0,
        min=0.0,
        config=True,
        help="""Seconds for which the newest checkpoint of a session stays after its end, whatever
        ended it: so long the end can be taken back (`reopen`). What it takes in the store is free
        after that, or when somebody deletes it. 0: it goes with its session.""",
    )
    parameters = Dict(
        config=True,
        help="""First values of the policy's parameters, by name; those that are missing have their
        own defaults. What an administrator sets while the service runs goes before them. Example:
        {"idle_soft_s": 600}.""",
    )
    home_cluster = Unicode(
        HOME,
        config=True,
        help="""Name of the embedded cluster: that of all nodes whose agents name none, see
        NodeAgent.cluster.""",
    )
    regions = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        config=True,
        help="""Cluster -> the region that it lies in; region -> a wider place, if there is one.
        Sessions name clusters, regions and such places as the locations that they may be in. A
        cluster that is not here is a region of its own name. Example: {"west-1": "westus",
        "east-1": "eastus", "westus": "us", "eastus": "us"}.""",
    )
    lost_patience_s = Float(
        300.0,
        min=0.0,
        config=True,
        help="""Longest time in seconds that sessions wait, after their node was given up, for it to
        come back. Those with a checkpoint of their process go on elsewhere as soon as they have
        waited for as long as they lose by that; those without one have failed then. The only node
        stops its sessions so much later.""",
    )

    @default("batch_python")  # type: ignore[untyped-decorator]
    def _default_batch_python(self) -> str:
        return sys.executable

    @validate("parameters")  # type: ignore[untyped-decorator]
    def _check_parameters(self, proposal: Any) -> Any:
        try:
            with in_words():
                Parameters.from_dict(proposal["value"])
        except SingularityError as error:
            raise TraitError(f"Controller.parameters: {error.message}") from None
        return proposal["value"]

    @validate("home_cluster", "regions")  # type: ignore[untyped-decorator]
    def _check_places(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        try:
            with in_words():
                Geography(**{name.removesuffix("_cluster"): value})
        except SingularityError as error:
            raise TraitError(f"Controller.{name}: {error.message}") from None
        return value

    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        leader: Leader,
        clock: Callable[[], float] = time.time,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ledger = ledger
        self.leader = leader
        self.fleet = fleet = GuardedFleet(fleet, leader)
        self.state = ClusterState()
        """What is durable; everybody reads it, and only decisions change it."""
        self.ahead = ClusterState()
        """The same with the decisions that are not durable yet: the next one is made on it."""
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
        self._changed = asyncio.Condition()
        self.keys = Keys(ledger, clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.committer = Committer(ledger, self._durable, self._rewind, self._flushed)
        self.commander = Commander(
            fleet,
            self.report_now,
            self.state.sessions.get,
            ttl_s=self.lease_ttl_s,
            batch_python=self.batch_python,
            whole=lambda node: self.state.node(node).abilities.stores,
        )
        self.desk = Desk(self)
        self.groups = GroupDesk(self)
        self.store = StoreKeeper(self)
        self.proofs = ProofKeeper(self)
        self.progress = ProgressBoard(self.state)
        self.device_board = DeviceBoard(self.state, clock)
        self.peers = Peers(self)
        self.observers.append(self.peers)
        self.commander.bridged = self.commander.transfers.bridged = self.peers.told
        self.reports = NodeReports(self)
        self.commander.unknown = self.commander.transfers.unknown = self.reports.look_again
        self.commander.over = self.progress.over
        self.leases = LeaseKeeper(
            self.state,
            fleet,
            self.report_now,
            self.reports.resync,
            ttl_s=self.lease_ttl_s,
            margin_s=self.lease_margin_s,
            patience_s=self.lost_patience_s,
            before_loss=self.store.look,
        )
        self.commander.transfers.terms = self.leases.terms

    def now(self) -> float:
        """UNIX seconds."""
        return self._clock()

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the ledger and begin to work; the fleet may come up later."""
        self.state.retention = Retention(
            self.keep_checkpoints, self.keep_checkpoint_days, self.undo_end_s
        )
        admin, marks = await self.ledger.administration()
        self.state.govern(self._with_defaults(admin), marks)
        with in_words():
            self.state.geography = Geography(self.home_cluster, self.regions)
        self.state.load(await self.ledger.active(), await self.ledger.marks())
        self.state.experience.replay(await self.ledger.experience(REMEMBERED))
        self._rewind()
        for view in self.state.sessions.values():
            self.leases.changed(view)
        self._spawn(self.committer.run())
        standing = self.leader.standing
        self.fleet.lead(standing.ledger, standing.epoch)
        self.fleet.on_event(self.reports.on_event)
        self.fleet.on_command(self.reports.on_command)
        self.fleet.on_connection(self.reports.on_connection)
        self._spawn(self.reports.run())
        self._spawn(self.leases.run())
        self._spawn(self.store.run())
        self._spawn(self.proofs.run())
        self._spawn(GroupLimits(self.state, self.report, self._clock).run())
        self._spawn(self._start_fleet())

    def _with_defaults(self, admin: Administration) -> Administration:
        """What administrators have said over what is configured here; `BadRequest` when the two do
        not go together."""
        admin.defaults = Parameters.from_dict(self.parameters)  # looked at by `_check_parameters`
        try:
            with in_words():
                admin.defaults.changed(**admin.settings)
        except SingularityError as error:
            raise BadRequest(
                f"Controller.parameters does not go with what administrators have set "
                f"({error.message}): change it"
            ) from None
        return admin

    async def stop(self) -> None:
        """Stop working; sessions and agents go on, the ledger has everything."""
        async with self._lock:
            self._stopped = True
        with contextlib.suppress(TimeoutError):  # let what is being written become complete
            async with asyncio.timeout(STOP_S):
                await self.committer.flush()
        async with self._changed:
            self._changed.notify_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.peers.close()
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
        while True:
            async with self._lock:
                waiting = self._decide(event, command)
            try:
                await waiting.done
                return Submitted(waiting.decision, waiting.tasks)
            except DecideAgain:
                continue

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[[ev.Event], Awaitable[None]]]:
        """Everything decided so far is durable, and nobody else decides meanwhile; yields what
        does, until that is durable."""
        async with self._lock:
            await self.committer.flush()
            yield self._submit

    async def _submit(self, event: ev.Event) -> None:
        """The same for who has the lock already, until it is durable."""
        while True:
            try:
                await self._decide(event).done
                return
            except DecideAgain:
                continue

    def _decide(self, event: ev.Event, command: Command | None = None) -> Waiting:
        if self._stopped:
            raise Unavailable("the scheduler service is stopping: try again in a moment")
        self.leader.check()
        if self.committer.doubt is not None:
            raise Unavailable(self.committer.doubt.message, **self.committer.doubt.fields)
        now = self._clock()
        self.state.latest = self.ahead.latest = now
        with in_words():
            decision = decide(self.ahead, event, now)
        self.ahead.apply(decision)
        self.ahead.experience.learn(decision)
        decision = told(self.ahead, decision, now)
        return self.committer.put(Write(decision, command, type(event).__name__))

    def _rewind(self) -> None:
        """What was decided and is not durable never was."""
        self.ahead = self.state.copy()

    def _durable(self, waiting: Waiting) -> None:
        """A decision is durable: take it over, carry it out, tell everybody."""
        decision = waiting.decision
        if not waiting.write.needed:
            return
        self.state.apply(decision)
        for view in decision.sessions:
            self.leases.changed(view)
        for mark in decision.marks:
            state = (
                f"drained ({render_words(mark.reason)})" if mark.drained else "given to sessions"
            )
            self.log.warning("device %s of node %s is %s", mark.device, mark.node, state)
        for order in decision.orders:
            who = f" by {order.by}" if order.by else ""
            self.log.warning("%s of %s%s: %s", order.verb, order.subject, who, order.after)
        for action in decision.actions:
            with logs.bind(session=action.session, node=action.node):
                self.log.info(
                    "%s %s: %s (%s)",
                    type(action).__name__,
                    action.session,
                    render(action.why),
                    action.rule,
                )
                waiting.tasks[action] = self.commander.carry_out(action)
        for observer in self.observers:
            observer(decision)
        if any(reference.dropped for _, reference in decision.stored):
            self.store.kick()
        for view in decision.sessions:
            if view.ended:
                self.commander.forget(view.id)
                self.archive.forget(view.id)  # it may have ended before, and was taken back

    async def _flushed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def report_now(self, event: ev.Event) -> None:
        """Decide on something that happened and cannot be refused: tried until it is durable."""
        await self.report([event])

    async def report(self, events: list[ev.Event]) -> None:
        """The same for several, in their order and, if it can be, in one transaction."""
        while events:
            decided: list[tuple[ev.Event, Waiting]] = []
            trouble: SingularityError | None = None
            async with self._lock:
                for number, event in enumerate(events):
                    try:
                        decided.append((event, self._decide(event)))
                    except Unavailable as error:
                        trouble, late = error, events[number:]
                        break
                    except Exception as error:
                        self._not_taken_in(event, error)
                else:
                    late = []
            again: list[ev.Event] = []
            for event, waiting in decided:
                try:
                    await waiting.done
                except DecideAgain:
                    again.append(event)
                except Refused as error:
                    self._not_taken_in(event, error)
                except (NoSpace, Unavailable) as error:
                    trouble = error
                    again.append(event)
                except Exception as error:
                    self._not_taken_in(event, error)
            events = again + late
            if trouble is None:
                self.ledger_trouble = ""
                continue
            if self._stopped:
                return
            self.ledger_trouble = trouble.message
            self.log.error("%s", trouble.message)
            await asyncio.sleep(RETRY_S)

    def _not_taken_in(self, event: ev.Event, error: Exception) -> None:
        self.log.error("%r was not taken in", event, exc_info=error)

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
        """Why it is in its state, and what its ranks share on devices they have in common."""
        said = explain(self.state, view, self._clock())
        devices = self.device_board.document(view)["devices"]
        if not (shared := words.squashing(devices)):
            return said
        facts = {d["device"]: d["squashing"] for d in devices if d["squashing"]}
        sentence = " ".join([said["sentence"], *(f"{text}." for text in shared)])
        return {"sentence": sentence, "facts": {**said["facts"], "squashing": facts}}

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
        return documents.cluster_document(self.state, user)

    async def identity(self, user: str) -> Json:
        """The uid and gid of a user's processes, by the agent of the first node that answers."""
        with in_words():
            node = choose_node(self.state, 0)
        return cast(Json, await self.fleet.call(node, "identity", user=user))

    @property
    def largest(self) -> int | None:
        """Most devices one session can have; None while no node is connected."""
        return max((len(n.devices) for n in self.state.nodes.values() if n.connected), default=None)

    # -- waiting ----------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Nothing changes any more; what waits for a change gives up."""
        return self._stopped

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
