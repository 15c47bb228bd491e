"""Whom or what an event is about: the fields that many events have in common."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OfSession:
    """What happens to, or is asked for, one session."""

    session: str


@dataclass(frozen=True)
class Asked(OfSession):
    """Somebody asks for something to be done with a session."""

    by: str


@dataclass(frozen=True)
class OfLease(OfSession):
    """What concerns the lease `epoch` of a session, and no other one."""

    epoch: int


@dataclass(frozen=True)
class OfDevice:
    """Somebody asks for something to be done with a device."""

    node: str
    device: str
    by: str


@dataclass(frozen=True)
class OfNode:
    """What concerns a whole node."""

    node: str
