"""A tiny driver for the pure scheduler core: feeds events and checks every promise after each."""

from __future__ import annotations

import json
from typing import Any

from singularity_scheduler.core.operations.health import observed
from singularity_scheduler.core.policy import decide
from singularity_scheduler.core.reasons.reason import Reason, from_json, to_json
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.devices import DeviceHealth, DeviceView
from singularity_scheduler.core.state.invariants import check, check_succession
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.state.usage import Meter, Usage
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import Administration
from singularity_scheduler.core.values.model import Abilities, AgentFacts, SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.explain.why import explain
from singularity_scheduler.text.errors import in_words
from singularity_scheduler.text.reasons import render

AT_ONCE = Parameters(idle_soft_s=0, idle_grace_s=0, min_run_s=0)
"""Idle devices are taken whenever somebody waits, and never otherwise."""


def reads(of: Any) -> str:
    """What people read of a session, a line of history or a command."""
    return getattr(of, "text", "") or render(of.why)


def check_reason(why: object) -> None:
    """A reason is a code with its arguments: its ledger row is an equal one, and it has a text."""
    assert isinstance(why, Reason), why
    assert render(why), why
    assert from_json(**json.loads(json.dumps(to_json(why)))) == why


class World:
    """One cluster; `do(event)` decides, checks and applies; `answer` plays the obedient agent."""

    def __init__(
        self,
        devices: int = 2,
        node: str = "local",
        abilities: Abilities | None = None,
        parameters: Parameters = AT_ONCE,
    ) -> None:
        self.state = ClusterState()
        self.state.govern(Administration(defaults=parameters))
        self.now = 1000.0
        self.pending: list[ev.Action] = []
        self.all_actions: list[ev.Action] = []
        self.history: list[Any] = []
        self.known: dict[str, SessionView] = {}
        """Every session that there ever was, as it was last."""
        self.leased_s = 0.0
        """Device-seconds under a lease, counted device by device."""
        self._counted = self.now
        self.join(node, devices, abilities)

    def join(
        self,
        node: str,
        devices: int = 2,
        abilities: Abilities | None = None,
        *known: AgentFacts,
    ) -> None:
        """This node's agent connects and knows these sessions."""
        able = abilities or Abilities()
        self.do(ev.NodeJoined(node, devices_of(node, devices), known, able))

    def do(self, event: ev.Event) -> ev.Decision:
        self.now += 1.0
        leases = sum(len(node.leases) for node in self.state.nodes.values())
        self.leased_s += (self.now - self._counted) * leases
        self._counted = self.now
        self.state.latest = self.now
        before = dict(self.state.sessions)
        queues = {n.id: list(n.queue) for n in self.state.nodes.values()}
        with in_words():
            decision = decide(self.state, event, self.now)
        assert self.state.sessions == before, "decide changed the state"
        assert {n.id: list(n.queue) for n in self.state.nodes.values()} == queues
        assert decide(self.state, event, self.now) == decision, "decide is not deterministic"
        for view in decision.sessions:
            check_succession(before.get(view.id) or self.known.get(view.id), view)
        for view in decision.sessions:
            check_reason(view.why)
        for change in decision.history:
            check_reason(change.why)
        for action in decision.actions:
            check_reason(action.why)
            assert action.rule in RULES, action
        self.state.apply(decision)
        self.state.experience.learn(decision)
        check(self.state)
        for view in decision.sessions:
            assert explain(self.state, view, self.now)["sentence"]
        self.pending += decision.actions
        self.all_actions += decision.actions
        self.history += decision.history
        self.known |= {view.id: view for view in decision.sessions}
        return decision

    def create(
        self,
        sid: str,
        tier: Tier = Tier.STANDARD,
        devices: int = 1,
        kind: Kind = Kind.INTERACTIVE,
        user: str = "alice",
        **more: Any,
    ) -> SessionView:
        self.do(ev.SessionCreated(sid, user, SessionSpec(kind, tier, devices, name=sid, **more)))
        self.answer()
        return self[sid]

    def submit(
        self, sid: str, tier: Tier = Tier.STANDARD, devices: int = 1, user: str = "alice"
    ) -> SessionView:
        """A batch run of a notebook; it starts at once or stays queued."""
        run = BatchRun(f"/home/{user}/{sid}.ipynb", f"/home/{user}/{sid}-out.ipynb")
        self.do(ev.SessionCreated(sid, user, SessionSpec(Kind.BATCH, tier, devices, sid, run)))
        self.answer(ev.Start)
        return self[sid]

    def computing(self, sid: str, tier: Tier = Tier.STANDARD, devices: int = 1) -> None:
        """A batch run that holds devices."""
        self.submit(sid, tier, devices)
        self.need(sid)
        self.answer()
        assert self[sid].word == "running", self[sid]

    def holding(self, sid: str, tier: Tier = Tier.STANDARD, devices: int = 1, **kw: Any) -> None:
        """A session that holds devices and is busy."""
        self.create(sid, tier, devices, **kw)
        self.do(ev.Activity(sid, True, self.now))
        self.do(ev.DeviceNeeded(sid))
        self.answer()
        assert self[sid].word == "running", self[sid]

    def idle(self, sid: str) -> None:
        self.do(ev.Activity(sid, False, self.now))

    def need(self, sid: str) -> None:
        self.do(ev.DeviceNeeded(sid))

    def look(self, *reports: DeviceHealth, node: str = "local", seconds: float = 0.0) -> None:
        """The node reports these devices, `seconds` after what was before."""
        self.now += seconds
        before = self.state.node(node).health
        seen = [observed(before.get(r.id), r, self.now) for r in reports]
        self.state.observe(node, seen)
        self.do(ev.DevicesLooked(node))

    def answer(self, *kinds: type) -> None:
        """Carry out the pending actions (of these kinds) as an agent without trouble would."""
        while todo := [a for a in self.pending if not kinds or isinstance(a, kinds)]:
            action = todo[0]
            self.pending.remove(action)
            if isinstance(action, ev.TakeCheckpoint) and action.set_id:
                self.do(self.set_stored(action))
            else:
                self.do(outcome(action))

    def set_stored(self, action: ev.TakeCheckpoint, failed: str = "") -> ev.SetStored:
        """The service has the answers of all parts of a gang that are stored with this one, of
        which `failed` is not; their actions are pending no more."""
        parts = [
            other
            for other in self.all_actions
            if isinstance(other, ev.TakeCheckpoint) and other.set_id == action.set_id
        ]
        self.pending = [other for other in self.pending if other not in parts]
        stored = {part.session: outcome(part) for part in parts if part.session != failed}
        return ev.SetStored(
            action.set_id,
            tuple((sid, done.checkpoint) for sid, done in stored.items()),  # type: ignore[union-attr]
            not failed,
        )

    def reloaded(self) -> World:
        """The same world after the service was started anew from its ledger; no node is back."""
        fresh = World.__new__(World)
        fresh.state, fresh.now = ClusterState(), self.now
        duties = [node.duty for node in self.state.nodes.values()]
        fresh.state.govern(self.state.admin, duties)
        marks = [mark for node in self.state.nodes.values() for mark in node.marks.values()]
        fresh.state.load(list(self.state.sessions.values()), marks)
        fresh.pending, fresh.all_actions, fresh.history = [], [], []
        fresh.known, fresh.leased_s, fresh._counted = {}, 0.0, self.now
        return fresh

    def __getitem__(self, sid: str) -> SessionView:
        return self.state.sessions[sid]


