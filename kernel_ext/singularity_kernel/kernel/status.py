"""What `%singularity` shows: a session's JSON as one screen of text or HTML. Pure functions and
small display objects; nothing here talks to anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from singularity_scheduler.client.words import (
    age,
    checkpoint_cause,
    checkpoint_note,
    kept,
    made_at,
    parse_time,
    plan,
    plural,
    size,
)

Json = Mapping[str, Any]


def ago(at: str | None, now: datetime) -> str:
    """How long ago the ISO time `at` was: "12 s ago"; "" for None and for what is no time."""
    passed = age(at, now)
    return f"{passed} ago" if passed else ""


def moment(at: str | None, now: datetime) -> str:
    """When the ISO time `at` was, by the clock of `now`, with the day unless that is the same; what
    is no time as it is."""
    then = parse_time(at)
    if then is None:
        return str(at or "")
    local = then.astimezone(now.tzinfo)
    form = "%H:%M:%S" if local.date() == now.date() else "%Y-%m-%d %H:%M:%S"
    return local.strftime(form)


def _devices(status: Json) -> str:
    wanted, held = int(status.get("virtual_devices") or 0), list(status.get("devices") or ())
    if not held:
        return f"{plural(wanted, 'virtual device')}; none held now, the next device call takes them"
    return ", ".join(f"cuda:{i} -> {device}" for i, device in enumerate(held))


def _memory(status: Json) -> str:
    """`status["memory"]` is a list of {device, current, peak, capacity, held}, bytes."""
    parts = []
    for entry in status.get("memory") or ():
        current = size(entry["current"])
        if entry["held"]:
            text = f"{current} of {size(entry['capacity'])} (peak {size(entry['peak'])})"
        else:
            text = f"{current} kept in host memory"
        parts.append(f"{entry['device']}: {text}")
    return ", ".join(parts)


def _checkpoint(status: Json, now: datetime) -> str:
    last = status.get("last_checkpoint")
    if not last:
        return "none yet"
    parts = [str(last.get("id", "")), ago(last.get("at"), now)]
    if last.get("name"):
        parts.insert(0, f"'{last['name']}'")
    parts.append(checkpoint_cause(last, now))
    if last.get("bytes") is not None:
        parts.append(size(last["bytes"]))
    if last.get("level"):
        parts.append(f"{last['level']} state")
    parts.append(checkpoint_note({**last, "reason": ""}, now))
    if last.get("reason"):
        parts.append(f"no more because {last['reason']}")
    return ", ".join(part for part in parts if part)


def _queue(status: Json, now: datetime) -> str:
    queue = status.get("queue")
    if not queue:
        return ""
    text = f"place {queue.get('place')}"
    ahead = queue.get("ahead")
    if ahead is not None:
        text += f", {ahead if isinstance(ahead, int) else len(ahead)} ahead"
    since = ago(status.get("waiting_since"), now)
    return f"{text}, since {since}" if since else text


def _others(status: Json) -> str:
    parts = []
    for other in status.get("others_waiting") or ():
        devices = plural(int(other.get("devices") or 0), "device")
        parts.append(f"{other.get('user')}/{other.get('name')} ({other.get('tier')}, {devices})")
    return ", ".join(parts)


def _state(state: str, reason: str) -> str:
    if not reason or reason.startswith(state):
        return reason or state
    return f"{state}: {reason}"


def status_rows(status: Json, now: datetime) -> list[tuple[str, str]]:
    """Label and text of every line that there is something to say on."""
    state = str(status.get("state") or status.get("process_state") or "unknown")
    reason = str(status.get("reason") or "")
    rows = [
        ("State", _state(state, reason)),
        ("Activity", "runs this cell" if status.get("busy") else ""),
        ("Kept", kept(status, now) if status.get("keep_until") else ""),
        ("Planned", plan(status, now)),
        ("Tier", str(status.get("tier") or "")),
        ("Devices", _devices(status)),
        ("Device memory", _memory(status)),
        ("Last checkpoint", _checkpoint(status, now)),
        ("Checkpoints", _several(status.get("checkpoints"))),
        ("Last return", loss_words(status["loss"]) if status.get("loss") else ""),
        ("Queue", _queue(status, now)),
        ("Held back", "until it is resumed" if status.get("held_back") else ""),
        ("Output", str((status.get("run") or {}).get("output") or "")),
        ("Others wait", _others(status) or "nobody"),
    ]
    if status.get("service") == "away":
        rows.append(
            ("Scheduler", "away; this is what the node agent knows, the session goes on unchanged")
        )
    return [(label, text) for label, text in rows if text]


def _several(count: Any) -> str:
    stored = count if isinstance(count, int) else 0
    return f"{stored} stored: %singularity checkpoints lists them" if stored > 1 else ""


def loss_words(loss: Json) -> str:
    """What came back from the store and what could not, in one sentence without its full stop."""
    lost = ", ".join(map(str, loss.get("lost") or ()))
    checkpoint = str(loss.get("checkpoint"))
    at = made_at(checkpoint)
    where = f"the checkpoint of {at}" if at else f"checkpoint {checkpoint}"
    parts = [
        f"it came back from {where}, {loss.get('level')} state",
        "what it did after that is undone" if loss.get("rolled_back") else "",
        f"not brought back: {lost}" if lost else "nothing is lost",
    ]
    if loss.get("rolled_back") and not lost:
        parts.pop()
    return "; ".join(part for part in parts if part)


def checkpoint_rows(stored: Sequence[Json], now: datetime) -> list[tuple[str, str]]:
    """Name or id, and what it is, newest first."""
    rows = []
    for one in stored:
        parts = [
            str(one.get("id")) if one.get("name") else "",
            checkpoint_cause(one, now),
            f"{one.get('level')} state",
            size(one.get("bytes") or 0),
            f"{size(one.get('stored_bytes') or 0)} stored",
            ago(one.get("at"), now),
            checkpoint_note({**one, "reason": ""}, now),
        ]
        word = str(one.get("name") or one.get("id"))
        rows.append((word, ", ".join(part for part in parts if part)))
    return rows


def history_rows(entries: Sequence[Json], now: datetime) -> list[tuple[str, str]]:
    """When, by the clock of `now`, and what happened and why, oldest first."""
    return [
        (
            moment(entry.get("at"), now),
            _state(str(entry.get("state") or ""), str(entry.get("reason") or "")),
        )
        for entry in entries
    ]


@dataclass(frozen=True)
class Table:
    """A titled two-column table; what a notebook displays, as text or HTML."""

    title: str
    rows: Sequence[tuple[str, str]]
    empty: str = ""
    """Shown instead of an empty table."""

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in self.rows]
        return "\n".join([self.title, *(lines or [f"  {self.empty}"])])

    def _repr_html_(self) -> str:
        body = "".join(
            f'<tr><th style="text-align:left;white-space:nowrap">{escape(label)}</th>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for label, text in self.rows
        )
        table = f"<table>{body}</table>" if body else f"<p>{escape(self.empty)}</p>"
        return f"<div><b>{escape(self.title)}</b>{table}</div>"


@dataclass(frozen=True)
class Sentence:
    """One sentence, displayed without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<span>{escape(self.text)}</span>"
