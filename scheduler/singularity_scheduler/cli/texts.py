"""The words of the tables: ages, sizes, durations, names. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

Json = Mapping[str, Any]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: float) -> str:
    """`count` bytes in binary units, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def parse_time(text: object) -> datetime | None:
    """The moment of an ISO 8601 text; None for None and for what is none."""
    try:
        then = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=timezone.utc)


def age(text: object, now: datetime) -> str:
    """How long ago an ISO 8601 time was, in its largest unit: "12 s", "3 min"; "" for none."""
    then = parse_time(text)
    if then is None:
        return ""
    seconds = max(0, int((now - then).total_seconds()))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def clean(value: object) -> str:
    """What somebody else wrote as one line that is safe to show: a terminal obeys control
    characters, and a name or a program's last words may hold some."""
    text = " ".join(str(value if value is not None else "").split())
    return "".join(c if c.isprintable() else "�" for c in text)


def label(session: Json) -> str:
    """How a sentence names a session: its id and, when it has one, its name."""
    name = clean(session.get("name"))
    return f"{session['id']} ({name})" if name else str(session["id"])


def devices(session: Json) -> str:
    """What it holds, else how many it holds none of: "cpu:0,cpu:1", "0 of 2"."""
    held = [str(device) for device in session.get("devices") or ()]
    return ",".join(held) or f"0 of {session.get('virtual_devices') or 0}"


def outcome(session: Json) -> str:
    """The state and why, as a sentence's end: "parked: freed by ada"."""
    state, reason = str(session.get("state") or "unknown"), clean(session.get("reason"))
    if not reason or reason.startswith(state):
        return reason or state
    return f"{state}: {reason}"
