"""`jupyter singularity logs`: what a session's processes printed."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import NotFound
from traitlets import Bool, Integer, TraitError, validate

from singularity_scheduler.cli.framework import output, texts
from singularity_scheduler.cli.framework.exits import FAILED_RUN, OK
from singularity_scheduler.cli.sessions.choosing import SessionApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class LogsApp(SessionApp):
    name = "jupyter-singularity-logs"
    description = """Print what a session's processes wrote to their standard output and error.
    With -f it follows until the session has ended and the exit code says how: 0 completed, 1
    failed or cancelled. SESSION is an id, the beginning of one, or the name of an active session.
    With --json: one object {"session", "state", "exit_code", "text"} at the end."""
    examples = """
        jupyter singularity logs 3f9c
        jupyter singularity logs -f --tail 20 report.ipynb
    """
    offers_ended = True

    follow = Bool(False, config=True, help="Go on until the session has ended.")
    tail = Integer(
        None, allow_none=True, config=True, help="Begin with the last N lines. None: everything."
    )
    flags = {
        ("f", "follow"): ({"LogsApp": {"follow": True}}, "Go on until the session has ended."),
        **SessionApp.flags,
    }
    aliases = {"tail": "LogsApp.tail", **SessionApp.aliases}

    @validate("tail")  # type: ignore[untyped-decorator]
    def _check_tail(self, proposal: Any) -> int | None:
        if proposal["value"] is not None and int(proposal["value"]) < 0:
            raise TraitError("--tail must be a number of lines, 0 or more")
        return proposal["value"]  # type: ignore[no-any-return]

    async def work(self, client: ServiceClient) -> int:
        self._id = session = await self.session(client)
        if not self.json and self.follow:
            document = await client.get_session(session)
            if document.get("process_state") == "queued":
                output.note(f"{texts.label(document)} is {texts.outcome(document)}")
        if self.json:
            parts = [part async for part in self._text(client, session)]
            document = await client.get_session(session)
            wanted = {name: document.get(name) for name in ("state", "exit_code")}
            output.emit_json({"session": session, **wanted, "text": "".join(parts)})
        else:
            end = ""
            async with contextlib.aclosing(self._text(client, session)) as text:
                async for part in text:
                    output.emit(part, end="")
                    end = part[-1:]
            if end not in ("", "\n") and output.is_terminal():
                output.emit("")
            if not self.follow and end:
                return OK
            document = await client.get_session(session)
            if not self.follow:
                said = f"{texts.label(document)} is {texts.outcome(document)}"
                output.note(f"nothing was printed so far; {said}")
        return how_it_ended(document) if self.follow else OK

    async def _text(self, client: ServiceClient, session: str) -> AsyncGenerator[str]:
        """What is to be printed, as it comes."""
        offset = 0
        if self.tail is not None:
            last: deque[str] = deque(maxlen=self.tail + 1)
            async with contextlib.aclosing(client.logs(session)) as printed:
                try:
                    async for part in printed:
                        keep_lines(last, part)
                except NotFound:  # of a session that is just starting; following it says the rest
                    if not self.follow:
                        raise
            yield last_lines("".join(last), self.tail)
            if not self.follow:
                return
            offset = printed.offset
        async with contextlib.aclosing(
            client.logs(session, offset=offset, follow=self.follow)
        ) as log:
            async for part in log:
                yield part

    _id = ""

    def interrupted(self) -> str:
        return f"the session goes on; jupyter singularity logs -f {self._id or 'SESSION'} shows it"


def lines_of(text: str) -> list[str]:
    """Its lines with their ends. Only a newline ends one: a progress bar is a single line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def keep_lines(last: deque[str], part: str) -> None:
    """Append `part` to the last lines, of which the last element may be unfinished."""
    lines = lines_of(part)
    if last and lines and not last[-1].endswith("\n"):
        last[-1] += lines.pop(0)
    last.extend(lines)


def last_lines(text: str, count: int) -> str:
    """The last `count` lines of `text`; an unfinished one counts."""
    return "".join(lines_of(text)[-count:]) if count else ""


def how_it_ended(session: dict[str, Any]) -> int:
    """The exit code for a session that was followed."""
    return OK if session.get("process_state") == "completed" else FAILED_RUN


main = LogsApp.launch
