"""`jupyter singularity reopen`: take the end of a session back."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import NotFound

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.sessions.choosing import FULL_ID, matching, only

from .moving import MovingApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]

LOOK = 1000
"""How many sessions, the newest, are looked through for a name."""


def newest_ended(word: str, sessions: Sequence[Mapping[str, Any]]) -> str | None:
    """The id of the ended session that `word` means, of several with that name the one that was
    begun last; None: there is none whose end can be taken back. `BadRequest` when the beginning of
    an id fits several."""
    found = matching(word, [s for s in sessions if s.get("undo_end")])
    named = [s for s in found if word in (s.get("name"), f"{s.get('user')}/{s.get('name')}")]
    if named:
        return str(max(named, key=lambda s: str(s["created_at"]))["id"])
    return only(word, found) if found else None


class ReopenApp(MovingApp):
    name = "jupyter-singularity-reopen"
    description = """Take the end of a session back, whatever ended it: closed by mistake,
    restarted, culled, cancelled, failed. It is suspended again as of its newest checkpoint, which
    every end keeps for a while (Controller.undo_end_s, a day), with its own id and history; what it
    did after that checkpoint is lost. Opening its notebook, or `resume`, brings it back; a batch
    run goes on by itself. SESSION is an id, the beginning of one with 4 characters or more, or a
    name, of which the newest session is meant whose end can be taken back."""
    examples = """
        jupyter singularity reopen train.ipynb
        jupyter singularity reopen 3f9c && jupyter singularity resume 3f9c
    """
    offers_ended: ClassVar[bool] = True

    async def session(self, client: ServiceClient) -> str:
        word = self.words[0]
        if FULL_ID.fullmatch(word):
            return word
        found = newest_ended(word, (await client.sessions_page(limit=LOOK))["sessions"])
        if found is None:
            raise NotFound(
                f"there is no session '{word}' whose end can be taken back, so nothing was done: "
                "jupyter singularity ls --all lists those that have ended"
            )
        return found

    def call(self, client: ServiceClient, session: str) -> Awaitable[Json]:
        return client.reopen(session)

    def done(self, session: Json) -> str:
        return f"the end of {texts.label(session)} is taken back: it is {texts.outcome(session)}"


main = ReopenApp.launch
