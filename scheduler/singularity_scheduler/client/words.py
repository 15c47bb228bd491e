"""Ages, sizes and numbers as people read them, in the command line and in notebooks. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from singularity_proxy.errors import BadRequest

_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_ID = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)-[0-9a-f]{8}", re.ASCII)
"""Of a checkpoint; it stands for the name of one that nobody named."""

MEANT: dict[str, tuple[str, ...]] = {
    "copy": ("fork",),
    "delete": ("cancel",),
    "end": ("cancel",),
    "hibernate": ("suspend",),
    "info": ("show", "status"),
    "kill": ("cancel",),
    "list": ("ls",),
    "log": ("logs", "history"),
    "move": ("migrate",),
    "pause": ("park",),
    "ps": ("ls",),
    "rm": ("cancel",),
    "save": ("checkpoint",),
    "show": ("status",),
    "status": ("show",),
    "stop": ("cancel",),
    "undo": ("restore",),
}
"""Words that people know from other programs -> what does that here."""


def find_nearest(word: str, known: Collection[str]) -> str | None:
    """Return which of the `known` words is meant by one that is not known; None: nobody can say."""
    plain = word.lower()
    for meant in (plain, *MEANT.get(plain, ())):
        if meant in known:
            return meant
    return next(iter(difflib.get_close_matches(plain, known, n=1)), None)


def size(count: float) -> str:
    """`count` bytes in binary units, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def squashing(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """For each physical device that ranks share, what they have in common there: "cuda:0 and cuda:1
    share cpu:0 and compute equal steps once (12 steps so far, 240 calls spared)"."""
    shared: dict[str, list[Mapping[str, Any]]] = {}
    for figure in figures:
        if figure.get("squashing"):
            shared.setdefault(str(figure["device"]), []).append(figure)
    return [_squashing(device, some) for device, some in shared.items()]


def _squashing(device: str, figures: list[Mapping[str, Any]]) -> str:
    *first, last = (f"cuda:{figure['virtual_device']}" for figure in figures)
    names = f"{', '.join(first)} and {last}" if first else last
    report: Mapping[str, Any] = figures[0]["squashing"]
    spared = f"{plural(report['steps'], 'step')} so far, {plural(report['spared'], 'call')} spared"
    return f"{names} share {device} and " + {
        "unproven": "compute everything themselves until equal contents have been compared",
        "on": f"compute equal steps once ({spared})",
        "off": f"compute everything themselves ({spared} before that): {report['why_off']}",
    }.get(report["state"], str(report["state"]))


def duration(seconds: float) -> str:
    """A length of time: "90 s", "5 min", "2.5 h"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def parse_duration(text: str) -> float:
    """Seconds of a length of time as people write it: "90", "90s", "15 min", "1.5h", "2d"; raises
    `BadRequest`."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise BadRequest(
            f"'{text}' is no length of time: write 90s, 15min, 2h or 1d, or 0 for none"
        )
    return float(found[1]) * _UNITS[found[2]]


def checkpoint_note(stored: Mapping[str, Any], now: datetime) -> str:
    """What there is to say of a checkpoint of the API: what is wrong with it, else whether it was
    proved, and why its level is not higher. "" for nothing."""
    if stored.get("damaged"):
        return f"damaged: {stored['damaged']}"
    if stored.get("unproved"):
        return f"could not be proved: {stored['unproved']}"
    proved = f"proved {age(stored['proved_at'], now)} ago" if stored.get("proved_at") else ""
    return ", ".join(part for part in (proved, str(stored.get("reason") or "")) if part)


def made_at(checkpoint: str) -> str:
    """When the checkpoint with this id was made, for people; "" for what is no such id."""
    found = _ID.fullmatch(checkpoint)
    if found is None:
        return ""
    year, month, day, hour, minute, second = found.groups()
    return f"{year}-{month}-{day} {hour}:{minute}:{second} UTC"


_CAUSES = {
    "periodic": "by itself",
    "restore": "before restore",
    "move": "before a move",
    "drain": "drain",
    "suspend": "suspended",
}


def checkpoint_cause(stored: Mapping[str, Any], now: datetime) -> str:
    """What a checkpoint of the API that has no name was made for: "before restore", "suspended
    14:02". "" for one that somebody asked for, or that has a name."""
    words, at = _CAUSES.get(str(stored.get("cause")), ""), parse_time(stored.get("at"))
    if stored.get("name") or not words or at is None or stored["cause"] != "suspend":
        return "" if stored.get("name") else words
    then = at.astimezone()
    day = "" if then.date() == now.astimezone().date() else f"{then:%b} {then.day} "
    return f"{words} {day}{then:%H:%M}"


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


def left(at: object, now: datetime) -> float | None:
    """Seconds until an ISO 8601 time, 0 when it is over; None for none."""
    then = parse_time(at)
    return None if then is None else max(0.0, (then - now).total_seconds())


def kept(session: Mapping[str, Any], now: datetime) -> str:
    """Whether somebody keeps a session alive, and for how long: the end of a sentence."""
    seconds = left(session.get("keep_until"), now)
    if not seconds:
        return "not kept alive: its devices count as idle when nothing uses them"
    return (
        f"kept alive for another {duration(seconds)}: it is not parked for being idle; a higher "
        "tier still goes first"
    )


def plan(session: Mapping[str, Any], now: datetime) -> str:
    """What is planned for a session, when and why: "park in 12 min: ..."; "" for nothing."""
    planned = session.get("planned")
    if not planned:
        return ""
    seconds = left(planned.get("at"), now)
    when = "as soon as it can be done" if seconds is None else f"in {duration(seconds)}"
    return f"{planned.get('what')} {when}: {planned.get('why')}"
