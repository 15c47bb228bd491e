"""The words of the tables: ages, sizes, durations, names. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singularity_scheduler.client.words import age, plural, size

Json = Mapping[str, Any]


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
    figures = {figure["device"]: figure for figure in session.get("figures") or ()}
    held = [
        f"{device} {used}" if (used := use(figures.get(device))) else str(device)
        for device in session.get("devices") or ()
    ]
    return ",".join(held) or f"0 of {session.get('virtual_devices') or 0}"


def use(figure: Json | None) -> str:
    """What a device does for its session: "1.2 GiB 37 %"; "" when nobody has told."""
    memory, busy = (
        (figure or {}).get("memory_used_bytes"),
        (figure or {}).get("utilisation_percent"),
    )
    parts = ["" if memory is None else size(memory), "" if busy is None else f"{busy:.0f} %"]
    return " ".join(part for part in parts if part)


def outcome(session: Json) -> str:
    """The state and why, as a sentence's end: "parked: freed by ada"."""
    state, reason = str(session.get("state") or "unknown"), clean(session.get("reason"))
    if not reason or reason.startswith(state):
        return reason or state
    return f"{state}: {reason}"


__all__ = ["age", "clean", "devices", "label", "outcome", "plural", "size", "use"]
