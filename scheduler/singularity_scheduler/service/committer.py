"""From decisions to durable ones: those that came together go into one transaction.

Part of the controller. Decisions are made on a state that is ahead of the ledger, one on top of the
other, and wait here. Nothing of them is told, sent or answered before its transaction is durable.
When one fails, so do all that were made after it: the state that was ahead is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import SingularityError, Unavailable

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.actions import Action

from .leadership.election import Deposed
from .ledger.database import InDoubt, Refused
from .ledger.ledger import Ledger, Write

log = logging.getLogger("singularity.service")

MAX_BATCH = 200
"""Most decisions in one transaction: a bound for what a failure makes be decided again."""

RETRY_S = 0.5
"""Pause before it is asked again what became of a transaction."""


class DecideAgain(Exception):
    """One that was decided before could not be made durable, and this one was made on top of it.
    Never leaves the controller."""


@dataclass(eq=False)
class Waiting:
    """A decision that is not durable yet."""

    write: Write
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    tasks: dict[Action, asyncio.Task[Any]] = field(default_factory=dict)
    """Its actions, once it is durable."""

    @property
    def decision(self) -> Decision:
        return self.write.decision


class Committer:
    """`durable(waiting)` is called for each decision, in order, at once when it is durable; then
    its `done` is set. `failed()` is called when the state that is ahead has to be made anew, and
    before any `done` fails."""

    def __init__(
        self,
        ledger: Ledger,
        durable: Callable[[Waiting], None],
        failed: Callable[[], None],
        flushed: Callable[[], Awaitable[None]],
    ) -> None:
        """`flushed()` is awaited after each transaction."""
        self._ledger = ledger
        self._durable = durable
        self._failed = failed
        self._flushed = flushed
        self._queue: list[Waiting] = []
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.doubt: SingularityError | None = None
        """Why it is not known now what is durable; nothing is decided meanwhile."""

    def put(self, write: Write) -> Waiting:
        """A decision was made, and the state that is ahead has it."""
        waiting = Waiting(write)
        self._queue.append(waiting)
        self._some.set()
        self._idle.clear()
        return waiting

    async def flush(self) -> None:
        """Wait until everything that was decided is durable or has failed."""
        await self._idle.wait()

    async def run(self) -> None:
        """Work until cancelled; what waits then fails."""
        try:
            while True:
                await self._some.wait()
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                await self._commit(batch)
                await self._flushed()
                if not self._queue:
                    self._some.clear()
                    self._idle.set()
        finally:
            stopping = Unavailable("the scheduler service is stopping: try again in a moment")
            self._fail([], stopping)

    async def _commit(self, batch: list[Waiting]) -> None:
        try:
            await self._write(batch)
        except Refused as error:
            if len(batch) == 1:
                self._fail(batch, error, again=True)
            else:  # which one it is
                await self._one_by_one(batch)
        except SingularityError as error:
            self._fail(batch, error)
        except asyncio.CancelledError:
            self._queue = batch + self._queue
            raise
        except Exception as error:
            log.error("decisions were not written", exc_info=error)
            self._fail(batch, Unavailable("the scheduler's ledger failed; nothing was changed"))
        else:
            self._done(batch)

    async def _one_by_one(self, batch: list[Waiting]) -> None:
        for number, waiting in enumerate(batch):
            try:
                await self._write([waiting])
            except SingularityError as error:
                self._queue = batch[number + 1 :] + self._queue
                self._fail([waiting], error, again=isinstance(error, Refused))
                return
            self._done([waiting])

    async def _write(self, batch: list[Waiting]) -> None:
        writes = [waiting.write for waiting in batch]
        try:
            await self._ledger.write_all(writes)
        except InDoubt as doubt:
            log.error("%s", doubt.message)
            self.doubt = doubt
            try:
                if not await self._became(writes):
                    raise Unavailable(
                        f"the connection to the scheduler's ledger ({self._ledger.place}) broke; "
                        "nothing was changed: try again in a moment"
                    ) from None
            finally:
                self.doubt = None

    async def _became(self, writes: list[Write]) -> bool:
        while True:
            try:
                return await self._ledger.happened(writes)
            except Deposed:
                raise
            except SingularityError:  # it does not answer yet
                await asyncio.sleep(RETRY_S)

    def _done(self, batch: list[Waiting]) -> None:
        for waiting in batch:
            self._durable(waiting)
            if not waiting.done.done():
                waiting.done.set_result(None)

    def _fail(self, first: list[Waiting], error: SingularityError, again: bool = False) -> None:
        """`first` fail with `error`, and so do those that were made on top of them, unless they can
        be decided `again`."""
        rest, self._queue = self._queue, []
        self._failed()
        for waiting in first + rest:
            if not waiting.done.done():
                mine = waiting in first or not again
                waiting.done.set_exception(error if mine else DecideAgain())
                waiting.done.exception()  # whoever asked may have gone
