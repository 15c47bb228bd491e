"""The words for what can be done with a session: on its own socket, in notebooks and in the API."""

from __future__ import annotations

from singularity_scheduler.model import verbs

CHANGES = verbs.CHANGES
"""Each of them is also an operation of the API."""

VERBS = ("status", *CHANGES, "fork", "checkpoints", "why", "history")
"""What a session may ask for itself, over its socket (`%singularity`)."""

RUNS = ("submit", "run")
"""What a session may ask besides, over its socket: start a batch run of its user, and how a run is
that it started."""
