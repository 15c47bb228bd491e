"""Requests that make something, asked for again while nobody answers, and carried out once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from singularity_proxy.errors import Unavailable, Unreached

T = TypeVar("T")

PAUSE_S = 0.5
"""Seconds between two tries."""


@dataclass
class Wish:
    """One thing that is wanted once, however often it is asked for."""

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The idempotency key of all tries."""
    lost: Unreached | None = None
    """The last answer that was lost: then it may have been done."""

    def note_failure(self, error: Unavailable, over: bool) -> None:
        """Note that a try was not answered. Raises `Unreached` when it is `over` and one of the
        tries may have been carried out, and `error` when none was."""
        self.lost = error if isinstance(error, Unreached) else self.lost
        if over:
            raise self.lost or error from None


async def ask_until_answered(
    ask: Callable[[str], Awaitable[T]], seconds: float, *, only_if_lost: bool = False
) -> T:
    """Return what `ask` does for an idempotency key. It is asked again for so many seconds while
    the service does not answer, or with `only_if_lost` once it may have carried a try out. Raises
    as `Wish.note_failure` does, and what the service refuses."""
    wish, loop = Wish(), asyncio.get_running_loop()
    give_up_at = loop.time() + seconds
    while True:
        try:
            return await ask(wish.key)
        except Unavailable as error:
            aimless = only_if_lost and not (wish.lost or isinstance(error, Unreached))
            wish.note_failure(error, over=aimless or loop.time() >= give_up_at)
        await asyncio.sleep(PAUSE_S)
