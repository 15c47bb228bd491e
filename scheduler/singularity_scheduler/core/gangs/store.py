"""Gangs go into the store and come back. Pure.

A gang is stored where the ranks of all its parts stand together: the parts leave in one decision,
and the service stops them at one place before it has them stored (`Suspend.cut`). At such a place
nothing is on its way between them, so it does not matter in which order they come back, or that
one never left. But one that has gone on is not brought back from there without the others: they go
back together (`gang_sets`, `retries`).
"""

from __future__ import annotations

from dataclasses import replace

from singularity_proxy.errors import Conflict, Unsupported

from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessState

from . import members as gangs
from . import retries as gang_retries
from . import sets as gang_sets


def suspend_asked(draft: Draft, view: SessionView, event: ev.SuspendAsked) -> None:
    """All parts go into the store, whichever was named; or stay there, if they are to come back."""
    views = gangs.together(draft, view)
    if all(one.process_state is ProcessState.SUSPENDED for one in views):
        for one in [v for v in views if v.returning] or [view]:
            moves.suspend_asked(draft, one, event)
        return
    moves.refuse_in_flight(view)
    gangs.require_standing(draft, view, views)
    for one in views:
        moves.require_images(draft, one)
    cut = tuple(one.id for one in views)
    for one in views:
        reason = move_reasons.suspending(event.by, event.why)
        moves.leave(draft, one, reason, "user.suspend", event.name, cut=cut)


def migrate_asked(draft: Draft, view: SessionView, node_id: str, by: str) -> None:
    """This part goes to another node: all go through the store, and the others come back where they
    were."""
    assert view.part is not None
    moves.refuse_away(view)
    placement.named(draft.state, node_id)
    views = gangs.together(draft, view)
    gangs.require_standing(draft, view, views, "moved")
    for one in views:
        moves.require_images(draft, one)
    moves.require_node(draft, view, node_id)
    if why := _why_not_to(draft, view, views, node_id):
        raise refuse(
            Conflict,
            because("part_not_moved", who=view.label, why=why),
            session=view.id,
            node=node_id,
        )
    cut = tuple(one.id for one in views)
    others = move_reasons.moving_with_part(by, view.part, node_id)
    for one in views:
        mine = one.id == view.id
        going = replace(
            one,
            held_by=None,
            called=True,
            moving=True,
            target=node_id if mine else one.node,
            restore_from="",
        )
        reason = move_reasons.moving_node(by, node_id) if mine else others
        moves.leave(draft, going, reason, "user.migrate", cut=cut)


def _why_not_to(
    draft: Draft, view: SessionView, views: list[SessionView], node_id: str
) -> Reason | None:
    """Return why this part cannot go on at that node; None: it can."""
    for one in views:
        if one.node == node_id and one.part is not None:
            if one.id == view.id:
                return because("is_there_already")
            return because("part_is_there", part=one.part.number)
    if draft.state.geography.of_node.get(node_id, view.cluster) != view.cluster:
        return because("gang_is_in_one_cluster")
    wants = placement.waiting_for_device(view)
    return placement.no_room(draft, replace(view, wants=wants), node_id)


def resume_asked(draft: Draft, view: SessionView, event: ev.ResumeAsked) -> bool:
    """All parts that are in the store come back. False: none is there to be called."""
    stored = [v for v in gangs.together(draft, view) if v.process_state is ProcessState.SUSPENDED]
    if not stored:
        return False
    if event.checkpoint is not None or event.node is not None or event.cluster is not None:
        assert view.part is not None
        raise refuse(
            Unsupported,
            because("comes_back_as_stored", who=view.label, **gangs.place(view.part)),
            session=view.id,
        )
    images = {one.id: _image(one) for one in stored}
    if not all(images.values()) and gang_retries.called(draft, view, event.by):
        stored = [v for v in stored if v.process_state is ProcessState.SUSPENDED]
    else:
        for one in stored:
            if not images[one.id]:
                raise refuse(
                    Conflict,
                    because("no_fitting_checkpoint", who=one.label),
                    session=one.id,
                )
            moves.resume_asked(
                draft, one, replace(event, session=one.id, checkpoint=images[one.id])
            )
    _line_up(draft, [one.id for one in stored])
    for other in gangs.together(draft, view):
        if other.held_back:
            draft.note(
                replace(other, held_by=None), run_reasons.resumed_part(event.by), "user.resume"
            )
    return True


def _image(view: SessionView) -> str:
    """The checkpoint that a part in the store comes back from: the one at whose place the others
    are; "": it cannot."""
    word = view.restore_from
    if not word and view.newest_whole is not None:  # as versions before sets stored it
        word = view.newest_whole.id
    return word if any(c.id == word and c.whole for c in view.checkpoints) else ""


def answered(draft: Draft, session: str, image: str = "") -> None:
    """What became of storing this part is known (`image`: it is in the store): when it is of all,
    and some could not be stored, the others come back to them."""
    view = draft.get(session)
    if view is None or view.part is None:
        return
    if view.process_state is ProcessState.SUSPENDED and any(
        c.id == image for c in checkpoints.visible(view)
    ):
        draft.put(replace(view, restore_from=image))
    views = gangs.parts(draft, view.part)
    if all(one.process_state is ProcessState.SUSPENDED for one in views):
        gang_sets.suspended(draft, view.part)
        return
    if any(one.process_state is ProcessState.SUSPENDING for one in views):
        return
    stays = next((one for one in views if one.process_state is ProcessState.LIVE), None)
    stored = [v for v in views if v.process_state is ProcessState.SUSPENDED and not v.called]
    if stays is None or stays.part is None:
        return
    for one in stored:
        moves.call(draft, one, run_reasons.with_part(stays), "gang.together")
    _line_up(draft, [one.id for one in stored])


def _line_up(draft: Draft, sessions: list[str]) -> None:
    """One place in the queue for all that come back."""
    views = [view for view in map(draft.get, sessions) if view is not None]
    order = min((view.queue_order for view in views), default=0)
    for view in views:
        if view.queue_order != order:
            draft.put(replace(view, queue_order=order))
