"""Whatever happens in whatever order to gangs and single sessions on a few nodes: the parts of a
gang have devices together, no two gangs block one another, and each is served in the end.

`World.do` checks the invariants after every event (see `invariants.check`).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable, Unsupported
from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.stored import Retention
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent, NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import BatchRun, Kind, Part, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from support import matrix
from support.scheduler_core import World, outcome, whole
from support.scheduler_gangs import computing_gang, gang

NONE = whole("none")

REFUSALS = (BadRequest, Conflict, NotFound, Unavailable, Unsupported)


def parts_of(decision: ev.Decision) -> list[str]:
    """The parts of gangs that a decision changed and did not end."""
    return [view.id for view in decision.sessions if view.part is not None and not view.final]


class GangMachine(RuleBasedStateMachine):
    """People, programs, agents and bad luck on two or three nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}
        """From where each part went on last."""

    @initialize(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3))
    def build(self, sizes: list[int]) -> None:
        self.nodes = [f"n{number}" for number in range(len(sizes))]
        self.world = World(sizes[0], self.nodes[0])
        for node, size in zip(self.nodes[1:], sizes[1:], strict=True):
            self.world.join(node, size)
        self.number = 0

    def asked(self, event: ev.Event) -> None:
        try:
            self.do(event)
        except REFUSALS:
            pass

    def do(self, event: ev.Event) -> None:
        decision = self.world.do(event)
        attached = {a.session for a in decision.actions if isinstance(a, ev.Attach)}
        for sid in attached:  # none gets devices while another one goes on waiting for some
            left = [o for o in self.others(self.world[sid]) if o.device_state not in gangs.HAS]
            assert not left, f"{sid} got devices and {left} did not"
        for action in decision.actions:
            self.remember(action)
        for sid in parts_of(decision):
            self.look_at_places(self.world.known[sid])

    def remember(self, action: ev.Action) -> None:
        """From where a part goes on: its beginning, or a set."""
        if isinstance(action, ev.Start):
            self.places[action.session] = f"attempt {self.world[action.session].attempt}"
        elif isinstance(action, ev.Resume):
            view = self.world[action.session]
            [reference] = [c for c in view.checkpoints if c.id == action.checkpoint]
            if view.rollback:
                self.places[view.id] = f"{view.incarnation}: {reference.set_id}"

    def look_at_places(self, view: SessionView) -> None:
        """Parts that compute together went on from one place."""
        views = [view, *self.others(view)]
        if not all(one.device_state is DeviceState.HELD for one in views):
            return
        if any(
            one.process_state is not ProcessState.LIVE or one.leaving is not None for one in views
        ):
            return
        places = {self.places.get(one.id, "") for one in views}
        assert len(places) == 1, f"{[one.id for one in views]} went on from {places}"

    def others(self, view: SessionView) -> list[SessionView]:
        return gangs.others(Draft(self.world.state, self.world.now), view)

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.state.sessions)), label="session")

    @rule(
        nodes=st.integers(2, 3),
        tier=st.sampled_from(Tier),
        devices=st.integers(1, 2),
        retries=st.integers(0, 2),
    )
    def gang(self, nodes: int, tier: Tier, devices: int, retries: int) -> None:
        self.number += 1
        name = f"g{self.number:03}-"
        self.asked(gang(name, nodes, tier, devices, max_retries=retries))

    @rule(tier=st.sampled_from(Tier), devices=st.integers(1, 2), batch=st.booleans())
    def single(self, tier: Tier, devices: int, batch: bool) -> None:
        self.number += 1
        sid = f"s{self.number:03}"
        run = BatchRun(f"/n/{sid}.ipynb", f"/n/{sid}-out.ipynb") if batch else None
        kind = Kind.BATCH if batch else Kind.INTERACTIVE
        self.asked(ev.SessionCreated(sid, "alice", SessionSpec(kind, tier, devices, sid, run)))

    @precondition(lambda self: bool(self.world.state.sessions))
    @rule(
        data=st.data(),
        what=st.sampled_from(["need", "need", "need", "busy", "idle", "withdraw"]),
    )
    def program(self, data: st.DataObject, what: str) -> None:
        sid, now = self.pick(data), self.world.now
        events: dict[str, ev.Event] = {
            "need": ev.DeviceNeeded(sid),
            "busy": ev.Activity(sid, True, now),
            "idle": ev.Activity(sid, False, now),
            "withdraw": ev.DeviceWithdrawn(sid),
        }
        self.do(events[what])

    @precondition(lambda self: bool(self.world.state.sessions))
    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["park", "preempt", "resume", "end", "tier", "suspend", "move", "checkpoint", "drop"]
        ),
    )
    def person(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        events: dict[str, ev.Event] = {
            "park": ev.ParkAsked(sid, "ada"),
            "preempt": ev.PreemptAsked(sid, "ada"),
            "resume": ev.ResumeAsked(sid, "ada"),
            "end": ev.EndAsked(sid, "ada"),
            "tier": ev.TierAsked(sid, "root", data.draw(st.sampled_from(Tier), label="tier")),
            "suspend": ev.SuspendAsked(sid, "ada"),
            "move": ev.MigrateAsked(sid, "ada"),
            "checkpoint": ev.CheckpointAsked(sid, "ada", level="process"),
            "drop": ev.DropAsked(sid, "ada", (self.world[sid].last_checkpoint or NONE).id),
        }
        self.asked(events[what])

    @precondition(lambda self: bool(self.world.pending))
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def agent(self, data: st.DataObject, fails: bool) -> None:
        action = data.draw(st.sampled_from(self.world.pending), label="action")
        if isinstance(action, ev.TakeCheckpoint) and action.set_id:
            self.do(self.world.set_stored(action, action.session if fails else ""))
            return
        self.world.pending.remove(action)
        event = outcome(action)
        if fails and isinstance(action, ev.Attach):
            event = ev.AttachFailed(action.session, action.epoch, "broken")
        elif fails and isinstance(action, ev.Park):
            event = ev.ParkFailed(action.session, action.epoch, "disk full")
        elif fails and isinstance(action, ev.Suspend):
            event = ev.SuspendFailed(action.session, action.epoch, action.seq, "disk full")
        elif fails and isinstance(action, ev.Resume):
            head = (action.session, action.epoch, action.seq)
            damaged = data.draw(st.booleans(), label="damaged")
            event = ev.ResumeFailed(*head, "no such port", damaged)
        elif fails and isinstance(action, ev.Start):
            event = ev.StartFailed(action.session, "no such folder")
        self.do(event)

    @precondition(lambda self: bool(self.world.state.sessions))
    @rule(data=st.data(), what=st.sampled_from(["exit", "error", "crash", "lapse", "reap"]))
    def bad_luck(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        events: dict[str, ev.Event] = {
            "exit": ev.ProcessExited(sid, 0),
            "error": ev.ProcessExited(sid, 3),
            "crash": ev.ProcessExited(sid, -9),
            "lapse": ev.LeaseLapsed(sid),
            "reap": ev.LeaseReaped(sid, self.world[sid].epoch, "no answer for 35 s"),
        }
        self.do(events[what])

    @rule(data=st.data(), seconds=st.floats(0, 100))
    def time_goes_by(self, data: st.DataObject, seconds: float) -> None:
        self.world.now += seconds
        self.do(ev.Tick(data.draw(st.sampled_from(self.nodes), label="node")))

    @rule(data=st.data(), what=st.sampled_from(["cordon", "drain", "open", "lost"]))
    def node(self, data: st.DataObject, what: str) -> None:
        node = data.draw(st.sampled_from(self.nodes), label="node")
        if what == "lost":
            self.do(ev.NodeLost(node, 1e6))
            self.world.join(node, len(self.world.state.nodes[node].devices))
            return
        duty = self.world.state.nodes[node].duty.duty
        opens = DutyEvent.UNCORDON if duty is NodeDuty.CORDONED else DutyEvent.UNDRAIN
        change = {"cordon": DutyEvent.CORDON, "drain": DutyEvent.DRAIN, "open": opens}[what]
        self.asked(adm.DutyAsked("root", node, change, store=True))

    def teardown(self) -> None:
        """Everybody may have devices, and asks for them; nothing more goes wrong."""
        if not hasattr(self, "world"):
            return
        for node in self.nodes:
            duty = self.world.state.nodes[node].duty.duty
            if duty is not NodeDuty.OPEN:
                opens = DutyEvent.UNCORDON if duty is NodeDuty.CORDONED else DutyEvent.UNDRAIN
                self.do(adm.DutyAsked("root", node, opens))
        served: set[str] = set()
        for _ in range(4 * len(self.world.state.sessions) + 4):
            self.settle()
            served |= self.look()
            holders = [
                view.id
                for view in self.world.state.sessions.values()
                if view.device_state is DeviceState.HELD or view.idle
            ]
            ending = (
                holders[:1]
                or [
                    view.id
                    for view in self.world.state.sessions.values()
                    if view.process_state is ProcessState.LIVE and not self.waits(view)
                ][:1]
            )
            if not ending:
                break
            self.do(ev.ProcessExited(ending[0], 0))
        self.settle()
        left = {sid: view.word for sid, view in self.world.state.sessions.items()}
        assert not left, f"these were never served: {left}"

    def settle(self) -> None:
        """All that live want devices; agents do what they are told."""
        for _ in range(4):
            self.world.answer()
            for sid in sorted(self.world.state.sessions):
                view = self.world.state.sessions.get(sid)
                if view and view.held_back:  # refused while it is on its way
                    self.asked(ev.ResumeAsked(sid, "ada"))
                    view = self.world.state.sessions.get(sid)
                if view and view.process_state is ProcessState.LIVE:
                    self.do(ev.Activity(sid, True, self.world.now))
                    self.do(ev.DeviceNeeded(sid))
                elif view and view.process_state is ProcessState.SUSPENDED and not view.called:
                    self.asked(ev.ResumeAsked(sid, "ada"))
                    view = self.world[sid]
                    damaged = any(c.damaged for c in view.checkpoints)
                    if not view.called and damaged:  # and there is no older one
                        self.do(ev.EndAsked(sid, "ada"))
            self.world.answer()
            self.world.now += 30
            for node in self.nodes:
                self.do(ev.Tick(node))
        self.world.answer()

    def waits(self, view: SessionView) -> bool:
        return view.device_state is DeviceState.WAITING

    def look(self) -> set[str]:
        """Nothing is on its way: of each gang all parts have devices or none. No gang waits while
        its devices are free and nobody waits before it."""
        views = list(self.world.state.sessions.values())
        parts = {view.part.gang: view.part for view in views if view.part}
        draft = Draft(self.world.state, self.world.now)
        served = set()
        for name, part in parts.items():
            there = gangs.parts(draft, part)
            has = {view.device_state in gangs.HAS for view in there}
            assert len(has) < 2, f"{name}: {[(v.id, v.word) for v in there]}"
            if has == {True}:
                served.add(name)
        waiting = [p for p in parts.values() if self.could_go(draft, p)]
        assert not waiting, f"{waiting} could go on and wait"
        return served

    def could_go(self, draft: Draft, part: Part) -> bool:
        there = gangs.parts(draft, part)
        if not there or not all(map(self.waits, there)):
            return False
        free = True
        for view in there:
            usable = draft.usable(view.node)
            free = free and sum(h is None for h in usable.values()) >= view.needs
            alone = [v.id for v in draft.waiting(view.node)] == [view.id]
            free = free and alone
        return free


class StoredMachine(GangMachine):
    """Begins with a gang that computes, and may be on its way into the store, or has been stored
    while it goes on."""

    def build(self, sizes: list[int]) -> None:
        """Instead of the nodes of the others."""

    @initialize(
        stored=st.booleans(), sets=st.integers(0, 3), retries=st.integers(0, 2), spare=st.booleans()
    )
    def begin(self, stored: bool, sets: int, retries: int, spare: bool) -> None:
        self.nodes = ["n0", "n1", "n2"][: 2 + spare]
        self.world = World(2, "n0")
        for node in self.nodes[1:]:
            self.world.join(node, 2)
        self.world.state.retention = Retention(2)
        self.number = 1
        computing_gang(self.world, "g001-", max_retries=retries)
        for _ in range(sets):
            self.do(ev.CheckpointAsked("g001-1", "ada"))
            self.world.answer()
        if stored:
            self.do(ev.SuspendAsked("g001-0", "ada"))

    @precondition(lambda self: bool(self.parts()))
    @rule(data=st.data(), what=st.sampled_from(["suspend", "resume", "checkpoint", "crash"]))
    def store(self, data: st.DataObject, what: str) -> None:
        sid = data.draw(st.sampled_from(self.parts()), label="part")
        events: dict[str, ev.Event] = {
            "suspend": ev.SuspendAsked(sid, "ada"),
            "resume": ev.ResumeAsked(sid, "ada"),
            "checkpoint": ev.CheckpointAsked(sid, "ada"),
            "crash": ev.ProcessExited(sid, -9),
        }
        self.asked(events[what])

    def parts(self) -> list[str]:
        return sorted(sid for sid, view in self.world.state.sessions.items() if view.part)


GangMachine.TestCase.settings = settings(
    max_examples=60 if matrix.is_full() else 15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
StoredMachine.TestCase.settings = GangMachine.TestCase.settings
test_gangs = pytest.mark.filterwarnings("ignore")(GangMachine.TestCase)
test_gangs_in_the_store = pytest.mark.filterwarnings("ignore")(StoredMachine.TestCase)
