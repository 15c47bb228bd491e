"""The classes of jupyter-scheduler 3 that a backend builds on, made of those of version 2.

Version 3 is not released. What differs in its sources for a backend, and is so here: a scheduler is
told the id of its backend and keeps it; the methods of schedulers and of task runners that ask the
database or copy files are coroutines, and are awaited; jobs and job definitions carry the id of
their backend; and all schedulers are given one database.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_scheduler import models, scheduler, task_runner
from sqlalchemy import text

Two = scheduler.Scheduler
TwoRunner = task_runner.TaskRunner


class DescribeJob(models.DescribeJob):  # type: ignore[misc]
    backend_id: str | None = None


class DescribeJobDefinition(models.DescribeJobDefinition):  # type: ignore[misc]
    backend_id: str | None = None


class Scheduler(Two):  # type: ignore[misc]
    """Its database and files are those of a scheduler of version 2."""

    def __init__(
        self,
        root_dir: str,
        environments_manager: Any,
        db_url: str,
        config: Any = None,
        backend_id: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(root_dir, environments_manager, db_url, config=config, **more)
        self.backend_id = backend_id
        self._two = Two(
            root_dir,
            environments_manager,
            db_url,
            task_runner_class=None,
            staging_path=self.staging_path,
        )

    async def copy_input_file(self, input_uri: str, copy_to_path: str) -> None:
        self._two.copy_input_file(input_uri, copy_to_path)

    async def copy_input_folder(self, input_uri: str, nb_copy_to_path: str) -> Any:
        return self._two.copy_input_folder(input_uri, nb_copy_to_path)

    async def get_staging_paths(self, model: Any) -> Any:
        return self._two.get_staging_paths(model)

    async def create_job_definition(self, model: Any) -> str:
        made = str(self._two.create_job_definition(model))
        with self.db_session() as session:
            mark(session, made, self.backend_id)
        if self.task_runner and model.schedule:
            self.task_runner.add_job_definition(made)
        return made

    async def get_job_definition(self, job_definition_id: str) -> DescribeJobDefinition:
        found = self._two.get_job_definition(job_definition_id).dict()
        with self.db_session() as session:
            return DescribeJobDefinition(**found, backend_id=marked(session, job_definition_id))

    async def update_job_definition(self, job_definition_id: str, model: Any) -> None:
        self._two.update_job_definition(job_definition_id, model)
        if self.task_runner:
            self.task_runner.update_job_definition(job_definition_id, model)

    async def delete_job_definition(self, job_definition_id: str) -> None:
        self._two.delete_job_definition(job_definition_id)
        if self.task_runner:
            self.task_runner.delete_job_definition(job_definition_id)


class TaskRunner(TwoRunner):  # type: ignore[misc]
    async def create_job(self, job_definition_id: str) -> None:
        raise NotImplementedError("a backend's own runner is tested")

    async def process_queue(self) -> None:
        due: list[str] = []
        making, self.create_job = self.create_job, due.append  # type: ignore[method-assign]
        try:
            super().process_queue()
        finally:
            self.create_job = making  # type: ignore[method-assign]
        for job_definition_id in due:
            await making(job_definition_id)

    async def start(self) -> None:
        self.populate_cache()
        while True:
            await self.process_queue()
            await asyncio.sleep(self.poll_interval)


_TABLE = "CREATE TABLE IF NOT EXISTS of_backend (definition TEXT PRIMARY KEY, backend TEXT)"


def mark(session: Any, definition: str, backend: str | None) -> None:
    """Keep what version 3 has a column for."""
    session.execute(text(_TABLE))
    values = {"definition": definition, "backend": backend}
    session.execute(text("INSERT INTO of_backend VALUES (:definition, :backend)"), values)
    session.commit()


def marked(session: Any, definition: str) -> str | None:
    session.execute(text(_TABLE))
    asked = text("SELECT backend FROM of_backend WHERE definition = :definition")
    found = session.execute(asked, {"definition": definition}).scalar()
    return None if found is None else str(found)
