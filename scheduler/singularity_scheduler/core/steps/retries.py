"""Runs that were killed go on by themselves, as often as they may. Pure.

Part of `decide`. A run whose process, kernel, command or capsule was ended by a signal that nobody
asked for, or whose node is gone, begins its next attempt: from its newest checkpoint when it has
one with its process in it, else from its beginning. Its node first confirms that nothing of the
attempt before is left (`Fence`), and the next one has a higher epoch, so no two run at once.

A checkpoint brings a run back from a lost node whatever it may retry (`losses`): that is no retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessEvent, ProcessState

from . import endings

KERNEL_DIED = 70
"""The exit code of a run whose kernel died under it; see `singularity_kernel.batch`."""

KILLED = 128
"""An exit code above says that a signal ended a process: its number is what the code is more."""

LAST_SIGNAL = 64
"""No signal has a higher number: a process that ends with 255, as of `exit(-1)`, ends by itself."""

SICK_S = 60.0
"""A run that ends so few seconds after it came back is not brought back from there again."""

ASKED = frozenset({2, 15})
"""INT, TERM: a run that gets one is asked to end, by whomever."""


def left(view: SessionView) -> int:
    """How many more attempts it may make."""
    return max(0, view.run.max_retries + 1 - view.attempt) if view.run else 0


def was_killed(view: SessionView, code: int | None) -> bool:
    """Whether its process with this exit code did not end by itself (None: nobody could tell)."""
    if code is None:
        return True
    if code == KERNEL_DIED:  # a command may end with any code
        return not (view.run and view.run.command)
    signum = -code if code < 0 else code - KILLED
    return 0 < signum <= LAST_SIGNAL and signum not in ASKED


def may(draft: Draft, view: SessionView) -> bool:
    """Whether it may make another attempt; a part of a gang, all of which begin again with it: only
    while none of them has ended."""
    return left(view) > 0 and gangs.whole(draft, view)


def begun(view: SessionView, now: float) -> dict[str, Any]:
    """What changes in a session when it is known that its process runs, or ran."""
    return {
        "origin": view.origin or view.node,
        "started_at": now if view.started_at is None else view.started_at,
    }


def along(draft: Draft, view: SessionView, attempt: int, how: Reason) -> None:
    """Another part of its gang begins again, and so does this one, as that attempt."""
    if view.pending:
        view = replace(view, attempt=attempt)
        draft.note(view, reason_of(view, how, draft.now), "retry")
    elif view.process_state is ProcessState.STARTING:  # it is removed as soon as it runs
        view = replace(endings.stay(view), attempt=attempt, retrying=True, rollback=True)
        moves.leave(draft, view, reason_of(view, how, draft.now), "retry")
    elif view.process_state is ProcessState.SUSPENDED:
        from_beginning(draft, replace(view, attempt=attempt - 1), how, "retry")
    elif view.process_state is ProcessState.RESUMING:  # the same, or when it did not come back
        view = replace(view, attempt=attempt, retrying=True, leaving="")
        draft.note(view, run_reasons.attempt_anew(view, how), "retry")
    elif view.process_state is ProcessState.SUSPENDING:
        _discard(draft, replace(view, attempt=attempt), how)
    else:
        make_next(draft, replace(view, attempt=attempt - 1), how, "retry")


def _discard(draft: Draft, view: SessionView, how: Reason) -> None:
    """Have it removed instead of stored."""
    removed = gangs.goes_back(view)  # that is under way already
    view = replace(endings.stay(view), retrying=True, rollback=True, exit=None)
    if removed:
        draft.note(view, reason_of(view, how, draft.now), "retry")
        return
    view = replace(view, seq=view.seq + 1)
    view = draft.note(view, reason_of(view, how, draft.now), "retry")
    draft.actions.append(moves.leave_action(view, "retry"))


def remove(draft: Draft, view: SessionView, reason: Reason) -> None:
    """It came back while its gang began again: have what is there removed."""
    moves.leave(draft, replace(view, retrying=True, rollback=True), reason, "retry")


def make_next(draft: Draft, view: SessionView, how: Reason, rule: str) -> None:
    """Make the next attempt of a run: what is left of this one is removed, and it goes on once that
    is confirmed."""
    if view.process_state is ProcessState.STARTING:  # it ran: nobody had told that yet
        view = draft.quiet_step(view, ProcessEvent.LIVE, **begun(view, draft.now))
    reference = _to_go_on_from(view, draft.now)
    view = replace(
        endings.stay(view),
        attempt=view.attempt + 1,
        retrying=True,
        rollback=True,
        called=reference is not None,
        restore_from=reference.id if reference else "",
    )
    moves.leave(draft, view, reason_of(view, how, draft.now), rule)


def _to_go_on_from(view: SessionView, now: float) -> CheckpointRef | None:
    """The newest checkpoint that an attempt can go on from; None: from the beginning. One may have
    been made while the run was dying: a run that ended as soon as it was back from it takes the
    next older one. Parts of a gang go back together or not at all (`retries`)."""
    if view.part is not None:
        return None
    known = [c for c in view.checkpoints if c.whole]
    back = view.loss
    if back is not None and now - back.at < SICK_S:
        tried = next((n for n, c in enumerate(known) if c.id == back.checkpoint), len(known))
        known = known[:tried]
    return known[-1] if known else None


def reason_of(view: SessionView, how: Reason, now: float) -> Reason:
    """Return what people read of an attempt that begins, and why it does."""
    reference = next((c for c in view.checkpoints if c.id == view.restore_from), None)
    if reference is None:
        return run_reasons.attempt_anew(view, how)
    return run_reasons.attempt_from(view, reference, how, now)


def begin_again(
    draft: Draft, view: SessionView, reason: Reason, rule: str, node: str = ""
) -> SessionView:
    """Nothing of it is left anywhere: back into the queue, under the next epoch, with its old place
    in time. It stays on its node unless another one is named."""
    view = replace(
        endings.stay(queue.freed(view)),
        device_state=DeviceState.NONE,
        saved=False,
        busy=None,
        held_since=None,
        home=(),
        exit=None,
        loss=None,
        exit_code=None,
    )
    return draft.step(
        view,
        ProcessEvent.RETRY,
        reason,
        rule,
        node=node or view.node,
        epoch=view.epoch + 1,
        queue_order=view.queue_order or draft.next_order(),
    )


def from_beginning(draft: Draft, view: SessionView, how: Reason, rule: str, node: str = "") -> None:
    """The next attempt of a run of which nothing is left, and that has no checkpoint."""
    view = replace(view, attempt=view.attempt + 1, restore_from="")
    begin_again(draft, view, reason_of(view, how, draft.now), rule, node)


def not_resumed(draft: Draft, view: SessionView, sentence: str, free: bool) -> bool:
    """Let a run that did not come back from its checkpoint, and of which nothing is left, go on
    from its newest whole one. `free`: that costs no attempt, because the checkpoint is damaged (the
    next older one counts) or what was in the way will pass (the store was away). False: it was no
    retry."""
    if not view.retrying:
        return False
    how = run_reasons.no_return(sentence)
    if not free and not left(view):
        reason = over(view, how)
        endings.finish(draft, view, ProcessEvent.FAIL, reason, "retry")
        return True
    reference = view.newest_whole
    view = replace(
        view,
        attempt=view.attempt + (not free),
        restore_from=reference.id if reference else "",
    )
    reason = reason_of(view, how, draft.now)
    view = draft.quiet_step(view, ProcessEvent.RESUME_FAILED, exit=None)
    if reference is None:
        begin_again(draft, view, reason, "retry")
    else:
        draft.note(replace(view, called=True, rollback=True), reason, "retry")
    return True


def over(view: SessionView, how: Reason) -> Reason:
    """The reason of a run that ended `how` and is not tried again, one sentence."""
    if view.part is not None and left(view):
        return run_reasons.not_tried_again(how)
    tried = view.run is not None and view.run.max_retries > 0 and not left(view)
    if not tried or view.run is None:
        return how
    return run_reasons.last_attempt(view.run.attempts, how)
