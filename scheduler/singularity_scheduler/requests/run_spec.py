"""The notebook or command that a session is to run: what a request may say of it. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.requested import MAX_NAME, BatchRun

from .fields import refuse_unknown, shown

MAX_RUN_BYTES = 64 << 10
"""Parameters and variables of a run together, as JSON: they travel in its environment, where one
variable has at most 128 KiB. Its metadata has the same limit for itself."""
MAX_TIMEOUT_S = 365 * 86_400
"""Longest time limit of a run."""
MAX_RETRIES = 100
KERNEL = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Names of kernelspecs, and ids of kernels."""

RUN_KEYS = (
    "notebook",
    "output",
    "parameters",
    "kernel",
    "folder",
    "python",
    "variables",
    "timeout_s",
    "max_retries",
    "command",
    "ranked",
    "metadata",
)
_OF_A_NOTEBOOK = ("output", "parameters", "kernel")


def parse_run(value: object) -> BatchRun:
    """The notebook or command in a request's ``run``: ``{notebook, output?, parameters?, kernel?}``
    or ``{command, ranked?}``, each with ``{folder?, python?, variables?, timeout_s?,
    max_retries?, metadata?}``.
    Whether the files are there is seen by the run itself, as its user."""
    if not isinstance(value, dict):
        raise BadRequest("run must be an object that says which notebook or command is run")
    refuse_unknown(value, RUN_KEYS, "run")
    notebook, command = _path(value, "notebook"), _command(value)
    if notebook is None and not command:
        raise BadRequest("run.notebook is missing: the absolute path of the notebook to run")
    kernel = value.get("kernel")
    if kernel is not None and (not isinstance(kernel, str) or not KERNEL.fullmatch(kernel)):
        raise BadRequest(f"run.kernel must be the name of a kernelspec, not {shown(kernel)}")
    parameters, variables = value.get("parameters") or {}, value.get("variables") or {}
    if not isinstance(parameters, dict):
        raise BadRequest('run.parameters must be an object, for example {"lr": 0.1}')
    for name in parameters:
        if not name.isidentifier():
            raise BadRequest(f"{shown(name)} cannot be the name of a parameter", parameter=name)
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise BadRequest('run.variables must map names to texts, for example {"LANG": "C.UTF-8"}')
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise BadRequest(f"{shown(name)} cannot be a variable of the environment")
        if name.startswith(("SINGULARITY_", "JUPYTERHUB_")):
            raise BadRequest(f"{name} is set by the platform and cannot be given to a run")
    run = BatchRun(
        notebook=notebook or "",
        command=command,
        ranked=value.get("ranked") is True,
        output=_path(value, "output"),
        parameters=_finite(parameters, "parameters"),
        kernel=kernel,
        folder=_path(value, "folder"),
        python=_path(value, "python"),
        variables=json.dumps(variables),
        timeout_s=parse_timeout(value.get("timeout_s"), "run.timeout_s"),
        max_retries=_retries(value.get("max_retries")),
        metadata=_metadata(value.get("metadata")),
    )
    if run.notebook and run.output == run.notebook:
        raise BadRequest("run.output is the notebook itself: name another file")
    if len(run.parameters) + len(run.variables) + len(run.command.encode()) > MAX_RUN_BYTES:
        raise BadRequest(
            "the parameters and variables of a run have at most "
            f"{MAX_RUN_BYTES >> 10} KiB together: put larger ones in a file"
        )
    return run


def _command(value: Mapping[str, Any]) -> str:
    """The command of a run; "": it is a notebook's."""
    command, ranked = value.get("command"), value.get("ranked")
    if ranked is not None and not isinstance(ranked, bool):
        raise BadRequest(f"run.ranked must be true or false, not {shown(ranked)}")
    if command is None:
        if value.get("ranked"):
            raise BadRequest("run.ranked is for commands: a notebook is run once")
        return ""
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise BadRequest(f"run.command must be the text of a command, not {shown(command)}")
    for key in ("notebook", *_OF_A_NOTEBOOK):
        if value.get(key):
            raise BadRequest(f"run.{key} does not go with run.command: send one of them")
    if value.get("folder") is None:
        raise BadRequest("run.folder is missing: the absolute path of the folder to run in")
    return command


def run_name(run: BatchRun) -> str:
    """The name of a session that was given none: the notebook's, or the command's first line."""
    name = posixpath.basename(run.notebook) or run.command.strip().partition("\n")[0]
    return "".join(c for c in name if c.isprintable())[:MAX_NAME]


def parse_timeout(value: object, name: str) -> int | None:
    """The time limit that a request calls `name`; None: it has none."""
    if value is None:
        return None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_TIMEOUT_S:  # type: ignore[operator]
        raise BadRequest(
            f"{name} must be a whole number of seconds from 1 to {MAX_TIMEOUT_S}, not "
            f"{shown(value)}"
        )
    return value  # type: ignore[return-value]


def _retries(value: object) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not whole or not 0 <= value <= MAX_RETRIES):  # type: ignore[operator]
        raise BadRequest(
            f"run.max_retries must be a whole number from 0 to {MAX_RETRIES}, not {shown(value)}"
        )
    return value or 0  # type: ignore[return-value]


def _metadata(value: object) -> str:
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise BadRequest('run.metadata must be an object, for example {"tags": {"team": "vision"}}')
    text = _finite(value, "metadata")
    if len(text) > MAX_RUN_BYTES:
        raise BadRequest(f"run.metadata has at most {MAX_RUN_BYTES >> 10} KiB")
    return text


def _finite(values: dict[str, Any], what: str) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except ValueError:
        raise BadRequest(
            f"run.{what} holds a number that JSON does not have (infinity or not a number): "
            "give it as text and convert it in the notebook"
        ) from None


def run_of(run: BatchRun, session: str) -> BatchRun:
    """`run` with every default filled in that needs no file: output and folder."""
    if run.command:
        return run
    folder, name = posixpath.split(run.notebook)
    stem = name.removesuffix(".ipynb")
    return replace(
        run,
        output=run.output or posixpath.join(folder, f"{stem}-{session}.ipynb"),
        folder=run.folder or folder,
    )


def _path(value: Mapping[str, Any], key: str) -> str | None:
    """An absolute path, normalised; None when there is none."""
    path = value.get(key)
    if path is None:
        return None
    if not isinstance(path, str) or not path.startswith("/") or len(path) > 4096:
        raise BadRequest(f"run.{key} must be an absolute path, not {shown(path)}")
    if not path.isprintable():
        raise BadRequest(f"run.{key} must be printable, not {shown(path)}")
    return posixpath.normpath(path)
