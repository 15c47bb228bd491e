"""What the commands that act on one session have in common; one module each has its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singularity_scheduler.cli.framework import texts

from .choosing import SessionApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]


class VerbApp(SessionApp):
    """Acts on a session and shows what became of it. The last part of the command's name is the
    client's method."""

    def details(self) -> tuple[Any, ...]:
        """What the method takes besides the session."""
        return ()

    def done(self, session: Json) -> str:
        """The sentence about it."""
        return f"{texts.label(session)} is {texts.outcome(session)}"

    async def work(self, client: ServiceClient) -> int | None:
        verb = getattr(client, self.name.rpartition("-")[2])
        answer: Json = await verb(await self.session(client), *self.details())
        self.show(answer, lambda: self.done(answer))
        return None

    def interrupted(self) -> str:
        return "what was asked for may still be done: jupyter singularity why says"


WHICH = """SESSION is an id, the beginning of one with 4 characters or more, or the name of an
    active session (user/name for administrators). With --json: the session document."""
