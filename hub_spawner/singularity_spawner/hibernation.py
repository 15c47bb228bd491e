"""What becomes of a server's notebooks when the server stops, and the culler's question before it.

Pure but for the calls of the client; used by the mixin and by `culling`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

KERNEL_MANAGER = "singularity_kernel.server.kernels.SingularityKernelManager"
SESSION_MANAGER = "singularity_kernel.server.notebooks.SingularitySessionManager"

ANSWER_S = 2.0
"""So much longer than asked for is the service's answer waited for."""

_CHOOSES = "kernel_manager_class"


@dataclass(frozen=True)
class Hibernation:
    """What became of the notebooks of a server that is about to stop."""

    suspended: tuple[str, ...] = ()
    to_end: dict[str, str] = field(default_factory=dict)
    """Session -> why: their node cannot store processes, so they end with the server."""
    left: tuple[str, ...] = ()
    """One sentence for each that is neither, or for all of them together."""

    def and_then(self, later: Hibernation | None) -> Hibernation:
        """This one, and what was found in a second look once the server was stopped."""
        if later is None:
            return self
        away = tuple(dict.fromkeys(self.suspended + later.suspended))
        ends = {s: why for s, why in (self.to_end | later.to_end).items() if s not in away}
        return Hibernation(away, ends, later.left)

    def sentences(self, title: str) -> list[str]:
        """For the log."""
        found = []
        if self.suspended:
            found.append(f"{_notebooks(len(self.suspended))} of {title} suspended")
        found += [f"A notebook of {title} ends with its server: {w}" for w in self.to_end.values()]
        return found + [f"{title}: {sentence}" for sentence in self.left]


async def hibernate(client: ServiceClient, user: str, server: str, seconds: float) -> Hibernation:
    """Suspend the notebooks of `server` and wait at most `seconds`; never raises for one that
    could not be suspended, or for a service that is away: those go on as they are."""
    try:
        asked = client.hibernate(user, server, seconds)
        done = await asyncio.wait_for(asked, seconds + ANSWER_S)
    except (asyncio.TimeoutError, TimeoutError):
        return Hibernation(
            left=(
                f"its notebooks are not all suspended after {seconds:g} s; they are kept, and this "
                "goes on without the server",
            )
        )
    except SingularityError as error:
        return Hibernation(
            left=(
                f"its notebooks could not be suspended now ({error.message}); they are kept, and "
                "suspended when the scheduler is back",
            )
        )
    return read(done)


def belongs(session: dict[str, Any], user: str, server: str) -> bool:
    """Whether this is a notebook of that server. One that was started without a server is the
    default one's, as for the service; a batch run outlives its server."""
    owner = session.get("owner") or {}
    mine = session["user"] == user and session["kind"] == "interactive"
    return mine and (owner.get("server") or "") == server


async def end_sessions(
    client: ServiceClient,
    mine: Callable[[dict[str, Any]], bool],
    reason: str,
    only: dict[str, str] | None = None,
) -> int:
    """End all sessions for which `mine` holds; `only`: of those, these, each with its own reason.
    Returns how many; raises `Unavailable` when some did not end."""
    ids = [s["id"] for s in await client.sessions("active") if mine(s)]
    reasons = {
        sid: f"{reason} ({only[sid]})" if only else reason
        for sid in ids
        if only is None or sid in only
    }
    results = await asyncio.gather(
        *(client.end_session(sid, reason=why, grace_s=1.0) for sid, why in reasons.items()),
        return_exceptions=True,
    )
    failed = [error for error in results if isinstance(error, Exception)]
    if failed:
        raise Unavailable(f"{len(failed)} of {len(reasons)} sessions did not end: {failed[0]}")
    return len(reasons)


def read(done: dict[str, Any]) -> Hibernation:
    """The service's answer to `hibernate`."""
    kept = done["kept"]
    left = [
        f"session {item['session']} goes on without the server: {item['reason']}"
        for item in kept
        if item["possible"]
    ]
    left += [f"session {session} is still being stored" for session in done["suspending"]]
    return Hibernation(
        tuple(done["suspended"]),
        {item["session"]: item["reason"] for item in kept if not item["possible"]},
        tuple(left),
    )


def server_arguments(given: Sequence[str]) -> list[str]:
    """What a server's command line needs to leave its kernels alone when it stops; nothing where
    the deployment has chosen a kernel manager of its own."""
    if not can_hibernate(given):
        return []
    return [
        f"--ServerApp.kernel_manager_class={KERNEL_MANAGER}",
        f"--ServerApp.session_manager_class={SESSION_MANAGER}",
    ]


def can_hibernate(given: Sequence[str]) -> bool:
    """Whether a server with these arguments can leave its kernels alone."""
    return not any(_CHOOSES in word and KERNEL_MANAGER not in word for word in given)


def waiting_sentence(notebooks: Sequence[dict[str, Any]]) -> str:
    """For the page that shows how a server starts; "" when nothing waits for it."""
    count = len(notebooks)
    if not count:
        return ""
    waits, comes = ("waits", "It comes") if count == 1 else ("wait", "Each comes")
    return f"{_notebooks(count)} {waits} in the store. {comes} back when it is opened."


def removed_sentence(title: str, count: int) -> str:
    """For the log of a Hub that removed a server, or its user, with `count` notebooks."""
    return (
        f"{_notebooks(count)} of {title}, which was removed, ended; what was stored of them last "
        "is kept for Controller.undo_end_s: until then 'jupyter singularity reopen' of an "
        "administrator takes that back"
    )


def _notebooks(count: int) -> str:
    return f"{count} notebook{'' if count == 1 else 's'}"
