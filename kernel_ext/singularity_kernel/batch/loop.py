"""Coroutines for callers that are not: papermill calls engines as plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


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
