"""Completion of command lines by argcomplete: `complete` takes the place of `main`.

The shell runs ``jupyter-singularity`` with the line to complete in its environment. The command's
parser is made and asked; no command is ever started and nothing is printed but completions.
"""

from __future__ import annotations

import os


def complete() -> int:
    """Answer the shell; returns the exit code, also when there is nothing to say."""
    try:
        _complete()
    except Exception:
        # A completion that cannot be had is not worth a word in the middle of a typed line.
        if os.environ.get("_ARC_DEBUG"):
            raise
    return 0


def _complete() -> None:
    from traitlets.config.argcomplete_config import (
        get_argcomplete_cwords,
        increment_argcomplete_index,
    )

    from .app import SingularityApp
    from .base import CommandApp
    from .commands import COMMANDS, load_command

    words = (get_argcomplete_cwords() or [""])[1:]
    if not words:
        SingularityApp().offer()
        return
    if words[0] not in COMMANDS:
        return
    increment_argcomplete_index()
    module, made = load_command(words[0])
    if made:
        made().offer()
        return
    own = (v for v in vars(module).values() if isinstance(v, type) and issubclass(v, CommandApp))
    for cls in own:
        if cls.__module__ == module.__name__:
            cls().offer()
