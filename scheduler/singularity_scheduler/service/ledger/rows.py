"""Sessions and history lines as table rows and back: the only place that knows both shapes."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from singularity_scheduler.core.reasons.reason import Reason, Words, because, from_json, to_json
from singularity_scheduler.core.state.devices import DeviceMark
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values.model import Change, SessionView, Share
from singularity_scheduler.core.values.requested import (
    BatchRun,
    Kind,
    Member,
    Part,
    ScalePolicy,
    Tier,
)
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.model.session import FIELDS
from singularity_scheduler.text.reasons import is_known, render

Row = dict[str, Any]

MAX_EXPERIMENT = 255
"""Characters of the name of an experiment that sessions are summed by."""

_SAME = (
    "id",
    "user",
    "name",
    "virtual_devices",
    "node",
    "server",
    "seq",
    "busy",
    "idle_since",
    "held_since",
    "waiting_since",
    "queue_order",
    "attach_order",
    "saved",
    "wants",
    "park_failed_at",
    "asked",
    "moving",
    "stopped_by",
    "ended",
    "grace_s",
    "held_by",
    "origin",
    "target",
    "target_cluster",
    "cluster",
    "came_from",
    "restore_from",
    "rollback",
    "undo",
    "unwind",
    "lost",
    "leaving",
    "keep_until",
    "keep_from",
    "retrying",
    "started_at",
    "recorded",
    "created_at",
    "updated_at",
)


_DEFAULTS = {each.name: each.default for each in FIELDS}
_LISTS = tuple(each.name for each in FIELDS if isinstance(each.default, tuple))
_WORDS = {each.name: each.type for each in FIELDS if isinstance(each.default, Enum)}
_PLAIN = tuple(name for name in _DEFAULTS if name not in _WORDS and name not in _LISTS)


def mark_to_row(mark: DeviceMark) -> Row:
    return {
        **vars(mark),
        **words_to_row(mark.reason),
        "faults": json.dumps(mark.faults),
        "ignored": json.dumps(mark.ignored),
    }


def mark_from_row(row: Row) -> DeviceMark:
    lists = {name: tuple(json.loads(row[name])) for name in ("faults", "ignored")}
    return DeviceMark(**{**without_code(row), **lists, "reason": words_from_row(row)})


def session_to_row(view: SessionView) -> Row:
    """`view` without its devices and checkpoints, which are rows of their own (`lease_rows`,
    `checkpoint_to_row`)."""
    why = _why_to_row(view.why)
    return {
        **{name: getattr(view, name) for name in _SAME},
        **_fields_to_row(vars(view)),
        **why,
        "reason_sum": _sum_of(why["reason"]),
        "kind": view.kind.value,
        "tier": view.tier.value,
        "process_state": view.process_state.value,
        "device_state": view.device_state.value,
        "preferred": json.dumps(view.preferred),
        "run": _run_text(view.run) if view.run else None,
        "group": view.member.group if view.member else "",
        "member": _member_text(view.member) if view.member else None,
        "part": json.dumps(vars(view.part)) if view.part else None,
        "loss": json.dumps(vars(view.loss)) if view.loss else None,
        "share": json.dumps(vars(view.share)),
        "elastic": _elastic(view),
        "experiment": experiment_of(view.run.metadata) if view.run else "",
    }


def _fields_to_row(values: Row) -> Row:
    """The declared fields: lists are JSON texts, words their values."""
    found = {name: values[name] for name in _PLAIN}
    for name in _LISTS:
        found[name] = json.dumps(values[name])
    for name in _WORDS:
        found[name] = values[name].value
    return found


def _fields_from_row(row: Mapping[str, Any]) -> Row:
    """A field that was not there yet when the row was written has its default."""
    found = {**_DEFAULTS, **{name: row[name] for name in _DEFAULTS if name in row}}
    for name in _LISTS:
        if name in row:
            found[name] = tuple(json.loads(row[name]))
    for name, kind in _WORDS.items():
        found[name] = kind(found[name])
    return found


@functools.lru_cache(256)
def _run_text(run: BatchRun) -> str:
    """It never changes, and each step of its session writes it."""
    return json.dumps(vars(run))


@functools.lru_cache(1024)
def experiment_of(metadata: str) -> str:
    """The `experiment_name` in a run's metadata (JSON), as the table can hold it; "": none."""
    if '"experiment_name"' not in metadata:
        return ""
    name = json.loads(metadata).get("experiment_name")
    if not isinstance(name, str):
        return ""
    return "".join(c for c in name if c.isprintable())[:MAX_EXPERIMENT]


def checkpoint_to_row(session: str, reference: CheckpointRef) -> Row:
    return {"session": session, **vars(reference)}


def checkpoint_from_row(row: Mapping[str, Any]) -> CheckpointRef:
    return CheckpointRef(**{key: value for key, value in row.items() if key != "session"})


def _elastic(view: SessionView) -> str:
    """What the leases do not say: which device is behind which virtual one, where some share one or
    are just changing it, and how many there may be; "": nothing."""
    if view.virtual_devices < 2:
        return ""
    found: Row = {}
    if view.scale is not None:
        found["scale"] = vars(view.scale)
    if view.wish:
        found["wish"] = view.wish
    if view.scaled_at is not None:
        found["scaled_at"] = view.scaled_at
    if view.resizing:
        found["resizing"] = view.resizing
    if view.resizing or view.physical != view.devices:
        found["devices"] = view.devices
    return json.dumps(found) if found else ""


