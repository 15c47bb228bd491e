"""The commands that act on one session: what they have in common, and those that do no more than
ask for a verb, made of its row. The others have a module each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.completing_words import earlier_words
from singularity_scheduler.model.arguments import SCHEMAS, Form
from singularity_scheduler.model.verbs import VERBS, Verb, VerbCommand

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


class RowApp(VerbApp):
    """A command that is made of the row of its verb: each argument is a word."""

    row: ClassVar[Verb]
    command: ClassVar[VerbCommand]

    def details(self) -> tuple[Any, ...]:
        pairs = zip(self.row.arguments, self.words[1:], strict=False)
        return tuple(read_word(each.form, word) for each, word in pairs)

    def done(self, session: Json) -> str:
        about = ", ".join(f"{key} {texts.clean(session.get(key))}" for key in self.command.shows)
        return f"{super().done(session)} ({about})" if about else super().done(session)

    def complete(self, prefix: str) -> dict[str, str]:
        before = earlier_words(prefix) if self.row.arguments else []
        if not before:
            return super().complete(prefix)
        return dict.fromkeys(self._fitting(len(before) - 1, prefix), "")

    def _fitting(self, number: int, prefix: str) -> Iterable[str]:
        """The words that an argument may be and that begin with `prefix`."""
        arguments = self.row.arguments[number : number + 1]
        words = SCHEMAS[arguments[0].form].get("enum", ()) if arguments else ()
        return (word for word in words if word.startswith(prefix))


def read_word(form: Form, word: str) -> Any:
    """Return the value of an argument that was given as a word; the service refuses what is
    wrong with it otherwise."""
    if form is not Form.COUNT:
        return word
    if not word.isdecimal():
        raise BadRequest(f"'{word}' is no number of devices, for example 1; nothing was changed")
    return int(word)


def show_argument(form: Form, name: str, optional: bool) -> str:
    """Return an argument as the synopsis of a command has it."""
    words = SCHEMAS[form].get("enum")
    shown = "|".join(words) if words else name.upper()
    return f"[{shown}]" if optional else shown


def make_app(row: Verb, command: VerbCommand) -> type[RowApp]:
    """Return the command of a verb."""
    needed = sum(not each.optional for each in row.arguments)
    shown = (show_argument(each.form, each.name, each.optional) for each in row.arguments)
    examples = "\n".join(f"jupyter singularity {line}" for line in command.examples)
    metaclass: Any = type(RowApp)
    made: type[RowApp] = metaclass(
        f"{row.name.capitalize()}App",
        (RowApp,),
        {
            "__module__": __name__,
            "__doc__": command.summary,
            "row": row,
            "command": command,
            "name": f"jupyter-singularity-{row.name}",
            "synopsis": " ".join(("SESSION", *shown)),
            "fewest": 1 + needed,
            "most": 1 + len(row.arguments),
            "description": f"{command.description} {WHICH}",
            "examples": examples,
        },
    )
    return made


APPS = {
    row.name: make_app(row, row.command)
    for row in VERBS
    if row.command is not None and not row.command.module
}
"""Verb -> its command."""
