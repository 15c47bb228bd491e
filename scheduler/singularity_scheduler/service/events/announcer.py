"""From durable decisions to the events that listeners read. Observes the controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from singularity_scheduler.core.state.cluster import ClusterState, Node
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessState

from .feed import Feed
from .texts import Texts

QUEUE_S = 0.1
"""Changes of the queues are told together, this long after the first."""


NOBODY = ""
"""No user's name: the event is for administrators alone."""


class Announcer:
    """A "session" event for each changed session at once; a "queue" event, a moment later, with
    the new places of the sessions that moved up or down because of others; a "cluster" event, for
    administrators, when nodes, devices or settings changed."""

    def __init__(self, state: ClusterState, feed: Feed, texts: Texts) -> None:
        self._state = state
        self._feed = feed
        self._texts = texts
        self._places: dict[str, dict[str, int]] = {}
        self._touched: set[str] = set()
        self._later: asyncio.TimerHandle | None = None

    def __call__(self, decision: Decision) -> None:
        for view in decision.sessions:
            self._feed.add(view.user, "session", self._texts.session(view))
            self._touched.add(view.node)
        if decision.administered:
            changed = {view.id for view in decision.sessions}
            for view in self._replanned(decision):
                if view.id not in changed:
                    self._feed.add(view.user, "session", self._texts.session(view))
        if decision.node is not None or decision.marks or decision.administered:
            self._feed.add(NOBODY, "cluster", "{}")
        if self._touched and self._later is None:
            self._later = asyncio.get_running_loop().call_later(QUEUE_S, self._tell_places)

    def _replanned(self, decision: Decision) -> Iterator[SessionView]:
        """Sessions that did not change, but what is planned for them may have."""
        sessions = self._state.sessions
        for mark in decision.node_marks:
            for session in sorted(self._state.nodes[mark.node].sessions):
                if sessions[session].process_state is ProcessState.LIVE:
                    yield sessions[session]
        for node in self._state.nodes.values() if decision.settings else ():
            for session in sorted(node.kept.union(node.leases.values())):
                view = sessions[session]
                if view.quiet_since is not None or view.keep_until is not None:
                    yield view

    def progress(self, view: SessionView) -> None:
        """How far the transfer of a session is has changed; null: it is over."""
        data = {"session": view.id, "progress": self._state.progress.get(view.id)}
        self._feed.add(view.user, "progress", json.dumps(data))

    def devices(self, view: SessionView, document: dict[str, Any]) -> None:
        """What the devices of a session do has changed; none: it has no devices any more."""
        self._feed.add(view.user, "devices", json.dumps(document))

    def close(self) -> None:
        if self._later:
            self._later.cancel()

    def _tell_places(self) -> None:
        self._later = None
        moved: dict[str, int] = {}
        for name in self._touched:
            node = self._state.nodes.get(name)
            places = dict(_places(self._state, node)) if node else {}
            before = self._places.get(name, {})
            moved |= {s: n for s, n in places.items() if before.get(s) != n}
            self._places[name] = places
        self._touched.clear()
        if moved:
            sessions = self._state.sessions
            self._feed.add_places({s: (sessions[s].user, n) for s, n in moved.items()})


def _places(state: ClusterState, node: Node) -> Iterator[tuple[str, int]]:
    for line in (turns.line(state, node.id), [key[-1] for key in node.pending]):
        for number, session in enumerate(line, 1):
            if not state.sessions[session].held_back:
                yield session, number
