"""Coroutines for callers that are not: papermill calls engines as plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

TICK_S = 1.0
"""A time limit is counted in steps of so many seconds."""


def on_own_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run `work` to its end on an event loop of its own, in a thread of its own when the caller's
    thread runs one (papermill called in a notebook); raises what it raised."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work())
        return
    failure: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="papermill")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


async def within_awake(seconds: float, work: Coroutine[Any, Any, Any]) -> None:
    """`work` to its end; cancelled, with `TimeoutError`, once this process has been awake so many
    seconds meanwhile. The hours that its session spent frozen or in the store are none, which a
    clock would not know."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done() and seconds > 0:
            await asyncio.wait({task}, timeout=min(TICK_S, seconds))
            seconds -= TICK_S
        if not task.done():
            raise TimeoutError
        task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


__all__ = ["on_own_loop", "within_awake"]
