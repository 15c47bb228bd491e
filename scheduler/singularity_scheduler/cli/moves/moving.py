"""Commands that take a whole session into the store or out of it: they show how far that is, wait
until it is over, and tell what came back.

The service answers after some seconds at the latest; what takes longer is looked at until it is
done. Ctrl-C ends the looking only.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.completing_words import earlier_words
from singularity_scheduler.cli.framework.exits import OK, REFUSED
from singularity_scheduler.cli.look.views import speed
from singularity_scheduler.cli.sessions.choosing import QUICK_S, find
from singularity_scheduler.cli.sessions.verbs import VerbApp

if TYPE_CHECKING:
    from rich.progress import Progress

    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]

LOOK_S = 0.5
"""How often a transfer is looked at."""

UNDER_WAY = ("suspending", "resuming")
"""Process states that pass by themselves."""


def under_way(session: Mapping[str, Any]) -> bool:
    """Whether the session is on its way into or out of the store. One that waits for room is not:
    that may take hours."""
    if session.get("process_state") in UNDER_WAY:
        return True
    return session.get("state") == "migrating" and not session.get("called_back")


def loss_text(loss: Mapping[str, Any] | None) -> str:
    """The report of a restore in lines, what a person lost first; empty when there is none."""
    if not loss:
        return ""
    count = int(loss.get("hashes_checked") or 0)
    hashes = "1 hash" if count == 1 else f"{count} hashes"
    rows = [
        ("Rolled back", "yes, to that checkpoint" if loss.get("rolled_back") else "no"),
        ("Not brought back", ", ".join(map(texts.clean, loss.get("lost") or ())) or "nothing"),
        ("Came back", ", ".join(map(texts.clean, loss.get("back") or ()))),
        ("Level", texts.clean(loss.get("level"))),
        ("Checked", hashes),
    ]
    return "\n".join(f"  {label:<16}  {text}" for label, text in rows if text)


class MovingApp(VerbApp):
    """A verb whose work is a transfer."""

    asks_for_loss = False
    """Whether what came back is told afterwards."""

    def call(self, client: ServiceClient, session: str) -> Awaitable[Json]:
        """What is asked for."""
        verb = getattr(client, self.name.rpartition("-")[2])
        answer: Awaitable[Json] = verb(session, *self.details())
        return answer

    def reached(self, session: Json) -> bool:
        """Whether what was asked for has come true, or is to come true by itself."""
        return True

    async def work(self, client: ServiceClient) -> int | None:
        session = await self.session(client)
        watched = not self.json and sys.stderr.isatty()
        answer = await self.until_done(client, session, watched)
        self.show(answer, lambda: self.text(answer))
        return OK if self.reached(answer) else REFUSED

    def text(self, answer: Json) -> str:
        """The sentence, and what came back."""
        report = loss_text(answer.get("loss")) if self.asks_for_loss else ""
        back = report and not under_way(answer) and answer.get("process_state") == "live"
        return f"{self.done(answer)}\n{report}" if back else self.done(answer)

    async def until_done(self, client: ServiceClient, session: str, watched: bool) -> Json:
        """The session's document once the transfer is over."""
        asked = asyncio.ensure_future(self.call(client, session))
        with bar() if watched else contextlib.nullcontext() as drawn:
            while watched and not asked.done():
                await asyncio.wait({asked}, timeout=LOOK_S)
                if not asked.done():
                    draw(drawn, await _look(client, session))
            answer = await asked
            while under_way(answer):
                await asyncio.sleep(LOOK_S)
                answer = await client.get_session(str(answer["id"]))
                draw(drawn, answer)
        return answer


async def _look(client: ServiceClient, session: str) -> Json:
    from singularity_proxy.errors import SingularityError

    try:
        return await client.get_session(session)
    except SingularityError:  # the call that is waited for will tell
        return {}


@contextlib.contextmanager
def bar() -> Iterator[Progress]:
    """A line on standard error with bytes, rate and the time that is left; gone afterwards."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
    )

    made = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[speed]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with made:
        yield made


def draw(drawn: Progress | None, session: Mapping[str, Any]) -> None:
    """Show the transfer of `session` as it is now."""
    told = session.get("progress")
    if drawn is None or not told:
        return
    if not drawn.task_ids:
        drawn.add_task("", total=None, speed="")
    drawn.update(
        drawn.task_ids[0],
        description=str(session.get("state") or ""),
        total=int(told["bytes_total"]) or None,
        completed=int(told["bytes_done"]),
        speed=speed(told),
    )


class CheckpointWordApp(MovingApp):
    """Its second word is a checkpoint of the session; completes it."""

    def complete(self, prefix: str) -> dict[str, str]:
        before = earlier_words(prefix)
        if not before:
            return super().complete(prefix)
        client = self.client(QUICK_S)

        async def ask() -> list[Json]:
            async with asyncio.timeout(QUICK_S):
                return await client.checkpoints(await find(client, before[0]))

        return checkpoint_choices(prefix, asyncio.run(ask()))


def checkpoint_choices(prefix: str, stored: list[Json]) -> dict[str, str]:
    """What a word that begins with `prefix` may become: names, and ids of those without one."""
    found = {}
    for one in stored:
        word = str(one.get("name") or one["id"])
        if word.startswith(prefix) and word not in found:
            found[word] = f"{one.get('level')} state, {texts.size(int(one.get('bytes') or 0))}"
    return found
