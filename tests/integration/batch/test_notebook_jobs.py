"""JupyterLab's "Notebook Jobs" over the REST API of a real jupyter-scheduler: its jobs are sessions
of a real scheduler service."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.jobs_view.sessions import session_of
from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_platform import Platform
from support.kernel_server import Server, server

Json = dict[str, Any]

PACKAGE = "singularity_kernel.jobs_view"
CLASSES = [
    f"--SchedulerApp.scheduler_class={PACKAGE}.scheduler.SingularityScheduler",
    f"--SchedulerApp.environment_manager_class={PACKAGE}.environments.SingularityEnvironmentManager",
    "--SessionTaskRunner.poll_interval=1",
]
LONG = "import time\nfor i in range(1000):\n    print('step', i, flush=True)\n    time.sleep(0.05)"


class View:
    """What the view asks of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        answer = self._server.ask(f"scheduler/{path}", method, body)
        assert answer.status < 300, (answer.body, self._server.log[-3000:])
        return answer.body

    def refused(self, path: str, method: str, body: Any = None) -> str:
        answer = self._server.ask(f"scheduler/{path}", method, body)
        assert answer.status >= 400
        return str(answer.body["message"])

    def create(self, notebook: str, **more: Any) -> str:
        asked = {"input_uri": notebook, "runtime_environment_name": "x", "name": "job", **more}
        return str(self.ask("jobs", "POST", asked)["job_id"])

    def job(self, job_id: str) -> Json:
        found: Json = self.ask(f"jobs/{job_id}")
        return found

    def wait(self, job_id: str, there: Callable[[Json], bool]) -> Json:
        def look() -> Json:
            job = self.job(job_id)
            assert there(job) or job["status"] != "FAILED", job
            return job

        return until(look, there)


