"""The end of a platform: its notebooks go into the store, whatever it is that ends it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import Unavailable

if TYPE_CHECKING:
    from .platform import Platform

HIBERNATE_S = 180.0
"""Longest time that the end of the platform waits for notebooks on their way to the store, their
nodes' agents being killed meanwhile and started again."""

RETRY_S = 0.2
"""Pause before a scheduler service that is just started again is asked again, and before it is
looked whether a notebook has begun meanwhile."""

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
    """Suspend all notebooks, also those that begin meanwhile; they wait in the store for the next
    start. `hurry`, or `HIBERNATE_S`, ends the waiting. A scheduler service that is killed meanwhile
    is waited for, and brought back.

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
    found = await _sessions(platform, seconds)
    stored = [s for s in found if s["id"] in known and s["process_state"] == "suspended"]
    if stored:
        verb = "waits" if len(stored) == 1 else "wait"
        say(f"{_notebooks(len(stored))} {verb} in the store for the next start.")
    for session in found:
        if _is_notebook_outside(session):
            say(what_becomes(session), error=True)


def what_becomes(session: dict[str, Any]) -> str:
    """Return what the end of the platform does to a notebook that is not in the store, a sentence
    without its full stop. Pure."""
    who, why = f"Session {session['id']} of {session['user']}", session["reason"]
    before = session.get("last_checkpoint") or {}
    kept = f"its checkpoint {before['name'] or before['id']} is kept" if before else ""
    if session["process_state"] == "resuming":  # until it is back, the store has all of it
        return f"{who} was on its way back and stays in the store for the next start: {why}"
    if session["process_state"] == "suspending":
        rest = kept or "nothing of it is stored"
        return f"{who} is not whole in the store yet, so it ends with the platform; {rest}: {why}"
    return f"{who} ends with the platform{kept and f'; {kept}'}: {why}"


async def _store_all(platform: Platform, known: set[str]) -> None:
    """Ask for every notebook until it is in the store or cannot be, also for those that begin or
    come back meanwhile; notes in `known` which there were."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HIBERNATE_S
    settled: dict[str, str] = {}
    tries = 0
    while True:
        found = await _sessions(platform, until - loop.time())
        left = {
            session["id"]: session
            for session in found
            if _is_notebook_outside(session)
            and settled.get(session["id"]) != session["process_state"]
        }
        if left and not known:
            say(f"Suspending {_notebooks(len(left))}; Ctrl-C again stops without waiting ...")
        known.update(left)
        if not left or loop.time() >= until:
            return
        client, seconds = platform.operator(), max(1.0, until - loop.time())
        users = sorted({session["user"] for session in left.values()})
        asked = (client.hibernate(user, wait_s=seconds) for user in users)
        answers = dict(
            zip(users, await asyncio.gather(*asked, return_exceptions=True), strict=True)
        )
        again = any(map(_worth_another_try, answers.values()))
        tries += again
        for name, session in left.items():
            answer = answers[session["user"]]
            if tries >= TRIES or not (_worth_another_try(answer) or _goes_on(session, answer)):
                settled[name] = session["process_state"]
        # What began or came back meanwhile has not been asked for yet.
        await asyncio.sleep(PAUSE_S if again and tries < TRIES else RETRY_S)


def _is_notebook_outside(session: dict[str, Any]) -> bool:
    """Whether it is a notebook that is not in the store."""
    return bool(session["kind"] == "interactive" and session["process_state"] != "suspended")


def _goes_on(session: dict[str, Any], answer: dict[str, Any] | BaseException) -> bool:
    """Whether a notebook may still be stored after `answer`: it just starts, or it was stored and
    may have been called back."""
    if session["process_state"] == "starting":
        return True
    if isinstance(answer, BaseException):
        return False
    return session["id"] in (*answer["suspended"], *answer["suspending"])


def _worth_another_try(answer: dict[str, Any] | BaseException) -> bool:
    """Whether `answer` of `hibernate` leaves a notebook live that could be stored."""
    if isinstance(answer, BaseException):
        return isinstance(answer, Unavailable)
    return any(kept["possible"] for kept in answer["kept"])


async def _sessions(platform: Platform, seconds: float) -> list[dict[str, Any]]:
    """The sessions that have not ended, once the service answers. Raises `Unavailable` when it has
    not within that time, or cannot be brought back; asks at least once."""
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