def used(world: World, since: float = 0.0, until: float | None = None) -> Usage:
    """What all sessions together used in this time, by their histories alone."""
    until, total = world.now if until is None else until, Usage()
    for sid, view in world.known.items():
        meter = Meter(view.virtual_devices, since, until)
        for change in world.history:
            if change.session == sid and change.at < until:
                states = change.process_state.value, change.device_state.value
                meter.line(change.at, *states, change.rule, change.devices)
        meter.close(view.updated_at if view.ended else until)
        for usage in meter.found.values():
            total.add(usage)
    return total


def outcome(action: ev.Action) -> ev.Event:
    """The event of an action that worked."""
    if isinstance(action, ev.Start):
        return ev.Started(action.session)
    if isinstance(action, ev.Attach):
        return ev.Attached(action.session, action.epoch)
    if isinstance(action, ev.Park):
        return ev.Parked(action.session, action.epoch)
    if isinstance(action, ev.Resize):
        return ev.Resized(action.session, action.epoch)
    if isinstance(action, ev.End):
        return ev.Ended(action.session, None, action.node)
    if isinstance(action, ev.Suspend):
        reference = whole(f"{action.session}-{action.seq}", 1000.0 + action.seq, action.name)
        return ev.Suspended(action.session, action.epoch, action.seq, reference, 1500.0)
    if isinstance(action, ev.Resume):
        loss = LossReport("process", ("its process",), (), False, 7, action.checkpoint)
        return ev.Resumed(action.session, action.epoch, action.seq, loss)
    if isinstance(action, ev.Fence):
        return ev.Fenced(action.session, action.epoch, action.seq, action.node)
    if isinstance(action, ev.PutBack):
        loss = LossReport("device", ("2 tensors",), (), False, 3, action.checkpoint)
        return ev.ContentsBack(action.session, loss)
    if isinstance(action, ev.TakeCheckpoint):
        level = action.level or "process"
        reference = CheckpointRef(
            f"{action.session}-{action.seq}", 1000.0 + action.seq, 1 << 20, level, action.name or ""
        )
        return ev.CheckpointTaken(action.session, reference)
    raise AssertionError(action)


def whole(id_: str, at: float = 1000.0, name: str = "", **more: Any) -> CheckpointRef:
    """A checkpoint with a process in it."""
    return CheckpointRef(id_, at, 1 << 30, "process", name, **more)


def devices_of(node: str, number: int) -> tuple[DeviceView, ...]:
    return tuple(DeviceView(f"cpu:{i}", node, "cpu", 4 << 30) for i in range(number))


def cards(*uuids: str) -> tuple[DeviceView, ...]:
    """Devices cpu:0, cpu:1, ... that are these cards."""
    found = enumerate(uuids)
    return tuple(DeviceView(f"cpu:{i}", "local", "cpu", 4 << 30, "", uuid) for i, uuid in found)


def facts(view: SessionView, **changes: Any) -> AgentFacts:
    """What an agent that agrees with the ledger says about `view`."""
    from dataclasses import replace

    from singularity_scheduler.core.values.states import DeviceState

    return replace(
        AgentFacts(
            id=view.id,
            alive=True,
            epoch=view.epoch,
            devices=view.devices if view.device_state is DeviceState.HELD else (),
            saved=view.saved,
            waiting=view.device_state is DeviceState.WAITING,
            busy=view.busy,
            user=view.user,
            kind=view.kind.value,
            tier=view.tier.value,
            virtual_devices=view.virtual_devices,
            name=view.name,
        ),
        **changes,
    )
