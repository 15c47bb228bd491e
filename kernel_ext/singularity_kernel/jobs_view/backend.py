"""What jupyter-scheduler 3 finds by the entry point `jupyter_scheduler.backends`; see its
`BaseBackend`. Version 2 has no such class and is configured with the classes named here."""

from __future__ import annotations

from typing import ClassVar

try:
    from jupyter_scheduler.base_backend import BaseBackend
except ImportError:
    BaseBackend = object

from .sessions import FORMATS

_PACKAGE = "singularity_kernel.jobs_view"


class SingularityBackend(BaseBackend):  # type: ignore[misc,unused-ignore]
    """Jobs as batch sessions of the platform."""

    id: ClassVar[str] = "singularity"
    name: ClassVar[str] = "Singularity"
    description: ClassVar[str] = "Batch sessions that are preempted and go on with nothing lost"
    scheduler_class: ClassVar[str] = f"{_PACKAGE}.scheduler.SingularityScheduler"
    execution_manager_class: ClassVar[str] = f"{_PACKAGE}.execution.SingularityExecutionManager"
    database_manager_class: ClassVar[None] = None
    file_extensions: ClassVar[list[str]] = ["ipynb"]
    output_formats: ClassVar[list[dict[str, str]]] = [
        {"id": name, "label": label, "description": f"The outputs of the run as {label}"}
        for name, label in FORMATS.items()
    ]
