"""What nodes answer and tell of whole sessions: stored, back again, ended by themselves. Pure.

Part of `decide` (see `policy`). What becomes of a session becomes of its gang too, so this stands
above both.
"""

from __future__ import annotations

from dataclasses import replace

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.gangs import retries as gang_retries
from singularity_scheduler.core.gangs import sets as gang_sets
from singularity_scheduler.core.gangs import store as gang_store
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state import checkpoints, queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import endings, retries
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import (
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    ProcessState,
)

from . import whole as moves

# -- into the store -------------------------------------------------------------------------


def note_suspended(draft: Draft, event: ev.Suspended) -> None:
    """Note that a session is in the store; an answer that nobody waits for any more is none."""
    view = draft.get(event.session)
    if view is None:
        return
    if view.process_state is not ProcessState.SUSPENDING or not _answers(view, event):
        if view.final:  # it was ended meanwhile: nobody wants this checkpoint
            has = checkpoints.add(draft, view, event.checkpoint)
            draft.put(checkpoints.drop(draft, has, {event.checkpoint.id}))
        return
    view = replace(view, suspend_s=event.ms / 1000)
    stored = replace(event.checkpoint, cause=_find_cause(draft, view))
    view = checkpoints.add(draft, view, stored)
    _leave_node(draft, view, move_reasons.suspended(view, stored, event.ms))
    gang_store.answered(draft, event.session, event.checkpoint.id)


def _find_cause(draft: Draft, view: SessionView) -> str:
    """Return what a session goes to the store for, one of `stored.CAUSES`."""
    if view.rollback and view.undo:
        return "restore"
    if draft.duty(view.node).leaving:
        return "drain"
    return "move" if view.moving else "suspend"


def note_fenced(draft: Draft, event: ev.Fenced) -> None:
    """Note that the processes of a session are ended, so that it can go back to an older state."""
    view = draft.get(event.session)
    waits = view and view.process_state is ProcessState.SUSPENDING and moves.discards_state(view)
    if view and waits and _answers(view, event):
        _leave_node(draft, view, move_reasons.processes_ended())


def _leave_node(draft: Draft, view: SessionView, reason: Reason) -> None:
    """Let a session of which nothing is left on its node wait in the store, or begin again."""
    if view.retrying and not view.restore_from:
        retries.begin_again(draft, view, view.why, "retry")
        return
    saved = view.saved
    if view.device_state is DeviceState.HELD:
        view, saved = draft.quiet_step(view, DeviceEvent.STORED), True
    called = view.called and not view.held_back
    draft.step(
        view,
        ProcessEvent.SUSPENDED,
        view.why if called else reason,
        "process.suspended",
        devices=(),
        saved=saved,
        exit=None,
        queue_order=draft.next_order() if view.called else view.queue_order,
    )


def note_suspend_failed(draft: Draft, event: ev.SuspendFailed) -> None:
    """Let a session that could not be stored go on where it is."""
    view = draft.get(event.session)
    if view is None or view.process_state is not ProcessState.SUSPENDING:
        return
    if _answers(view, event):
        if event.damaged:
            checkpoints.mark_damaged(draft, view.id, view.restore_from, event.sentence)
            view = draft.get(view.id) or view
        _go_on_there(draft, view, event.sentence)
        gang_store.answered(draft, event.session)


def _go_on_there(draft: Draft, view: SessionView, sentence: str) -> None:
    if view.retrying or gangs.goes_back(view):  # nobody wants what is there
        reason = run_reasons.not_removed(sentence)
        endings.finish(draft, view, ProcessEvent.FAIL, reason, "retry")
        return
    wants, ended = view.wants, view.exit
    view = draft.step(
        endings.stay(view),
        ProcessEvent.SUSPEND_FAILED,
        move_reasons.suspend_failed(sentence),
        "process.suspend_failed",
        wants=False,
        exit=None,
        leave_failed=(draft.now, sentence),
    )
    if ended is not None:
        note_exit(draft, ev.ProcessExited(view.id, *ended))
    elif view.held_back and view.device_state is DeviceState.HELD:  # it was preempted meanwhile
        queue.park(draft, view, reasons.held_back(view), "user.preempt")
    elif wants and view.device_state in (DeviceState.NONE, DeviceState.PARKED):
        queue.enqueue(draft, view, view.why, "device.lazy")


def _answers(view: SessionView, event: object) -> bool:
    """Whether it is the answer to the command that the session waits for."""
    return (view.epoch, view.seq) == (getattr(event, "epoch", 0), getattr(event, "seq", 0))


# -- out of the store -----------------------------------------------------------------------


