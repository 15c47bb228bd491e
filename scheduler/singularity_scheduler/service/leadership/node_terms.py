"""What each node was told about its lease as a whole: when it has to stop what could run elsewhere.

The node counts from the newest of its own times that this service has got; see
`agent.node_lease`. A node that is the only one has longer: nothing can run elsewhere, and a service
that is away for a minute must not stop anybody's work. When another node comes, one that is silent
by then is waited for as long as it had been told. Pure.
"""

from __future__ import annotations

from typing import Any


class NodeTerms:
    """One per service. Times are seconds, on the clock of whoever is meant."""

    def __init__(self, ttl_s: float, patience_s: float) -> None:
        self._ttl_s = ttl_s
        self._alone_s = ttl_s + patience_s
        self._got: dict[str, float] = {}
        self._longest: dict[str, float] = {}

    def got(self, node: str, sent_at: object) -> None:
        """An answer has come that the node has sent at that time; agents without a lease of their
        own tell none, and nothing is known of when they stop anything."""
        if isinstance(sent_at, int | float):
            self._got[node] = float(sent_at)
            self._longest.setdefault(node, self._alone_s)
        else:
            self._got.pop(node, None)
            self._longest[node] = self._ttl_s

    def offer(self, node: str, *, alone: bool, dying: bool) -> dict[str, Any]:
        """What the next renewal says: "got" and "after_s". `dying`: nothing new is to be given."""
        after_s = self._alone_s if alone else self._ttl_s
        self._longest[node] = max(self.longest_s(node), after_s)  # it may arrive unanswered
        return {"got": None if dying else self._got.get(node), "after_s": after_s}

    def accepted(self, node: str, offered: dict[str, Any]) -> None:
        """The node has answered that renewal, so it goes by it."""
        if offered["got"] is not None:
            self._longest[node] = offered["after_s"]

    def longest_s(self, node: str) -> float:
        """So long after its last word the node may still run what could run elsewhere. What the
        service before this one has told it is not known."""
        return self._longest.get(node, self._alone_s)
