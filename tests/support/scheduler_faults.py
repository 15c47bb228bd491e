"""The scheduler core against agents that fail at every command: one seed is one run of it.

`Faulty` is a `World` whose agents have a truth of their own: which processes run where, on which
devices, how much work they have done, and what is in the store. Each command may be carried out,
refused, carried out without an answer, lost with its agent before anything was done, answered late
or twice; agents restart, nodes lose power or their connection, and the service is started anew from
its ledger, sometimes without the last thing it heard. Checked after every event, besides what
`World` checks: no session runs in two places, no device serves two sessions, nobody goes on from a
state that is not in the store. At the end everything is put right: then every session that was not
truly lost is there, with all that was stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable, Unsupported
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyAsked, DutyEvent
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from support.scheduler_core import World, devices_of, reads
from support.scheduler_truth import NODES, Agent, Broken, Truth

REFUSALS = (BadRequest, Conflict, NotFound, Unavailable, Unsupported)

EVENTS = 120
"""What people, workers and bad luck do in one run."""

FATES = ("done",) * 6 + ("refused", "no answer", "agent killed", "late", "late", "twice")
"""What becomes of a command."""

LUCK = ("restart", "power", "apart", "apart", "back", "back", "back", "service", "forgets", "tick")


class Faulty(Truth):
    """The run of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        first, *others = NODES
        self.world = World(NODES[first], first)
        for node in others:
            self.world.join(node, NODES[node])
        self.flying: list[ev.Action] = []
        """Commands that were sent and not answered, or wait for their node."""
        self.lost: set[str] = set()
        """Sessions whose processes are truly gone, with nothing in the store."""
        self.ended: set[str] = set()
        """Sessions that somebody has ended."""
        self.told: dict[str, str] = {}
        """session -> the newest checkpoint that the ledger has taken in."""
        self.unsure: set[str] = set()
        """Nodes that are to be asked what they have."""
        self.number = 0
        self.faults = 0

    # -- events -----------------------------------------------------------------------------------

    def do(self, event: ev.Event) -> None:
        """Let the core decide; ask the nodes that did not know a session what they have."""
        self._do(event)
        while self.unsure:
            agent = self.agents[self.unsure.pop()]
            if agent.connected:
                self._join(agent)

    def _do(self, event: ev.Event) -> None:
        """Let the core decide; look at everything afterwards."""
        decision = self.world.do(event)
        self.story.append(f"{type(event).__name__} {getattr(event, 'session', '')}")
        self._send(decision.actions)
        self.world.pending.clear()
        for view in decision.sessions:
            if view.newest_whole is not None:
                self.told[view.id] = view.newest_whole.id
            self._look_at_end(view)
        self.look()

    def _send(self, actions: Iterable[ev.Action]) -> None:
        """Commands go out; the same one twice is carried out once (as in `Commander`)."""
        under_way = {(*_key(a), a.node) for a in self.flying}
        self.flying += [a for a in actions if (*_key(a), a.node) not in under_way]

    def asked(self, event: ev.Event) -> None:
        try:
            self.do(event)
        except REFUSALS as error:
            self.story.append(f"refused {type(event).__name__}: {error}")

    def _look_at_end(self, view: SessionView) -> None:
        """A session ends because somebody wants it, it could not be started, or it is truly
        gone."""
        if not view.final or view.id in self.ended or view.id not in self.begun:
            return
        self.hold(view.id in self.lost, f"{view.id} has ended and was not lost: {reads(view)}")

    # -- people, workers --------------------------------------------------------------------------

    def person(self) -> None:
        """Somebody wants something."""
        rng, sessions = self.rng, sorted(self.world.state.sessions)
        what = rng.choice(
            (
                *("create", "create", "submit", "need", "need", "need", "rest", "work", "work"),
                *("park", "preempt", "resume", "resume", "suspend", "suspend", "go", "go"),
                *("checkpoint", "checkpoint", "restore", "fork", "end", "tier"),
                *("drain", "undrain", "undrain"),
            )
        )
        if what in ("create", "submit") or not sessions:
            self._create(what == "submit")
            return
        sid, node = rng.choice(sessions), rng.choice(list(NODES))
        view = self.world[sid]
        if what in ("need", "work", "rest"):
            self._worker(what, view)
        elif what in ("drain", "undrain"):
            event = DutyEvent.DRAIN if what == "drain" else DutyEvent.UNDRAIN
            self.asked(DutyAsked("root", node, event, "maintenance", None, False, False, True))
        elif what == "fork":
            self.number += 1
            self.asked(ev.ForkAsked(f"s{self.number:03}", view, None, "alice"))
        elif what == "restore":
            stored = [c.id for c in view.checkpoints if c.whole]
            if stored:
                self.asked(ev.RestoreAsked(sid, "alice", rng.choice(stored), rng.random() < 0.3))
        else:
            if what == "end":
                self.ended.add(sid)
            self.asked(
                {
                    "park": ev.ParkAsked(sid, "alice"),
                    "preempt": ev.PreemptAsked(sid, "alice"),
                    "resume": ev.ResumeAsked(sid, "alice"),
                    "suspend": ev.SuspendAsked(sid, "alice"),
                    "go": ev.MigrateAsked(sid, "alice", node=node),
                    "checkpoint": ev.CheckpointAsked(sid, "alice"),
                    "end": ev.EndAsked(sid, "alice"),
                    "tier": ev.TierAsked(sid, "alice", tier=rng.choice(list(Tier))),
                }[what]
            )

    def _create(self, batch: bool) -> None:
        self.number += 1
        spec = self.spec(Kind.BATCH if batch else Kind.INTERACTIVE, self.rng.randint(1, 2))
        self.asked(ev.SessionCreated(f"s{self.number:03}", "alice", spec))

    def spec(self, kind: Kind, devices: int) -> SessionSpec:
        """What somebody asks for, with some tier."""
        sid = f"s{self.number:03}"
        run = BatchRun(f"/n/{sid}.ipynb", f"/n/{sid}-out.ipynb") if kind is Kind.BATCH else None
        return SessionSpec(kind, self.rng.choice(list(Tier)), devices, sid, run)

    def _worker(self, what: str, view: SessionView) -> None:
        """Its code does something, where it runs and its agent can tell."""
        agent = self.agents[view.node]
        process = agent.processes.get(view.id)
        if process is None or process.frozen:
            return
        if what == "work":
            process.work += 1
        elif what == "need" and not process.devices:
            process.waiting = True
            if agent.connected:
                self.do(ev.Activity(view.id, True, self.world.now))
                self.do(ev.DeviceNeeded(view.id))
        elif what == "rest" and agent.connected:
            self.do(ev.Activity(view.id, False, self.world.now))

    # -- commands ---------------------------------------------------------------------------------

    def command(self) -> None:
        """One of the commands under way reaches its agent, and has a fate."""
        ready = [a for a in self.flying if self.agents[a.node].connected]
        if not ready:
            return
        action = self._first_in_line(self.rng.choice(ready), ready)
        fate = self.rng.choice(FATES)
        if fate == "late":
            return
        self.flying.remove(action)
        agent = self.agents[action.node]
        strange = action.session not in agent.processes and not isinstance(
            action, ev.Start | ev.Resume | ev.End | ev.Fence
        )
        if fate == "refused" and (strange or _key(action) in agent.answers):
            fate = "done"  # it does not know it; or has done that, and answers as it did then
        self.story.append(f"{fate}: {type(action).__name__} {action.session} on {action.node}")
        self.faults += fate != "done"
        if fate == "refused":
            self._refuse(action)
        elif fate == "agent killed":
            self.flying.append(action)
            self._restart(agent)
        elif fate == "no answer":
            self._carry_out(agent, action)
            self.unsure.clear()
            self.look()
            self.flying.append(action)
            self._restart(agent)
        else:
            event = self._carry_out(agent, action)
            self.look()
            for _ in range(2 if fate == "twice" else 1):
                if event is not None:
                    self.do(event)

    def _first_in_line(self, action: ev.Action, ready: list[ev.Action]) -> ev.Action:
        """Commands that a node's old processes stand before come after their end (`_after_fences`),
        an end after the start that is under way."""
        mine = [a for a in ready if (a.session, a.node) == (action.session, action.node)]
        if isinstance(action, ev.Resume | ev.Start):
            return next((a for a in mine if isinstance(a, ev.Fence)), action)
        if isinstance(action, ev.End):
            return next((a for a in mine if isinstance(a, ev.Start | ev.Resume)), action)
        return action

    def _wanted(self, action: ev.Action) -> bool:
        """Whether the session still stands where the command was decided (as in `Commander`)."""
        view = self.world.state.sessions.get(action.session)
        if view is None:
            return isinstance(action, ev.End | ev.Fence)
        process = {
            ev.Start: ProcessState.STARTING,
            ev.Suspend: ProcessState.SUSPENDING,
            ev.Resume: ProcessState.RESUMING,
        }.get(type(action))
        device = {
            ev.Attach: DeviceState.ATTACHING,
            ev.Park: DeviceState.PARKING,
            ev.Resize: DeviceState.RESIZING,
        }.get(type(action))
        same = (view.epoch, view.seq) == (action.epoch, action.seq)
        if isinstance(action, ev.Start):
            return view.process_state is process
        if process is not None:
            return view.process_state is process and same
        if device is not None:
            return view.device_state is device and same
        if isinstance(action, ev.Fence):
            return not (view.node == action.node and view.here)
        return True

    def _refuse(self, action: ev.Action) -> None:
        """The agent cannot do it, says so, and everything is as it was."""
        sid, epoch, said = action.session, action.epoch, "the disk is full"
        if isinstance(action, ev.Start):
            self.do(ev.StartFailed(sid, said))
        elif isinstance(action, ev.End | ev.Fence):
            self.flying.append(action)  # tried again until it is done
        elif not self._wanted(action):
            return
        elif isinstance(action, ev.Attach):
            self.do(ev.AttachFailed(sid, epoch, said))
        elif isinstance(action, ev.Park):
            self.do(ev.ParkFailed(sid, epoch, said))
        elif isinstance(action, ev.Resize):
            self.do(ev.ResizeFailed(sid, epoch, said))
        elif isinstance(action, ev.Suspend):
            self.do(ev.SuspendFailed(sid, epoch, action.seq, said))
        elif isinstance(action, ev.Resume):
            self.do(ev.ResumeFailed(sid, epoch, action.seq, said))

    def _carry_out(self, agent: Agent, action: ev.Action) -> ev.Event | None:
        """What an agent does with a command, once, and what it answers."""
        key = _key(action)
        if key in agent.answers and not isinstance(action, ev.End | ev.Fence):
            return agent.answers[key]
        process = agent.processes.get(action.session)
        if process is not None and action.epoch < process.epoch:
            return None  # StaleEpoch: the service has long gone on
        known = process is not None or isinstance(action, ev.Start | ev.Resume | ev.End | ev.Fence)
        event = self.perform(agent, action, process)
        if event is not None and known:
            agent.answers[key] = event
        return event

    def unknown(self, action: ev.Action) -> ev.Event | None:
        """An agent is asked about a session that it does not know. Of a suspend the store is asked
        whether it was published before the agent was killed; otherwise the node is asked what it
        has (`NodeReports.look_again`)."""
        if not self._wanted(action):
            return None
        self.unsure.add(action.node)
        sid, epoch = action.session, action.epoch
        if isinstance(action, ev.Suspend):
            known = {c.id for c in self.world[sid].checkpoints}
            new = [ref for ref, _, _ in self.store.get(sid, ()) if ref.id not in known]
            if new:
                return ev.Suspended(sid, epoch, action.seq, new[-1], 0.0)
            return ev.SuspendFailed(sid, epoch, action.seq, "the agent does not know it")
        if isinstance(action, ev.Attach):
            return ev.AttachFailed(sid, epoch, "the agent does not know it")
        if isinstance(action, ev.Park):
            return ev.ParkFailed(sid, epoch, "the agent does not know it")
        return None

    # -- bad luck ---------------------------------------------------------------------------------

    def luck(self) -> None:
        """Something that nobody asked for."""
        what, agent = self.rng.choice(LUCK), self.agents[self.rng.choice(list(NODES))]
        self.story.append(f"luck: {what} {agent.node}")
        self.faults += what not in ("back", "tick")
        if what == "restart" and agent.connected:
            self._restart(agent)
        elif what == "power":
            self._power(agent)
        elif what == "apart":
            self._apart(agent)
        elif what == "back":
            self._back(agent)
        elif what in ("service", "forgets"):
            self._service(forgets=what == "forgets")
        else:
            self._tick(self.rng.uniform(0.0, 60.0))

    def _tick(self, seconds: float) -> None:
        self.world.now += seconds
        for node in NODES:
            self.do(ev.Tick(node))

    def _restart(self, agent: Agent) -> None:
        """The agent is killed and started again: its processes go on, its ledger is there."""
        if agent.connected:
            agent.connected = False
            self.do(ev.NodeAway(agent.node))
        self._back(agent)

    def _back(self, agent: Agent) -> None:
        """The agent is connected (again). What it still has of sessions that have moved on stands
        still until it has ended it."""
        if agent.connected:
            return
        agent.connected, agent.lapsed = True, False
        self._join(agent)

    def _join(self, agent: Agent) -> None:
        """The service hears what the agent has."""
        starting = {a.session for a in self.flying if isinstance(a, ev.Start)}
        self.flying = [a for a in self.flying if a.node != agent.node or self._wanted(a)]
        there = self.world.state.nodes[agent.node].sessions
        self._find_checkpoints([s for s in there - set(agent.processes) if self.world[s].here])
        devices = devices_of(agent.node, NODES[agent.node])
        over = self._over(agent)
        facts = tuple(fact for fact in self.facts(agent) if fact.id not in over)
        self._do(ev.NodeJoined(agent.node, devices, facts, starting=frozenset(starting)))
        self._send(
            ev.End(s, agent.node, run_reasons.ended_while_away(), "recover", 0, 0) for s in over
        )
        for sid, process in agent.processes.items():
            view = self.world.state.sessions.get(sid)
            if view is not None and view.node == agent.node and not view.final:
                process.frozen = process.frozen and not view.here and not view.in_flight

    def _over(self, agent: Agent) -> list[str]:
        """What the agent still has of sessions that the ledger knows as ended."""
        known, state = self.world.known, self.world.state.sessions
        return [s for s in agent.processes if s not in state and s in known and known[s].final]

    def _find_checkpoints(self, sessions: list[str]) -> None:
        """The service asks the store what a node may have stored and could not tell."""
        for sid in sorted(sessions):
            stored = tuple(reference for reference, _, _ in self.store.get(sid, ()))
            if stored:
                self._do(ev.CheckpointsFound(sid, stored))

    def _apart(self, agent: Agent) -> None:
        """The connection is gone: for a moment, or until its leases have run out, or for good."""
        if agent.connected:
            agent.connected = False
            self.do(ev.NodeAway(agent.node))
        elif not agent.lapsed:
            agent.lapsed = True
            for process in agent.processes.values():
                process.devices, process.frozen = (), True
            for sid in sorted(self.world.state.nodes[agent.node].sessions):
                view = self.world[sid]
                if view.leased:
                    self.do(ev.LeaseReaped(sid, view.epoch, "no answer for 35 s"))
            self._lost(agent, hopeless=False)
        else:
            self._lost(agent, hopeless=True)

    def _lost(self, agent: Agent, hopeless: bool) -> None:
        """The service gives the node up; the sessions that cannot go on elsewhere are lost with it
        when there is no hope."""
        self._find_checkpoints(list(self.world.state.nodes[agent.node].sessions))
        if hopeless:
            for sid in self.world.state.nodes[agent.node].sessions:
                view = self.world[sid]
                if view.newest_whole is None:
                    self.lost.add(sid)
        self.world.now += 40.0
        self.do(ev.NodeLost(agent.node, 40.0 if not hopeless else 900.0, hopeless))

    def _power(self, agent: Agent) -> None:
        """Everything of the node is gone at once; its agent comes back with its ledger alone."""
        for sid in agent.processes:
            if not self.store.get(sid):
                self.lost.add(sid)
        agent.processes.clear()
        agent.answers.clear()
        if agent.connected:
            agent.connected = False
            self.do(ev.NodeAway(agent.node))
        if self.rng.random() < 0.7:
            self._back(agent)

    def _service(self, forgets: bool) -> None:
        """The service is killed and started from its ledger; `forgets`: it had heard of the end of
        a command, and had not written that down."""
        if forgets:
            done = [a for a in self.flying if self.agents[a.node].connected and self._wanted(a)]
            if done:
                action = self._first_in_line(self.rng.choice(done), done)
                self._carry_out(self.agents[action.node], action)
                self.look()
        world, known, told = self.world, self.world.known, self.told
        self.world = world.reloaded()
        self.world.known, self.told = known, told
        ends = [a for a in self.flying if isinstance(a, ev.End)]
        self.flying = []
        for agent in self.agents.values():
            was, agent.connected = agent.connected, False
            if was:
                self._back(agent)
        # Whoever ended a session and had no answer asks again; the core told the node already if
        # the ledger has it.
        self.flying += [a for a in ends if a not in self.flying and self._wanted(a)]

    # -- the whole --------------------------------------------------------------------------------

    def run(self) -> int:
        """The run to its end; how many faults it had. Raises Broken."""
        try:
            for _ in range(EVENTS):
                self.rng.choice((self.person, self.person, self.command, self.command, self.luck))()
            self.settle()
        except Broken:
            raise
        except AssertionError as error:
            raise Broken(f"{error}\n" + "\n".join(self.story[-60:])) from error
        return self.faults

    def settle(self) -> None:
        """Everything is put right: what was not truly lost is there, and everything ends."""
        for node in NODES:
            self._back(self.agents[node])
            self.asked(DutyAsked("root", node, DutyEvent.UNDRAIN, "", None, False, False, True))
        self.obey()
        for sid in sorted(self.world.state.sessions):
            view = self.world[sid]
            if view.process_state is ProcessState.SUSPENDED or view.held_back:
                self.asked(ev.ResumeAsked(sid, "alice"))
            self.obey()
        for _ in range(8):
            self._tick(40.0)
            self.obey()
        for sid, view in sorted(self.world.state.sessions.items()):
            if view.final or view.pending or self._waits_for_room(view):
                continue
            state = (view.process_state.value, view.device_state.value)
            self.hold(view.here, f"{sid} has not come back: {state} {reads(view)}")
            process = self.agents[view.node].processes.get(sid)
            self.hold(process is not None, f"{sid} is live and nothing of it runs: {state}")
            assert process is not None
            stored = [ref.id for ref, _, _ in self.store.get(sid, ())]
            wanted = self.told.get(sid)
            self.hold(wanted is None or wanted in stored, f"{sid} has lost {wanted}")
            held = view.devices if view.device_state is DeviceState.HELD else ()
            self.hold(process.devices == held, f"{sid}: {held} in the ledger, {process.devices}")
            self.hold(not process.frozen, f"{sid} stands still")
        for sid in sorted(self.world.state.sessions):
            self.ended.add(sid)
            self.asked(ev.EndAsked(sid, "alice"))
            self.obey()
        left = [sid for agent in self.agents.values() for sid in agent.processes]
        self.hold(not left, f"of ended sessions there is left {left}")
        self.hold(not self.world.state.sessions, f"left in the ledger: {self.world.state.sessions}")

    def _waits_for_room(self, view: SessionView) -> bool:
        """Whether it is called back and really no node can take it: others were there before."""
        draft = Draft(self.world.state, self.world.now)
        return view.returning and all(placement.no_room(draft, view, node) for node in NODES)

    def obey(self) -> None:
        """Carry out what is asked for, without trouble, until nothing is."""
        for _ in range(400):
            if not self.flying:
                return
            action = self._first_in_line(self.flying[0], self.flying)
            self.flying.remove(action)
            event = self._carry_out(self.agents[action.node], action)
            self.look()
            if event is not None:
                self.do(event)
        self.hold(False, f"the commands do not end: {self.flying}")


def _key(action: ev.Action) -> tuple[Any, ...]:
    return (type(action), action.session, action.epoch, action.seq)


def run(seed: int) -> int:
    """The run of a seed; how many faults it had. Raises Broken with its story."""
    return Faulty(seed).run()