def note_resumed(draft: Draft, event: ev.Resumed) -> None:
    """Note that a session is back from the store."""
    view = draft.get(event.session)
    if view is None or view.process_state is not ProcessState.RESUMING or not _answers(view, event):
        return
    wants, ended, reason = view.wants, view.exit, view.why
    again, retrying = view.part is not None and view.leaving is not None, view.retrying
    view = draft.step(
        endings.stay(view),
        ProcessEvent.LIVE,
        move_reasons.came_back(view, event.loss),
        "process.resumed",
        loss=replace(event.loss, at=draft.now),
        origin=view.node if event.relay else view.origin,
        wants=False,
        exit=None,
    )
    if again:  # its gang went somewhere else meanwhile
        gang_retries.back(draft, view, reason, retrying)
    elif ended is not None:
        note_exit(draft, ev.ProcessExited(view.id, *ended))
    elif wants:  # those who were called back later do not overtake it
        queue.enqueue(draft, view, reasons.waits(view), "device.lazy", order=view.queue_order)
    if view.part is not None:
        gang_sets.trim(draft, view.part)


def note_resume_failed(draft: Draft, event: ev.ResumeFailed) -> None:
    """Note that a session did not come back: it stays in the store, or goes on from what is
    left."""
    view = draft.get(event.session)
    if view is None or view.process_state is not ProcessState.RESUMING or not _answers(view, event):
        return
    own = any(c.id == view.restore_from for c in view.checkpoints)
    if event.damaged:
        owner = view.id if own else view.source
        checkpoints.mark_damaged(draft, owner, view.restore_from, event.sentence)
        view = draft.get(view.id) or view
    if view.source and not own:
        reason = move_reasons.not_forked(event.sentence)
        endings.finish(draft, view, ProcessEvent.FAIL, reason, "process.resume_failed")
        return
    go_on = retries.not_resumed if view.part is None else gang_retries.not_back
    if go_on(draft, view, event.sentence, event.damaged or event.passing):
        return
    if view.unwind and view.newest_whole is not None:
        _unwind(draft, view, event.sentence)
        return
    failed = next((c for c in view.checkpoints if c.id == view.restore_from), None)
    reason, back = move_reasons.resume_failed(event.sentence), view.rollback
    if event.damaged and failed is not None:
        other = checkpoints.instead_of(view, failed)
        reason = move_reasons.resume_failed_damaged(event.sentence, other, draft.now)
        # Its last state is lost: whatever it comes back from is older than what it wrote and said.
        back = back or (view.newest_whole is not None and view.newest_whole.at < failed.at)
    alone = view.part is None  # the others of a gang are where it is, and of its incarnation
    draft.step(
        replace(
            endings.stay(view),
            rollback=back and alone,
            undo=view.undo and alone,
            restore_from="" if alone else view.restore_from,
        ),
        ProcessEvent.RESUME_FAILED,
        reason,
        "process.resume_failed",
        # A part stays where no other one is: another may be on its way to where it was.
        node=view.node if view.part else view.came_from or view.node,
        exit=None,
    )


def _unwind(draft: Draft, view: SessionView, sentence: str) -> None:
    """Bring a session back where it was, with its state from before, which is in the store."""
    moved = view.came_from != ""
    reason = (
        move_reasons.unwinds_move(view, sentence)
        if moved
        else move_reasons.unwinds_restore(sentence)
    )
    before = view.came_from or view.node
    draft.step(
        replace(endings.stay(view), queue_order=view.queue_order),
        ProcessEvent.RESUME_FAILED,
        reason,
        "process.resume_failed",
        node=before,
        called=True,
        exit=None,
    )


# -- by itself ------------------------------------------------------------------------------


def note_exit(draft: Draft, event: ev.ProcessExited) -> None:
    """Note that the process of a session ended: the session ends with it, or is tried again."""
    view = draft.get(event.session)
    if view is None:
        return
    if view.final:
        if event.exit_code is not None and view.exit_code is None:
            draft.put(replace(view, exit_code=event.exit_code))
        return
    if view.in_flight:  # its own agent ends it there, or it ended by itself: the answer tells
        draft.put(replace(view, exit=(event.exit_code, event.sentence)))
        return
    going = view.leaving is not None and (view.retrying or gangs.goes_back(view))
    if view.pending or going:
        return  # of the attempt before, of which nothing is left, or is about to be
    if view.process_state is ProcessState.SUSPENDED:
        return
    code = event.exit_code
    if _try_again(draft, view, code, event.sentence):
        return
    step, reason = ProcessEvent.FAIL, run_reasons.exited(code, event.sentence)
    if retries.was_killed(view, code):
        reason = retries.over(view, reason)
    if code == 0 and view.process_state in (ProcessState.STARTING, ProcessState.LIVE):
        step = ProcessEvent.COMPLETE
    elif view.stopped_by is not None and (code is None or code < 0 or code > 128):
        step, reason = run_reasons.closed(view, view.stopped_by, "")
    endings.finish(draft, view, step, reason, "process.exited", exit_code=code)


def _try_again(draft: Draft, view: SessionView, code: int | None, sentence: str) -> bool:
    """Begin the next attempt of a run whose process ended, if it was killed and may be tried again.
    False: it may not, and whoever asks ends it."""
    if not retries.may(draft, view) or not retries.was_killed(view, code):
        return False
    if view.stopped_by is not None:
        return False
    how = run_reasons.exited(code, sentence)
    if not gang_retries.killed(draft, view, how):
        retries.make_next(draft, view, how, "retry")
    return True