def _of_elastic(text: str, leased: tuple[str, ...]) -> Row:
    told = json.loads(text) if text else {}
    scale = told.get("scale")
    return {
        "scale": scale and ScalePolicy(**{**scale, "counts": tuple(scale["counts"])}),
        "wish": told.get("wish", 0),
        "scaled_at": told.get("scaled_at"),
        "resizing": tuple(told.get("resizing", ())),
        "devices": tuple(told.get("devices", leased)),
    }


def lease_rows(view: SessionView) -> list[Row]:
    """One for each physical device that nobody else may have, numbered from 0."""
    return [
        {
            "node": view.node,
            "device": device,
            "session": view.id,
            "virtual_device": index,
            "epoch": view.epoch,
        }
        for index, device in enumerate(view.leases)
    ]


def session_from_row(
    row: Mapping[str, Any], leased: tuple[str, ...], stored: tuple[CheckpointRef, ...] = ()
) -> SessionView:
    return SessionView(
        **{name: row[name] for name in _SAME},
        **_fields_from_row(row),
        why=_why_of_session(row),
        kind=Kind(row["kind"]),
        tier=Tier(row["tier"]),
        process_state=ProcessState(row["process_state"]),
        device_state=DeviceState(row["device_state"]),
        **_of_elastic(row.get("elastic") or "", leased),
        preferred=tuple(json.loads(row["preferred"])),
        checkpoints=stored,
        loss=_loss(row["loss"]),
        # One that was never accounted begins now, and not in 1970.
        share=Share(**{"at": row["updated_at"], **json.loads(row["share"])}),
        run=BatchRun(**json.loads(row["run"])) if row["run"] else None,
        member=member_from_text(row["member"]) if row["member"] else None,
        part=_part(row.get("part")),
    )


def _part(text: str | None) -> Part | None:
    if not text:
        return None
    told = json.loads(text)
    return Part(**{**told, "sessions": tuple(told["sessions"])})


def _loss(text: str | None) -> LossReport | None:
    if not text:
        return None
    told = json.loads(text)
    return LossReport(**{**told, "back": tuple(told["back"]), "lost": tuple(told["lost"])})


def words_to_row(words: Words) -> Row:
    """What somebody said has no code, and reads the same."""
    if isinstance(words, str):
        return {"reason": words, "reason_code": "", "reason_args": "{}"}
    return _why_to_row(words)


def words_from_row(row: Mapping[str, Any]) -> Words:
    return _why_from_row(row) if row.get("reason_code") else str(row["reason"])


def words_to_json(words: Words) -> Any:
    """Return what somebody said, or ``{"code", "args", "said"}``, of which `words_from_json` makes
    it; `said`: its sentence, for a version that has not this code."""
    return words if isinstance(words, str) else {**to_json(words), "said": render(words)}


def words_from_json(told: Any) -> Words:
    """Return what `words_to_json` was made of; its sentence alone of a code that there is not."""
    if isinstance(told, str):
        return told
    why = from_json(told["code"], told["args"])
    return why if is_known(why) else str(told["said"])


def without_code(row: Mapping[str, Any]) -> Row:
    """The columns of a row that are fields of a mark."""
    return {k: v for k, v in row.items() if k not in ("reason_code", "reason_args")}


@functools.lru_cache(1024)
def _why_to_row(why: Reason) -> Row:
    """The row of a session and that of its line of history have the same one; nobody changes it."""
    return {
        "reason": render(why),
        "reason_code": why.code,
        "reason_args": json.dumps(to_json(why)["args"]),
    }


def _why_from_row(row: Mapping[str, Any]) -> Reason:
    """Return the reason of a row; its sentence alone where there were no codes yet, or other ones,
    when it was written."""
    why = from_json(row.get("reason_code") or "", json.loads(row.get("reason_args") or "{}"))
    return why if is_known(why) else because("said", text=row["reason"])


def _why_of_session(row: Mapping[str, Any]) -> Reason:
    """Return the reason of a session's row, which is written again and again: a version from before
    there were codes writes its sentence and leaves the code of the sentence before, and the sum of
    that. Transitions have no such rows, as each is written once."""
    why, sentence = _why_from_row(row), row["reason"]
    together = row.get("reason_sum") == _sum_of(sentence)
    # Versions that make no sums yet have codes all the same.
    return why if together or render(why) == sentence else because("said", text=sentence)


def _sum_of(sentence: str) -> str:
    return f"{zlib.crc32(sentence.encode(errors='surrogatepass')):08x}"


def change_to_row(change: Change) -> Row:
    return {
        "session": change.session,
        "at": change.at,
        "process_state": change.process_state.value,
        "device_state": change.device_state.value,
        "word": change.word,
        **_why_to_row(change.why),
        **({"reason": change.text} if change.text else {}),
        "rule": change.rule,
        "devices": change.devices,
    }


def change_from_row(row: Mapping[str, Any]) -> Change:
    why = _why_from_row(row)
    return Change(
        row["session"],
        row["at"],
        ProcessState(row["process_state"]),
        DeviceState(row["device_state"]),
        row["word"],
        why,
        row["rule"],
        row["devices"],
        "" if row["reason"] == render(why) else row["reason"],
    )


def _member_text(member: Member) -> str:
    """What nobody said is left out: so a version that does not know a limit yet reads those of
    groups without it."""
    said = {**vars(member), "reached_why": words_to_json(member.reached_why)}
    return json.dumps({name: value for name, value in said.items() if value is not None})


def member_from_text(text: str) -> Member:
    told = json.loads(text)
    return Member(**{**told, "reached_why": words_from_json(told.get("reached_why", ""))})
