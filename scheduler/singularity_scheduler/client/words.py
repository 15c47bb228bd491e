"""Ages, sizes and numbers as people read them, in the command line and in notebooks. Pure."""

from __future__ import annotations

from datetime import datetime, timezone


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: float) -> str:
    """`count` bytes in binary units, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def duration(seconds: float) -> str:
    """A length of time: "90 s", "5 min", "2.5 h"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
