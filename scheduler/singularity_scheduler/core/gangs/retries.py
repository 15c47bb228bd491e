"""A gang goes back to its newest set, all parts at once. Pure.

When a part is killed, or its node is gone, what it exchanged with the others since they were stored
last is lost. So the others are ended too, and all come back from the same set, as they come back
after a suspend (`returns`). Which set, and whether that is a retry, follows the rules of single
runs (`retries`, `losses`). Without a whole set all begin again from their beginning.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_scheduler.core.moves import returns
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.stored import CheckpointSet
from singularity_scheduler.core.steps import endings, retries
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import ProcessEvent, ProcessState

from . import members as gangs
from . import sets as gang_sets


def newest(draft: Draft, view: SessionView) -> CheckpointSet | None:
    """What this part and all others can go back to now; None: nothing, or they are just beginning
    from their beginning."""
    if view.part is None:
        return None
    if _begins_anew(gangs.parts(draft, view.part)):
        return None
    return next(reversed(gang_sets.whole(draft, view.part)), None)


def _begins_anew(views: list[SessionView]) -> bool:
    """Whether these parts are just beginning from their beginning."""
    return any(
        one.pending or (one.retrying and gangs.goes_back(one) and not one.restore_from)
        for one in views
    )


# -- why they go back -----------------------------------------------------------------------


def killed(draft: Draft, view: SessionView, how: Reason) -> bool:
    """A part was killed and may be tried again: all make their next attempt from a set. False:
    there is none, so that is from their beginning, or it is no part."""
    chosen = _to_go_on_from(draft, view)
    if chosen is None:
        return False
    if view.process_state is ProcessState.STARTING:  # it ran: nobody had told that yet
        begun = retries.begun(view, draft.now)
        view = draft.put(draft.quiet_step(view, ProcessEvent.LIVE, **begun))
    _again(draft, view, chosen, view.attempt + 1, how)
    return True


def _to_go_on_from(draft: Draft, view: SessionView) -> CheckpointSet | None:
    """As `retries` does it: one that ended as soon as it was back takes the next older one."""
    chosen, back = newest(draft, view), view.loss
    if chosen is None or view.part is None or back is None or draft.now - back.at >= retries.SICK_S:
        return chosen
    sets = gang_sets.whole(draft, view.part)
    ids = [one.of[view.id].id for one in sets]
    older = sets[: ids.index(back.checkpoint)] if back.checkpoint in ids else sets
    return older[-1] if older else None


def _again(
    draft: Draft, view: SessionView, chosen: CheckpointSet, attempt: int, how: Reason
) -> None:
    """All parts go on from there as this attempt, because of what became of this one."""
    assert view.part is not None
    others = run_reasons.part_goes_back(view.part)
    for one in gangs.parts(draft, view.part):
        why = how if one.id == view.id else others
        going = replace(one, attempt=attempt, restore_from=chosen.of[one.id].id)
        reason = retries.reason_of(going, why, draft.now)
        _send(draft, replace(one, attempt=attempt), chosen, reason, "retry", True)


def lost(draft: Draft, view: SessionView, why: Reason, rule: str) -> bool:
    """Nothing is left of a part but what is in the store: all go on from their newest set. That is
    no retry. False: there is no set."""
    chosen = newest(draft, view)
    if chosen is None or view.part is None:
        return False
    again = retries.left(view) > 0
    moves.lose_place(
        draft,
        view,
        run_reasons.lost_self(why, chosen.of[view.id], draft.now),
        rule,
        restore_from=chosen.of[view.id].id,
        retrying=again,
        lost=False,  # the others do not wait for it: it is not taken back when it is found
    )
    for other in gangs.others(draft, view):
        reason = run_reasons.lost_part(view.part, why, chosen.of[other.id], draft.now)
        _send(draft, other, chosen, reason, rule, again)
    return True


def called(draft: Draft, view: SessionView, by: str) -> bool:
    """Somebody wants parts back of which one cannot come back from what it is: all go back to their
    newest set. False: there is none."""
    chosen = newest(draft, view)
    if chosen is None:
        return False
    for one in gangs.together(draft, view):
        reference = chosen.of[one.id]
        _send(draft, one, chosen, move_reasons.called(by, reference), "user.resume", one.retrying)
    return True


def could_go_elsewhere(draft: Draft, view: SessionView) -> bool:
    """Whether there are nodes for all parts of its gang, however busy they are."""
    geography = draft.state.geography
    rooms = {
        one.id: [
            node.id
            for node in draft.state.nodes.values()
            if geography.of_node.get(node.id, one.cluster) == one.cluster
            and not placement.barred(draft, one, node.id)
        ]
        for one in gangs.together(draft, view)
    }
    return returns.different(rooms) is not None


# -- on their way ---------------------------------------------------------------------------


def _send(
    draft: Draft,
    view: SessionView,
    chosen: CheckpointSet,
    reason: Reason,
    rule: str,
    retrying: bool,
) -> None:
    """This part goes on from that set: what it is now is given up."""
    if view.process_state is ProcessState.RESUMING:
        # Its agent's answer tells whether something is there to be ended: see `back`.
        draft.note(replace(view, leaving="", retrying=retrying), reason, rule)
        return
    going = replace(
        endings.stay(view),
        retrying=retrying,
        rollback=True,
        called=True,
        restore_from=chosen.of[view.id].id,
    )
    if view.process_state is ProcessState.SUSPENDED:
        moves.call(draft, going, reason, rule)
    elif view.process_state is not ProcessState.SUSPENDING:
        moves.leave(draft, going, reason, rule)
    elif gangs.goes_back(view):  # it is being ended already
        draft.note(going, reason, rule)
    else:
        going = draft.note(replace(going, seq=going.seq + 1, exit=None), reason, rule)
        draft.actions.append(moves.leave_action(going, rule))


def back(draft: Draft, view: SessionView, reason: Reason, retrying: bool) -> None:
    """It came back, and meanwhile the others have gone somewhere else: it follows them."""
    chosen = _where_others_go(draft, view)
    if chosen is None:
        retries.remove(draft, view, reason)
    else:
        _send(draft, view, chosen, reason, "retry", retrying)


def not_back(draft: Draft, view: SessionView, sentence: str, free: bool) -> bool:
    """A part did not come back, and nothing of it is left; `free` as of `retries.not_resumed`.
    False: it stays in the store, and the others wait for it."""
    how = run_reasons.no_return(sentence)
    if view.leaving is not None:  # the others have gone somewhere else meanwhile
        chosen, reason = _where_others_go(draft, view), view.why
        failed = draft.quiet_step(view, ProcessEvent.RESUME_FAILED, exit=None, leaving=None)
        view = draft.put(failed)
        if chosen is not None:
            _send(draft, view, chosen, reason, "retry", view.retrying)
        elif _begins_anew(gangs.others(draft, view)):
            retries.begin_again(draft, view, reason, "retry")
        else:  # it was to be the set that has just been found damaged
            _on_without(draft, view, view.attempt, how)
        return True
    if not view.retrying:
        return False
    if not free and not retries.may(draft, view):
        endings.finish(draft, view, ProcessEvent.FAIL, retries.over(view, how), "retry")
        return True
    view = draft.put(draft.quiet_step(view, ProcessEvent.RESUME_FAILED, exit=None))
    _on_without(draft, view, view.attempt + (not free), how)
    return True


def _on_without(draft: Draft, view: SessionView, attempt: int, how: Reason) -> None:
    """All go on as this attempt from the newest set that is left; without one from their beginning,
    if they may be tried again."""
    assert view.part is not None
    chosen = newest(draft, view)
    if chosen is not None and view.retrying:
        _again(draft, view, chosen, attempt, how)
    elif chosen is not None:
        for one in gangs.parts(draft, view.part):
            reference = chosen.of[one.id]
            reason = run_reasons.lost_part(view.part, how, reference, draft.now)
            if one.id == view.id:
                reason = run_reasons.lost_self(how, reference, draft.now)
            _send(draft, one, chosen, reason, "retry", False)
    elif view.retrying:
        others = run_reasons.part_begins_again(view.part)
        for one in gangs.parts(draft, view.part):
            # Whose first attempt came into the store makes its second one.
            retries.along(draft, one, max(attempt, 2), how if one.id == view.id else others)
    else:
        endings.finish(draft, view, ProcessEvent.FAIL, retries.over(view, how), "retry")


def _where_others_go(draft: Draft, view: SessionView) -> CheckpointSet | None:
    """The set that another part is on its way to; None: they begin from their beginning."""
    assert view.part is not None
    sets = {one.id: one for one in gang_sets.whole(draft, view.part)}
    for other in gangs.others(draft, view):
        if other.process_state is ProcessState.RESUMING:
            continue  # it says where it comes from, and not where it goes then
        reference = next((c for c in other.checkpoints if c.id == other.restore_from), None)
        if gangs.goes_back(other) and reference is not None and reference.set_id in sets:
            return sets[reference.set_id]
    return None
