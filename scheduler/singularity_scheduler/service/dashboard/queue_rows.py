"""Who waits, in what order, why, and when it is expected; sessions as rows of a table, and what is
offered to do with them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from singularity_scheduler.client.words import duration, size
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain.estimate import estimate, waited_s
from singularity_scheduler.explain.why import text
from singularity_scheduler.model.buttons import CANCEL, Button
from singularity_scheduler.model.verbs import BY_NAME
from singularity_scheduler.service.schemas.documents import may_wait, queue_document, undo_document
from singularity_scheduler.text.phrases import span

ROWS_PER_PAGE = 50


@dataclass(frozen=True)
class Waiting:
    """One that waits for devices, to be started or to come back."""

    view: SessionView
    place: int
    """Among those that wait where it does."""
    waited_s: float
    why: str
    expected: str
    """ "in 20 s to 3 min"; "not known" where nobody can say."""


@dataclass(frozen=True)
class Queue:
    """A page of it."""

    rows: tuple[Waiting, ...]
    found: int
    page: int
    pages: int
    of_tier: dict[str, int]
    """tier -> how many of it wait"""
    devices: dict[str, int]
    """tier -> devices that they ask for"""
    held_back: int
    """Those that somebody has preempted and nobody resumed."""


def queue(
    state: ClusterState, now: float, user: str | None = None, page: int = 1, tier: str = ""
) -> Queue:
    """Those of a user (None: of everybody) and of a tier ("": of any), higher tiers first, within
    one the longest wait first. Reasons and estimates are worked out for one page alone."""
    views = [v for v in state.sessions.values() if user in (None, v.user)]
    waiting = _those_who_wait(views)
    devices = {t.value: 0 for t in Tier}
    for view in waiting:
        devices[view.tier.value] += view.virtual_devices
    fitting = [v for v in waiting if tier in ("", v.tier.value)]
    fitting.sort(key=lambda v: (-v.tier.rank, -v.priority.rank, v.waiting_since or v.updated_at))
    pages = max(1, -(-len(fitting) // ROWS_PER_PAGE))
    page = min(max(page, 1), pages)
    shown = fitting[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE]
    return Queue(
        tuple(_waiting(state, view, now) for view in shown),
        len(fitting),
        page,
        pages,
        _by_tier(waiting),
        devices,
        sum(v.held_back and not v.final for v in views),
    )


def waiting_by_tier(state: ClusterState, user: str | None = None) -> dict[str, int]:
    """tier -> how many of it wait, of a user (None: of everybody)."""
    return _by_tier(_those_who_wait(v for v in state.sessions.values() if user in (None, v.user)))


def _those_who_wait(views: Iterable[SessionView]) -> list[SessionView]:
    return [view for view in views if may_wait(view) and not view.final]


def _by_tier(views: Iterable[SessionView]) -> dict[str, int]:
    counts = Counter(view.tier.value for view in views)
    return {tier.value: counts[tier.value] for tier in Tier}


def _waiting(state: ClusterState, view: SessionView, now: float) -> Waiting:
    place = queue_document(state, view)
    return Waiting(
        view,
        place["place"] if place else 0,
        waited_s(state, view, now),
        text(state, view, now)[0],
        expected(state, view, now),
    )


def expected(state: ClusterState, view: SessionView, now: float) -> str:
    """When it has what it waits for; "" for one that waits for nothing."""
    found = estimate(state, view, now)
    if found is None:
        return ""
    if found.low_s is None or found.high_s is None:
        return "not known"
    return f"in {span(found.low_s, found.high_s)}"


@dataclass(frozen=True)
class SessionRow:
    """A session in a table."""

    view: SessionView
    where: str
    """Its devices, or what it has instead."""
    why: str
    expected: str
    place: int | None
    checkpoint: str
    undo: bool
    """Whether its end can be taken back."""


def session_row(state: ClusterState, view: SessionView, now: float) -> SessionRow:
    """Of an ended session too."""
    place = queue_document(state, view)
    where = ", ".join(view.physical)
    if 0 < len(view.physical) < view.virtual_devices:
        where += f" for {view.virtual_devices} virtual"
    checkpoint = view.last_checkpoint
    stored = ""
    if checkpoint is not None:
        named = f'"{checkpoint.name}", ' if checkpoint.name else ""
        stored = f"{named}{duration(max(0.0, now - checkpoint.at))} ago, {size(checkpoint.bytes)}"
        if checkpoint.proof_fault:
            stored += f", could not be proved: {checkpoint.proof_fault}"
        elif checkpoint.proved_at is not None:
            stored += f", proved {duration(max(0.0, now - checkpoint.proved_at))} ago"
    return SessionRow(
        view,
        f"{view.node} {where}" if where else "",
        text(state, view, now)[0],
        expected(state, view, now) if may_wait(view) else "",
        place["place"] if place else None,
        stored,
        undo_document(view) is not None,
    )


END = "end"
SESSION_ASKS: dict[str, Button] = {
    **{name: button for name in ("resume", "suspend", "park") if (button := BY_NAME[name].button)},
    END: CANCEL,
}
"""What the page of a session offers, in order, in the words that JupyterLab has for it."""


def list_offered(view: SessionView) -> list[str]:
    """Return what makes sense for a session as it is; the scheduler has the last word."""
    live = view.process_state is ProcessState.LIVE
    away = view.device_state in (DeviceState.NONE, DeviceState.PARKED)
    fits = {
        "resume": view.held_back or view.process_state is ProcessState.SUSPENDED or (live and away),
        "suspend": live,
        "park": live and view.device_state is DeviceState.HELD,
        END: not view.final,
    }
    return [verb for verb in SESSION_ASKS if fits[verb]]
