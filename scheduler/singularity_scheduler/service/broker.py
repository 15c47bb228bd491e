"""Who listens to changes: the event streams of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from singularity_scheduler.core.model import SessionView

MAX_BEHIND = 1000
"""Events a listener may be behind; a slower one is disconnected and starts anew with a snapshot."""


class Subscription:
    """What one listener has not read yet. `get` returns None when the stream is over."""

    def __init__(self, user: str | None) -> None:
        self.user = user
        self.queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(MAX_BEHIND + 1)

    def sees(self, view: SessionView) -> bool:
        return self.user is None or view.user == self.user


class Broker:
    """Passes changed sessions on; called by the controller after each durable decision."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def subscribe(self, user: str | None) -> Subscription:
        """Listen to the sessions of `user`, None: everybody's (admins)."""
        subscription = Subscription(user)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    @property
    def listening(self) -> bool:
        return bool(self._subscriptions)

    def publish(self, view: SessionView, document: Callable[[SessionView], dict[str, Any]]) -> None:
        """Tell all who may see `view`; the document is made once, and only if somebody listens."""
        listeners = [s for s in self._subscriptions if s.sees(view)]
        if not listeners:
            return
        made = document(view)
        for listener in listeners:
            if listener.queue.qsize() >= MAX_BEHIND:
                self._end(listener)
            else:
                listener.queue.put_nowait(made)

    def close(self) -> None:
        """End all streams; the service stops."""
        for listener in list(self._subscriptions):
            self._end(listener)

    def _end(self, listener: Subscription) -> None:
        self._subscriptions.discard(listener)
        while listener.queue.full():
            listener.queue.get_nowait()
        listener.queue.put_nowait(None)
