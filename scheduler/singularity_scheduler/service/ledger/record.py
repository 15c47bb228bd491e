"""The record of decisions: what each of them changed, so that the state can be rebuilt from it.

A line holds only what is new: of a session the fields that changed. A snapshot is everything active
after one of the lines. Pure; `writing` puts both into the database.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from singularity_scheduler.core.reasons.reason import Reason, to_json
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.state.devices import DeviceMark
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.model import SessionView

from . import rows

Json = dict[str, Any]

_OWN_WAY = {"sessions", "history", "actions", "marks", "stored", "gone", "counter"}
"""Fields of a decision that have a form of their own in a line, or that need none: history has a
table, actions follow from the state, nodes tell of themselves what they are."""
_OF_NODES = {"node", "node_devices", "node_connected", "node_abilities"}
_OTHERS = tuple(f.name for f in fields(Decision) if f.name not in _OWN_WAY | _OF_NODES)

PART = 250
"""Sessions of a snapshot that are put into words at once: others may run in between."""


def line(decision: Decision, before: Mapping[str, SessionView]) -> str:
    """What a decision changes; `before` has the sessions as they were, those that are new are not
    in it."""
    body: Json = {}
    if decision.sessions:
        body["sessions"] = {v.id: _changed(v, before.get(v.id)) for v in decision.sessions}
    if decision.marks:
        body["marks"] = [rows.mark_to_row(mark) for mark in decision.marks]
    if decision.gone:
        body["gone"] = [list(pair) for pair in decision.gone]
    if decision.stored:
        body["stored"] = [rows.checkpoint_to_row(s, reference) for s, reference in decision.stored]
    for name in _OTHERS:
        if value := getattr(decision, name):
            body[name] = _plain(value)
    return json.dumps(body, separators=(",", ":"))


def _changed(view: SessionView, before: SessionView | None) -> Json:
    if before is None:
        return _session(view)
    old, new = vars(before), vars(view)
    if all(value is old[name] for name, value in new.items()):
        return {}
    was = _session(before)
    return {name: value for name, value in _session(view).items() if value != was[name]}


def _session(view: SessionView) -> Json:
    return {**rows.session_to_row(view), "devices": list(view.leases)}


def _plain(value: Any) -> Any:
    """Anything of a decision as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Reason):
        return to_json(value)
    if is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


class Rebuilt:
    """The state that snapshot and lines amount to."""

    def __init__(self, snapshot: bytes | None = None) -> None:
        told = json.loads(zlib.decompress(snapshot)) if snapshot else {}
        self._sessions: dict[str, Json] = {row["id"]: row for row in told.get("sessions", ())}
        self._stored: dict[str, dict[str, Json]] = {}
        self._marks: dict[tuple[str, str], Json] = {}
        self._take(told)

    def add(self, text: str) -> None:
        """The next line."""
        body = json.loads(text)
        for sid, changed in body.get("sessions", {}).items():
            row = self._sessions.setdefault(sid, {})
            row |= changed
            if row["ended"]:
                del self._sessions[sid]
                self._stored.pop(sid, None)
        for sid, checkpoint in body.get("gone", ()):
            self._stored.get(sid, {}).pop(checkpoint, None)
        self._take(body)

    def _take(self, body: Json) -> None:
        for row in body.get("marks", ()):
            self._marks[row["node"], row["uuid"]] = row
        gone = {tuple(pair) for pair in body.get("gone", ())}
        for row in body.get("stored", ()):
            sid = row["session"]
            if sid in self._sessions and (sid, row["id"]) not in gone:
                self._stored.setdefault(sid, {})[row["id"]] = row

    @property
    def sessions(self) -> dict[str, SessionView]:
        """The active ones."""
        found = {}
        for sid, row in self._sessions.items():
            stored = [rows.checkpoint_from_row(r) for r in self._stored.get(sid, {}).values()]
            stored.sort(key=lambda reference: (reference.at, reference.id))
            found[sid] = rows.session_from_row(row, tuple(row["devices"]), tuple(stored))
        return found

    @property
    def marks(self) -> list[DeviceMark]:
        return [rows.mark_from_row(dict(row)) for row in self._marks.values()]


def snapshot(
    sessions: Iterable[SessionView], marks: Iterable[DeviceMark], said: Json | None = None
) -> bytes:
    """All of a state in one piece; `said`: rows of what administrators have said, by table."""
    parts, chunk, stored = [], [], []
    packer = zlib.compressobj(1)
    separator = '{"sessions":['
    for view in sessions:
        chunk.append(_session(view))
        stored += [_checkpoint(view.id, reference) for reference in view.checkpoints]
        if len(chunk) == PART:
            parts.append(packer.compress((separator + _inner(chunk)).encode()))
            separator, chunk = ",", []
    if chunk:
        parts.append(packer.compress((separator + _inner(chunk)).encode()))
        separator = ","
    opened = "" if separator == "," else separator
    rest: Json = {"stored": stored, "marks": [rows.mark_to_row(mark) for mark in marks]}
    rest |= {"said": said or {}}
    parts.append(packer.compress((opened + "]," + json.dumps(rest)[1:]).encode()))
    return b"".join([*parts, packer.flush()])


def _inner(chunk: list[Json]) -> str:
    return json.dumps(chunk, separators=(",", ":"))[1:-1]


def _checkpoint(session: str, reference: CheckpointRef) -> Json:
    return rows.checkpoint_to_row(session, reference)
