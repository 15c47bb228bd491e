"""The end of a platform: its notebooks go into the store, whatever it is that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import Unavailable

if TYPE_CHECKING:
    from .platform import Platform

HIBERNATE_S = 60.0
"""Longest time that the end of the platform waits for notebooks on their way to the store."""

RETRY_S = 0.2
"""Pause before a scheduler service that is just started again is asked again."""

TRIES, PAUSE_S = 5, 2.0
"""How often, and after which pause, a notebook that could have been stored is asked for: its node
may have to be started again."""

LAST_LOOK_S = 10.0
"""How long the service is waited for to say what became of the notebooks."""


def say(text: str, error: bool = False) -> None:
    """Print `text` for people. A terminal that is gone (SIGHUP, a closed pipe) is no reason to
    leave anything undone."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


async def put_notebooks_away(platform: Platform, hurry: asyncio.Event) -> None:
    """Suspend all notebooks, which wait in the store for the next start; `hurry`, or `HIBERNATE_S`,
    ends the waiting. A scheduler service that is killed meanwhile is waited for, and brought back.

    What could not be suspended is told. Raises `Unavailable` when nobody knows, because the service
    does not answer.
    """
    known: set[str] = set()
    work = asyncio.ensure_future(_store_all(platform, known))
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait({work, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        for task in (work, hurried):
            task.cancel()
        await asyncio.gather(work, hurried, return_exceptions=True)
    if not known:
        return
    seconds = 0.0 if hurry.is_set() else LAST_LOOK_S
    found = [s for s in await _sessions(platform, seconds) if s["id"] in known]
    stored = [s for s in found if s["process_state"] == "suspended"]
    if stored:
        verb = "waits" if len(stored) == 1 else "wait"
        say(f"{_notebooks(len(stored))} {verb} in the store for the next start.")
    for session in found:
        if session not in stored:
            say(
                f"Session {session['id']} of {session['user']} ends with the platform: "
                f"{session['reason']}",
                error=True,
            )


async def _store_all(platform: Platform, known: set[str]) -> None:
    """Ask for every notebook until it is in the store or cannot be; notes in `known` which there
    were."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HIBERNATE_S
    for _ in range(TRIES):
        live = [
            session
            for session in await _sessions(platform, until - loop.time())
            if session["kind"] == "interactive" and session["process_state"] != "suspended"
        ]
        if live and not known:
            say(f"Suspending {_notebooks(len(live))}; Ctrl-C again stops without waiting ...")
        known.update(session["id"] for session in live)
        client, left = platform.operator(), max(1.0, until - loop.time())
        users = {session["user"] for session in live}
        asked = (client.hibernate(user, wait_s=left) for user in users)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if not any(map(_worth_another_try, answers)) or loop.time() >= until:
            return
        await asyncio.sleep(PAUSE_S)


def _worth_another_try(answer: dict[str, Any] | BaseException) -> bool:
    """Whether `answer` of `hibernate` leaves a notebook live that could be stored."""
    if isinstance(answer, BaseException):
        return isinstance(answer, Unavailable)
    return any(kept["possible"] for kept in answer["kept"])


async def _sessions(platform: Platform, seconds: float) -> list[dict[str, Any]]:
    """The sessions that have not ended, once the service answers. Raises `Unavailable` when it has
    not within that time; asks at least once."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            return await platform.operator().sessions("active")
        except Unavailable:
            if loop.time() >= until:
                raise
        await platform.revive_service()
        await asyncio.sleep(RETRY_S)


def _notebooks(count: int) -> str:
    return "1 notebook" if count == 1 else f"{count} notebooks"
