"""Elastic sessions in whatever order people, kernels, agents and the clock come: hypothesis looks
for one that breaks a promise about numbers of devices.

The number of virtual devices never changes, the number of physical ones stays between one and that,
and among those that the scale policy names; no device is leased twice (`World.do` checks that and
the other invariants after every event); a resize during a resize is refused and changes nothing.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable
from singularity_scheduler.core.moves.scaling import allowed
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind, ScalePolicy, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState
from support import matrix
from support.scheduler_core import AT_ONCE, World, devices_of, facts, outcome

NODE = "local"
INTERVAL_S = 30.0
GRACE_S = 10.0
CHANGING = (DeviceState.RESIZING, DeviceState.ATTACHING, DeviceState.PARKING)


@st.composite
def policies(draw: st.DrawFn, devices: int) -> ScalePolicy | None:
    """Of a session with so many virtual devices; None: it is not elastic."""
    if draw(st.sampled_from((False, False, True))):
        return None
    least = draw(st.integers(1, devices))
    interval = draw(st.sampled_from((None, 0.0, 60.0)))
    if draw(st.booleans()):
        return ScalePolicy(least, devices, interval_s=interval)
    counts = sorted({least, *draw(st.sets(st.integers(least, devices), max_size=3))})
    return ScalePolicy(least, counts[-1], tuple(counts), interval_s=interval)


class Watched(World):
    """Looks at every resize that is commanded, whatever it follows from."""

    def do(self, event: ev.Event) -> ev.Decision:
        before = dict(self.state.sessions)
        decision = super().do(event)
        for view in decision.sessions:
            if view.id in before:
                assert view.virtual_devices == before[view.id].virtual_devices
        for action in decision.actions:
            if isinstance(action, ev.Resize):
                self.is_right(action, before[action.session], event)
        return decision

    def is_right(self, action: ev.Resize, before: SessionView, event: ev.Event) -> None:
        """Whether the scheduler, or who asked, may have this changed now."""
        had, gets = set(before.physical), set(action.devices)
        assert len(action.devices) == before.virtual_devices
        assert 1 <= len(gets) <= before.virtual_devices
        assert action.epoch == before.epoch + 1 or action.rule == "recover"
        after = self[action.session]
        if action.rule == "grow":
            assert had < gets
            # It may begin to work with this very event.
            assert not (after.idle and after.unused_since != 0.0)
        elif action.rule == "shrink":
            assert gets < had
            assert before.scale is not None
            assert len(gets) >= before.scale.least
        # Who asks for more than there is gets at once what there is.
        asked = isinstance(event, ev.ResizeAsked)
        if action.rule in ("grow", "shrink") and before.scaled_at is not None and not asked:
            own = before.scale.interval_s if before.scale else None
            waited = self.now - before.scaled_at >= (INTERVAL_S if own is None else own)
            woken = after.woken_at is not None and after.woken_at > before.scaled_at
            assert waited or (woken and action.rule == "grow")


class ResizingMachine(RuleBasedStateMachine):
    """One node; elastic sessions and others."""

    @initialize(devices=st.integers(2, 6), data=st.data())
    def build(self, devices: int, data: st.DataObject) -> None:
        self.devices = devices
        self.world = Watched(
            devices,
            parameters=AT_ONCE.changed(scale_interval_s=INTERVAL_S, idle_grace_s=GRACE_S),
        )
        self.virtual: dict[str, int] = {}
        """Session -> the number of its virtual devices when it was created."""
        for _ in range(3):
            self.comes(data)
        self.world.answer()

    def comes(self, data: st.DataObject) -> None:
        """Somebody starts a session and runs a cell that needs devices."""
        devices = data.draw(st.sampled_from((4, 4, 3, 2, 1)), label="virtual devices")
        scale = data.draw(policies(devices), label="policy")
        tier = data.draw(st.sampled_from(Tier), label="tier")
        sid = f"s{len(self.virtual):03}"
        spec = SessionSpec(Kind.INTERACTIVE, tier, devices, scale=scale)
        event = ev.SessionCreated(sid, "alice", spec)
        self.virtual[sid] = devices
        if spec.needs > self.devices:
            with pytest.raises(BadRequest):
                self.world.do(event)
            return
        self.world.do(event)
        self.world.answer(ev.Start)
        self.world.do(ev.Activity(sid, True, self.world.now))
        self.world.do(ev.DeviceNeeded(sid))

    # -- telling ----------------------------------------------------------------------------

    def asked(self, event: ev.Event) -> bool:
        """What people ask may be refused, and then nothing has changed."""
        try:
            self.world.do(event)
        except (Conflict, NotFound, Unavailable):
            return False
        return True

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.state.sessions)), label="session")

    def some(self) -> bool:
        return bool(self.world.state.sessions)

    # -- what happens -----------------------------------------------------------------------

    @precondition(lambda self: len(self.world.state.sessions) < 5)
    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        self.comes(data)

    @precondition(some)
    @rule(data=st.data(), calls=st.booleans(), settled=st.booleans())
    def a_cell_begins(self, data: st.DataObject, calls: bool, settled: bool) -> None:
        if settled:
            self.world.answer()
        sid = self.pick(data)
        self.world.do(ev.Activity(sid, True, self.world.now))
        if calls:
            self.world.do(ev.DeviceNeeded(sid))

    @precondition(some)
    @rule(data=st.data())
    def a_cell_ends(self, data: st.DataObject) -> None:
        self.world.do(ev.Activity(self.pick(data), False, self.world.now))

    @precondition(some)
    @rule(data=st.data(), quiet=st.booleans())
    def devices_are_quiet(self, data: st.DataObject, quiet: bool) -> None:
        self.world.do(ev.DeviceUse(self.pick(data), self.world.now if quiet else 0.0))

    @precondition(some)
    @rule(data=st.data(), count=st.integers(0, 5), settled=st.booleans())
    def resize(self, data: st.DataObject, count: int, settled: bool) -> None:
        """Refused with its reason, or done, or remembered until it can be done. `settled`: asked of
        those whose agent has answered."""
        if settled:
            self.world.answer()
        sid = self.pick(data)
        before = self.world[sid]
        event = ev.ResizeAsked(sid, "alice", count)
        node = self.world.state.node(NODE)
        refused = (
            count not in allowed(before)
            or not 1 <= count <= before.virtual_devices
            or 0 < len(node.devices) < count
        )
        if before.final:
            assert not self.asked(event)
        elif refused:
            with pytest.raises((BadRequest, Conflict)):
                self.world.do(event)
        elif before.device_state in CHANGING:
            resizing = before.device_state is DeviceState.RESIZING
            what = "is being resized right now" if resizing else "is changing devices right now"
            with pytest.raises(Conflict, match=what):
                self.world.do(event)
        elif self.asked(event):
            after = self.world[sid]
            assert after.most == count
            if before.device_state is DeviceState.HELD and count < len(before.physical):
                assert len(set(after.resizing)) == count
                assert set(after.resizing) < set(before.physical)
        if not (refused or self.world[sid] != before):
            assert self.world[sid].epoch == before.epoch

    @precondition(some)
    @rule(data=st.data(), what=st.sampled_from(("park", "resume", "preempt", "migrate", "resume")))
    def person(self, data: st.DataObject, what: str) -> None:
        sid = self.pick(data)
        self.asked(
            {
                "park": ev.ParkAsked(sid, "alice"),
                "resume": ev.ResumeAsked(sid, "alice"),
                "preempt": ev.PreemptAsked(sid, "alice"),
                "migrate": ev.MigrateAsked(sid, "alice"),
            }[what]
        )

    @precondition(lambda self: len(self.world.state.sessions) > 1)
    @rule(data=st.data(), seconds=st.sampled_from((0.0, INTERVAL_S)))
    def somebody_is_done(self, data: st.DataObject, seconds: float) -> None:
        """Devices are free again, soon or long after the others were changed last."""
        self.asked(ev.EndAsked(self.pick(data), "alice"))
        self.world.answer(ev.Park, ev.End)
        self.world.now += seconds
        self.world.do(ev.Tick(NODE))

    @precondition(lambda self: bool(self.world.pending))
    @rule()
    def the_agent_does_it_all(self) -> None:
        self.world.answer()

    @precondition(lambda self: bool(self.world.pending))
    @rule(data=st.data(), fails=st.booleans())
    def agent_answers(self, data: st.DataObject, fails: bool) -> None:
        action = data.draw(st.sampled_from(self.world.pending), label="action")
        self.world.pending.remove(action)
        event = outcome(action)
        if fails and isinstance(action, ev.Resize):
            # 0: it did not fit into their memory; else its ranks hold so many different parts.
            least = data.draw(st.integers(0, len(action.devices)), label="least")
            event = ev.ResizeFailed(action.session, action.epoch, "it cannot be", least)
        elif fails and isinstance(action, ev.Attach):
            event = ev.AttachFailed(action.session, action.epoch, "broken")
        elif fails and isinstance(action, ev.Park):
            event = ev.ParkFailed(action.session, action.epoch, "disk full")
        self.world.do(event)

    @precondition(some)
    @rule(data=st.data(), again=st.booleans())
    def an_old_answer(self, data: st.DataObject, again: bool) -> None:
        """Of a resize that is over: it means nothing."""
        view = self.world[self.pick(data)]
        epoch = view.epoch - 1
        late = ev.Resized(view.id, epoch) if again else ev.ResizeFailed(view.id, epoch, "late", 1)
        self.world.do(late)
        assert self.world.state.sessions[view.id] == view

    @precondition(some)
    @rule(data=st.data(), what=st.sampled_from(("exit", "reap", "lapse", "proxy")))
    def bad_luck(self, data: st.DataObject, what: str) -> None:
        view = self.world[self.pick(data)]
        self.world.do(
            {
                "exit": ev.ProcessExited(view.id, -9),
                "reap": ev.LeaseReaped(view.id, view.epoch, "no answer for 35 s"),
                "lapse": ev.LeaseLapsed(view.id),
                "proxy": ev.ProxyFailed(view.id, "it died twice"),
            }[what]
        )

    @precondition(lambda self: bool(self.world.pending))
    @rule()
    def the_agent_comes_again(self) -> None:
        """With what it knows: of a session in the middle of a resize, what it had or what it was to
        get."""
        self.world.do(ev.NodeAway(NODE))
        known = [facts(self.world[sid]) for sid in sorted(self.world.state.nodes[NODE].sessions)]
        self.world.do(ev.NodeJoined(NODE, devices_of(NODE, self.devices), tuple(known)))

    @rule(seconds=st.sampled_from((0.0, 5.0, GRACE_S, INTERVAL_S, 100.0)))
    def time_goes_on(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.do(ev.Tick(NODE))

    # -- what holds -------------------------------------------------------------------------

    @invariant()
    def numbers_of_devices_are_those_that_are_allowed(self) -> None:
        if not hasattr(self, "world"):
            return
        there = set(self.world.state.node(NODE).devices)
        for view in self.world.state.sessions.values():
            assert view.virtual_devices == self.virtual[view.id]
            if not view.leased:
                assert view.devices == ()
                continue
            assert len(view.devices) == view.virtual_devices
            assert 1 <= len(view.physical) <= view.virtual_devices
            assert set(view.leases) <= there
            if view.scale is not None and view.device_state is DeviceState.HELD:
                assert len(view.physical) in allowed(view)
            if view.resizing:
                assert len(view.resizing) == view.virtual_devices

    @invariant()
    def nothing_is_leased_to_nobody(self) -> None:
        if not hasattr(self, "world"):
            return
        for device, sid in self.world.state.node(NODE).leases.items():
            assert device in self.world[sid].leases

    def teardown(self) -> None:
        """When the agent has answered everything, nobody is on its way, and all numbers are ones
        that may be; when all have ended, no device is leased."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.answer()
        for view in world.state.sessions.values():
            assert view.device_state not in CHANGING
        for sid in sorted(world.state.sessions):
            self.asked(ev.EndAsked(sid, "alice"))
        world.answer()
        assert world.state.sessions == {}
        assert world.state.nodes[NODE].leases == {}


ResizingMachine.TestCase.settings = settings(
    max_examples=120 if matrix.is_full() else 30,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestResizing = ResizingMachine.TestCase
