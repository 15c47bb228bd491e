"""Parts of a checkpoint that are saved while others are still being made."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator

from singularity_proxy.checkpoint.files import Part


class Feed:
    """An iterable of parts for `writer.save`, which waits in it for the next one.

    Made by whoever makes the files, who adds each when it is complete and says at the end `finish`,
    or `fail`; one of them has to be said, in whatever thread. `expected_bytes`: about how much it
    will be in all, for people who look at the progress.
    """

    def __init__(self, expected_bytes: int = 0) -> None:
        self.expected_bytes = expected_bytes
        self._queue: queue.SimpleQueue[list[Part] | BaseException | None] = queue.SimpleQueue()

    def add(self, parts: Iterable[Part]) -> None:
        """These are complete, and nobody writes to them any more."""
        self._queue.put(list(parts))

    def finish(self) -> None:
        """There are no more."""
        self._queue.put(None)

    def fail(self, error: BaseException) -> None:
        """The others cannot be made: the save ends with this error, and nothing is listed."""
        self._queue.put(error)

    def __iter__(self) -> Iterator[Part]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from item
