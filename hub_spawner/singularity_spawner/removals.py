"""Servers that the Hub removed while the scheduler was away: their notebooks end when it answers.

Suspended notebooks have no lease that ends them, and a later user of the same name would be given
them. So the end is repeated while this Hub runs, and such a server does not start before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from singularity_proxy.errors import SingularityError

from .hub_errors import spawn_refused

RETRY_S, RETRY_MAX_S = 1.0, 5.0
"""Between two tries; doubled after each."""

_open: dict[tuple[str, str], asyncio.Task[None]] = {}


def repeat(user: str, server: str, end: Callable[[], Awaitable[int]]) -> None:
    """Call `end`, which ends all sessions of the removed server, until it raises no more."""
    key = (user, server)
    if key not in _open:
        task = _open[key] = asyncio.ensure_future(_until_done(end))
        task.add_done_callback(lambda _: _open.pop(key, None))


async def finished(user: str, server: str, seconds: float) -> None:
    """Wait until nothing is left of a removed server of this name, so that a new one is not given
    it; raises the refusal to show when that takes longer."""
    task = _open.get((user, server))
    if task is not None and task not in (await asyncio.wait({task}, timeout=seconds))[0]:
        raise spawn_refused(
            "Notebooks of a removed server of this name are still to be ended, so the server was "
            "not started; try again in a minute.",
            reason="singularity_removing",
            status=503,
        )


async def _until_done(end: Callable[[], Awaitable[int]]) -> None:
    pause = RETRY_S
    while True:
        await asyncio.sleep(pause)
        try:
            await end()
            return
        except SingularityError:  # it was logged when the server was removed
            pause = min(2 * pause, RETRY_MAX_S)
