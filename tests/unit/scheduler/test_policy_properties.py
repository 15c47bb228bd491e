"""Whatever happens in whatever order: no device twice, all or nothing, tiers in order, epochs up.

`World.do` checks every invariant after every event (see `invariants.check`), that `decide` is pure
and deterministic, and that epochs only rise. Here hypothesis looks for an order that breaks one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable, Unsupported
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent, NodeDuty, UpgradeState
from singularity_scheduler.core.values.requested import BatchRun, Kind, Priority, SessionSpec, Tier
from singularity_scheduler.core.values.states import ProcessState
from support.scheduler_core import World, devices_of, facts, outcome, used

VERBS = [
    *("park", "preempt", "resume", "migrate", "end", "checkpoint"),
    *("suspend", "suspend", "restore", "discard", "go", "fork", "drop"),
]

ORDERS = [DutyEvent.CORDON, DutyEvent.UNCORDON, DutyEvent.DRAIN, DutyEvent.UNDRAIN]


class SchedulerMachine(RuleBasedStateMachine):
    """People, workers, agents and bad luck against one cluster of two nodes."""

    @initialize(sizes=st.tuples(st.integers(1, 4), st.integers(1, 3)))
    def build(self, sizes: tuple[int, int]) -> None:
        self.sizes = dict(zip(("n1", "n2"), sizes, strict=True))
        self.world = World(self.sizes["n1"], "n1")
        self.world.do(ev.NodeJoined("n2", devices_of("n2", self.sizes["n2"])))
        self.number = 0
        self.resumed: set[str] = set()
        self.forced = False
        self.left: dict[str, tuple[int, str]] = {}
        """session -> incarnation and checkpoint with which it was suspended last"""

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.state.sessions)), label="session")

    def have_sessions(self) -> bool:
        return bool(self.world.state.sessions)

    def asked(self, event: ev.Event) -> None:
        """What people ask may be refused, but then it changes nothing (checked in `World.do`)."""
        try:
            self.world.do(event)
        except (Conflict, NotFound, Unavailable, Unsupported):
            pass

    @rule(
        tier=st.sampled_from(Tier),
        kind=st.sampled_from(Kind),
        devices=st.integers(1, 3),
        priority=st.sampled_from(Priority),
        cluster=st.sampled_from(["", "", "a", "b"]),
    )
    def create(
        self, tier: Tier, kind: Kind, devices: int, priority: Priority, cluster: str
    ) -> None:
        self.number += 1
        cluster = cluster if cluster in self.world.state.admin.clusters else ""
        number = min(devices, max(self.sizes.values()))
        spec = SessionSpec(kind, tier, number, virtual_cluster=cluster, priority=priority)
        if cluster:
            self.asked_or_too_large(ev.SessionCreated(f"s{self.number:03}", "alice", spec))
            return
        fits = any(
            n.connected and n.duty.duty is NodeDuty.OPEN and len(n.devices) >= spec.devices
            for n in self.world.state.nodes.values()
        )
        event = ev.SessionCreated(f"s{self.number:03}", "alice", spec)
        if fits:
            self.world.do(event)
        else:
            with pytest.raises((BadRequest, Unavailable)):
                self.world.do(event)

    @rule(
        tier=st.sampled_from(Tier),
        devices=st.integers(1, 3),
        cluster=st.sampled_from(["", "", "a", "b"]),
    )
    def submit(self, tier: Tier, devices: int, cluster: str) -> None:
        self.number += 1
        sid = f"s{self.number:03}"
        run = BatchRun(f"/n/{sid}.ipynb", f"/n/{sid}-out.ipynb")
        cluster = cluster if cluster in self.world.state.admin.clusters else ""
        spec = SessionSpec(Kind.BATCH, tier, devices, sid, run, virtual_cluster=cluster)
        self.asked_or_too_large(ev.SessionCreated(sid, "alice", spec))

    def asked_or_too_large(self, event: ev.Event) -> None:
        try:
            self.asked(event)
        except BadRequest:
            pass

    @precondition(have_sessions)
    @rule(data=st.data(), what=st.sampled_from(["need", "need", "withdraw", "busy", "idle"]))
    def worker(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        now = self.world.now
        self.world.do(
            {
                "need": ev.DeviceNeeded(sid),
                "withdraw": ev.DeviceWithdrawn(sid),
                "busy": ev.Activity(sid, True, now),
                "idle": ev.Activity(sid, False, now),
            }[what]
        )

    @precondition(have_sessions)
    @rule(data=st.data(), what=st.sampled_from(VERBS))
    def person(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        if what not in ("park", "end"):
            self.resumed.add(sid)
        known = [c.id for c in self.world[sid].checkpoints] or ["none"]
        checkpoint = data.draw(st.sampled_from(known), label="checkpoint")
        node = data.draw(st.sampled_from(["n1", "n2"]), label="node")
        self.number += what == "fork"
        self.asked(
            {
                "park": ev.ParkAsked(sid, "alice"),
                "preempt": ev.PreemptAsked(sid, "alice"),
                "resume": ev.ResumeAsked(sid, "alice"),
                "migrate": ev.MigrateAsked(sid, "alice"),
                "end": ev.EndAsked(sid, "alice"),
                "checkpoint": ev.CheckpointAsked(sid, "alice"),
                "suspend": ev.SuspendAsked(sid, "alice"),
                "restore": ev.RestoreAsked(sid, "alice", checkpoint),
                "discard": ev.RestoreAsked(sid, "alice", checkpoint, discard=True),
                "go": ev.MigrateAsked(sid, "alice", node=node),
                "fork": ev.ForkAsked(f"s{self.number:03}", self.world[sid], None, "alice"),
                "drop": ev.DropAsked(sid, "alice", checkpoint),
            }[what]
        )

    @precondition(lambda self: bool(self.world.pending))
    @rule(data=st.data(), fails=st.booleans())
    def agent_answers(self, data: st.DataObject, fails: bool) -> None:
        action = data.draw(st.sampled_from(self.world.pending), label="action")
        self.world.pending.remove(action)
        event = outcome(action)
        if isinstance(action, ev.Resume) and action.session in self.left:
            incarnation, checkpoint = self.left[action.session]
            if action.incarnation == incarnation:  # then nothing may be undone
                assert action.checkpoint == checkpoint
        if fails and isinstance(action, ev.Attach):
            event = ev.AttachFailed(action.session, action.epoch, "broken")
        elif fails and isinstance(action, ev.Park):
            event = ev.ParkFailed(action.session, action.epoch, "disk full")
        elif fails and isinstance(action, ev.Start):
            event = ev.StartFailed(action.session, "no such program")
        elif fails and isinstance(action, ev.Suspend):
            event = ev.SuspendFailed(action.session, action.epoch, action.seq, "disk full")
        elif fails and isinstance(action, ev.Resume):
            damaged = data.draw(st.booleans(), label="damaged")
            event = ev.ResumeFailed(
                action.session, action.epoch, action.seq, "a chunk is wrong", damaged
            )
        elif fails and isinstance(action, ev.TakeCheckpoint):
            return
        if isinstance(event, ev.Suspended):
            before = self.world.state.sessions.get(event.session)
            if before is not None and (before.epoch, before.seq) == (event.epoch, event.seq):
                self.left[event.session] = before.incarnation, event.checkpoint.id
        self.world.do(event)

    @precondition(have_sessions)
    @rule(data=st.data(), what=st.sampled_from(["exit", "crash", "reap", "lapse", "proxy"]))
    def bad_luck(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        self.world.do(
            {
                "exit": ev.ProcessExited(sid, 0),
                "crash": ev.ProcessExited(sid, -9),
                "reap": ev.LeaseReaped(sid, self.world[sid].epoch, "no answer for 35 s"),
                "lapse": ev.LeaseLapsed(sid),
                "proxy": ev.ProxyFailed(sid, "it died twice"),
            }[what]
        )

    @rule(node=st.sampled_from(["n1", "n2"]), seconds=st.floats(0, 20))
    def time_goes_by(self, node: str, seconds: float) -> None:
        self.world.now += seconds
        self.world.do(ev.Tick(node))

    @precondition(have_sessions)
    @rule(data=st.data(), what=st.sampled_from(["wanted", "orphaned", "old answer"]))
    def moves(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        view = self.world[sid]
        late = ev.Fenced(sid, max(0, view.epoch - 1), view.seq, view.node)
        before = self.world.state.sessions[sid]
        self.world.do(
            {"wanted": ev.Wanted(sid), "orphaned": ev.Orphaned(sid), "old answer": late}[what]
        )
        if what == "old answer" and view.epoch:
            assert self.world.state.sessions[sid] == before

    @rule(node=st.sampled_from(["n1", "n2"]), hopeless=st.booleans())
    def node_lost(self, node: str, hopeless: bool) -> None:
        others = [n for n in self.world.state.nodes.values() if n.connected and n.id != node]
        there = {sid: self.world[sid] for sid in self.world.state.nodes[node].sessions if others}
        self.resumed |= set(there)
        self.world.do(ev.NodeLost(node, 40.0, hopeless))
        for sid, before in there.items():
            after = self.world[sid]
            if before.process_state is ProcessState.LIVE and hopeless:
                assert not after.here, "it is still said to run on a node that is gone"
            if before.process_state is ProcessState.LIVE and not before.checkpoints:
                assert after.final is hopeless

    @rule(node=st.sampled_from(["n1", "n2"]), event=st.sampled_from(ORDERS), force=st.booleans())
    def administrator(self, node: str, event: DutyEvent, force: bool) -> None:
        self.forced |= force
        self.asked(adm.DutyAsked("root", node, event, "maintenance", None, False, force, True))
        if event is DutyEvent.DRAIN:
            assert self.world.state.node(node).duty.leaving

    @rule(what=st.sampled_from(["begin", "pause", "go on", "wait", "cancel", "n1", "n2"]))
    def upgrade(self, what: str) -> None:
        self.asked(
            {
                "begin": adm.UpgradeAsked("root", (), 1),
                "pause": adm.UpgradeChange("root", UpgradeState.PAUSED),
                "go on": adm.UpgradeChange("root", UpgradeState.RUNNING),
                "wait": adm.UpgradeChange("root", UpgradeState.RUNNING, wait=True),
                "cancel": adm.UpgradeChange("root", UpgradeState.CANCELLED),
            }.get(what)
            or adm.UpgradedAsked("root", what)
        )

    @rule(name=st.sampled_from("ab"), devices=st.integers(0, 4), may_borrow=st.booleans())
    def quota(self, name: str, devices: int, may_borrow: bool) -> None:
        self.world.do(adm.QuotaAsked("root", adm.VirtualCluster(name, devices, may_borrow)))

    @rule(name=st.sampled_from("ab"))
    def no_quota(self, name: str) -> None:
        self.asked(adm.QuotaGone("root", name))

    @precondition(have_sessions)
    @rule(data=st.data(), quiet=st.booleans())
    def devices_are_quiet(self, data: st.DataObject, quiet: bool) -> None:
        self.world.do(ev.DeviceUse(self.pick(data), self.world.now if quiet else 0.0))

    @rule(soft=st.sampled_from([0, 5, None]), grace=st.sampled_from([0, 30]))
    def parameters(self, soft: float | None, grace: float) -> None:
        changes = (("idle_soft_s", soft), ("idle_grace_s", grace))
        self.world.do(adm.ParametersAsked("root", changes))

    @rule(node=st.sampled_from(["n1", "n2"]))
    def node_away(self, node: str) -> None:
        self.world.do(ev.NodeAway(node))

    @rule(node=st.sampled_from(["n1", "n2"]), data=st.data())
    def node_back(self, node: str, data: st.DataObject) -> None:
        known = []
        for sid in sorted(self.world.state.nodes[node].sessions):
            what = data.draw(st.sampled_from(["same", "gone", "dead", "parked", "holds", "wait"]))
            fact = facts(self.world[sid])
            if what == "gone":
                continue
            if what == "dead":
                fact = replace(fact, alive=False, exit_code=1)
            elif what == "parked":
                fact = replace(fact, devices=(), saved=True)
            elif what == "wait":
                fact = replace(fact, waiting=True)
            elif what == "holds" and not self.world[sid].leased:
                taken = {d for f in known for d in f.devices} | set(
                    self.world.state.nodes[node].leases
                )
                free = [d.id for d in devices_of(node, self.sizes[node]) if d.id not in taken]
                if len(free) >= fact.virtual_devices:
                    fact = replace(fact, devices=tuple(free[: fact.virtual_devices]), saved=True)
            known.append(fact)
        self.world.do(ev.NodeJoined(node, devices_of(node, self.sizes[node]), tuple(known)))

    @invariant()
    def nobody_waits_for_what_could_be_had(self) -> None:
        """Whoever can be served is, at once."""
        if not hasattr(self, "world"):
            return
        for node in self.world.state.nodes.values():
            draft = Draft(self.world.state, self.world.now)
            for sid in node.sessions:  # who could not be parked lately is not to be had
                if self.world[sid].park_failed_at is not None:
                    draft.changed[sid] = replace(self.world[sid], park_failed_at=self.world.now)
            turns.serve(draft, node.id)
            assert not draft.actions, (node.id, draft.actions)

    @invariant()
    def nobody_stays_away_who_could_come_back(self) -> None:
        """A session that is called back waits only while no node has room for it, and what nobody
        called stays where it is."""
        if not hasattr(self, "world"):
            return
        draft = Draft(self.world.state, float("-inf"))
        for view in draft.returning():
            if view.held_back or view.wants:
                continue
            for node in placement.candidates(draft, view):
                assert placement.no_room(draft, view, node), (view, node)

    @invariant()
    def tiers_come_in_order(self) -> None:
        """Nobody is granted devices while somebody of a higher tier could have had them: the queue
        of each node is sorted by tier, and grants were only given from its front."""
        if not hasattr(self, "world"):
            return
        for node in self.world.state.nodes.values():
            ranks = [v.tier.rank for v in self.world.state.waiting(node.id) if not v.held_back]
            assert ranks == sorted(ranks, reverse=True)

    @invariant()
    def runs_are_started_when_and_only_when_there_is_room(self) -> None:
        """The first queued run that can ever fit does not fit now; and runs of the highest tier
        never count for more devices than there are, unless one came back by a resume."""
        if not hasattr(self, "world"):
            return
        for node in self.world.state.nodes.values():
            views = [self.world[sid] for sid in node.sessions]
            devices = len(node.devices)
            queued = [self.world[key[-1]] for key in node.pending]
            draft = Draft(self.world.state, self.world.now)
            fits = (v for v in queued if v.virtual_devices <= devices)
            head = next((v for v in fits if not quotas.run_barred(draft, v)), None)
            open_ = node.duty.duty is NodeDuty.OPEN
            if head and node.connected and open_ and not head.held_back:
                used = sum(v.admitted_milli for v in views if v.tier.rank >= head.tier.rank)
                assert used + head.wanted_milli > 1000 * devices
            if not any(v.run and v.id in self.resumed for v in views):
                assert (
                    sum(v.admitted_milli for v in views if v.tier is Tier.PREMIUM) <= 1000 * devices
                )

    def teardown(self) -> None:
        """When everything is answered and ended, nothing is held and nobody is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for node in world.state.nodes.values():
            facts_of = tuple(facts(world[sid]) for sid in node.sessions if world[sid].here)
            world.do(ev.NodeJoined(node.id, devices_of(node.id, self.sizes[node.id]), facts_of))
        world.answer()
        for sid in sorted(world.state.sessions):
            self.asked(ev.EndAsked(sid, "alice"))
        world.answer()
        assert world.state.sessions == {}
        assert all(not n.leases and not n.queue for n in world.state.nodes.values())
        # Accounting reads nothing but histories, and they tell of every second under a lease.
        assert used(world).device_s == pytest.approx(world.leased_s, abs=1e-6)


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestScheduler = SchedulerMachine.TestCase
