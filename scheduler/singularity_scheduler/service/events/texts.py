"""JSON texts of session documents for lists and events, made once per change, whoever reads them.

What is large is left out there: a page has up to 1000 sessions, and each change of one is an event.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.administration import NodeMark
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import BatchRun
from singularity_scheduler.service.schemas.documents import (
    may_wait,
    queue_document,
    run_document,
    session_document,
)
from singularity_scheduler.service.schemas.sessions import LONGEST_PART

MAX_BYTES = 16 << 20
"""Memory for texts that are kept."""


class _Made(NamedTuple):
    """A text, and the values that it was made from: it counts while these are still the ones."""

    about: tuple[SessionView, Parameters, NodeMark | None]
    text: str

    @property
    def size(self) -> int:
        """Bytes: all of it is ASCII, and keeping the text keeps what the view holds."""
        run = self.about[0].run
        if run is None:
            return len(self.text)
        kept = (run.parameters, run.variables, run.metadata, run.command)
        return len(self.text) + sum(map(len, kept))


class Texts:
    """A view never changes, so its text does not either, as long as administrators say nothing
    new; only the place in the queue does."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._made: OrderedDict[str, _Made] = OrderedDict()
        self._bytes = 0

    def session(self, view: SessionView) -> str:
        """What `documents.session_document` has, shortened, as JSON."""
        if view.id in self._state.progress:  # it changes without the session, for a moment
            return json.dumps(self._document(view))
        made = self._made.get(view.id)
        about = (view, self._state.parameters, self._duty(view))
        if made is None or any(a is not b for a, b in zip(made.about, about, strict=True)):
            document = self._document(view)
            if may_wait(view):
                del document["queue"]
            made = _Made(about, json.dumps(document))
            self._keep(view.id, made)
        if not may_wait(view):
            return made.text
        queue = json.dumps(queue_document(self._state, view))
        return f'{made.text[:-1]}, "queue": {queue}}}'

    def _document(self, view: SessionView) -> dict[str, Any]:
        document = session_document(self._state, view, short_run)
        if len(view.recorded) > LONGEST_PART:
            document["recorded"] = None
        return document

    def _duty(self, view: SessionView) -> NodeMark | None:
        node = self._state.nodes.get(view.node)
        return node.duty if node else None

    def sessions(self, views: Iterable[SessionView]) -> str:
        """A JSON list of them."""
        return f"[{', '.join(map(self.session, views))}]"

    def _keep(self, session: str, made: _Made) -> None:
        before = self._made.pop(session, None)
        if before:
            self._bytes -= before.size
        self._made[session] = made
        self._bytes += made.size
        while self._bytes > MAX_BYTES:
            _, gone = self._made.popitem(last=False)
            self._bytes -= gone.size


@functools.lru_cache(256)
def short_run(run: BatchRun) -> dict[str, Any]:
    """A run's document for a list: null for what makes it long. Callers must not change it: each
    change of its session shows it again."""
    return {key: None if _long(value) else value for key, value in run_document(run).items()}


def _long(value: Any) -> bool:
    return isinstance(value, dict | list) and len(json.dumps(value)) > LONGEST_PART
