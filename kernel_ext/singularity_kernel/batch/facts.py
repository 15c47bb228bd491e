"""What an output notebook says about the session that made it: ``metadata.singularity``."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.rpc import SyncPeer

from .loop import on_own_loop

PREEMPTIONS = frozenset({"preempt.idle", "preempt.tier", "user.preempt"})
"""Rules of the scheduler that take devices away from a session."""

ANSWER_S = 5.0
HISTORY = 1000
"""Changes looked at: as many as one call answers."""


def session_facts() -> dict[str, Any]:
    """Session id, tier, number of devices and preemptions so far, asked over the session's socket;
    what nobody answers stays None. Called at the start and at the end of a run."""
    facts: dict[str, Any] = {
        "session": os.environ.get("SINGULARITY_SESSION"),
        "tier": None,
        "devices": None,
        "preemptions": None,
    }
    path = os.environ.get("SINGULARITY_SOCKET")
    if not path:
        return facts
    try:
        with SyncPeer(path, timeout=ANSWER_S) as peer:
            status = peer.call("status")
            facts["tier"] = status.get("tier")
            facts["devices"] = status.get("virtual_devices")
            answer = peer.call("history", limit=HISTORY)
    except (SingularityError, OSError, ValueError):
        return facts  # the run goes on without its scheduler
    facts["preemptions"] = preemptions(answer["history"] if isinstance(answer, dict) else answer)
    return facts


def preemptions(history: list[dict[str, Any]]) -> int:
    """How often devices were taken away."""
    return sum(1 for change in history if change.get("rule") in PREEMPTIONS)


def asked_facts(session: str | None) -> dict[str, Any]:
    """The same for a kernel that is a session of its own, asked of the scheduler; `session` None:
    it has not started."""
    facts: dict[str, Any] = dict.fromkeys(("session", "tier", "devices", "preemptions"))
    if session is None:
        return facts
    facts["session"] = session
    with contextlib.suppress(SingularityError):
        on_own_loop(lambda: _ask(session, facts))
    return facts


async def _ask(session: str, facts: dict[str, Any]) -> None:
    from singularity_scheduler.client import ServiceClient

    service = ServiceClient.from_environment()
    known = await service.get_session(session)
    facts["tier"], facts["devices"] = known["tier"], known["virtual_devices"]
    facts["preemptions"] = preemptions(await service.history(session, limit=HISTORY))
