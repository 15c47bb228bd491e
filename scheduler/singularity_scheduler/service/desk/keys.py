"""Idempotency keys: a request with a key is done once, however often it comes.

A decision that a restart carries on is remembered together with it (`Ledger.write`); what nothing
carries on is remembered once it has happened, and what failed is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from singularity_proxy.errors import Conflict, SingularityError

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.service.ledger.ledger import Command, Ledger


class Keys:
    """The keys of one service; used by the controller for each request that may carry one."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: dict[tuple[str, str], list[asyncio.Future[None]]] = {}

    def command(
        self, user: str, key: str | None, verb: str, session: str, fingerprint: str
    ) -> Command | None:
        return Command(user, key, verb, session, self._clock(), fingerprint) if key else None

    @contextlib.asynccontextmanager
    async def once(self, user: str, key: str | None) -> AsyncIterator[None]:
        """One request with this key at a time; the others wait in the order they came."""
        if key is None:
            yield
            return
        before = self._waiting.setdefault((user, key), [])
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ahead = list(before)
        before.append(mine)
        try:
            if ahead:
                await asyncio.wait(ahead)
            yield
        finally:
            mine.set_result(None)
            before.remove(mine)
            if not before:
                del self._waiting[user, key]

    async def before(self, user: str, key: str | None, fingerprint: str) -> Command | None:
        """The request that already came with this key; `Conflict` when it was another one."""
        before = await self._ledger.command(user, key) if key else None
        if before and fingerprint != before.fingerprint:
            raise Conflict(
                f"this idempotency key was already used to {before.verb} session "
                f"{before.session} with another request; nothing was changed: use a new key",
                session=before.session,
            )
        return before

    async def happened(self, command: Command | None) -> None:
        """Remember the key of a request that no restart would carry on: only once it is done."""
        if command:
            with contextlib.suppress(SingularityError):  # done is done: a repeat does it again
                await self._ledger.write(Decision(), command)

    async def failed(self, user: str, key: str | None) -> None:
        """What this request asked for was decided and then failed: it may come again."""
        if key:
            await self._ledger.forget(user, key)
