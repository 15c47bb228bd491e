"""New sessions, and those that are submitted together. Part of `decide` (see `policy`)."""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import SessionSpec
from singularity_scheduler.model.session import copy_wishes

from . import tiers


def created(draft: Draft, event: ev.SessionCreated) -> None:
    _create(draft, event.session, event.user, event.spec, event.server)


def group_created(draft: Draft, event: ev.GroupCreated) -> None:
    for session, spec in event.members:
        _create(draft, session, event.user, spec, event.server)


def gang_created(draft: Draft, event: ev.GangCreated) -> None:
    nodes = placement.place_parts(draft, event.parts[0][1])
    order = draft.next_order()
    for (session, spec), node in zip(event.parts, nodes, strict=True):
        _create(draft, session, event.user, spec, event.server, node, order)


def _create(
    draft: Draft,
    session: str,
    user: str,
    spec: SessionSpec,
    server: str | None,
    node: str = "",
    order: int | None = None,
) -> None:
    """`node` and `order`: where it is and what its place in the queue is, if that is known."""
    if draft.get(session):
        raise refuse(Conflict, because("session_exists", session=session), session=session)
    tiers.require_open(draft, user, spec.tier)
    quotas.admit(draft, spec.virtual_cluster, spec.needs * spec.nodes)
    view = SessionView(
        id=session,
        user=user,
        kind=spec.kind,
        name=spec.name,
        tier=spec.tier,
        virtual_devices=spec.devices,
        scale=spec.scale,
        node=node or placement.place(draft, session, spec),
        created_at=draft.now,
        updated_at=draft.now,
        server=server,
        run=spec.run,
        member=spec.member,
        part=spec.part,
        **copy_wishes(spec),
    )
    if view.run is None:
        queue.start(draft, view, "start")
    else:  # whether it starts at once is decided with the other runs, see `queue.admit`
        if spec.member is None:  # members of a group line up in `groups.settle`
            view = replace(view, queue_order=draft.next_order() if order is None else order)
        said = run_reasons.queued_part(spec.part) if spec.part else run_reasons.queued(spec.member)
        draft.note(view, said, "submit")
