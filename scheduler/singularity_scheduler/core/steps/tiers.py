"""Which tiers are open to whom, and sessions that get another one while they exist. Pure.

The rule for what a tier promises: a session is measured by the tier that it has now. With another
tier its account begins anew: the windows that were counted so far do not count for the new promise,
and of the window in progress only what comes after the change. The device time that it was served
in all stays, so changing the tier and back wins no turn.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.errors import BadRequest, Forbidden

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.administration import TiersAsked
from singularity_scheduler.core.values.asks import TierAsked
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Tier

RULE = "tiers.set"


def open_to(state: ClusterState, user: str) -> tuple[Tier, ...]:
    """The tiers that a user's sessions may have, as administrators have said; all if they have
    said nothing."""
    return state.admin.tiers.get(user, tuple(Tier))


def require_open(draft: Draft, user: str, tier: Tier) -> None:
    """`Forbidden` when that tier is not open to the user."""
    there = open_to(draft.state, user)
    if tier not in there:
        words = tuple(one.value for one in there)
        raise refuse(
            Forbidden,
            because("tier_is_closed", tier=tier.value, user=user, open=words),
            tier=tier.value,
            tiers=list(words),
        )


def said(draft: Draft, event: TiersAsked) -> None:
    """An administrator (or the Hub's spawner) says which tiers are open to a user; None: all. The
    sessions that there are keep theirs."""
    if event.tiers == ():
        raise refuse(BadRequest, because("no_tier_is_left", user=event.user), tiers=[])
    wanted = None if event.tiers is None else tuple(t for t in Tier if t in event.tiers)
    after = None if wanted == tuple(Tier) else wanted
    before = draft.state.admin.tiers.get(event.user)
    if before == after:
        return
    draft.user_tiers[event.user] = after
    old, new = ([tier.value for tier in some or Tier] for some in (before, after))
    draft.order(event.by, "tiers", event.user, old, new, "", RULE)


def asked(draft: Draft, view: SessionView, event: TierAsked) -> None:
    """It is to have another tier, priority, or both, from now on; its own user within what is open
    to them, administrators whatever they like."""
    tier, priority = event.tier or view.tier, event.priority or view.priority
    if tier is not view.tier and event.by == view.user:
        require_open(draft, view.user, tier)
    if tier is not view.tier or priority is not view.priority:
        reason = reasons.changed(event.by, view, tier, priority)
        draft.remark(replace(view, tier=tier, priority=priority), reason, "user.tier")
