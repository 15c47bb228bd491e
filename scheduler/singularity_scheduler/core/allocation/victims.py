"""Who gives devices up for a waiting claim, and how many: the least harm on one node.

Order: class of harm (see `harm`), then tier and priority, then least loss, which is what its way
out and back costs in device-seconds against what it ran since it came back last: somebody who has
just come back is asked last. Those beyond what is needed are let off again, the dearest first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from singularity_scheduler.core.values.parameters import Parameters

from .claims import PRIORITIES, TIERS, Claim, Stage
from .harm import FIXED, IDLE, SLOTS, SURPLUS, of_claim, tier_base
from .pool import Node

NEVER: Final = 1e18


@dataclass(slots=True)
class Cut:
    """A claim that gives up `count` devices of a node: all that it has anywhere (`whole`), or what
    it has beyond its minimum."""

    claim: Claim
    count: int
    whole: bool
    loss: tuple[int, int, float]


def careful(waiting: Claim) -> bool:
    """Whether it takes devices from some only because its guarantee is at risk: their turn lasts
    longer."""
    return waiting.at_risk and waiting.level > 0


def slice_of(claim: Claim, parameters: Parameters) -> float:
    """Seconds that a turn of one that shares a device lasts."""
    return parameters.slice_s * claim.share_milli / 1000


def protected_until(claim: Claim, waiting: Claim, now: float, parameters: Parameters) -> float:
    """Until when its devices are not taken for `waiting`, although its class would allow that;
    a time that is over: they may be taken. Against thrashing; a higher tier need not wait."""
    if waiting.tier > claim.tier:
        return 0.0
    if not claim.busy:
        begun = claim.idle_since if claim.idle_since is not None else now
        return max(claim.since + parameters.min_run_s, begun + parameters.idle_grace_s)
    if claim.borrowed:
        return 0.0
    if claim.shares and waiting.shares:
        return max(claim.since, claim.serves_from) + slice_of(claim, parameters)
    if claim.shares and claim.level <= waiting.level and not (waiting.at_risk or waiting.starves):
        return NEVER
    if careful(waiting):  # once it has had what its own tier promises for a window
        share = parameters.fraction(TIERS[claim.tier]) * parameters.sla_window_s
        return claim.since + max(parameters.quantum_s, share)
    return claim.since + parameters.quantum_s


def cuts(
    node: Node,
    need: int,
    slot: int,
    waiting: Claim,
    now: float,
    parameters: Parameters,
    gone: Container[Claim] = (),
) -> tuple[list[Cut], float]:
    """(who gives up what on `node`, so that `need` more of its devices are free; 0.0), or
    ([], when more could be had) if that is not possible now. `gone`: those not to ask again."""
    threshold = SLOTS[slot]
    found: list[Cut] = []
    later = 1e18
    for claim, mask in node.holders.items():
        if claim.stage is not Stage.HELD or claim in gone:
            continue
        harm = claim.harm
        surplus = claim.count - claim.minimum if claim.busy else 0
        if harm < threshold:
            until = protected_until(claim, waiting, now, parameters)
            if until <= now:
                here = mask.bit_count()
                found.append(Cut(claim, here, True, (harm, _rank(claim), _loss(claim, now))))
            else:
                later = min(later, until)
        if surplus > 0 and tier_base(claim.tier) + SURPLUS < threshold:
            until = claim.scaled_at + claim.interval_s
            if until <= now:
                loss = (tier_base(claim.tier) + SURPLUS, _rank(claim), _loss(claim, now))
                found.append(Cut(claim, min(surplus, mask.bit_count()), False, loss))
            else:
                later = min(later, until)
    found.sort(key=lambda cut: cut.loss)
    chosen: dict[Claim, Cut] = {}
    missing = need
    for cut in found:
        if missing <= 0:
            break
        shrunk = chosen.get(cut.claim)
        chosen[cut.claim] = cut
        missing -= cut.count - (shrunk.count if shrunk else 0)
    if missing > 0:
        return [], later
    for cut in sorted(chosen.values(), key=lambda cut: cut.loss, reverse=True):
        if missing + cut.count <= 0:
            missing += cut.count
            del chosen[cut.claim]
    for cut in chosen.values():
        if not cut.whole:  # it keeps what is not needed of it
            kept = min(-missing, cut.count - 1)
            cut.count -= kept
            missing += kept
    return list(chosen.values()), 0.0


def _rank(claim: Claim) -> int:
    """By tier (which the class of idle ones says nothing of), then by priority."""
    return claim.tier * len(PRIORITIES) + claim.priority


def _loss(claim: Claim, now: float) -> float:
    """Device-seconds lost by taking its devices, for each second that it ran since it came back
    (or has been idle); sessions on several nodes lose all of them for the devices of one."""
    cost = claim.costs[0] + claim.costs[1]
    since = claim.since if claim.busy else max(claim.since, claim.idle_since or claim.since)
    return claim.count * cost / (max(0.0, now - since) + cost + 1.0)


def entries(claim: Claim) -> tuple[tuple[int, int, int], ...]:
    """How a pool counts what a claim has: (node, class of harm, devices)."""
    given, old = claim.given, claim.old
    harm = claim.harm = of_claim(claim)
    if claim.stage is not Stage.HELD:
        if not old:
            return tuple((node, FIXED, mask.bit_count()) for node, mask in given.items())
        both = {node: given.get(node, 0) | old.get(node, 0) for node in (*given, *old)}
        return tuple((node, FIXED, mask.bit_count()) for node, mask in both.items())
    if len(given) == 1 and (harm == IDLE or claim.count <= claim.minimum):
        [node] = given
        return ((node, harm, claim.count),)
    if harm == IDLE or claim.count <= claim.minimum:
        return tuple((node, harm, mask.bit_count()) for node, mask in given.items())
    surplus = claim.count - claim.minimum
    beyond = tier_base(claim.tier) + SURPLUS
    found = []
    for node, mask in reversed(given.items()):
        count = mask.bit_count()
        part = min(surplus, count)
        surplus -= part
        if part:
            found.append((node, beyond, part))
        if count > part:
            found.append((node, harm, count - part))
    return tuple(found)
