"""A job file that describes what a session was asked to be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.values.requested import BatchRun
from singularity_scheduler.requests.run_spec import run_of

from .writing import written

Json = dict[str, Any]


def job_file(session: Mapping[str, Any], passed_on: Callable[[str], bool]) -> str:
    """The job file of a session's document, as text. Variables of the environment are written
    without their values, which the service does not tell; those that a run gets anyway
    (`passed_on`) not at all. `Conflict` for a session that is no batch run."""
    run = session.get("run")
    if not run:
        raise Conflict(
            f"session {session['id']} is no batch run, so no job file describes it",
            session=session["id"],
        )
    job: Json = {
        "type": "command" if run["command"] else "notebook",
        "display_name": session["name"] or None,
        "command": run["command"],
        "distribution": _distribution(session),
        "notebook": run["notebook"],
        "parameters": run["parameters"],
        "output": None if run["output"] == _default_output(run, session["id"]) else run["output"],
        "kernel": run["kernel"],
        "code": run["folder"],
        "environment_variables": {n: None for n in run["variables"] if not passed_on(n)},
        "compute": session["virtual_cluster"],
        "queue_settings": {"job_tier": session["tier"], "priority": session["priority"]},
        "resources": {
            "instance_count": None if run["ranked"] else _devices(session),
            "locations": session["locations"],
            "properties": {
                "singularity": {
                    "nodes": part["parts"] if (part := session.get("part")) else None,
                    "device_share": _part(session["device_share"]),
                    "scale_policy": session.get("scale_policy"),
                    "checkpoint_every_s": session.get("checkpoint_every_s"),
                    "checkpoint_every_steps": session.get("checkpoint_every_steps"),
                }
            },
        },
        "limits": {"timeout": run["timeout_s"]},
        "retry_settings": {"max_retries": run.get("max_retries") or None},
    }
    variables = job["environment_variables"]
    text = written(_joined(_without_nothing(job), run["metadata"]))
    if not variables:
        return text
    note = "# Variables that are null get the value that they have where this is submitted.\n"
    return note + text.rstrip() + "\n" + written({"environment_variables": variables})


def _distribution(session: Mapping[str, Any]) -> Json:
    if not session["run"]["ranked"]:
        return {}
    return {"type": "pytorch", "process_count_per_instance": _devices(session)}


def _devices(session: Mapping[str, Any]) -> int:
    """Of one on several nodes: those of all of them."""
    part = session.get("part")
    return int(session["virtual_devices"]) * (part["parts"] if part else 1)


def _default_output(run: Mapping[str, Any], session: str) -> str | None:
    if not run["notebook"]:
        return None
    return run_of(BatchRun(run["notebook"]), session).output


def _part(share: float) -> float | None:
    return share if share < 1 else None


def _without_nothing(value: Json) -> Json:
    """`value` without keys that say nothing; parameters are somebody's own."""
    found = {
        key: _without_nothing(part) if isinstance(part, dict) and key != "parameters" else part
        for key, part in value.items()
    }
    return {k: v for k, v in found.items() if v not in (None, "", {}, [])}


def _joined(first: Json, second: Mapping[str, Any]) -> Json:
    """Both; where both have a mapping, these joined."""
    found = dict(first)
    for key, value in second.items():
        mine = found.get(key)
        both = isinstance(mine, dict) and isinstance(value, Mapping)
        found[key] = _joined(mine, value) if both and mine is not None else value
    return found
