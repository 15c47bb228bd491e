"""Who is served before whom, and by which rule. Pure; for people, nothing is decided on it.

The order of those that wait for devices is that of `turns.line`, that of the others
`SessionView.queue_key`; the names of their parts are here, the most important one first.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.model import SessionView

OF_QUEUE = ("held", "tier", "priority", "first")
"""What the parts of a queue key stand for; its last part only tells sessions apart."""

OF_LINE = (
    *("held", "crowd", "tier", "quota", "guarantee", "starves"),
    *("notebook", "turns", "service", "priority", "first"),
)
"""What the parts of a key of those that wait for devices stand for."""

OF_GROUPS = "group"
"""What lets others of their tier and priority go before members of a group: see `groups`."""

RULES = tuple(dict.fromkeys((*OF_QUEUE, *OF_LINE, OF_GROUPS)))
"""All of them; `text.meanings.PRECEDENCE` says what each means."""


def rule(state: ClusterState, first: SessionView, second: SessionView) -> str:
    """The rule by which `first` goes before `second`, which waits for the same: the first part of
    the order in which they differ."""
    if second.returning or second.pending:
        parts = zip(OF_QUEUE, first.queue_key, second.queue_key, strict=False)
        if second.behind and not first.behind and first.queue_key[:3] == second.queue_key[:3]:
            return OF_GROUPS
    else:
        keys = turns.line(state, second.node)
        parts = zip(OF_LINE, keys[first.id].key, keys[second.id].key, strict=True)
    return next((name for name, a, b in parts if a != b), "first")


def ahead(state: ClusterState, view: SessionView, most: int) -> tuple[int, list[SessionView]]:
    """How many go before a session that waits, and the first `most` of them."""
    number = turns.place(state, view) - 1
    line: Iterable[str]
    if view.returning:
        line = (key[-1] for key in state.returning)
    elif view.pending:
        line = (key[-1] for key in state.nodes[view.node].pending)
    else:
        line = turns.line(state, view.node)
    return number, [state.sessions[sid] for sid in islice(line, min(number, most))]
