"""What `top` shows: the sessions and the cluster as the event stream tells them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from singularity_scheduler.cli.framework import texts

from .views import device_table, session_table, summary

if TYPE_CHECKING:
    from rich.console import Group

Json = dict[str, Any]

STAYS_S = 15.0
"""Seconds that a session which has ended is still shown."""

FINAL = ("completed", "failed", "cancelled")

ORDER = ("running", "attaching", "migrating", "parking", "waiting", "queued")
"""States in the order of the table: who has devices, who wants some; the rest comes after."""


class Board:
    """The state of the live view; `apply` takes events, `snapshot` and `screen` show it."""

    def __init__(self) -> None:
        self.sessions: dict[str, Json] = {}
        self.cluster: Json = {}
        self.trouble = ""
        """Why what is shown may be old; empty when it is not."""
        self._figures: dict[str, list[Json]] = {}
        """What the devices of sessions do."""
        self._ended_at: dict[str, float] = {}

    def apply(self, event: Mapping[str, Any], now: float) -> bool:
        """Take an event of the stream in; whether that changed anything. `now`: UNIX seconds."""
        kind, data = event.get("event"), event.get("data")
        if not isinstance(data, dict):
            return False
        if kind == "snapshot":
            self.sessions = {
                s["id"]: s for s in data["sessions"] if s.get("process_state") not in FINAL
            }
            self._ended_at.clear()
            self._figures.clear()
            return True
        if kind == "session":
            self.sessions[data["id"]] = data
            if data.get("process_state") in FINAL:
                self._ended_at.setdefault(data["id"], now)
            return True
        if kind == "queue":
            return self._move_up(data.get("places") or {})
        if kind == "progress" and data.get("session") in self.sessions:
            known = self.sessions[data["session"]]
            self.sessions[data["session"]] = {**known, "progress": data.get("progress")}
            return True
        if kind == "devices" and data.get("session") in self.sessions:
            self._figures[data["session"]] = data.get("devices") or []
            return True
        return False

    def _move_up(self, places: Mapping[str, int]) -> bool:
        changed = False
        for session, place in places.items():
            if session in self.sessions:
                queue = {"place": place, "ahead": place - 1}
                changed = changed or self.sessions[session].get("queue") != queue
                self.sessions[session] = {**self.sessions[session], "queue": queue}
        return changed

    def forget_ended(self, now: float) -> None:
        """Drop what has ended a while ago."""
        for session, at in list(self._ended_at.items()):
            if now - at >= STAYS_S:
                self.sessions.pop(session, None)
                self._figures.pop(session, None)
                del self._ended_at[session]

    def ordered(self) -> list[Json]:
        """Who has devices first, then who waits in the order of the queue, then the others; with
        the `figures` of their devices, as far as the stream has told any."""

        def key(session: Json) -> tuple[int, int, str]:
            state = str(session.get("state"))
            rank = ORDER.index(state) if state in ORDER else len(ORDER)
            if session.get("process_state") in FINAL:
                rank = len(ORDER) + 1
            place = int((session.get("queue") or {}).get("place") or 0)
            return rank, place, str(session.get("created_at"))

        return [
            {**session, "figures": self._figures[session["id"]]}
            if self._figures.get(session["id"])
            else session
            for session in sorted(self.sessions.values(), key=key)
        ]

    def snapshot(self, now: datetime) -> Json:
        """For programs: one document with everything."""
        return {
            "at": now.isoformat(timespec="milliseconds"),
            "sessions": self.ordered(),
            "cluster": self.cluster,
        }

    def screen(self, now: datetime, width: int, height: int) -> Group:
        """For a terminal of this size; sessions that have no room are counted."""
        from rich.console import Group
        from rich.text import Text

        devices = device_table(self.cluster)
        shown = self.ordered()
        room = max(3, height - len(devices.rows) - 9)
        more = len(shown) - room
        parts: list[Any] = [Text(summary(self.cluster), style="bold")]
        if self.trouble:
            parts.append(Text(self.trouble, style="red"))
        sessions = session_table(shown[:room], now, "there is no active session")
        parts += [Text(), sessions.rich(width)]
        if more > 0:
            parts.append(Text(f"and {texts.plural(more, 'more session')}", style="dim"))
        parts += [Text(), devices.rich(width), Text(), Text("q ends", style="dim")]
        return Group(*parts)
