"""JSON texts of session documents, made once per change however many read them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable

from singularity_scheduler.core.cluster import ClusterState
from singularity_scheduler.core.model import SessionView

from .documents import may_wait, queue_document, session_document

KEEP = 10_000
"""Texts kept in memory, about 1 KiB each."""


class Texts:
    """A view never changes, so its text does not either; only the place in the queue does."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._made: OrderedDict[str, tuple[SessionView, str]] = OrderedDict()

    def session(self, view: SessionView) -> str:
        """What `documents.session_document` has, as JSON."""
        made = self._made.get(view.id)
        if made is None or made[0] is not view:
            document = session_document(self._state, view)
            if may_wait(view):
                del document["queue"]
            made = view, json.dumps(document)
            self._made[view.id] = made
            if len(self._made) > KEEP:
                self._made.popitem(last=False)
        if not may_wait(view):
            return made[1]
        queue = json.dumps(queue_document(self._state, view))
        return f'{made[1][:-1]}, "queue": {queue}}}'

    def sessions(self, views: Iterable[SessionView]) -> str:
        """A JSON list of them."""
        return f"[{', '.join(map(self.session, views))}]"
