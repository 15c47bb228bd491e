"""The end of a session is taken back: it waits in the store again. Pure; part of `decide`.

Every end keeps the newest checkpoint for a while (`checkpoints.ended`). The session is then the
same one, with its id, its history and, unless another one has it by now, the id of its kernel. What
it did after that checkpoint is lost. A notebook stays suspended until it is opened; a run goes on
as soon as there is room.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from singularity_proxy.errors import Conflict, Unsupported

from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import Refused, refuse
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.core.values.states import DeviceState, ProcessEvent, ProcessState

from . import endings


def asked(draft: Draft, event: ev.ReopenAsked) -> None:
    """Bring an ended session back to the state `suspended`; raises `Conflict` when it has not ended
    yet, or there is nothing to bring it back from."""
    view = draft.get(event.ended.id) or event.ended
    reference = require_undo(draft, view)
    for stored in view.checkpoints:  # it is active again, and so are the rows of all of these
        kept = replace(stored, undo_until=0.0)
        view = checkpoints.put(draft, view, kept)
    view = replace(
        endings.stay(view),
        ended=False,
        exit_code=None,
        exit=None,
        stopped_by=None,
        busy=False if view.kind is Kind.INTERACTIVE else None,
        idle_since=None,
        origin="",
        loss=None,
        restore_from=reference.id,
        # One that was suspended when it ended is as it was; what ran since is lost.
        rollback=view.rollback or not reference.undo_until,
        undo=view.rollback or not reference.undo_until,
        kernel_id=_kernel_id(draft, view),
        device_state=DeviceState.PARKED if view.saved else DeviceState.NONE,
    )
    view = draft.quiet_step(view, ProcessEvent.REOPEN)
    reason = move_reasons.reopened(event.by, reference, draft.now, view.run is not None)
    if view.run is not None:
        moves.call(draft, view, reason, "user.reopen")
    else:
        draft.note(view, reason, "user.reopen")


def require_undo(draft: Draft, view: SessionView) -> CheckpointRef:
    """The checkpoint that the end of `view` can be taken back with; raises `Conflict` with the
    reason why it cannot be."""
    if not view.final:
        raise _refused(view, because("not_ended", who=view.label))
    if not view.ended:
        raise _refused(view, because("just_ending", who=view.label))
    if view.part is not None:
        raise refuse(
            Unsupported,
            because("part_is_not_reopened", who=view.label, part=view.part.number),
            session=view.id,
        )
    if view.member is not None:
        raise _refused(view, because("member_is_not_reopened", who=view.label))
    if view.run is not None and view.process_state is ProcessState.COMPLETED:
        raise _refused(view, because("all_is_done", who=view.label))
    reference = view.newest_whole
    if reference is None:
        raise _refused(view, because("nothing_to_reopen", who=view.label))
    name = view.virtual_cluster
    if name and draft.cluster(name) is None:
        raise _refused(view, because("virtual_cluster_is_gone", who=view.label, cluster=name))
    return reference


def _refused(view: SessionView, why: Reason) -> Refused:
    return refuse(Conflict, why, session=view.id, state=view.word)


def _kernel_id(draft: Draft, view: SessionView) -> str:
    """Jupyter's id of its kernel: the old one, unless a session of its user has it now; then one
    that is always the same for this return."""
    sessions = (*draft.state.sessions.values(), *draft.changed.values())
    taken = {v.kernel_id for v in sessions if v.user == view.user and v.id != view.id}
    if view.kernel_id not in taken - {""}:
        return view.kernel_id
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{view.id}-{view.epoch}"))
