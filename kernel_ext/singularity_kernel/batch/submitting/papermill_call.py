"""A command line that is one call of papermill, which is what a batch session runs anyway. Pure."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest

from .options import Given, split_options

_SHELL = re.compile(r"[;|&<>`$*?~#(){}\n]")
"""What only a shell understands; quoted or not, such a command is not taken for a plain call."""

_BEGINNINGS = (("papermill",), ("python", "-m", "papermill"), ("python3", "-m", "papermill"))
_TAKES = {"-k": "kernel", "--kernel": "kernel", "--cwd": "cwd"}
_WITHOUT_EFFECT = {"--engine": 1, "--log-output": 0, "--progress-bar": 0, "--no-progress-bar": 0}
"""Options and their values that a run does not need: it has one engine and keeps its log."""


@dataclass(frozen=True)
class Call:
    """What the command names; paths are absolute."""

    notebook: str
    output: str | None
    given: Given
    kernel: str
    folder: str


def papermill_call(command: str, folder: str) -> Call | None:
    """The call in `command`, run in `folder`; None when it is something else. `BadRequest` for a
    call of papermill that a batch session cannot carry out."""
    text = command.replace("\\\n", " ").strip()
    if _SHELL.search(text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end
        return None
    count = next((len(b) for b in _BEGINNINGS if tuple(words[: len(b)]) == b), 0)
    if not count:
        return None
    given, rest = split_options(words[count:])
    if given.of("--env"):
        raise BadRequest("papermill has no option --env: write environment_variables")
    given.values = [
        (option, (os.path.join(folder, values[0]),) if option == "-f" else values)
        for option, values in given.values
    ]
    paths, named = _split(rest)
    if not 1 <= len(paths) <= 2:
        raise BadRequest("the call of papermill must name the notebook and its output")
    notebook, *output = (os.path.normpath(os.path.join(folder, path)) for path in paths)
    where = os.path.normpath(os.path.join(folder, named.get("cwd", "")))
    return Call(notebook, output[0] if output else None, given, named.get("kernel", ""), where)


def _split(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """(the paths, the values of `_TAKES`)."""
    paths, named = [], {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            paths.append(word)
        elif name in _TAKES or _WITHOUT_EFFECT.get(name):
            value = value if equals else next(left, "")
            if name in _TAKES:
                named[_TAKES[name]] = value
        elif name not in _WITHOUT_EFFECT:
            raise BadRequest(
                f"a batch session does not take papermill's option {name}: known are -p, -r, -f, "
                "-y, -k and --cwd"
            )
    return paths, named