def until(look: Callable[[], Any], there: Callable[[Any], bool], seconds: float = 60) -> Any:
    """What `look` sees once it is `there`."""
    end = time.monotonic() + seconds
    while not there(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


@pytest.fixture
def view(running: Platform, runs: Runs, short_dir: Path) -> Iterator[View]:
    staging = f"--SingularityScheduler.staging_path={short_dir / 'staged'}"
    with view_of(runs, short_dir, staging, *CLASSES) as found:
        yield found


@contextmanager
def view_of(runs: Runs, short_dir: Path, *classes: str) -> Iterator[View]:
    """The view of a server with these options."""
    environment = {**runs.environment, "JUPYTER_DATA_DIR": str(short_dir / "data")}
    kept = {name: value for name, value in environment.items() if name != "JUPYTER_PATH"}
    options = [f"--ServerApp.root_dir={short_dir}", *classes]
    enabled = ["--ServerApp.jpserver_extensions", "jupyter_scheduler=True"]
    mask = os.umask(0)  # the server's files are to be ada's, whatever uid its sessions have
    try:
        with server(short_dir, *enabled, *options, **kept) as found:
            yield View(found)
    finally:
        os.umask(mask)


def test_jobs_are_sessions(view: View, runs: Runs, short_dir: Path) -> None:
    write_notebook(
        short_dir / "train.ipynb",
        "import torch\nprint('lr', lr * 2, name, torch.ones(3, device='cuda').sum().item())",
        parameters="lr = 0.1\nname = 'x'",
    )
    (environment,) = view.ask("runtime_environments")
    assert environment["compute_types"] == ["premium", "standard", "basic"]
    assert view.ask("config")["supported_features"]["stop_job"] is True
    token = uuid.uuid4().hex
    name = f"digits-{token}"
    made = view.create(
        "train.ipynb",
        name=name,
        compute_type="basic",
        parameters={"lr": "0.5", "name": "7"},
        tags=["vision"],
        output_formats=["ipynb", "html"],
        idempotency_token=token,
    )
    asked = {"input_uri": "train.ipynb", "runtime_environment_name": "x", "name": "again"}
    assert token in view.refused("jobs", "POST", {**asked, "idempotency_token": token})
    session = runs.session(session_of(made))
    assert (session["name"], session["tier"], session["kind"]) == (name, "basic", "batch")
    job = view.wait(made, lambda job: job["status"] == "COMPLETED")
    assert job["status_message"].startswith("completed: ")
    assert (job["compute_type"], job["tags"], job["parameters"]) == (
        "basic",
        ["vision"],
        {"lr": "0.5", "name": "7"},
    )
    assert job["end_time"] >= job["start_time"] >= job["create_time"] - 1
    elsewhere = runs.submit(write_notebook(short_dir / "n.ipynb", "1"), name="by hand")
    listed = view.ask("jobs?sort_by=desc(create_time)")
    assert [job["name"] for job in listed["jobs"]][:2] == ["by hand", name]
    assert view.ask(f"jobs?name={name[:20]}")["total_count"] == 1
    assert made in [job["job_id"] for job in view.ask("jobs?tags=vision")["jobs"]]
    assert view.ask("jobs/count?status=completed")["count"] >= 1
    runs.end(elsewhere)

    view.ask(f"jobs/{made}/download_files")
    done = view.wait(made, lambda job: job["downloaded"])
    paths = {file["file_format"]: short_dir / file["file_path"] for file in done["job_files"]}
    assert sorted(paths) == ["html", "input", "ipynb"]
    assert text_of(read(paths["ipynb"])) == "lr 1.0 7 3.0\n"
    assert "lr 1.0 7 3.0" in paths["html"].read_text()
    assert read(paths["input"])["cells"][1]["outputs"] == []

    view.ask(f"jobs/{made}", "DELETE")
    assert view.ask(f"jobs?name={name[:20]}")["total_count"] == 0
    assert "there is no job" in view.refused(f"jobs/{made}", "GET")
    assert not Path(session["run"]["notebook"]).exists()


def test_a_running_job_is_stopped(view: View, runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", LONG)
    made = view.create("n.ipynb")
    runs.printed(session_of(made), "step 5\n")
    assert view.job(made)["status"] == "IN_PROGRESS"
    view.ask(f"jobs/{made}", "PATCH", {"status": "STOPPED"})
    job = view.wait(made, lambda job: job["status"] == "STOPPED")
    assert "cancelled by ada: stopped in Notebook Jobs" in job["status_message"]
    assert "step 5\n" in text_of(read(runs.session(session_of(made))["run"]["output"]))


def test_a_schedule_makes_jobs_and_is_run_by_hand(view: View, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('x is', x)", parameters="x = 1")
    asked = {
        **{"input_uri": "n.ipynb", "runtime_environment_name": "x", "name": "nightly"},
        **{"compute_type": "basic", "parameters": {"x": "2"}, "schedule": "0 0 1 1 *"},
    }
    made = view.ask("job_definitions", "POST", asked)["job_definition_id"]
    (short_dir / "n.ipynb").unlink()  # it has a copy of its own
    by_hand = view.ask(f"job_definitions/{made}/jobs", "POST", {"parameters": {"x": "3"}})
    job = view.wait(by_hand["job_id"], lambda job: job["status"] == "COMPLETED")
    assert (job["job_definition_id"], job["parameters"], job["compute_type"]) == (
        made,
        {"x": "3"},
        "basic",
    )
    # croniter takes a sixth field: seconds.
    view.ask(f"job_definitions/{made}", "PATCH", {"schedule": "* * * * * */2", "timezone": "UTC"})
    jobs = until(
        lambda: view.ask(f"jobs?job_definition_id={made}")["jobs"],
        lambda jobs: len(jobs) >= 3,
    )
    view.ask(f"job_definitions/{made}", "DELETE")
    assert {job["name"] for job in jobs} == {"nightly"}
    for job in jobs:
        view.wait(job["job_id"], lambda job: job["status"] == "COMPLETED")


def test_the_execution_manager_alone(running: Platform, runs: Runs, short_dir: Path) -> None:
    """jupyter-scheduler keeps its own record of jobs, and each of them is run as a session."""
    manager = f"--Scheduler.execution_manager_class={PACKAGE}.execution.SingularityExecutionManager"
    environments = CLASSES[1]
    staging = f"--Scheduler.staging_path={short_dir / 'staged'}"
    with view_of(runs, short_dir, manager, environments, staging) as view:
        write_notebook(short_dir / "n.ipynb", "print('lr', lr * 2)", parameters="lr = 0.1")
        named = {"compute_type": "basic", "name": f"alone-{uuid.uuid4().hex}"}
        formats = {"output_formats": ["ipynb", "html"]}
        made = view.create("n.ipynb", parameters={"lr": "0.5"}, **named, **formats)
        job = view.wait(made, lambda job: job["status"] == "COMPLETED")
        (session,) = [s for s in runs.ask(lambda c: c.sessions()) if s["name"] == named["name"]]
        assert (session["state"], session["tier"]) == ("completed", "basic")
        view.ask(f"jobs/{made}/download_files")
        done = until(lambda: view.job(made), lambda job: job["downloaded"])
        paths = {file["file_format"]: short_dir / file["file_path"] for file in done["job_files"]}
        assert text_of(read(paths["ipynb"])) == "lr 1.0\n"
        assert "lr 1.0" in paths["html"].read_text()
        assert job["parameters"] == {"lr": "0.5"}

        write_notebook(short_dir / "bad.ipynb", "print('first')", "1 / 0")
        bad = view.create("bad.ipynb")
        failed = until(lambda: view.job(bad), lambda job: job["status"] == "FAILED")
        assert "cell 2" in failed["status_message"]
        assert "ZeroDivisionError" in failed["status_message"]

        write_notebook(short_dir / "n.ipynb", "print(lr)", parameters="lr = 0.1")
        wrong = view.create("n.ipynb", parameters={"lrr": "1"})
        failed = until(lambda: view.job(wrong), lambda job: job["status"] == "FAILED")
        assert "no parameter 'lrr'; did you mean 'lr'?" in failed["status_message"]


def test_what_is_refused(view: View, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print(lr)", parameters="lr = 0.1")
    asked = {"input_uri": "n.ipynb", "runtime_environment_name": "x", "name": "bad"}
    said = view.refused("jobs", "POST", {**asked, "compute_type": "gold"})
    assert "gold" in said
    said = view.refused("jobs", "POST", {**asked, "parameters": {"lrr": "1"}})
    assert "no parameter 'lrr'; did you mean 'lr'?" in said
    assert view.refused("jobs", "POST", {**asked, "input_uri": "nowhere.ipynb"})
    made = view.create("n.ipynb", name="good")
    said = view.refused(f"jobs/{made}", "PATCH", {"name": "other"})
    assert "keeps the name" in said
    view.ask(f"jobs/{made}", "DELETE")
    assert [path.name for path in (short_dir / "staged").iterdir()] == ["deleted"]
