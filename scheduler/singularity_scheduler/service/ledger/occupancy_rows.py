"""How many devices sessions had and waited for over time, from the ledger's transitions.

The database sums: what is read does not grow with the number of transitions. Called by
`Ledger.look`; what the sums mean is worked out by `dashboard.series`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Integer,
    and_,
    case,
    cast,
    func,
    or_,
    select,
)

from singularity_scheduler.core.values.states import DeviceState, ProcessState

from .tables import sessions, transitions

_SERVED = (DeviceState.HELD.value, DeviceState.RESIZING.value)

BEFORE = -1
"""The bucket of everything before the start."""


@dataclass(frozen=True)
class Shift:
    """What changed in one bucket of time for one tier. One that shares a device has all of it in
    its turns, and waits for all of it between them."""

    tier: str
    bucket: int
    served: float
    """Devices that sessions got, less those that they lost."""
    served_at: float
    """The same, each times the seconds from the start to when it happened."""
    waiting: float
    """Devices that sessions began to wait for, less those that they do not wait for any more."""
    waiting_at: float
    taken: int
    """How often a rule took devices from a session."""


def read_shifts(connection: Connection, start: float, width_s: float, until: float) -> list[Shift]:
    """The changes of all sessions that were active after `start`, in buckets of `width_s` seconds;
    nothing after `until`. A session counts for the tier and the devices that it has now."""
    inner = _steps(start, until)
    c = inner.c
    gained = {kind: _gained(c, kind) for kind in ("served", "waiting")}
    at = c.at - start
    whole = at / width_s
    floor = cast(whole if connection.dialect.name == "sqlite" else func.floor(whole), Integer)
    bucket = case((c.at < start, BEFORE), else_=floor).label("bucket")
    since = case((c.at < start, 0.0), else_=at)
    query = (
        select(
            c.tier,
            bucket,
            func.sum(gained["served"]),
            func.sum(gained["served"] * since),
            func.sum(gained["waiting"]),
            func.sum(gained["waiting"] * since),
            func.sum(case((c.rule.like("preempt.%"), 1), else_=0)),
        )
        .group_by(c.tier, bucket)
        .order_by(c.tier, bucket)
    )
    return [Shift(*_plain(row)) for row in connection.execute(query)]


def _steps(start: float, until: float) -> Any:
    """Each transition with what its session was before it."""
    t, s = transitions.c, sessions.c
    live = t.process_state == ProcessState.LIVE.value
    kind = case(
        (and_(live, t.device_state.in_(_SERVED)), "served"),
        (t.process_state == ProcessState.QUEUED.value, "waiting"),
        (
            and_(
                live,
                t.device_state.in_([DeviceState.WAITING.value, DeviceState.ATTACHING.value]),
            ),
            "waiting",
        ),
        else_="",
    )
    before = func.coalesce(func.lag(kind).over(partition_by=t.session, order_by=t.n), "")
    amount = cast(func.coalesce(t.devices, s.virtual_devices), Float)
    lagged = func.lag(amount).over(partition_by=t.session, order_by=t.n)
    until_then = func.coalesce(lagged, 0.0)
    return (
        select(
            s.tier,
            t.at,
            t.rule,
            kind.label("kind"),
            before.label("before"),
            amount.label("amount"),
            until_then.label("until_then"),
        )
        .join(sessions, s.id == t.session)
        .where(or_(s.ended.is_(False), s.updated_at >= start), t.at <= until)
        .subquery()
    )


def _gained(c: Any, kind: str) -> ColumnElement[float]:
    now, then = (case((column == kind, 1.0), else_=0.0) for column in (c.kind, c.before))
    gained: ColumnElement[float] = c.amount * now - c.until_then * then
    return gained


def _plain(row: Any) -> tuple[str, int, float, float, float, float, int]:
    tier, bucket, *sums, taken = row
    served, served_at, waiting, waiting_at = (float(value) for value in sums)
    return tier, int(bucket), served, served_at, waiting, waiting_at, int(taken)
