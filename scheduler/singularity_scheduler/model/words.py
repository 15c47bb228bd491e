"""The words for a session's service level, its priority and its kind."""

from __future__ import annotations

from enum import Enum


class Tier(str, Enum):
    """Service level. `rank` orders them: a higher rank is served first."""

    PREMIUM = "premium"
    STANDARD = "standard"
    BASIC = "basic"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {Tier.PREMIUM: 2, Tier.STANDARD: 1, Tier.BASIC: 0}


class Priority(str, Enum):
    """Orders sessions of one tier; `rank` as that of a tier."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def rank(self) -> int:
        return _PRIORITY[self]


_PRIORITY = {Priority.HIGH: 2, Priority.MEDIUM: 1, Priority.LOW: 0}


class Kind(str, Enum):
    """What a session is: a notebook with a person in front, or a run on its own."""

    INTERACTIVE = "interactive"
    BATCH = "batch"
