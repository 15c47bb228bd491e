"""Sessions as jobs of JupyterLab's view: pure mappings, and what jupyter-scheduler 3 looks for."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest
from singularity_kernel.jobs_view import sessions
from singularity_scheduler.core.values.states import ProcessState

AT = "2026-01-01T00:00:00.500+00:00"


def session(state: str = "live", **kept: Any) -> dict[str, Any]:
    return {
        "id": "0123456789ab",
        "name": "digits",
        "tier": "basic",
        "process_state": state,
        "state": "waiting",
        "reason": "paused for bob/big: premium needs 1 device",
        "created_at": AT,
        "updated_at": AT,
        "run": {
            "notebook": "/h/a.ipynb",
            "output": "/h/out.ipynb",
            "parameters": {"lr": 0.5},
            "metadata": {sessions.KEY: kept} if kept else None,
        },
    }


def test_every_process_state_has_a_status() -> None:
    assert sorted(sessions.STATUS) == sorted(state.value for state in ProcessState)


def test_a_session_that_was_submitted_elsewhere() -> None:
    job = sessions.job_of(session(), "python")
    assert (job["job_id"], job["status"], job["compute_type"]) == (
        "session-0123456789ab",
        "IN_PROGRESS",
        "basic",
    )
    assert job["status_message"] == "waiting: paused for bob/big: premium needs 1 device"
    assert (job["create_time"], job["end_time"]) == (1767225600500, None)
    assert (job["parameters"], job["input_filename"]) == ({"lr": "0.5"}, "a.ipynb")
    assert sessions.job_of(session("queued"), "p")["start_time"] is None
    assert sessions.job_of(session("failed"), "p")["end_time"] == 1767225600500


def test_what_the_view_keeps_comes_back() -> None:
    kept = sessions.kept_of({"tags": ["a"], "parameters": {"lr": "1"}, "schedule": "x", "name": ""})
    job = sessions.job_of(session(**kept), "python")
    assert (job["tags"], job["parameters"]) == (["a"], {"lr": "1"})
    assert "schedule" not in kept


@pytest.mark.parametrize("job_id", ["session-0123456789ab", "singularity:session-0123456789ab"])
def test_ids_of_both_versions(job_id: str) -> None:
    assert sessions.session_of(job_id) == "0123456789ab"
    backend = job_id.rpartition(":")[0]
    job = sessions.job_of(session(), "p", backend)
    assert (job["job_id"], job["url"]) == (job_id, f"/jobs/{job_id}")
    assert job.get("backend_id", "") == backend


def test_what_is_asked_for() -> None:
    jobs = [
        {"name": name, "status": status, "start_time": start, "tags": tags, "create_time": start}
        for name, status, start, tags in (
            ("a1", "QUEUED", None, ["x", "y"]),
            ("a2", "FAILED", 5, ["x"]),
            ("b1", "FAILED", 9, None),
        )
    ]

    def names(**asked: Any) -> list[str]:
        return [job["name"] for job in sessions.matching(jobs, **asked)]

    assert names() == ["a1", "a2", "b1"]
    assert names(name="a") == ["a1", "a2"]
    assert names(status="FAILED", start_time=6) == ["b1"]
    assert names(tags=["y", "x"]) == ["a1"]
    ordered = sessions.in_order(jobs, [("status", False), ("create_time", True)])
    assert [job["name"] for job in ordered] == ["b1", "a2", "a1"]
    assert sessions.in_order(jobs, [("create_time", False)])[0]["name"] == "a1"


def test_jupyter_scheduler_3_finds_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `BaseBackend` is attributes of a class; each class path must be importable."""

    class BaseBackend:
        database_manager_class = None

    stand_in = ModuleType("jupyter_scheduler.base_backend")
    stand_in.BaseBackend = BaseBackend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.delitem(sys.modules, "singularity_kernel.jobs_view.backend", raising=False)
    backend = importlib.import_module("singularity_kernel.jobs_view.backend").SingularityBackend
    assert issubclass(backend, BaseBackend)
    assert ":" not in backend.id
    for path in (backend.scheduler_class, backend.execution_manager_class):
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), name), type)
    monkeypatch.delitem(sys.modules, "singularity_kernel.jobs_view.backend")
    named = [e.value for e in entry_points(group="jupyter_scheduler.backends")]
    if named:  # the environment was set up from this version
        assert "singularity_kernel.jobs_view.backend:SingularityBackend" in named
