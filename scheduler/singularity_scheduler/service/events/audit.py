"""Events for others (jupyter_events): each change of a session, of a node, and who asked for what.

The schemas are in `singularity_scheduler.client.schemas`, so that the JupyterLab extension emits
the same ones.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from jupyter_events import EventLogger
from singularity_proxy.errors import SingularityError, Unavailable

from singularity_scheduler.client.schemas import (
    ADMIN_CHANGE,
    NODE_STATE,
    SCHEMAS,
    SESSION_REQUEST,
    SESSION_STATE,
)
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.explain.facts import reason_facts
from singularity_scheduler.service.schemas.documents import iso
from singularity_scheduler.text.reasons import render_change, render_words

log = logging.getLogger("singularity.service")


class Audit:
    """Emits through `logger`; nothing is made while it has no handler."""

    def __init__(self, logger: EventLogger, state: ClusterState) -> None:
        self.logger = logger
        self._state = state
        for path in SCHEMAS.values():
            logger.register_event_schema(path)

    def decided(self, decision: Decision) -> None:
        """Observes the controller."""
        if not self.logger.handlers:
            return
        views = {view.id: view for view in decision.sessions}
        for change in decision.history:
            view = views.get(change.session) or self._state.sessions.get(change.session)
            if view is None:
                continue
            self._emit(
                SESSION_STATE,
                {
                    "session": view.id,
                    "user": view.user,
                    "name": view.name,
                    "kind": view.kind.value,
                    "tier": view.tier.value,
                    "node": view.node,
                    "state": change.word,
                    "process_state": change.process_state.value,
                    "device_state": change.device_state.value,
                    "reason": render_change(change),
                    **reason_facts(change.why),
                    "rule": change.rule,
                    "at": iso(change.at),
                },
            )
        for order in decision.orders:
            told = {**vars(order), "reason": render_words(order.reason), "at": iso(order.at)}
            self._emit(ADMIN_CHANGE, told)
        if decision.node is not None and decision.node in self._state.nodes:
            node = self._state.nodes[decision.node]
            self._emit(
                NODE_STATE,
                {"node": node.id, "connected": node.connected, "devices": len(node.devices)},
            )

    def asked(
        self,
        verb: str,
        by: str,
        session: str | None,
        request: str | None,
        outcome: str,
        refused: SingularityError | None,
    ) -> None:
        """Somebody asked something of a session; `outcome`: one of `problems.OUTCOMES`, with the
        error when it was `refused`."""
        if self.logger.handlers:
            self._emit(
                SESSION_REQUEST,
                {
                    "verb": verb,
                    "by": by,
                    "session": session,
                    "request": request,
                    "outcome": outcome,
                    "error": refused.reason if refused else None,
                    "message": refused.message if refused else "",
                },
            )

    def _emit(self, schema: str, data: dict[str, Any]) -> None:
        try:
            self.logger.emit(schema_id=schema, data=data)
        except Exception as error:  # an event that cannot be told must not stop the decision
            log.error("an event could not be emitted", exc_info=error)


def event_logger(path: str, **settings: Any) -> EventLogger:
    """A logger that writes to this file, one JSON object per line; "" for none. `Unavailable` when
    the file cannot be written."""
    logger = EventLogger(**settings)
    if path:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            logger.register_handler(logging.FileHandler(path, delay=True))
        except OSError as error:
            raise Unavailable(
                f"the event log {path} cannot be written ({error.strerror}): choose another "
                "SchedulerApp.event_log, or none",
                event_log=path,
            ) from None
    return logger
