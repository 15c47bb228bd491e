"""What commands print: JSON for programs, text for people, and nothing else on standard output.

A reader that went away (``| head``) is no error: the rest is dropped in silence.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, TextIO

from singularity_proxy.errors import SingularityError

from .exits import CannotWrite
from .tables import Card, Table
from .texts import clean

WIDE = 10_000
"""Columns when standard output is no terminal: nothing is shortened or wrapped for a program."""


class ReaderGone(Exception):
    """Whoever read our standard output has closed it; nothing more needs to be printed."""


def emit(text: str, end: str = "\n") -> None:
    """Print to standard output at once; raises `ReaderGone` or `CannotWrite`."""
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
        raise ReaderGone from None
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        emit(text.encode(encoding, "backslashreplace").decode(encoding), end)
    except OSError as error:
        drop(sys.stdout)
        raise CannotWrite(
            f"the standard output cannot be written ({error.strerror}); what was asked for is done"
        ) from None


def drop(stream: TextIO) -> None:
    """Let what is still in the stream's buffer go nowhere, or Python complains at the end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):  # no file behind it
        pass


def is_terminal() -> bool:
    return sys.stdout.isatty()


def emit_json(value: Any) -> None:
    emit(json.dumps(value, indent=2))


def emit_human(what: object) -> None:
    """A string as it is; our own tables and what rich can show in colour and as wide as the
    terminal, or, without a terminal, plain and as wide as they need to be."""
    if isinstance(what, Table | Card) and not is_terminal():
        what = what.plain()
    if isinstance(what, str):
        if what:
            emit(what)
        return
    from rich.console import Console

    if is_terminal():
        console = Console(highlight=False)
        if isinstance(what, Table | Card):
            what = what.rich(console.width)
        console.print(what, markup=False)
        return
    text = io.StringIO()
    Console(file=text, width=WIDE, highlight=False, color_system=None).print(what)
    emit("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def note(text: str, end: str = "\n") -> None:
    """Print for people on standard error; when nobody reads it, there is nobody to tell."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def say(command: str, error: SingularityError, as_json: bool) -> None:
    """A refusal on standard error: one sentence, or a problem document."""
    note(json.dumps(problem(error)) if as_json else f"{command}: {clean(error.message)}")


def problem(error: SingularityError) -> dict[str, Any]:
    """The problem document (RFC 9457) of a refusal, as the REST API writes it."""
    from http import HTTPStatus

    return {
        **{k: v for k, v in error.fields.items() if _is_json(v)},
        "type": f"urn:jupyter-singularity:{error.reason}",
        "title": HTTPStatus(error.http_status).phrase,
        "status": error.http_status,
        "detail": error.message,
        "reason": error.reason,
        "error": type(error).__name__,
    }


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)
