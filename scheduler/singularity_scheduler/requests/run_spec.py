"""The notebook or command that a session is to run: what a request may say of it. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values.requested import MAX_NAME, BatchRun
from singularity_scheduler.text.errors import bad_request

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
        raise bad_request(because("run_is_no_object"))
    refuse_unknown(value, RUN_KEYS, "run")
    notebook, command = _path(value, "notebook"), _command(value)
    if notebook is None and not command:
        raise bad_request(because("run_without_notebook"))
    kernel = value.get("kernel")
    if kernel is not None and (not isinstance(kernel, str) or not KERNEL.fullmatch(kernel)):
        raise bad_request(because("not_a_kernel", given=shown(kernel)))
    parameters, variables = value.get("parameters") or {}, value.get("variables") or {}
    if not isinstance(parameters, dict):
        raise bad_request(because("parameters_are_no_object"))
    for name in parameters:
        if not name.isidentifier():
            raise bad_request(because("not_a_parameter_name", given=shown(name)), parameter=name)
    if not isinstance(variables, dict) or not all(isinstance(v, str) for v in variables.values()):
        raise bad_request(because("variables_are_no_texts"))
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise bad_request(because("not_a_variable", given=shown(name)))
        if name.startswith(("SINGULARITY_", "JUPYTERHUB_")):
            raise bad_request(because("variable_of_the_platform", name=name))
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
        raise bad_request(because("output_is_the_notebook"))
    if len(run.parameters) + len(run.variables) + len(run.command.encode()) > MAX_RUN_BYTES:
        raise bad_request(because("run_too_large", kib=MAX_RUN_BYTES >> 10))
    return run


def _command(value: Mapping[str, Any]) -> str:
    """The command of a run; "": it is a notebook's."""
    command, ranked = value.get("command"), value.get("ranked")
    if ranked is not None and not isinstance(ranked, bool):
        raise bad_request(because("ranked_not_true_or_false", given=shown(ranked)))
    if command is None:
        if value.get("ranked"):
            raise bad_request(because("ranked_notebook"))
        return ""
    if not isinstance(command, str) or not command.strip() or "\0" in command:
        raise bad_request(because("not_a_command", given=shown(command)))
    for key in ("notebook", *_OF_A_NOTEBOOK):
        if value.get(key):
            raise bad_request(because("not_with_a_command", key=key))
    if value.get("folder") is None:
        raise bad_request(because("command_without_folder"))
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
        raise bad_request(
            because("timeout_out_of_range", key=name, most=MAX_TIMEOUT_S, given=shown(value))
        )
    return value  # type: ignore[return-value]


def _retries(value: object) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not whole or not 0 <= value <= MAX_RETRIES):  # type: ignore[operator]
        raise bad_request(because("retries_out_of_range", most=MAX_RETRIES, given=shown(value)))
    return value or 0  # type: ignore[return-value]


def _metadata(value: object) -> str:
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise bad_request(because("metadata_is_no_object"))
    text = _finite(value, "metadata")
    if len(text) > MAX_RUN_BYTES:
        raise bad_request(because("metadata_too_large", kib=MAX_RUN_BYTES >> 10))
    return text


def _finite(values: dict[str, Any], what: str) -> str:
    try:
        return json.dumps(values, allow_nan=False)
    except ValueError:
        raise bad_request(because("not_finite", key=what)) from None


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
        raise bad_request(because("path_not_absolute", key=key, given=shown(path)))
    if not path.isprintable():
        raise bad_request(because("path_not_printable", key=key, given=shown(path)))
    return posixpath.normpath(path)
