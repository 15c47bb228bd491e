"""Validation of a request for a group: one session's spec, and what tells its members apart."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.requested import MAX_NAME, BatchRun, Member, SessionSpec

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
        raise BadRequest("session.run is missing: a group is made of runs")
    if session.get("launch") is not None:
        raise BadRequest("session.launch does not go with a group: its members are runs")
    if not isinstance(members, list) or not members:
        raise BadRequest("members must be a list of what tells the members apart, at least one")
    if len(members) > MAX_MEMBERS:
        raise BadRequest(
            f"a group of {len(members)} is too large: it may have {MAX_MEMBERS} members",
            members=len(members),
        )
    base = parse_spec(session, largest=largest)
    if base.nodes > 1:
        raise BadRequest(
            f"a member of a group is on one node: leave nodes out, or submit the {base.nodes} "
            "nodes' runs one by one"
        )
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
        raise BadRequest(f"values of member {number} must be an object, such as {{'lr': 0.1}}")
    refuse_unknown(told, ("values", "command"), "members")
    try:
        text = json.dumps(told["values"], allow_nan=False)
    except ValueError:
        raise BadRequest(
            f"values of member {number} hold a number that JSON does not have (infinity or not a "
            "number): give it as text and convert it in the notebook"
        ) from None
    if len(text) > MAX_VALUES:
        raise BadRequest(
            f"the values of a member have at most {MAX_VALUES >> 10} KiB, and those of member "
            f"{number} are longer: put larger ones in files and sweep over their names"
        )
    return text


def _run(run: Mapping[str, Any], told: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What this member runs."""
    command = told.get("command")
    if run.get("command") is not None:
        if command is None:
            raise BadRequest(
                f"member {number} has no command of its own: it would be as the others"
            )
        return {**run, "command": command}
    if command is not None:
        raise BadRequest(f"member {number} has a command, and the group runs a notebook")
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
        raise BadRequest(
            f"max_parallel must be a whole number from 1 to {MAX_MEMBERS}, not {value!r}"
        )
    return value


def _condition(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRequest("stop_when must be text, such as loss<0.01")
    return str(parse_condition(value))


def _truth(request: Mapping[str, Any], key: str) -> bool:
    value = request.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{key} must be true or false")
    return value is True
