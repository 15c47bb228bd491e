"""jupyter-scheduler's execution manager: what jobs of the platform can have, and how one is run
where only this class is configured and jupyter-scheduler keeps its own record of jobs."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_scheduler.exceptions import SchedulerError
from jupyter_scheduler.executors import ExecutionManager
from jupyter_scheduler.models import JobFeature
from singularity_proxy.errors import SingularityError

from singularity_kernel.batch.files import read_notebook

from .submitting import render, request_of, submit

SUPPORTED = {
    JobFeature.job_name,
    JobFeature.parameters,
    JobFeature.output_formats,
    JobFeature.job_definition,
    JobFeature.idempotency_token,
    JobFeature.tags,
    JobFeature.stop_job,
    JobFeature.delete_job,
}


class SingularityExecutionManager(ExecutionManager):  # type: ignore[misc,unused-ignore]
    """Runs one job as a batch session and waits for its end."""

    def execute(self) -> None:
        """Called in a process of its own; raises what the view shows as the reason."""
        try:
            asyncio.run(self._run())
        except SingularityError as error:
            raise SchedulerError(error.message) from None

    async def _run(self) -> None:
        from singularity_scheduler.client import ServiceClient

        job = self.model
        output = self.staging_paths.get("ipynb") or f"{self.staging_paths['input']}.out.ipynb"
        request = request_of(
            self.staging_paths["input"],
            output,
            name=job.name,
            tier=job.compute_type or "",
            parameters=job.parameters or {},
            metadata={"tags": dict.fromkeys(job.tags or (), "")},
        )
        session = await submit(request, f"notebook-job-{self.job_id}")
        ended = await ServiceClient.from_environment().wait(session["id"])
        if "html" in self.staging_paths:
            render(output, self.staging_paths["html"])
        if ended["process_state"] != "completed":
            raise SchedulerError(f"{ended['state']}: {ended['reason']}")

    @classmethod
    def supported_features(cls, *_: Any) -> dict[JobFeature, bool]:
        """jupyter-scheduler calls it on the class, with the class once more."""
        return {feature: feature in SUPPORTED for feature in JobFeature}

    @classmethod
    def validate(cls, *words: Any) -> bool:
        """Whether the notebook at the last of `words` names a kernel."""
        try:
            return bool(read_notebook(str(words[-1])).metadata.get("kernelspec", {}).get("name"))
        except SingularityError:
            return False
