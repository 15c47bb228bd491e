"""`jupyter singularity top`: sessions and devices as they change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from singularity_proxy.errors import Unavailable
from traitlets import Bool

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.framework.exits import OK

from .board import Board

if TYPE_CHECKING:
    from rich.live import Live

    from singularity_scheduler.client import ServiceClient

QUIT = "q"

TICK_S = 1.0
"""Ages are drawn anew this often."""

RETRY_S = 1.0
"""Between attempts to reach a service that went away."""

CLUSTER_S = 0.5
"""The cluster is asked at most this often: a burst of changes asks it once."""

NODES_S = 10.0
"""And at least this often: a node that comes or goes is no change of a session."""


class TopApp(ServiceApp):
    """A live table; without a terminal or with --json a document for each change."""

    name = "jupyter-singularity-top"
    description = """Watch the sessions that you may see, the devices and the queue; q or Ctrl-C
    ends it. When the service goes away the last known state stays until it is back. With --json
    or without a terminal: one JSON object {"at", "sessions", "cluster"} per line, now and after
    each change."""
    examples = """
        jupyter singularity top
        jupyter singularity top --once --json
    """

    once = Bool(False, config=True, help="Show the present state once and end.")
    flags = {
        "once": ({"TopApp": {"once": True}}, "Show the present state once and end."),
        **ServiceApp.flags,
    }

    async def work(self, client: ServiceClient) -> int:
        self._board = Board()
        self._board.cluster = await client.cluster()
        self._changed, self._stale = asyncio.Event(), asyncio.Event()
        if self.json or not output.is_terminal():
            return await self._print(client)
        if self.once:
            await self._once(client)
            from rich.console import Console

            console = Console(highlight=False)
            console.print(self._board.screen(_now(), console.width, 1 << 20))
            return OK
        return await self._live(client)

    # -- for programs -----------------------------------------------------------------------

    async def _print(self, client: ServiceClient) -> int:
        """One line per change; a service that goes away ends it (`Unavailable`)."""
        if self.once:
            await self._once(client)
            output.emit(json.dumps(self._board.snapshot(_now())))
            return OK
        async with contextlib.aclosing(self._changes(client)) as changes:
            async for _ in changes:
                self._board.cluster = await client.cluster()
                self._board.forget_ended(time.time())
                output.emit(json.dumps(self._board.snapshot(_now())))
        return OK

    async def _once(self, client: ServiceClient) -> None:
        async with contextlib.aclosing(self._changes(client)) as changes:
            await anext(changes)

    async def _changes(self, client: ServiceClient) -> AsyncGenerator[None]:
        """Each time when an event changed the board."""
        events = cast("AsyncGenerator[dict[str, Any]]", client.events())
        async with contextlib.aclosing(events):
            async for event in events:
                if self._board.apply(event, time.time()):
                    yield None

    # -- for people -------------------------------------------------------------------------

    async def _live(self, client: ServiceClient) -> int:
        from rich.console import Console
        from rich.live import Live

        await self._once(client)  # a refusal is told before the screen is taken
        console = Console(highlight=False)
        with (
            Live(console=console, screen=True, auto_refresh=False) as live,
            keys(sys.stdin) as pressed,
        ):
            tasks = [
                asyncio.ensure_future(task)
                for task in (
                    self._watch(client),
                    self._follow_cluster(client),
                    self._draw(live),
                    quit_key(pressed),
                )
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return OK

    async def _watch(self, client: ServiceClient) -> None:
        """Keep the board up to date; a service that is away is waited for."""
        while True:
            try:
                async for _ in self._changes(client):
                    self._board.trouble = ""
                    self._changed.set()
                    self._stale.set()
            except Unavailable as error:
                self._away(error)
            await asyncio.sleep(RETRY_S)

    async def _follow_cluster(self, client: ServiceClient) -> None:
        """Ask for the cluster after changes, and every now and then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NODES_S):
                    await self._stale.wait()
            self._stale.clear()
            try:
                self._board.cluster = await client.cluster()
                self._changed.set()
            except Unavailable as error:
                self._away(error)
            await asyncio.sleep(CLUSTER_S)

    def _away(self, error: Unavailable) -> None:
        self._board.trouble = f"this may be old: {error.message}"
        self._changed.set()

    async def _draw(self, live: Live) -> None:
        while True:
            self._board.forget_ended(time.time())
            width, height = live.console.size
            live.update(self._board.screen(_now(), width, height), refresh=True)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._changed.wait()


@contextlib.contextmanager
def keys(stream: Any) -> Iterator[asyncio.Queue[str]]:
    """What is typed, each key at once and unseen; the terminal is put back afterwards."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not stream.isatty():
        yield pressed
        return
    number = stream.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def read() -> None:
        typed = os.read(number, 32)
        pressed.put_nowait(typed.decode("ascii", "replace") or QUIT)  # nothing: it was closed

    tty.setcbreak(number)
    loop.add_reader(number, read)
    loop.add_signal_handler(signal.SIGTERM, pressed.put_nowait, QUIT)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


async def quit_key(pressed: asyncio.Queue[str]) -> None:
    """Ends when q was typed."""
    while QUIT not in (await pressed.get()).lower():
        pass


def _now() -> datetime:
    return datetime.now(timezone.utc)


main = TopApp.launch
