"""Values that runs record while they go on: a loss, an accuracy, the name of a file. Pure.

A session has one value for each name: the last. They are small and few (see `client.values`), so
that all of them can be with the session; what is larger belongs into the output of a run. Part of
`decide` (see `policy`).
"""

from __future__ import annotations

import json
from dataclasses import replace

from singularity_scheduler.client.values import Values, kept
from singularity_scheduler.core.state.draft import Draft

from . import events as ev
from .model import SessionView


def told(draft: Draft, event: ev.Recorded) -> None:
    """A node says what a session of it recorded."""
    view = draft.get(event.session)
    if view is not None:
        take(draft, view, event.values)


def take(draft: Draft, view: SessionView, values: Values) -> SessionView:
    """Keep these values of a session; it may be over, its last values come then."""
    before = json.loads(view.recorded)
    found, _ = kept(before, values)
    if found == before:
        return view
    return draft.put(replace(view, recorded=json.dumps(found)))
