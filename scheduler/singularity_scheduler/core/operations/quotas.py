"""Virtual clusters: how many devices belong to whom, and who has borrowed some. Pure.

What sessions of a virtual cluster hold counts for its quota, on all nodes together. Beyond it they
borrow, where they may: free and idle devices. What is borrowed is given back as soon as a session
of a virtual cluster within its quota needs it, unless it is of a higher tier. Sessions of no
virtual cluster neither own nor borrow.
"""

from __future__ import annotations

from singularity_proxy.errors import BadRequest, Conflict, NotFound

from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import Refused, choices, refuse
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.administration import QuotaAsked, QuotaGone, VirtualCluster
from singularity_scheduler.core.values.model import SessionView

RULE = "quota.set"

MAX_QUOTA = 1_000_000


# -- what is asked --------------------------------------------------------------------------


def asked(draft: Draft, event: QuotaAsked) -> None:
    """There is to be this virtual cluster, or it gets another quota."""
    after = event.cluster
    if not 0 <= after.quota_devices <= MAX_QUOTA:
        raise refuse(
            BadRequest,
            because("quota_out_of_range", quota=after.quota_devices, most=MAX_QUOTA),
            quota_devices=after.quota_devices,
        )
    before = draft.cluster(after.name)
    if before == after:
        return
    draft.clusters[after.name] = after
    said = (_short(before), _short(after), event.reason)
    draft.order(event.by, "quota", after.name, *said, RULE)


def gone(draft: Draft, event: QuotaGone) -> None:
    """Remove one that has no sessions any more."""
    before = named(draft, event.name)
    members = [v for v in draft.state.sessions.values() if v.virtual_cluster == event.name]
    left = [view for view in members if not view.final]
    if left:
        raise refuse(
            Conflict,
            because(
                "virtual_cluster_in_use", cluster=event.name, number=len(left), who=left[0].label
            ),
            virtual_cluster=event.name,
            sessions=len(left),
        )
    draft.clusters[event.name] = None
    draft.order(event.by, "remove", event.name, _short(before), None, "", RULE)


def named(draft: Draft, name: str) -> VirtualCluster:
    """The virtual cluster of that name; `NotFound` with the nearest name."""
    found = draft.cluster(name)
    if found is None:
        raise refuse(
            NotFound,
            because("no_such_virtual_cluster", **choices(name, sorted(draft.state.admin.clusters))),
            virtual_cluster=name,
        )
    return found


def admit(draft: Draft, name: str, devices: int) -> None:
    """`BadRequest` for a new session that its virtual cluster could never have."""
    if not name:
        return
    try:
        cluster = named(draft, name)
    except Refused as refused:
        raise refuse(BadRequest, refused.why, **refused.fields) from None
    if devices > cluster.quota_devices and not cluster.may_borrow:
        raise refuse(
            BadRequest,
            because("more_than_quota", number=devices, cluster=name, quota=cluster.quota_devices),
            devices=devices,
            quota_devices=cluster.quota_devices,
        )


def _short(cluster: VirtualCluster | None) -> dict[str, object] | None:
    if cluster is None:
        return None
    return {"quota_devices": cluster.quota_devices, "may_borrow": cluster.may_borrow}


# -- who may have what ----------------------------------------------------------------------


def barred(draft: Draft, view: SessionView, parts: int = 1) -> Reason | None:
    """Why its quota keeps it, or so many `parts` of a gang that are like it, from devices now;
    None: nothing does."""
    used = draft.held_of(view.virtual_cluster)
    own = view.holding  # of one that has devices and would get others for them
    cluster = _exceeded(draft, view, used - own + parts * view.needs)
    return obstacles.quota_used(cluster, used) if cluster else None


def run_barred(draft: Draft, run: SessionView) -> Reason | None:
    """The same of a run that is not started, of a gang of all its parts: those that are count with
    all that they ask for."""
    used = draft.admitted_milli_of(run.virtual_cluster)
    wanted = (used + run.wanted_milli * (run.part.parts if run.part else 1)) / 1000
    cluster = _exceeded(draft, run, wanted)
    return obstacles.quota_full_of_runs(cluster, used / 1000) if cluster else None


def _exceeded(draft: Draft, view: SessionView, wanted: float) -> VirtualCluster | None:
    """Return the virtual cluster of a session if it may not have so many devices."""
    cluster = draft.cluster(view.virtual_cluster)
    if cluster is None or cluster.may_borrow or wanted <= cluster.quota_devices:
        return None
    return cluster


def borrowed(draft: Draft, name: str) -> int:
    """Devices beyond its quota that sessions of a virtual cluster hold."""
    cluster = draft.cluster(name)
    return max(0, draft.held_of(name) - cluster.quota_devices) if cluster else 0
