"""One question of a magic to the node agent, also when the kernel is frozen while it waits.

A process image is made without its sockets, so the connection of a cell that asks for a suspend, a
move or a checkpoint is cut: in the kernel that goes on, and in every one that is brought back from
that image later. Whoever finds it cut asks the agent of the node where it is now how things stand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.rpc import ConnectionCut, SyncPeer
from singularity_scheduler.client.words import duration

QUICK_S = 15.0
"""How long `status`, `why` and the lists wait for the answer."""

MOVE_S = 600.0
"""How long the verbs that move state wait; the stop button ends the wait, not the move."""

LISTS = ("status", "why", "history", "checkpoints")

FREEZES = ("suspend", "migrate", "checkpoint", "restore")
"""Verbs during which this very process may be frozen and copied."""

SETTLE_S = 60.0
"""How long a cell whose connection was cut asks before it gives up."""

RETRY_S = 0.2

_GOES_ON = frozenset({"suspend_failed", "not_put_back"})
"""Reasons of a session that goes on because what was asked for could not be done."""


@dataclass(frozen=True)
class CameBack:
    """The connection was cut and this process goes on. `loss`: the report of its return from the
    store since the question was asked; None: it was never away."""

    status: dict[str, Any]
    loss: dict[str, Any] | None
    stored: bool
    """Whether a checkpoint was stored since."""
    away: str
    """How long the cell stood still."""


def ask(
    path: str,
    verb: str,
    arguments: dict[str, Any],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """The agent's answer, or `CameBack`. Raises the typed error of a refusal."""
    asked_at = time.time()
    before: dict[str, Any] = {}
    with SyncPeer(path, timeout=QUICK_S if verb in LISTS else MOVE_S) as peer:
        if verb in FREEZES:
            before = peer.call("status")
        try:
            return peer.call(verb, **arguments)
        except ConnectionCut:
            if verb not in FREEZES:
                raise
    cut = time.monotonic()
    while True:
        try:
            with SyncPeer(path, timeout=QUICK_S) as peer:
                status: dict[str, Any] = peer.call("status")
        except SingularityError:
            if time.monotonic() - cut >= SETTLE_S:
                raise
            sleep(RETRY_S)
            continue
        came = _came_back(status, before, asked_at)
        told = came.loss or (came.stored if verb == "checkpoint" else _said(status))
        if told and status.get("process_state") == "live":
            return came
        if status.get("progress"):  # it is still being written
            cut = time.monotonic()
        elif time.monotonic() - cut >= SETTLE_S:
            return came
        sleep(RETRY_S)


def _came_back(status: dict[str, Any], before: dict[str, Any], asked_at: float) -> CameBack:
    loss, last = status.get("loss"), status.get("last_checkpoint") or {}
    returned = loss if loss and loss != before.get("loss") else None
    stored = bool(last) and last.get("id") != (before.get("last_checkpoint") or {}).get("id")
    return CameBack(status, returned, stored, duration(time.time() - asked_at))


def _said(status: dict[str, Any]) -> bool:
    """Whether the scheduler has said what became of it (a refusal leaves the session live)."""
    return status.get("service") != "away" and status.get("reason_code") in _GOES_ON
