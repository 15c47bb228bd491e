"""Classes of harm: what taking a device from its holder would do, in the order in which they are
taken, and how far up that order each waiting claim may go.

Class 0 are devices of idle sessions. Then come, for basic, standard and premium in turn: what
elastic sessions have beyond their minimum, what virtual clusters borrowed, devices that sessions
share by turns, and then sessions by attained service, those that had most first. A waiting claim
takes idle devices of anybody, anything of lower tiers, and within its own tier surplus, borrowed
devices, and sessions of a higher level of attained service (the discretised order of Tiresias,
NSDI'19, section 3.1); one that shares, also the turns that are over.

A threshold `t` means: every class below `t` may be taken. Only few thresholds occur, `SLOTS`; a
pool keeps one index for each.
"""

from __future__ import annotations

from typing import Final

from singularity_scheduler.core.values.parameters import MAX_THRESHOLDS

from .claims import Claim

IDLE: Final = 0
LEVELS: Final = MAX_THRESHOLDS + 1
PER_TIER: Final = 3 + LEVELS
SURPLUS: Final = 0
BORROWED: Final = 1
SHARED: Final = 2
OLDEST: Final = 3
FIXED: Final = 1 + 3 * PER_TIER
"""Nobody takes these: their holder is just coming, going or changing."""


def tier_base(tier: int) -> int:
    return 1 + tier * PER_TIER


def of_level(tier: int, level: int) -> int:
    """The class of a session of this level of attained service (0: had least)."""
    return tier_base(tier) + OLDEST + LEVELS - 1 - level


SLOTS: Final = (
    0,
    1,
    *(of_level(tier, level) for tier in range(3) for level in reversed(range(LEVELS))),
)
"""Thresholds, ascending; the first: free devices only, the second: idle ones as well, then what a
waiting session of each tier and level may take."""

SLOT_OF = {threshold: slot for slot, threshold in enumerate(SLOTS)}

SLOT_COUNT: Final = len(SLOTS)

COUNTED: Final = tuple(sum(1 for t in SLOTS if t <= h) for h in range(FIXED + 1))
"""class -> how many slots do not reach it, from the first on."""

FREE_SLOT: Final = 0
IDLE_SLOT: Final = 1

TIER_SLOT: Final = tuple(SLOT_OF[of_level(tier, 0)] for tier in range(3))
"""rank of a tier -> how far one of it that had nothing yet may go."""


def slot(claim: Claim, borrows: bool) -> int:
    """How far this waiting claim may go."""
    if borrows:
        return IDLE_SLOT
    if claim.at_risk or not claim.level:
        return TIER_SLOT[claim.tier]
    return TIER_SLOT[claim.tier] - claim.level + claim.starves


def of_claim(claim: Claim) -> int:
    """The class of the devices that a holder needs at least."""
    if not claim.busy:
        return IDLE
    if claim.borrowed:
        return tier_base(claim.tier) + BORROWED
    if claim.shares:
        return tier_base(claim.tier) + SHARED
    return of_level(claim.tier, claim.level)
