"""Whole sessions into the store and out of it again: suspend, resume, migrate, restore, fork. Pure.

Every way is the same: `live` → `suspending` (its agent writes everything to the store and frees
the node) → `suspended` → `resuming` (some agent reads it back) → `live`. What was asked for decides
only which checkpoint is read (`restore_from`), where (`target`), whether that happens by itself as
soon as there is room (`called`), and whether what comes back is older than what was (`rollback`).
What the agents answer is in `answers`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from singularity_proxy.errors import Conflict, Unavailable, Unsupported

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import checkpoints, queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import (
    CHANGING,
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    ProcessState,
)
from singularity_scheduler.model.session import copy_wishes

from . import device_restores

# -- into the store -------------------------------------------------------------------------


def suspend_asked(draft: Draft, view: SessionView, event: ev.SuspendAsked) -> None:
    if view.returning:
        draft.note(
            replace(view, called=False, target="", target_cluster="", moving=False, asked=False),
            move_reasons.stays_suspended(event.by, event.why),
            "user.suspend",
        )
        return
    if view.process_state is not ProcessState.LIVE:
        raise refuse(Conflict, _why_not(view), session=view.id, state=view.word)
    require_images(draft, view)
    reason = move_reasons.suspending(event.by, event.why)
    leave(draft, view, reason, "user.suspend", event.name, urgent=event.urgent)


def _why_not(view: SessionView) -> Reason:
    """Return why a session that is not live cannot be suspended."""
    if view.process_state is ProcessState.SUSPENDED:
        return because("suspended_already", who=view.label)
    if view.process_state is ProcessState.SUSPENDING:
        return because("suspending_already", who=view.label)
    if view.process_state is ProcessState.RESUMING:
        return because("coming_back_already", who=view.label)
    return because("not_running", who=view.label)


def refuse_in_flight(view: SessionView) -> None:
    """`Conflict` for a session that is on its way into or out of the store."""
    if view.in_flight:
        raise refuse(Conflict, _why_not(view), session=view.id, state=view.word)


def refuse_away(view: SessionView) -> None:
    """`Conflict` for one that is not on a node at all, or about to leave it."""
    refuse_in_flight(view)
    if view.process_state is ProcessState.SUSPENDED:
        raise refuse(
            Conflict,
            because("uses_no_node", who=view.label),
            session=view.id,
            state=view.word,
        )


def require_images(draft: Draft, view: SessionView) -> None:
    """`Unsupported` when its node cannot put it into the store, `Unavailable` when not now."""
    node = draft.answering(view)
    if node.abilities.image_trouble:
        checkpoints.raise_unsupported(view, node.abilities.image_trouble)
    if node.abilities.store_trouble:
        raise refuse(
            Unavailable,
            because(
                "store_not_usable",
                who=view.label,
                node=view.node,
                trouble=node.abilities.store_trouble,
            ),
            session=view.id,
            node=view.node,
        )


def leave(
    draft: Draft,
    view: SessionView,
    reason: Reason,
    rule: str,
    name: str = "",
    cut: tuple[str, ...] = (),
    *,
    urgent: bool = False,
) -> SessionView:
    """Command that everything of a live session goes to the store; as soon as its devices stand
    still. `cut` and `urgent`: as of `Suspend`; a node that is emptied is always urgent."""
    if view.device_state in CHANGING or view.process_state is not ProcessState.LIVE:
        return draft.note(replace(view, leaving=name), reason, rule)
    wants = placement.waiting_for_device(view)
    if view.device_state is DeviceState.WAITING:
        event = DeviceEvent.WITHDRAW_SAVED if view.saved else DeviceEvent.WITHDRAW
        view = draft.quiet_step(view, event, waiting_since=None)
    view = draft.step(
        view,
        ProcessEvent.SUSPEND,
        reason,
        rule,
        seq=view.seq + 1,
        leaving=None,
        wants=wants,
        asked=False,
        preferred=(),
        exit=None,
    )
    urgent = urgent or draft.duty(view.node).leaving
    draft.actions.append(leave_action(view, rule, name, cut, urgent=urgent))
    return view


def leave_action(
    view: SessionView,
    rule: str,
    name: str = "",
    cut: tuple[str, ...] = (),
    *,
    urgent: bool = False,
) -> ev.Suspend | ev.Fence:
    """The command that a session in `suspending` waits for."""
    head = (view.id, view.node, view.why, rule, view.epoch, view.seq)
    if discards_state(view):
        return ev.Fence(*head)
    return ev.Suspend(*head, name=name, cut=cut, urgent=urgent)


def discards_state(view: SessionView) -> bool:
    """Whether its present state is given up instead of stored."""
    return view.rollback and not view.unwind


def settle(draft: Draft) -> None:
    """Let those leave that only waited for their devices to stand still; with every decision."""
    for view in [v for v in draft.changed.values() if v.leaving is not None]:
        ready = view.process_state is ProcessState.LIVE and view.device_state not in CHANGING
        if ready and not view.final:
            mark = draft.duty(view.node)
            rule = mark.rule if mark.leaving else "user.suspend"
            leave(draft, view, view.why, rule, view.leaving or "")


# -- out of the store -----------------------------------------------------------------------


def resume_asked(draft: Draft, view: SessionView, event: ev.ResumeAsked) -> None:
    """Of a suspended session, or one on its way there; `policy` has the others."""
    if view.process_state is ProcessState.SUSPENDING:
        _call_leaving(draft, view, event)
        return
    newest = view.newest_whole
    # A fork that has never come back yet still begins where its source was.
    unborn = event.checkpoint is None and newest is None and is_unborn_fork(view)
    reference = None if unborn else checkpoints.usable(view, event.checkpoint, draft.now)
    back = newest is not None and reference is not None and reference.id != newest.id
    if view.part is not None:  # it comes back to where the others are, whatever else it has stored
        back = False
    if event.node is not None:
        require_node(draft, view, event.node)
    elif event.cluster is not None:
        require_cluster(draft, view, event.cluster)
    elif not any(not n.abilities.trouble for n in draft.state.nodes.values()):
        raise refuse(Unsupported, because("no_node_brings_back", who=view.label), session=view.id)
    view = replace(
        view,
        held_by=None,
        restore_from=view.restore_from if reference is None else reference.id,
        rollback=view.rollback or back,
        undo=view.undo or back,
        target=event.node or "",
        target_cluster=event.cluster or "",
    )
    call(draft, view, move_reasons.called(event.by, reference if back else None), "user.resume")


def _call_leaving(draft: Draft, view: SessionView, event: ev.ResumeAsked) -> None:
    """Let a session that is on its way into the store come back from there at once: a page that
    opened it meanwhile waits for it. Refused for a part of a gang, and to who names a checkpoint or
    a place, which is decided on when it is there."""
    named = (event.checkpoint, event.node, event.cluster)
    if view.part is not None or any(word is not None for word in named):
        refuse_in_flight(view)
    if not view.called or view.held_back:  # else it is only moving, or was called before
        reason = move_reasons.called_leaving(event.by)
        draft.note(replace(view, called=True, held_by=None), reason, "user.resume")


def is_unborn_fork(view: SessionView) -> bool:
    """Whether it is a fork that has nothing of its own yet: it begins at a checkpoint of its
    source."""
    return bool(view.source and view.restore_from) and view.newest_whole is None


def require_node(draft: Draft, view: SessionView, word: str) -> None:
    """Refuse a node that does not exist or that could never take the session."""
    node = placement.named(draft.state, word)
    if why := placement.barred(draft, view, node.id):
        kind = Unsupported if node.abilities.trouble and node.connected else Conflict
        raise refuse(
            kind,
            because("cannot_go_to_node", who=view.label, node=word, why=why),
            session=view.id,
            node=word,
        )


def call(draft: Draft, view: SessionView, reason: Reason, rule: str) -> SessionView:
    """Let a suspended session come back as soon as there is room."""
    order = view.queue_order if view.called else draft.next_order()
    return draft.note(replace(view, called=True, queue_order=order), reason, rule)


def wanted(draft: Draft, event: ev.Wanted) -> None:
    view = draft.get(event.session)
    if view is None or view.final or view.called or view.held_back:
        return
    if view.process_state is ProcessState.SUSPENDED:
        if view.newest_whole is not None or is_unborn_fork(view):
            call(draft, view, move_reasons.requested(), "session.wanted")
    elif view.process_state is ProcessState.SUSPENDING:
        draft.put(replace(view, called=True))


def lose_place(
    draft: Draft, view: SessionView, reason: Reason, rule: str, **more: Any
) -> SessionView:
    """Let a session of which nothing is left on its node go on from the store as soon as there is
    room."""
    wants = placement.waiting_for_device(view)
    view = _off_devices(draft, view)
    return draft.step(
        view,
        ProcessEvent.LOST,
        reason,
        rule,
        called=True,
        target="",
        target_cluster="",
        leaving=None,
        moving=False,
        unwind=False,
        rollback=True,
        undo=False,
        came_from="",
        wants=wants,
        exit=None,
        queue_order=draft.next_order(),
        **more,
    )


def _off_devices(draft: Draft, view: SessionView) -> SessionView:
    """`view` with nothing of a lease or a wait on its node; not in the draft yet."""
    if view.leased:
        return draft.quiet_step(queue.freed(view), DeviceEvent.LOST, saved=True)
    if view.device_state is DeviceState.WAITING:
        event = DeviceEvent.WITHDRAW_SAVED if view.saved else DeviceEvent.WITHDRAW
        return draft.quiet_step(queue.freed(view), event)
    return queue.freed(view)


# -- to another node, to another state ------------------------------------------------------


def migrate_asked(draft: Draft, view: SessionView, node_id: str, by: str) -> None:
    """To another node, through the store."""
    refuse_in_flight(view)
    if view.process_state is ProcessState.SUSPENDED:
        resume_asked(draft, view, ev.ResumeAsked(view.id, by, node=node_id))
        return
    placement.named(draft.state, node_id)
    if node_id == view.node:
        raise refuse(
            Conflict, because("on_node_already", who=view.label, node=node_id), session=view.id
        )
    require_images(draft, view)
    require_node(draft, view, node_id)
    wants = placement.waiting_for_device(view)
    if why := placement.no_room(draft, replace(view, wants=wants), node_id):
        raise refuse(
            Conflict,
            because("not_moved", who=view.label, why=why),
            session=view.id,
            node=node_id,
        )
    _move(draft, replace(view, target=node_id), move_reasons.moving_node(by, node_id))


def change_cluster(draft: Draft, view: SessionView, cluster: str, by: str) -> None:
    """To another cluster, through the store; there to the node where it is off best."""
    refuse_in_flight(view)
    draft.state.geography.named(cluster)
    if view.process_state is ProcessState.SUSPENDED:
        resume_asked(draft, view, ev.ResumeAsked(view.id, by, cluster=cluster))
        return
    if cluster == view.cluster:
        raise refuse(
            Conflict,
            because("in_cluster_already", who=view.label, cluster=cluster),
            session=view.id,
        )
    require_images(draft, view)
    require_cluster(draft, view, cluster)
    seen = replace(view, wants=placement.waiting_for_device(view), target_cluster=cluster)
    whys = [placement.no_room(draft, seen, node) for node in placement.candidates(draft, seen)]
    if all(whys):
        raise refuse(
            Conflict,
            because("not_moved", who=view.label, why=_combine(whys)),
            session=view.id,
            cluster=cluster,
        )
    _move(draft, replace(view, target_cluster=cluster), move_reasons.moving_cluster(by, cluster))


def require_cluster(draft: Draft, view: SessionView, cluster: str) -> None:
    """Refuse a cluster that does not exist, that the session may not be in, or of which no node
    could ever take it."""
    geography = draft.state.geography
    geography.named(cluster)
    why: Reason | None = None
    if not geography.allows(view.locations, cluster):
        why = because("may_only_be_in", locations=view.locations)
    else:
        nodes = placement.candidates(draft, replace(view, target="", target_cluster=cluster))
        whys = [placement.barred(draft, view, node) for node in nodes]
        if all(whys):
            why = _combine(whys)
    if why:
        region = geography.region(cluster)
        raise refuse(
            Conflict,
            because(
                "cannot_go_to_cluster",
                who=view.label,
                cluster=cluster,
                region=region if region != cluster else None,
                why=why,
            ),
            session=view.id,
            cluster=cluster,
        )


def _combine(whys: Iterable[Reason | None]) -> Reason:
    """Return why none of the nodes of a cluster can take a session."""
    found = obstacles.several(why for why in whys if why is not None)
    return found or because("never_answered")


def _move(draft: Draft, view: SessionView, reason: Reason) -> None:
    """Into the store, and out of it where its targets say."""
    view = replace(view, held_by=None, called=True, moving=True, unwind=True, restore_from="")
    leave(draft, view, reason, "user.migrate")


def restore_asked(draft: Draft, view: SessionView, event: ev.RestoreAsked) -> None:
    """Undo: go on from an older checkpoint of its own."""
    refuse_in_flight(view)
    if device_restores.means(view, event.checkpoint):
        device_restores.asked(draft, view, event)
        return
    reference = checkpoints.usable(view, event.checkpoint, draft.now)
    if view.process_state is ProcessState.SUSPENDED:
        resume_asked(draft, view, ev.ResumeAsked(view.id, event.by, checkpoint=reference.id))
        return
    require_images(draft, view)
    view = replace(
        view,
        held_by=None,
        called=True,
        restore_from=reference.id,
        rollback=True,
        undo=True,
        unwind=not event.discard,
    )
    leave(draft, view, move_reasons.going_back(event.by, reference, event.discard), "user.restore")


def fork_asked(draft: Draft, event: ev.ForkAsked) -> None:
    """A second session from a checkpoint of another one, with an id of its own."""
    if draft.get(event.session):
        raise refuse(
            Conflict, because("session_exists", session=event.session), session=event.session
        )
    source = draft.get(event.source.id) or event.source
    gangs.refuse_part(source)
    reference = checkpoints.usable(source, event.checkpoint, draft.now)
    if not any(not n.abilities.trouble for n in draft.state.nodes.values()):
        raise refuse(
            Unsupported, because("no_node_takes_fork", who=source.label), session=source.id
        )
    if source.run is not None:
        raise refuse(
            Conflict,
            because("run_is_not_forked", who=source.label, output=source.run.output),
            session=source.id,
        )
    kernel = str(uuid.uuid5(uuid.NAMESPACE_OID, event.session)) if source.kernel_id else ""
    view = SessionView(
        id=event.session,
        user=source.user,
        kind=source.kind,
        name=event.name or source.name,
        tier=source.tier,
        virtual_devices=source.virtual_devices,
        scale=source.scale,
        node=source.node,
        created_at=draft.now,
        updated_at=draft.now,
        process_state=ProcessState.SUSPENDED,
        device_state=DeviceState.PARKED if source.saved else DeviceState.NONE,
        saved=source.saved,
        server=event.server if event.server is not None else source.server,
        source=source.id,
        restore_from=reference.id,
        # Its own begins behind that of the image, which says so when it comes back.
        incarnation=max(source.incarnation, reference.incarnation),
        rollback=True,
        undo=True,
        cluster=source.cluster,
        **{**copy_wishes(source), "kernel_id": kernel},
    )
    call(draft, view, move_reasons.forked(event.by, source, reference), "user.fork")
