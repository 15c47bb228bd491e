"""The exit codes of `jupyter singularity`: the one table, which the documentation shows.

Commands of a session's own (`run`) pass that command's exit code on; every refusal of ours is one
of these, and they are chosen so that no ordinary program ends with them by itself.
"""

from __future__ import annotations

from singularity_proxy.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    SingularityError,
    Unavailable,
)

OK = 0
FAILED_RUN = 1
USAGE = 64
NO_INPUT = 66
UNAVAILABLE = 69
REFUSED = 70
CANNOT_WRITE = 73
FORBIDDEN = 77
INTERRUPTED = 130

MEANINGS: dict[int, str] = {
    OK: "done",
    FAILED_RUN: "the run that was waited for or followed failed or was cancelled; `doctor`: the "
    "platform cannot run here",
    USAGE: "wrong use: an unknown command or option, a wrong value, a wrong number of words, a "
    "name that several sessions have; nothing was changed",
    NO_INPUT: "what was named does not exist: a session (other users' count as not existing), a "
    "notebook, a file",
    UNAVAILABLE: "the scheduler cannot be reached: nothing says where it is, or it does not answer",
    REFUSED: "the scheduler refused: the state of the session does not allow it, or this version "
    "or machine cannot do it",
    CANNOT_WRITE: "a file or the standard output cannot be written",
    FORBIDDEN: "not allowed: no token, an expired one, or one without the scope for it",
    INTERRUPTED: "ended by Ctrl-C or by the answer no; what runs on the platform goes on",
}
"""What each code means; also what `docs/reference/command-line.md` shows."""


class CannotWrite(SingularityError):
    """A file or the standard output cannot be written; raised by commands on this side."""

    reason = "cannot_write"
    http_status = 507


def code_of(error: SingularityError) -> int:
    """The exit code of a command that ends with `error`."""
    table: tuple[tuple[type[SingularityError], int], ...] = (
        (BadRequest, USAGE),
        (NotFound, NO_INPUT),
        (Unavailable, UNAVAILABLE),
        (Forbidden, FORBIDDEN),
        (CannotWrite, CANNOT_WRITE),
    )
    return next((code for kind, code in table if isinstance(error, kind)), REFUSED)
