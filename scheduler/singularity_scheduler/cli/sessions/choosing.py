"""Which session a word means, an id, the beginning of one or a name; commands that take one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.base import ServiceApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]

FULL_ID = re.compile(r"[0-9a-f]{12}")
SHORTEST = 4
"""Characters that the beginning of an id needs at least."""
BEGINNING = re.compile(rf"[0-9a-f]{{{SHORTEST},12}}")
NAMED = 5
"""How many sessions a sentence about several names."""
QUICK_S = 1.0
"""How long completion waits for the service."""


def matching(word: str, sessions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The sessions that `word` may mean; the one with that very id alone if it is there."""
    exact = [s for s in sessions if s["id"] == word]
    if exact:
        return exact
    return [
        s
        for s in sessions
        if (BEGINNING.fullmatch(word) and str(s["id"]).startswith(word))
        or word in (s.get("name"), f"{s.get('user')}/{s.get('name')}")
    ]


def only(word: str, found: Sequence[Mapping[str, Any]]) -> str:
    """The id of the one session found; of the first part when they are those of one gang, as what
    is asked of one part concerns all. `BadRequest` that names them when they are several."""
    if (first := _first_part(found)) is not None:
        return first
    if len(found) > 1:
        names = [f"{s['user']}'s {texts.label(s)}" for s in found[:NAMED]]
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        by_id = BEGINNING.fullmatch(word) and all(str(s["id"]).startswith(word) for s in found)
        raise BadRequest(
            f"'{word}' may be {len(found)} sessions: {', '.join(names)}{more}; nothing was done: "
            f"give {'more of the id' if by_id else 'the id of one instead of its name'}",
            sessions=[s["id"] for s in found],
        )
    return str(found[0]["id"])


def _first_part(found: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the part with the lowest number if these are parts of one gang, else None."""
    parts = [s.get("part") for s in found]
    if not all(parts) or len({part["gang"] for part in parts if part}) != 1:
        return None
    return str(min(found, key=lambda s: int(s["part"]["number"]))["id"])


async def find(client: ServiceClient, word: str) -> str:
    """The id of the session that `word` means: an id, the beginning of one with at least
    `SHORTEST` characters, or the name (``user/name``) of an active session. `NotFound` and
    `BadRequest` say why there is none. An id is not looked up: the call that uses it will tell."""
    if FULL_ID.fullmatch(word):
        return word
    active = await client.sessions("active")
    if found := matching(word, active):
        return only(word, found)
    if BEGINNING.fullmatch(word):
        if found := matching(word, await client.sessions()):
            return only(word, found)
        raise NotFound(f"there is no session {word}", session=word)
    raise NotFound(
        f"no active session is called '{word}' (ended ones have only their id: "
        "jupyter singularity ls --all)",
        session=word,
    )


class SessionApp(ServiceApp):
    """A command whose first word is a session; completes it."""

    synopsis = "SESSION"
    fewest = 1
    most: ClassVar[int | None] = 1
    offers_ended: ClassVar[bool] = False
    """Whether ended sessions are completed too."""

    async def session(self, client: ServiceClient) -> str:
        """The id of the session that the first word means."""
        return await find(client, self.words[0])

    def complete(self, prefix: str) -> dict[str, str]:
        """Ids with names and states, names of those that have one of their own."""
        state = None if self.offers_ended else "active"
        client = self.client(QUICK_S)

        async def ask() -> Json:
            async with asyncio.timeout(QUICK_S):
                return await client.sessions_page(state=state, limit=200)

        return choices(prefix, asyncio.run(ask())["sessions"])


def choices(prefix: str, sessions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a word that begins with `prefix` may become, with a text for shells that show one."""
    found = {}
    for s in sessions:
        if str(s["id"]).startswith(prefix):
            found[str(s["id"])] = ", ".join(
                part for part in (texts.clean(s.get("name")), str(s.get("state"))) if part
            )
    names = [str(s.get("name") or "") for s in sessions]
    for s in sessions:
        name = str(s.get("name") or "")
        if name and name.startswith(prefix) and names.count(name) == 1:
            found[name] = f"{s['id']}, {s.get('state')}"
    return found
