# PYTHON_ARGCOMPLETE_OK
"""`jupyter singularity`: one command line, its commands loaded only when they are used.

Each command is a module with ``main(argv: list[str]) -> int | None`` (the exit code; None is 0).
Whatever stands behind the command's name is its own to parse, ``--help`` included. This module
imports next to nothing, so a command starts as fast as what it needs itself.
"""

from __future__ import annotations

import os
import sys

from .framework.commands import COMMANDS, load_command


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script ``jupyter-singularity``; returns the exit code."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: its number must not become some other file's
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115
    try:
        if "_ARGCOMPLETE" in os.environ:
            from .framework.completing import complete

            return complete()
        return _run(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:  # while something was being loaded
        from .framework.exits import INTERRUPTED

        return INTERRUPTED


def _run(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help" and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if words and words[0] in COMMANDS:
        code = start(words[0], words[1:])
    else:
        from .framework.app import SingularityApp

        code = SingularityApp.launch(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from .framework.output import drop

        drop(sys.stdout)
    return code


def start(name: str, words: list[str]) -> int:
    """Load the command's module, run it, return its exit code."""
    module = COMMANDS[name][0]
    try:
        loaded, made = load_command(name)
        return (made.launch if made else loaded.main)(words) or 0
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0].startswith("singularity_") and missing != module:
            raise
        from singularity_proxy.errors import Unsupported

        failure = Unsupported(
            f"{missing} is not installed; install jupyter-singularity with the extra that has it "
            "(hub, kernel)",
            module=missing,
        )
    except Exception as error:
        from singularity_proxy.errors import SingularityError

        if not isinstance(error, SingularityError):
            raise
        failure = error  # type: ignore[assignment]
    from .framework.exits import code_of
    from .framework.output import say

    say(f"jupyter singularity {name}", failure, "--json" in words)
    return code_of(failure)


__all__ = ["COMMANDS", "main"]
