"""Queued runs wait where they can start. Part of `decide`, as time goes by.

A run was never started, so nothing of it has to travel: only its place changes. Other clusters are
chosen by their sums.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.placement import routes, routing
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView

from . import groups

RULE = "queue.balance"

LOOKED_AT = 16
"""Most runs of a node that are looked at in one go, and most nodes of a cluster for each."""


def proceed(draft: Draft, node_id: str) -> None:
    """Let queued runs of this node that another one could start at once wait there; of their own
    cluster first, then of those that their locations allow."""
    for run in islice(draft.pending(node_id), LOOKED_AT):
        if run.held_back:
            return  # they are the last ones
        if quotas.run_barred(draft, run):
            continue
        if run.part is not None:
            _move_gang(draft, gangs.parts(draft, run.part))
            continue
        if can_start(draft, run, node_id):
            continue
        if run.member is not None and groups.full(draft, run.member):
            continue
        other = _elsewhere(draft, run)
        if other is not None:
            cluster = draft.node(other).abilities.cluster
            other_one = cluster if cluster != run.cluster else None
            draft.note(replace(run, node=other), run_reasons.can_start_at(other, other_one), RULE)


def _elsewhere(draft: Draft, run: SessionView) -> str | None:
    geography = draft.state.geography
    for name in routes.order(draft.state, run):
        cluster = geography.clusters[name]
        if name != run.cluster and not _has_room(cluster.summary(), run):
            continue
        for node_id in islice(cluster.with_free(run.needs), LOOKED_AT):
            if node_id != run.node and can_start(draft, run, node_id):
                return node_id
    return None


def _move_gang(draft: Draft, views: list[SessionView]) -> None:
    """Let the parts of a gang wait where all of them could start at once, in their cluster: those
    that could start where they are stay."""
    if any(not view.pending or view.held_back for view in views):
        return
    going = [view for view in views if not can_start(draft, view, view.node)]
    cluster = draft.state.geography.clusters.get(views[0].cluster)
    if cluster is None or not gangs.whole(draft, views[0]):
        return
    there = {view.node for view in views}
    free = islice(cluster.with_free(views[0].needs), LOOKED_AT + len(there))
    new = [node for node in free if node not in there and can_start(draft, views[0], node)]
    if len(new) >= len(going):
        for view, node in zip(going, new, strict=False):
            draft.note(replace(view, node=node), run_reasons.can_start_at(node), RULE)


def _has_room(summary: routing.Summary, run: SessionView) -> bool:
    """By the sums of a cluster alone."""
    found = routing.score(summary, run.needs, run.tier.rank) if summary.capacity else None
    return found is not None and found[0] == 0


def can_start(draft: Draft, run: SessionView, node_id: str) -> bool:
    """Whether the run would be started on this node now; see `queue.admit`."""
    node = draft.node(node_id)
    if not node.connected or draft.duty(node_id).duty is not NodeDuty.OPEN:
        return False
    first = next(draft.pending(node_id), None)
    if first is not None and first.queue_key < run.queue_key:
        return False
    used = sum(n for rank, n in draft.admitted_milli(node_id).items() if rank >= run.tier.rank)
    return used + run.wanted_milli <= 1000 * len(draft.usable(node_id))
