"""The runs of a sweep: what they have in common, and what tells each from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from singularity_scheduler.jobs import Job
from singularity_scheduler.jobs.sweeps import Sweep

from .options import Given
from .submission import Submission, of_file

Json = dict[str, Any]
Members = list[Json]


def group_of(
    made: Submission, sweep: Sweep, job: Job | None, given: Given
) -> tuple[Json, Members, Json]:
    """(the session that all have in common, the members, what holds for the group), as
    `ServiceClient.submit_group` takes them. `made` is the submission of any of them, `job` the job
    file, if there is one."""
    request = made.request
    members: Members
    if job is None:
        members = [{"values": values} for values in sweep.combinations]
    elif request["run"].get("command"):
        members = [
            {"values": values, "command": job.with_values(values).command}
            for values in sweep.combinations
        ]
    else:
        members = _notebooks(job, given, sweep.combinations)
    session = request
    if not request["run"].get("command"):
        own = {name for member in members for name in member["values"]}
        common = {k: v for k, v in request["run"]["parameters"].items() if k not in own}
        session = {**request, "run": {**request["run"], "parameters": common}}
    return session, members, limits_of(sweep)


def limits_of(sweep: Sweep) -> Json:
    """What holds for all runs of a sweep together, as the API calls it."""
    return {
        "max_parallel": sweep.max_parallel,
        "timeout_s": sweep.timeout_s,
        "stop_on_failure": sweep.stop_on_failure,
        "stop_when": sweep.stop_when,
        "objective": sweep.objective,
    }


def _notebooks(job: Job, given: Given, combinations: Sequence[Mapping[str, Any]]) -> Members:
    """Parameters that are not the same in all runs."""
    found = []
    for values in combinations:
        one = job.with_values(values)
        swept = replace(given, swept=one.direct)
        found.append({**of_file(one).parameters, **swept.parameters()})
    first = found[0]
    same = {
        name
        for name in first
        if all(name in one and _same(one[name], first[name]) for one in found)
        and name not in combinations[0]
    }
    return [{"values": {k: v for k, v in one.items() if k not in same}} for one in found]


def _same(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)
