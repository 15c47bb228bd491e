"""What waits and moves have taken so far, and what was taken from whom. Pure.

Fed with lines of history, live and after a restart with those that the ledger has. Only shown:
nothing is decided on it, so it may forget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.values.model import Change, SessionView
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import FINAL, DeviceState, ProcessState

from .decision import Decision

KEPT = 50
"""How many of the newest are kept of each kind."""


class Wait(str, Enum):
    """What a session waits for until others make room."""

    START = "start"
    DEVICES = "devices"
    RETURN = "return"


class Step(str, Enum):
    """What takes its time on a node, whoever else is there."""

    LAUNCH = "launch"
    ATTACH = "attach"
    PARK = "park"
    SUSPEND = "suspend"
    RESUME = "resume"


TAKES = frozenset(
    {
        *(rule for rule in RULES if rule.startswith("preempt.")),
        "idle.reclaim",
        "place.defragment",
        "place.elsewhere",
        "user.park",
        "user.preempt",
        "user.suspend",
        "node.drain",
        "node.notice",
        "node.lost",
        "device.drained",
        "lease.lapsed",
        "proxy.set_down",
        "lease.reaped",
        "agent.restarted",
    }
)
"""Rules by which a session loses its devices, or its node."""

_GOING = (ProcessState.SUSPENDING, ProcessState.SUSPENDED)
_LEAVING = (DeviceState.PARKING, DeviceState.PARKED)

_RETURNS = frozenset({"user.resume", "session.wanted", "queue.return", "user.fork", "node.lost"})
"""Rules after which a suspended session waits for a node."""

_OWN_WAY = frozenset({"user.migrate", "device.drained"})
"""Rules of waits that say nothing about those of others: it keeps its place, or names a device."""


@dataclass(frozen=True)
class Taken:
    """What a session lost last and has not got back."""

    at: float
    rule: str
    why: Reason
    """What happened, and for whom."""
    process: bool
    """Whether it lost its node, and not only its devices."""


@dataclass(frozen=True)
class Of:
    """What of a session counts here, at the time of a line of its history."""

    tier: str
    devices: int
    node: str
    """"": nobody knows; then how long it took there says nothing."""
    called: bool = False
    """Suspended and to come back as soon as there is room; False when nobody knows."""


@dataclass(frozen=True)
class _Since:
    what: Wait | Step
    at: float
    node: str


class Experience:
    """Of one cluster."""

    def __init__(self) -> None:
        self.taken: dict[str, Taken] = {}
        self._waits: dict[tuple[Wait, str, int], deque[float]] = {}
        self._steps: dict[tuple[Step, str], deque[float]] = {}
        self._since: dict[str, _Since] = {}
        self._held: set[str] = set()

    # -- asking ---------------------------------------------------------------------------

    def waits(self, what: Wait, tier: str, devices: int) -> tuple[float, ...]:
        """Seconds of the newest waits of sessions of this tier for so many devices."""
        return tuple(self._waits.get((what, tier, devices), ()))

    def steps(self, what: Step, node: str) -> tuple[float, ...]:
        """Seconds of the newest ones on this node."""
        return tuple(self._steps.get((what, node), ()))

    def since(self, session: str, what: Wait | Step) -> float | None:
        """Since when the session does this; None: it does not, or nobody saw it begin."""
        found = self._since.get(session)
        return found.at if found and found.what is what else None

    # -- learning -------------------------------------------------------------------------

    def learn(self, decision: Decision) -> None:
        """Take in what a decision tells."""
        views = {view.id: view for view in decision.sessions}
        for change in decision.history:
            if view := views.get(change.session):
                self.see(change, of(view))

    def replay(self, lines: Iterable[tuple[Change, Of]]) -> None:
        """Take in what the ledger has of the past, oldest first; into an empty one."""
        for change, about in lines:
            self.see(change, about)

    def see(self, change: Change, about: Of) -> None:
        """Take in one line of history."""
        session = change.session
        if change.rule == "user.preempt":
            self._held.add(session)
        elif change.rule == "user.resume":
            self._held.discard(session)
        self._follow(change, about)
        if change.process_state in FINAL:
            self.taken.pop(session, None)
            self._held.discard(session)
        elif change.device_state is DeviceState.HELD and change.process_state not in _GOING:
            self.taken.pop(session, None)
        elif change.rule in TAKES:
            gone = change.process_state in _GOING
            if gone or change.device_state in _LEAVING:
                self.taken[session] = Taken(change.at, change.rule, change.why.root, gone)

    def _follow(self, change: Change, about: Of) -> None:
        now, before = self._doing(change, about), self._since.get(change.session)
        if before is not None and before.what is now:
            return
        if before is not None and _is_done(before.what, change):
            self._keep(before, change.at - before.at, about)
        if now is None:
            self._since.pop(change.session, None)
        else:
            self._since[change.session] = _Since(now, change.at, about.node)

    def _keep(self, done: _Since, seconds: float, about: Of) -> None:
        if isinstance(done.what, Step):
            if not done.node:
                return
            kept = self._steps.setdefault((done.what, done.node), deque(maxlen=KEPT))
            kept.append(max(0.0, seconds))
        elif seconds > 0:  # who found free devices has not waited
            key = (done.what, about.tier, about.devices)
            self._waits.setdefault(key, deque(maxlen=KEPT)).append(seconds)

    def _doing(self, change: Change, about: Of) -> Wait | Step | None:
        process, device = change.process_state, change.device_state
        held = change.session in self._held
        if process in _PROCESS_STEPS:
            return _PROCESS_STEPS[process]
        if process is ProcessState.QUEUED:
            return None if held else Wait.START
        if process is ProcessState.SUSPENDED:
            return Wait.RETURN if (about.called or change.rule in _RETURNS) and not held else None
        if process in FINAL:
            return None
        if device is DeviceState.WAITING:
            return None if held or change.rule in _OWN_WAY else Wait.DEVICES
        return _DEVICE_STEPS.get(device)


_PROCESS_STEPS = {
    ProcessState.STARTING: Step.LAUNCH,
    ProcessState.SUSPENDING: Step.SUSPEND,
    ProcessState.RESUMING: Step.RESUME,
}
_DEVICE_STEPS = {DeviceState.ATTACHING: Step.ATTACH, DeviceState.PARKING: Step.PARK}


def _is_done(what: Wait | Step, change: Change) -> bool:
    """Whether this line is the good end of it."""
    process, device = change.process_state, change.device_state
    if what is Wait.START:
        return process is ProcessState.STARTING
    if what is Wait.DEVICES:
        return device is DeviceState.ATTACHING
    if what is Wait.RETURN:
        return process is ProcessState.RESUMING
    if what is Step.ATTACH:
        return device is DeviceState.HELD
    if what is Step.PARK:
        return device is DeviceState.PARKED
    if what is Step.SUSPEND:
        return process is ProcessState.SUSPENDED
    return process is ProcessState.LIVE


def placed(lines: Iterable[tuple[Change, Of]]) -> list[tuple[Change, Of]]:
    """`lines` of a ledger, the newest first, that say where each session is today; those from
    before it came back from the store say nothing any more: it may have been on another node."""
    later: dict[str, ProcessState] = {}
    moved: set[str] = set()
    found = []
    for change, about in lines:
        session, now = change.session, change.process_state
        both = {now, later.get(session, now)}
        if ProcessState.RESUMING in both and both & set(_GOING):
            moved.add(session)
        later[session] = now
        found.append((change, replace(about, node="") if session in moved else about))
    return found


def of(view: SessionView) -> Of:
    """What counts of a session as it is now."""
    return Of(view.tier.value, view.virtual_devices, view.node, view.called)
