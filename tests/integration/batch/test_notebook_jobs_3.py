"""The backend for jupyter-scheduler 3: its scheduler is made and asked as version 3 does, and jobs
are sessions of a real scheduler service."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_scheduler import models
from jupyter_scheduler.job_files_manager import JobFilesManager
from jupyter_scheduler.orm import create_tables
from singularity_kernel.jobs_view.backend import SingularityBackend
from singularity_kernel.jobs_view.environments import SingularityEnvironmentManager
from singularity_kernel.jobs_view.sessions import session_of
from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_platform import Platform
from traitlets.config import Config

LONG = "import time\nfor i in range(1000):\n    print('step', i, flush=True)\n    time.sleep(0.05)"


@pytest.fixture
def of_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our classes built on those of version 3."""
    from support import jupyter_scheduler_3 as three

    monkeypatch.setattr("jupyter_scheduler.models.DescribeJob", three.DescribeJob)
    monkeypatch.setattr("jupyter_scheduler.scheduler.Scheduler", three.Scheduler)
    monkeypatch.setattr("jupyter_scheduler.task_runner.TaskRunner", three.TaskRunner)
    module = SingularityBackend.scheduler_class.rpartition(".")[0]
    before = sys.modules.pop(module, None)
    yield
    sys.modules.pop(module, None)
    if before is not None:
        sys.modules[module] = before


@pytest.fixture
def backend(
    running: Platform,
    runs: Runs,
    short_dir: Path,
    of_three: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], Any]]:
    """Makes the backend's scheduler in this process, as a server of ada's would."""
    for name, value in runs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(short_dir)
    url = f"sqlite:///{short_dir / 'scheduler.sqlite'}"
    create_tables(url)

    def made() -> Any:
        module, _, name = SingularityBackend.scheduler_class.rpartition(".")
        staging = {"staging_path": str(short_dir / "staged")}
        options = {"SingularityScheduler": staging, "SessionTaskRunner": {"poll_interval": 1}}
        scheduler = getattr(importlib.import_module(module), name)(
            root_dir=str(short_dir),
            environments_manager=SingularityEnvironmentManager(),
            db_url=url,
            config=Config(options),
            backend_id=SingularityBackend.id,
        )
        package, _, manager = SingularityBackend.execution_manager_class.rpartition(".")
        scheduler.execution_manager_class = getattr(importlib.import_module(package), manager)
        return scheduler

    mask = os.umask(0)  # files of the test are to be ada's, whatever uid her sessions have
    try:
        yield made
    finally:
        os.umask(mask)


async def until(look: Callable[[], Awaitable[Any]], there: Callable[[Any], bool]) -> Any:
    """What `look` sees once it is `there`."""
    end = asyncio.get_running_loop().time() + 60
    while not there(found := await look()):
        assert asyncio.get_running_loop().time() < end, found
        await asyncio.sleep(0.1)
    return found


def job_of(notebook: str, **more: Any) -> models.CreateJob:
    named = {"name": f"job-{uuid.uuid4().hex}", "runtime_environment_name": "x"}
    return models.CreateJob(**{"input_uri": notebook, **named, **more})


def test_a_job_is_made_listed_and_downloaded(backend: Callable[[], Any], short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('lr', lr * 2)", parameters="lr = 0.1")

    async def use() -> None:
        scheduler = backend()
        formats = [form["id"] for form in SingularityBackend.output_formats]
        asked = job_of(
            "n.ipynb", parameters={"lr": "0.5"}, compute_type="basic", output_formats=formats
        )
        made = await scheduler.create_job(asked)
        assert made.partition(":")[0] == SingularityBackend.id  # how version 3 finds the backend
        job = await until(
            lambda: scheduler.get_job(made), lambda job: job.status == models.Status.COMPLETED
        )
        assert (job.job_id, job.backend_id, job.compute_type) == (made, "singularity", "basic")
        listed = await scheduler.list_jobs(models.ListJobsQuery(name=asked.name))
        assert [(job.job_id, job.backend_id) for job in listed.jobs] == [(made, "singularity")]
        counted = models.CountJobsQuery(status=models.Status.COMPLETED)
        assert await scheduler.count_jobs(counted) >= 1

        await JobFilesManager(scheduler).copy_from_staging(made)
        done = await until(lambda: scheduler.get_job(made), lambda job: job.downloaded)
        paths = {file.file_format: short_dir / file.file_path for file in done.job_files}
        assert text_of(read(paths["ipynb"])) == "lr 1.0\n"
        assert "lr 1.0" in paths["html"].read_text()
        assert read(paths["input"])["cells"][1]["outputs"] == []

        await scheduler.delete_job(made)
        assert (await scheduler.list_jobs(models.ListJobsQuery(name=asked.name))).jobs == []

    asyncio.run(use())


def test_a_folder_is_copied_and_a_running_job_is_stopped(
    backend: Callable[[], Any], runs: Runs, short_dir: Path
) -> None:
    folder = short_dir / "project"
    folder.mkdir()
    folder.joinpath("words.txt").write_text("from the folder")
    write_notebook(folder / "n.ipynb", "print(open('words.txt').read())", LONG)

    async def use() -> None:
        scheduler = backend()
        asked = job_of("project/n.ipynb", package_input_folder=True)
        made = await scheduler.create_job(asked)
        assert (await scheduler.get_job(made)).packaged_files == ["words.txt"]
        await asyncio.to_thread(runs.printed, session_of(made), "step 5\n")
        await scheduler.stop_job(made)
        await until(
            lambda: scheduler.get_job(made), lambda job: job.status == models.Status.STOPPED
        )
        ended = await asyncio.to_thread(runs.session, session_of(made))
        assert "from the folder" in text_of(read(ended["run"]["output"]))

    asyncio.run(use())


def test_schedules_of_the_backend_and_of_others(
    backend: Callable[[], Any], short_dir: Path
) -> None:
    write_notebook(short_dir / "n.ipynb", "print('x is', x)", parameters="x = 1")
    named = {"input_uri": "n.ipynb", "runtime_environment_name": "x", "name": "nightly"}

    async def use() -> None:
        first = backend()
        # croniter takes a sixth field: seconds.
        each = models.CreateJobDefinition(
            **named, parameters={"x": "2"}, schedule="* * * * * */2", timezone="UTC"
        )
        ours = await first.create_job_definition(each)
        first.backend_id = "jupyter_server_py"
        theirs = await first.create_job_definition(each)
        (short_dir / "n.ipynb").unlink()  # they have copies of their own

        scheduler = backend()  # the server is started again: its runner finds both
        asked = models.CreateJobFromDefinition(parameters={"x": "3"})
        by_hand = await scheduler.create_job_from_definition(ours, asked)
        running = asyncio.ensure_future(scheduler.task_runner.start())

        def made(definition: str) -> Awaitable[Any]:
            return scheduler.list_jobs(models.ListJobsQuery(job_definition_id=definition))  # type: ignore[no-any-return]

        try:
            found = await until(lambda: made(ours), lambda found: len(found.jobs) >= 3)
        finally:
            running.cancel()
        assert (await made(theirs)).jobs == []
        await scheduler.delete_job_definition(ours)
        given = {job.job_id: job.parameters for job in found.jobs}
        assert given.pop(by_hand) == {"x": "3"}
        assert set(map(str, given.values())) == {"{'x': '2'}"}
        for job in found.jobs:
            await until(
                lambda job_id=job.job_id: scheduler.get_job(job_id),  # type: ignore[misc]
                lambda job: job.status == models.Status.COMPLETED,
            )

    asyncio.run(use())
