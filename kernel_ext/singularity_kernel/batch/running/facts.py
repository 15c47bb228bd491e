"""What an output notebook says about the session that made it: ``metadata.singularity``, of the
notebook and of each of its cells."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.rpc import SyncPeer

from singularity_kernel.batch.loop import on_own_loop

PREEMPTIONS = ("preempt.", "user.preempt")
"""How the scheduler's rules begin that take devices away from a session."""

BLOCKED = frozenset({"waiting", "attaching"})
"""Device states in which code that called a device waits for it."""

ANSWER_S = 5.0
HISTORY = 1000
"""Changes looked at: as many as one call answers."""

History = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Facts:
    """What is known of a session; what nobody told is None, and `history` is then empty."""

    session: str | None = None
    tier: str | None = None
    devices: int | None = None
    preemptions: int | None = None
    attempt: int | None = None
    """From 1; of more than one those before were killed."""
    history: History = field(default=(), repr=False)
    """Its newest changes, oldest first."""

    def of_notebook(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "history"}


def session_facts() -> Facts:
    """Of the session that this process is in, asked over the session's socket. Called at the start
    and at the end of a run."""
    session = os.environ.get("SINGULARITY_SESSION")
    path = os.environ.get("SINGULARITY_SOCKET")
    facts = Facts(session)
    if not path:
        return facts
    try:
        with SyncPeer(path, timeout=ANSWER_S) as peer:
            status = peer.call("status")
            facts = _of_document(session, status)
            answer = peer.call("history", limit=HISTORY)
    except (SingularityError, OSError, ValueError):
        return facts  # the run goes on without its scheduler
    history = answer["history"] if isinstance(answer, dict) else answer
    return replace(facts, preemptions=preemptions(history), history=history)


def _of_document(session: str | None, told: dict[str, Any]) -> Facts:
    attempt = told.get("attempt")
    return Facts(session, told.get("tier"), told.get("virtual_devices"), attempt=attempt)


def asked_facts(session: str | None) -> Facts:
    """The same for a kernel that is a session of its own, asked of the scheduler; `session` None:
    it has not started."""
    found = [Facts(session)]
    if session is not None:
        with contextlib.suppress(SingularityError):
            on_own_loop(lambda: _ask(session, found))
    return found[-1]


async def _ask(session: str, found: list[Facts]) -> None:
    from singularity_scheduler.client import ServiceClient

    service = ServiceClient.from_environment()
    facts = _of_document(session, await service.get_session(session))
    found.append(facts)
    history = await service.history(session, limit=HISTORY)
    found.append(replace(facts, preemptions=preemptions(history), history=history))


def preemptions(history: Iterable[dict[str, Any]]) -> int:
    """How often devices were taken away."""
    return sum(1 for change in history if str(change.get("rule")).startswith(PREEMPTIONS))


def of_cell(facts: Facts, start: str, end: str) -> dict[str, Any]:
    """What happened to the session between the ISO times `start` and `end` of a cell: how often it
    was preempted, seconds that its code waited for devices, and seconds that it held devices, times
    their number."""
    begin, until = _seconds(start), _seconds(end)
    changes = [(_seconds(change["at"]), change) for change in facts.history]
    ends = [*(at for at, _ in changes), until][1:]
    waited = held = 0.0
    for (at, change), left in zip(changes, ends, strict=True):
        inside = max(0.0, min(left, until) - max(at, begin))
        waited += inside * (change["device_state"] in BLOCKED)
        held += inside * (change["device_state"] == "held")
    return {
        "preemptions": preemptions(change for at, change in changes if begin <= at < until),
        "waited_s": round(waited, 3),
        "device_s": round(held * (facts.devices or 1), 3),
    }


def _seconds(at: str) -> float:
    time = datetime.fromisoformat(at)
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
