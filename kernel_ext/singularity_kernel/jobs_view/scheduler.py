"""What jupyter-scheduler calls: `SchedulerApp.scheduler_class`.

Jobs are sessions of the service. Job definitions (schedules) stay in jupyter-scheduler's own
database: they run while the user's server runs. Methods that ask the service are coroutines, which
jupyter-scheduler awaits, so a slow service never stops the server.

Of the class above, version 2 has plain functions where version 3 has coroutines; what is called
here works with both.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from jupyter_scheduler.exceptions import IdempotencyTokenError, InputUriError, SchedulerError
from jupyter_scheduler.models import DescribeJob, DescribeJobDefinition, ListJobsResponse
from jupyter_scheduler.pydantic_v1 import PrivateAttr
from jupyter_scheduler.scheduler import Scheduler
from jupyter_scheduler.task_runner import TaskRunner
from jupyter_server.utils import ensure_async
from singularity_proxy.errors import Conflict, NotFound, SingularityError, Unreached
from singularity_scheduler.client import ServiceClient
from traitlets import Type as TraitType
from traitlets import default

from . import sessions
from .submitting import render, request_of, submit

OUTPUT = "output"
"""The folder of the output notebook, beside the copy of the input."""


class SessionJob(DescribeJob):  # type: ignore[misc]
    """A job of the view that remembers its session's document."""

    _session: Any = PrivateAttr(None)


