"""What `submit` sends, made of a command line or a job file, and checked before it is sent."""

from __future__ import annotations

import json
import os
import posixpath
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from singularity_proxy.errors import BadRequest, NotFound, SingularityError
from singularity_scheduler.cli.framework.exits import CannotWrite
from singularity_scheduler.jobs import Job
from singularity_scheduler.jobs.wishes import TIME_LIMIT, merged, of_notebook
from singularity_scheduler.requests.size_spec import policy_document
from singularity_scheduler.requests.spec import parse_spec

from singularity_kernel.batch.running.fates import BadRun, Fate, NoKernel, NoNotebook, NotWritten

from .options import Given
from .papermill_call import Call, papermill_call

PASSED_ON = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PATH",
        "LANG",
        "TZ",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "PYTHONPATH",
        "IPYTHONDIR",
        "JUPYTER_PATH",
        "JUPYTER_DATA_DIR",
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_CONFIG_PATH",
        "JUPYTER_PREFER_ENV_PATH",
        "JUPYTER_PLATFORM_DIRS",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
    }
)
"""Variables that a run gets without being asked for; LC_* too. None of them holds a secret."""


@dataclass(frozen=True)
class Asked:
    """A run as somebody described it, before it is looked at. Paths are as seen from here."""

    notebook: str
    output: str = ""
    kernel: str = ""
    folder: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """None: as it is set here."""
    timeout_s: int | None = None
    max_retries: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """What is sent: `request` is a session's spec as the service takes it."""

    request: dict[str, Any]
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Made before it is sent."""

    def resolved(self) -> dict[str, Any]:
        """The spec with every default filled in that is known before it is sent."""
        spec = parse_spec(self.request)
        found: dict[str, Any] = {
            "kind": spec.kind.value,
            "name": spec.name,
            "tier": spec.tier.value,
            "priority": spec.priority.value,
            "devices": spec.devices * spec.nodes,
            "device_share": spec.share_milli / 1000,
            "virtual_cluster": spec.virtual_cluster or None,
            "locations": list(spec.locations),
        }
        if spec.nodes > 1:
            found["nodes"] = spec.nodes
        if spec.scale is not None:
            found["scale_policy"] = policy_document(spec.scale)
        found |= {
            name: value
            for name, value in (
                ("checkpoint_every_s", spec.every_s),
                ("checkpoint_every_steps", spec.every_steps),
            )
            if value is not None
        }
        if spec.run is None:
            return found
        run = {
            **vars(spec.run),
            **{
                n: json.loads(getattr(spec.run, n)) for n in ("parameters", "variables", "metadata")
            },
            "folder": spec.run.folder or posixpath.dirname(spec.run.notebook),
        }
        mine = {name: value for name, value in run.items() if value not in ("", False)}
        return {**found, "run": mine}


def of_words(
    asked: Asked, name: str, wishes: Mapping[str, Any], environ: Mapping[str, str]
) -> Submission:
    """The submission of a notebook named on the command line, with the `wishes` said there."""
    run, notes, defaults = described(asked, environ)
    return _submission(run, name, merged(wishes, defaults), notes)


def of_job(
    job: Job,
    over: Asked,
    given: Given,
    name: str,
    wishes: Mapping[str, Any],
    environ: Mapping[str, str],
) -> Submission:
    """The submission of a job file; what the command line says (`over`, `given`, `name`, `wishes`)
    goes before what the file says."""
    try:
        parse_spec(job.wishes)
    except BadRequest as error:
        raise job.bad(error.message, "resources") from None
    call = _call(job)
    if job.kind == "command" and call is None:
        return _command(job, over, given, name, merged(wishes, job.wishes), environ)
    if job.wishes.get("nodes", 1) > 1:
        where = ("resources", "properties", "singularity", "nodes")
        raise job.bad("a notebook runs on one node: only a command may have more", *where)
    try:
        asked = _asked(job, call)
        asked = Asked(
            asked.notebook,
            over.output or asked.output,
            over.kernel or asked.kernel,
            over.folder or asked.folder,
            {**asked.parameters, **given.parameters()},
            {**asked.variables, **given.variables(environ)},
            over.timeout_s or asked.timeout_s,
            asked.max_retries if over.max_retries is None else over.max_retries,
            asked.metadata,
        )
        run, notes, defaults = described(asked, environ)
    except SingularityError as error:
        raise _placed(job, error) from None
    made = _submission(run, name or job.name, merged(wishes, job.wishes, defaults), notes)
    return replace(made, notes=(*job.notes, *made.notes), folders=job.folders)


def _call(job: Job) -> Call | None:
    try:
        return papermill_call(job.command, job.folder or job.document.folder)
    except BadRequest as error:
        raise job.bad(error.message, "command") from None


def of_file(job: Job) -> Asked:
    """What a job file says about the run of a notebook; also by a call of papermill."""
    return _asked(job, _call(job))


def _asked(job: Job, call: Call | None) -> Asked:
    if call is None:
        parameters, output, kernel, folder = job.parameters, job.output, job.kernel, job.folder
    else:
        parameters, output = call.given.parameters(), call.output
        kernel, folder = call.kernel, call.folder
    return Asked(
        call.notebook if call else job.notebook,
        output or "",
        kernel or "",
        folder or "",
        parameters,
        job.variables,
        job.timeout_s,
        job.max_retries,
        job.metadata,
    )


def _command(
    job: Job,
    over: Asked,
    given: Given,
    name: str,
    wishes: dict[str, Any],
    environ: Mapping[str, str],
) -> Submission:
    """The submission of a command that is no call of papermill."""
    if job.direct:
        name = next(iter(job.direct))
        raise job.bad(
            f"the command does not speak of {name}, so all runs of the sweep would be the same: "
            f"write ${{{{search_space.{name}}}}} into it",
            "command",
        )
    if over.output or over.kernel or given.parameters():
        raise BadRequest(
            f"{job.document.name} describes a command, and parameters, kernel and output are a "
            "notebook's; nothing was started"
        )
    folder = os.path.abspath(over.folder) if over.folder else job.folder
    if folder is None or not os.path.isdir(folder):
        raise NotFound(f"there is no folder {folder} to run in; nothing was started")
    run = {
        "command": job.command,
        "folder": folder,
        "ranked": job.ranked,
        "python": sys.executable,
        "variables": {
            **passed_on(environ),
            **_set({**job.variables, **given.variables(environ)}, environ),
        },
        TIME_LIMIT: over.timeout_s or job.timeout_s,
        "max_retries": job.max_retries if over.max_retries is None else over.max_retries,
        "metadata": dict(job.metadata),
    }
    title = name or job.name
    if job.sweep and not title:  # its command is that of one of many
        title = os.path.splitext(os.path.basename(job.document.name))[0]
    made = _submission(run, title, wishes, [])
    return replace(made, notes=job.notes, folders=job.folders)


_ABOUT: dict[type[SingularityError], tuple[str, ...]] = {
    NoNotebook: ("notebook",),
    NoKernel: ("kernel",),
    NotWritten: ("output",),
}
"""The key of a job file that a refusal is about."""


def _placed(job: Job, error: SingularityError) -> SingularityError:
    """`error` with the line of the job file that it is about, if it is about one."""
    path: tuple[str, ...] = ()
    for kind, about in _ABOUT.items():
        if isinstance(error, kind):
            path = about
    if isinstance(error, BadRun) and "parameter" in error.fields:
        parameter = str(error.fields["parameter"])
        path = ("parameters", parameter)
        if job.document.find(*path) is None:
            path = ("sweep", "search_space", parameter)
    if job.kind == "command":
        path = ("command",)
    if not path or job.document.find(*path) is None:
        return error
    place = f"{job.document.name}, line {job.document.line(*path)}"
    return type(error)(f"{place}: {error.message}", **error.fields)


def _submission(
    run: dict[str, Any], name: str, wishes: dict[str, Any], notes: list[str]
) -> Submission:
    limit = wishes.pop(TIME_LIMIT, None)
    run = {**run, TIME_LIMIT: run[TIME_LIMIT] or limit}
    return Submission({"kind": "batch", "name": name, "run": run, **wishes}, tuple(notes))


def described(
    asked: Asked, environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """(the run as the service takes it, notes for the user, what the notebook itself wishes);
    raises a `Fate` or a typed error with nothing sent."""
    from singularity_kernel.batch.files import check_writable, read_notebook, refuse_itself
    from singularity_kernel.batch.kernels import kernel_of

    from .parameters import check

    path = os.path.abspath(asked.notebook)
    node = read_notebook(path)
    target = os.path.abspath(asked.output) if asked.output else None
    if target is not None:
        refuse_itself(path, target)
    check_writable(target or path.removesuffix(".ipynb") + "-output.ipynb")
    folder = os.path.abspath(asked.folder) if asked.folder else None
    if folder is not None and not os.path.isdir(folder):
        raise NotFound(f"there is no folder {folder} to run in; nothing was started")
    _, language = kernel_of(node, asked.kernel or None)
    notes = check(node, asked.parameters, language)
    run = {
        "notebook": path,
        "output": target,
        "parameters": dict(asked.parameters),
        "kernel": asked.kernel or None,
        "folder": folder,
        "python": sys.executable,
        "variables": {**passed_on(environ), **_set(asked.variables, environ)},
        "timeout_s": asked.timeout_s,
        "max_retries": asked.max_retries,
        "metadata": dict(asked.metadata),
    }
    return run, notes, of_notebook(node.metadata, path)


def _set(variables: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """`variables` with the values from here filled in."""
    found = {}
    for name, value in variables.items():
        if value is None and name not in environ:
            raise BadRequest(
                f"the variable {name} is to have the value that it has here, and it is not set; "
                f"nothing was started: give it with --env {name}=VALUE"
            )
        found[name] = environ[name] if value is None else value
    return found


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Of `environ` what a run gets by itself."""
    return {name: value for name, value in environ.items() if is_passed_on(name)}


def is_passed_on(name: str) -> bool:
    """Whether a run gets the variable `name` by itself."""
    return name in PASSED_ON or name.startswith("LC_")


def make_folders(folders: tuple[str, ...]) -> None:
    """Make the folders of a job's outputs; raises `CannotWrite`."""
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise CannotWrite(
                f"the folder {folder} for outputs cannot be made ({error.strerror}); nothing was "
                "started"
            ) from None


def typed(fate: Fate) -> SingularityError:
    """The command line's own error for what a run would have ended with."""
    kinds: dict[type[Fate], type[SingularityError]] = {
        BadRun: BadRequest,
        NoNotebook: NotFound,
        NoKernel: NotFound,
        NotWritten: CannotWrite,
    }
    return kinds.get(type(fate), SingularityError)(fate.message, **fate.fields)


__all__ = [
    "Asked",
    "Submission",
    "described",
    "of_file",
    "of_job",
    "of_words",
    "passed_on",
    "typed",
]
