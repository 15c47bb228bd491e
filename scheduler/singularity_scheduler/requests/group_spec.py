"""Validation of a request for a group: one session's spec, and what tells its members apart."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values.requested import MAX_NAME, BatchRun, Member, SessionSpec
from singularity_scheduler.text.errors import bad_request

from .fields import refuse_unknown
from .goals import parse_condition, parse_objective
from .run_spec import parse_timeout, run_of
from .spec import parse_spec

MAX_MEMBERS = 1000
"""Most sessions of one group."""
MAX_VALUES = 2048
"""Characters of what tells one member from the others, as JSON."""

KEYS = (
    *("session", "members", "max_parallel", "timeout_s"),
    *("stop_on_failure", "stop_when", "objective"),
)


def parse_group(
    request: Mapping[str, Any], group: str, *, largest: int | None = None
) -> list[SessionSpec]:
    """The specs of the members of a new group with the id `group`, in their order. `request` is
    ``{session, members: [{values, command?}], max_parallel?, timeout_s?, stop_on_failure?,
    stop_when?, objective?}``: each member is the session with `values` over its notebook's
    parameters, or with its own command."""
    refuse_unknown(request, KEYS)
    session, members = request.get("session"), request.get("members")
    if not isinstance(session, Mapping) or not isinstance(session.get("run"), Mapping):
        raise bad_request(because("group_without_run"))
    if session.get("launch") is not None:
        raise bad_request(because("group_with_launch"))
    if not isinstance(members, list) or not members:
        raise bad_request(because("group_without_members"))
    if len(members) > MAX_MEMBERS:
        raise bad_request(
            because("group_too_large", number=len(members), most=MAX_MEMBERS),
            members=len(members),
        )
    base = parse_spec(session, largest=largest)
    if base.nodes > 1:
        raise bad_request(because("member_on_several_nodes", nodes=base.nodes))
    first = Member(
        group,
        1,
        len(members),
        base.name,
        _max_parallel(request.get("max_parallel")),
        timeout_s=parse_timeout(request.get("timeout_s"), "timeout_s"),
        stop_on_failure=_truth(request, "stop_on_failure"),
        stop_when=_condition(request.get("stop_when")),
        objective=str(parse_objective(request.get("objective")) or ""),
    )
    found = []
    for number, told in enumerate(members, 1):
        member = replace(first, number=number, values=_values(told, number))
        spec = parse_spec({**session, "run": _run(session["run"], told, number)}, largest=largest)
        assert spec.run is not None
        run = _apart(spec.run, group, number)
        name = f"{base.name[: MAX_NAME - 5]}-{number}"
        found.append(replace(spec, name=name, run=run, member=member))
    return found


def _values(told: object, number: int) -> str:
    if not isinstance(told, Mapping) or not isinstance(told.get("values"), Mapping):
        raise bad_request(because("member_without_values", number=number))
    refuse_unknown(told, ("values", "command"), "members")
    try:
        text = json.dumps(told["values"], allow_nan=False)
    except ValueError:
        raise bad_request(because("values_not_finite", number=number)) from None
    if len(text) > MAX_VALUES:
        raise bad_request(because("values_too_large", kib=MAX_VALUES >> 10, number=number))
    return text


def _run(run: Mapping[str, Any], told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What this member runs."""
    command = told.get("command")
    if run.get("command") is not None:
        if command is None:
            raise bad_request(because("member_without_command", number=number))
        return {**run, "command": command}
    if command is not None:
        raise bad_request(because("member_with_command", number=number))
    return {**run, "parameters": {**(run.get("parameters") or {}), **told["values"]}}


def _apart(run: BatchRun, group: str, number: int) -> BatchRun:
    """`run` with an output of its own."""
    if run.output is None:
        return run_of(run, f"{group}-{number}")
    stem, ending = posixpath.splitext(run.output)
    return run_of(replace(run, output=f"{stem}-{number}{ending}"), "")


def _max_parallel(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_MEMBERS:
        raise bad_request(because("max_parallel_out_of_range", most=MAX_MEMBERS, given=repr(value)))
    return value


def _condition(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_request(because("condition_is_no_text"))
    return str(parse_condition(value))


def _truth(request: Mapping[str, Any], key: str) -> bool:
    value = request.get(key)
    if value is not None and not isinstance(value, bool):
        raise bad_request(because("not_true_or_false", key=key))
    return value is True