class SessionTaskRunner(TaskRunner):  # type: ignore[misc]
    """Creates the jobs of schedules that are due."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._making: set[asyncio.Task[None]] = set()
        """The event loop alone would not keep them."""

    def create_job(self, job_definition_id: str) -> asyncio.Task[None]:
        """A schedule is due. Version 2 calls this as a plain function, 3 awaits the task."""
        task = asyncio.ensure_future(self._make(job_definition_id))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        return task

    async def _make(self, job_definition_id: str) -> None:
        try:
            definition = await ensure_async(self.scheduler.get_job_definition(job_definition_id))
            if definition and definition.active and self._is_own(definition):
                await self.scheduler.create_from(definition)
        except Exception as error:
            self.log.error("a job of the schedule %s was not made: %s", job_definition_id, error)

    def _is_own(self, definition: DescribeJobDefinition) -> bool:
        """Version 3's backends share one table of schedules, and after a restart of the server the
        runner of each of them finds all."""
        of = getattr(definition, "backend_id", None)
        return of is None or bool(of == self.scheduler.backend_id)


class SingularityScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """The view's jobs as batch sessions; `compute_type` is their tier."""

    task_runner_class = TraitType(
        allow_none=True,
        config=True,
        default_value="singularity_kernel.jobs_view.scheduler.SessionTaskRunner",
        klass="jupyter_scheduler.task_runner.BaseTaskRunner",
        help="""Makes the jobs of job definitions when they are due. None: schedules make none.""",
    )

    @default("execution_manager_class")  # type: ignore[untyped-decorator,unused-ignore]
    def _default_execution_manager_class(self) -> Any:
        from .execution import SingularityExecutionManager

        return SingularityExecutionManager

    def __init__(self, *args: Any, backend_id: str = "", **kwargs: Any) -> None:
        """`backend_id` comes from jupyter-scheduler 3 and begins the ids of jobs; empty before."""
        super().__init__(*args, **kwargs)
        self.backend_id = backend_id  # the class above has one too, and it was not told

    # -- jobs -----------------------------------------------------------------------------------

    async def create_job(self, model: Any) -> str:
        """Submit a notebook; returns the job's id. It runs on a copy of the notebook, in a folder
        of its own below `staging_path`."""
        if not model.job_definition_id and not self.file_exists(model.input_uri):
            raise InputUriError(model.input_uri)
        key = model.idempotency_token or uuid.uuid4().hex
        folder = os.path.join(self.staging_path, f"job-{uuid.uuid4().hex}")
        notebook = os.path.join(folder, model.input_filename)
        os.makedirs(folder)
        try:
            packaged: list[str] = []
            if model.package_input_folder:
                copied = await _copied(self.copy_input_folder, model.input_uri, notebook)
                packaged = [name for name in copied if name != model.input_filename]
            else:
                await _copied(self.copy_input_file, model.input_uri, notebook)
            said = {**model.dict(), "packaged_files": packaged}
            said["output_formats"] = said["output_formats"] or list(sessions.FORMATS)
            os.makedirs(os.path.join(folder, OUTPUT))
            request = request_of(
                notebook,
                os.path.join(folder, OUTPUT, model.input_filename),
                name=model.name,
                tier=model.compute_type or "",
                parameters=model.parameters or {},
                metadata={sessions.KEY: sessions.kept_of(said)},
            )
            session = await submit(request, f"notebook-job-{key}")
        except Unreached as error:  # the job may have been started, so its folder stays
            raise SchedulerError(error.message) from None
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Conflict) and model.idempotency_token:  # it was used before
                raise IdempotencyTokenError(model.idempotency_token) from None
            if isinstance(error, SingularityError):
                raise SchedulerError(error.message) from None
            raise
        return sessions.job_id_of(session["id"], self.backend_id)

    async def create_from(self, definition: DescribeJobDefinition, **more: Any) -> str:
        """Make a job of a definition, from the copy of the notebook that was made with it."""
        from jupyter_scheduler.models import CreateJob

        said = definition.dict(exclude={"schedule", "timezone"}, exclude_none=True)
        paths = await ensure_async(self.get_staging_paths(definition))
        return await self.create_job(CreateJob(**{**said, **more, "input_uri": paths["input"]}))

    def create_job_definition(self, model: Any) -> Any:
        """The class above fails for one that names no formats."""
        model.output_formats = model.output_formats or list(sessions.FORMATS)
        return super().create_job_definition(model)

    async def create_job_from_definition(self, job_definition_id: str, model: Any) -> str:
        definition = await ensure_async(self.get_job_definition(job_definition_id))
        return await self.create_from(definition, **model.dict(exclude_none=True))

    async def update_job(self, job_id: str, model: Any) -> None:
        raise SchedulerError("a job keeps the name and the tier that it was submitted with")

    async def list_jobs(self, query: Any) -> ListJobsResponse:
        found = await self._all()
        by = [(field.name, field.direction.value == "desc") for field in query.sort_by or ()]
        chosen = sessions.in_order(
            sessions.matching(
                found,
                status=query.status.value if query.status else None,
                job_definition_id=query.job_definition_id,
                name=query.name,
                start_time=query.start_time,
                tags=query.tags,
            ),
            by,
        )
        first = int(query.next_token or 0)
        end = first + int(query.max_items or len(chosen))
        jobs = [SessionJob(**job) for job in chosen[first:end]]
        for job in jobs:
            self.add_job_files(job)
        following = str(end) if end < len(chosen) else None
        return ListJobsResponse(jobs=jobs, next_token=following, total_count=len(chosen))

    async def count_jobs(self, query: Any) -> int:
        return len(sessions.matching(await self._all(), status=query.status.value))

    async def get_job(self, job_id: str, job_files: bool | None = True) -> SessionJob:
        session = await self._ask(self._client().get_session(sessions.session_of(job_id)))
        if not sessions.is_job(session) or self._hidden(session["id"]):
            raise SchedulerError(f"there is no job {job_id}: its session runs no notebook")
        job = SessionJob(**sessions.job_of(session, self._environment(), self.backend_id))
        job._session = session
        if job_files:
            self.add_job_files(job)
        return job

    async def stop_job(self, job_id: str) -> None:
        """Cancel the run: the cell is interrupted, what there is is saved."""
        session = sessions.session_of(job_id)
        await self._ask(self._client().end_session(session, "stopped in Notebook Jobs"))

    async def delete_job(self, job_id: str) -> None:
        """Stop the run if it goes on, and show the job no more. The service keeps the session's
        record as long as that of others."""
        session = await self._ask(self._client().get_session(sessions.session_of(job_id)))
        await self.stop_job(job_id)
        await asyncio.to_thread(self._hide, session)

    # -- files ----------------------------------------------------------------------------------

    def get_staging_paths(self, model: Any) -> Any:
        """Where the files of a definition or a job are; of a job a coroutine, because its HTML is
        made when it is asked for."""
        if not isinstance(model, SessionJob):
            return super().get_staging_paths(model)
        return self._files(model)

    async def _files(self, job: SessionJob) -> dict[str, str]:
        session = job._session
        rendered = os.path.join(self.staging_path, "html", f"{session['id']}.html")
        found = sessions.files_of(session, rendered)
        if "html" in (job.output_formats or ()):
            await asyncio.to_thread(render, found["ipynb"], rendered)
        return {name: found[name] for name in ("input", *(job.output_formats or ()))}

    # -- inside ---------------------------------------------------------------------------------

    def _client(self) -> ServiceClient:
        try:
            return ServiceClient.from_environment()
        except SingularityError as error:
            raise SchedulerError(error.message) from None

    async def _ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except NotFound:
            raise SchedulerError("there is no such job any more") from None
        except SingularityError as error:
            raise SchedulerError(error.message) from None

    async def _all(self) -> list[sessions.Json]:
        """All jobs, newest first."""
        found = await self._ask(self._client().sessions())
        environment = self._environment()
        return [
            sessions.job_of(session, environment, self.backend_id)
            for session in found
            if sessions.is_job(session) and not self._hidden(session["id"])
        ]

    def _environment(self) -> str:
        environments = self.environments_manager.list_environments()
        return environments[0].name if environments else "platform"

    def _marks(self) -> str:
        return os.path.join(self.staging_path, "deleted")

    def _hide(self, session: sessions.Json) -> None:
        """Remove the files of a job that was made here, and remember not to show it."""
        folder = os.path.dirname((session.get("run") or {}).get("notebook") or "/")
        own = os.path.realpath(self.staging_path)
        if os.path.dirname(os.path.realpath(folder)) == own:
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(self._marks(), exist_ok=True)
        with open(os.path.join(self._marks(), session["id"]), "w", encoding="utf-8"):
            pass

    def _hidden(self, session: str) -> bool:
        return os.path.exists(os.path.join(self._marks(), session))


async def _copied(copy: Callable[..., Any], *words: str) -> Any:
    """What `copy` returns. Version 2's functions block for as long as the files are large."""
    if inspect.iscoroutinefunction(copy):
        return await copy(*words)
    return await asyncio.to_thread(copy, *words)
