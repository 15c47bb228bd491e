"""Whose session it is in terms of processes: the one it belongs to, and how one ended, in words."""

from __future__ import annotations

from singularity_proxy.capsule.process import ProcessIdentity, uid_of
from singularity_proxy.errors import BadRequest, Forbidden

from .launch import LaunchRequest


def find_owner(request: LaunchRequest, uid: int) -> ProcessIdentity | None:
    """The process that the session ends with: its Jupyter server, or its first process (joined);
    None when the request names none. Raises `BadRequest` or `Forbidden`."""
    if request.owner_pid is None:
        return None
    try:
        owner = ProcessIdentity.of(request.owner_pid)
        owner_uid = uid_of(request.owner_pid)
    except ProcessLookupError:
        raise BadRequest(
            f"there is no process {request.owner_pid} on this node that the session could "
            "belong to; nothing was started",
            owner_pid=request.owner_pid,
        ) from None
    # The end of a joined session ends this process: it must be the user's own.
    if request.mode == "joined" and owner_uid != uid:
        raise Forbidden(
            f"process {request.owner_pid} runs as uid {owner_uid}, but sessions of "
            f"{request.user} run as uid {uid}; start it from that user's terminal",
            owner_pid=request.owner_pid,
        )
    return owner


def how_it_ended(exit_code: int | None) -> str:
    """For people."""
    if exit_code is None:
        return "its process ended"
    if exit_code < 0:
        return f"its process was ended by signal {-exit_code}"
    return f"its process ended with exit code {exit_code}"
