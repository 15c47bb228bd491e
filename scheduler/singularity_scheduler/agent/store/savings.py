"""The checkpoints of one session that are being taken or uploaded at a moment.

Uploads run while the session works, so several can be under way. They publish in the order in which
they were begun: otherwise an older one could become the newest in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Saving:
    """One of them."""

    cancel: threading.Event = field(default_factory=threading.Event)
    """Set to give it up."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing of it reaches the store any more."""


class Savings:
    """One object per live session; oldest first."""

    def __init__(self) -> None:
        self._all: list[Saving] = []

    @contextlib.contextmanager
    def begin(self) -> Iterator[Saving]:
        """Entered before the session's lock is waited for, so that both have the same order."""
        saving = Saving()
        self._all.append(saving)
        try:
            yield saving
        finally:
            self._all.remove(saving)
            saving.over.set()

    def __bool__(self) -> bool:
        """Whether one of them is under way."""
        return bool(self._all)

    def give_up(self, before: Saving | None = None) -> None:
        """Have all end soon, or those that were begun before `before`; they fail."""
        for saving in self._until(before):
            saving.cancel.set()

    async def settle(self, before: Saving | None = None) -> None:
        """Wait until none of them, or of those begun before `before`, reaches the store."""
        for saving in self._until(before):
            await saving.over.wait()

    def _until(self, before: Saving | None) -> list[Saving]:
        return self._all[: None if before is None else self._all.index(before)]
