"""Sessions as jobs of the view and jobs as sessions. Pure; knows nothing of jupyter-scheduler.

A job of the view is a batch session, and the service's ledger is the only place that knows it: runs
that were submitted elsewhere are listed too. What the view alone knows of a job (its tags, the file
it was made from, ...) is kept in the run's metadata, under `KEY`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]

KEY = "notebook_job"
"""Of a run's metadata: what the view keeps."""

KEPT = (
    "input_filename",
    "job_definition_id",
    "output_filename_template",
    "output_formats",
    "package_input_folder",
    "packaged_files",
    "parameters",
    "runtime_environment_name",
    "runtime_environment_parameters",
    "tags",
)
"""Fields of a job that only the view needs."""

STATUS = {
    "queued": "QUEUED",
    "starting": "IN_PROGRESS",
    "live": "IN_PROGRESS",
    "suspending": "IN_PROGRESS",
    "suspended": "IN_PROGRESS",
    "resuming": "IN_PROGRESS",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "STOPPED",
}
"""Process state -> the view's status. It has none for waiting or parked: the message says that."""

ENDED = frozenset({"COMPLETED", "FAILED", "STOPPED"})
FORMATS = {"ipynb": "Notebook", "html": "HTML"}
_PREFIX = "session-"
"""Begins ids of jobs: the view's addresses want a dash in them."""


def job_id_of(session: str, backend: str = "") -> str:
    """The id of a session's job. jupyter-scheduler 3 finds by what is before the colon which
    backend to ask; 2 has no backends, and its addresses no colon."""
    return f"{backend}:{_PREFIX}{session}" if backend else _PREFIX + session


def session_of(job_id: str) -> str:
    """The session of a job, with or without a backend in its id."""
    return job_id.rpartition(":")[2].removeprefix(_PREFIX)


def is_job(session: Json) -> bool:
    """Whether the view shows it: it runs a notebook."""
    return bool((session.get("run") or {}).get("notebook"))


def job_of(session: Json, environment: str, backend: str = "") -> dict[str, Any]:
    """The fields of the view's job that `session` (a document of the service) is; `environment` is
    the name for those that were submitted elsewhere, `backend` that of jupyter-scheduler 3. Times
    are UNIX milliseconds."""
    run = session["run"]
    kept = (run.get("metadata") or {}).get(KEY) or {}
    status = STATUS[session["process_state"]]
    created, updated = _ms(session["created_at"]), _ms(session["updated_at"])
    parameters = kept.get("parameters", run.get("parameters")) or {}
    return {
        "input_filename": os.path.basename(run["notebook"]),
        "runtime_environment_name": environment,
        "output_formats": ["ipynb"],
        **{name: kept[name] for name in KEPT if kept.get(name) is not None},
        "parameters": {name: str(value) for name, value in parameters.items()},
        "job_id": job_id_of(session["id"], backend),
        **({"backend_id": backend} if backend else {}),
        "name": session["name"],
        "compute_type": session["tier"],
        "url": f"/jobs/{job_id_of(session['id'], backend)}",
        "create_time": created,
        "update_time": updated,
        "start_time": None if status == "QUEUED" else created,
        "end_time": updated if status in ENDED else None,
        "status": status,
        "status_message": message_of(session),
    }


def message_of(session: Json) -> str:
    """What is going on, in one line: the state, because the view has fewer, and the reason."""
    return f"{session['state']}: {session['reason']}"[:1024]


def kept_of(job: Json) -> dict[str, Any]:
    """What of a job that somebody creates is kept in its run's metadata."""
    return {name: job[name] for name in KEPT if job.get(name) not in (None, [], {})}


def files_of(session: Json, rendered: str) -> dict[str, str]:
    """Format -> where the file is; `rendered` is where an HTML version is put."""
    return {
        "input": session["run"]["notebook"],
        "ipynb": session["run"]["output"],
        "html": rendered,
    }


def matching(
    jobs: Iterable[Json],
    *,
    status: str | None = None,
    job_definition_id: str | None = None,
    name: str | None = None,
    start_time: int | None = None,
    tags: Sequence[str] | None = None,
) -> list[Json]:
    """Those of `jobs` that the view asked for."""
    return [
        job
        for job in jobs
        if (not status or job["status"] == status)
        and (not job_definition_id or job.get("job_definition_id") == job_definition_id)
        and (not name or job["name"].startswith(name))
        and (not start_time or (job["start_time"] or 0) >= start_time)
        and set(tags or ()) <= set(job.get("tags") or ())
    ]


def in_order(jobs: Sequence[Json], by: Iterable[tuple[str, bool]]) -> list[Json]:
    """`jobs` sorted by fields, each with whether it is descending, the first one first."""
    found = list(jobs)
    for field, descending in reversed(list(by)):
        found.sort(key=lambda job: _sortable(job.get(field)), reverse=descending)
    return found


def _sortable(value: Any) -> tuple[int, float, str]:
    """Nothing first, then numbers, then texts: values of one field need not be of one type."""
    if value is None:
        return 0, 0.0, ""
    return (1, value, "") if isinstance(value, int | float) else (2, 0.0, str(value))


def _ms(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)
