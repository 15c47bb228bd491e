"""How a run can end, as typed errors: the sentence for people and the exit code of the runner.

The sentence is the last line that the runner writes, and becomes the session's reason. They are
click's errors as well, because ``papermill --engine singularity`` runs under click, which shows
those as one sentence and everything else as a traceback.
"""

from __future__ import annotations

from typing import Any, ClassVar

from click import ClickException
from singularity_proxy.errors import SingularityError


class Fate(SingularityError, ClickException):  # type: ignore[misc]  # click's is final
    """A run that did not end well. `exit_code` is the runner's and papermill's."""

    reason = "run"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **fields: Any) -> None:
        ClickException.__init__(self, message)
        SingularityError.__init__(self, message, **fields)


class CellFailed(Fate):
    """A cell raised, or the kernel died."""

    reason = "cell_failed"
    http_status = 422


class KernelDied(CellFailed):
    """The kernel died under a cell, or was killed while it started."""

    reason = "kernel_died"
    exit_code = 70


class CommandFailed(Fate):
    """A command ended with another exit code than 0, which is the runner's too; ended by signal N:
    128 + N."""

    reason = "command_failed"
    http_status = 422

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code=code)
        self.code = code


class BadRun(Fate):
    """The run was described wrongly: a parameter of an unknown name or of the wrong type."""

    reason = "bad_request"
    exit_code = 64
    http_status = 400


class NoNotebook(Fate):
    """The notebook is missing or is none."""

    reason = "no_notebook"
    exit_code = 66
    http_status = 404


class NoKernel(Fate):
    """The kernel is not known or could not start."""

    reason = "no_kernel"
    exit_code = 69
    http_status = 503


class NotRun(Fate):
    """The platform refused the run, or does not answer."""

    reason = "not_run"
    exit_code = 75
    http_status = 503


class NotWritten(Fate):
    """The output notebook cannot be written."""

    reason = "cannot_write"
    exit_code = 73
    http_status = 507


class Cancelled(Fate):
    """The run was told to end."""

    reason = "cancelled"
    exit_code = 143
    http_status = 409


class TimedOut(Cancelled):
    """Its time limit is over."""

    reason = "timed_out"
    exit_code = 124


class Interrupted(Cancelled):
    """The same by Ctrl-C."""

    exit_code = 130
