"""The checkpoints of sessions: which one a word means, which are kept, what was stored. Pure.

Here is what the scheduler knows of the store. One that is to go is only marked (`dropped`): it is
deleted by whoever has a node at hand, and forgotten after that.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unsupported

from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.of_devices import age_s_of, name_of
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.core.values.states import CHANGING, ProcessState

from .draft import Draft
from .stored import CheckpointRef

SHORTEST = 4
"""Characters that the beginning of a checkpoint's id needs at least."""


def visible(view: SessionView) -> list[CheckpointRef]:
    """Those that people see, oldest first."""
    return [c for c in view.checkpoints if not c.dropped]


def find(view: SessionView, word: str) -> CheckpointRef:
    """The checkpoint of `view` with this id, name (the newest one of it) or beginning of an id;
    `NotFound` with the nearest choice, `BadRequest` when the beginning fits several."""
    known = visible(view)
    for same in ("id", "name"):
        if found := [c for c in known if word and getattr(c, same) == word]:
            return found[-1]
    begin = [c for c in known if len(word) >= SHORTEST and c.id.startswith(word)]
    if len(begin) == 1:
        return begin[0]
    if begin:
        first = tuple(c.id for c in begin[:5])
        raise refuse(
            BadRequest,
            because(
                "ambiguous_checkpoint", word=word, who=view.label, number=len(begin), first=first
            ),
            checkpoints=[c.id for c in begin],
        )
    names = [c.name for c in known if c.name] + [c.id for c in known]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    raise refuse(
        NotFound,
        because(
            "no_such_checkpoint",
            word=word,
            who=view.label,
            near=near[0] if near else None,
            newest=name_of(known[-1]) if known else None,
        ),
        session=view.id,
        checkpoint=word,
    )


def usable(view: SessionView, word: str | None, now: float) -> CheckpointRef:
    """The checkpoint to come back from (None: the newest that is whole); refuses, with the nearest
    choice, what nobody can come back from."""
    if word is None:
        newest = view.newest_whole
        if newest is None:
            last = view.last_checkpoint
            raise refuse(
                Conflict,
                because(
                    "no_whole_checkpoint",
                    who=view.label,
                    level=last.level if last else None,
                    name=name_of(last) if last else "",
                ),
                session=view.id,
            )
        return newest
    reference = find(view, word)
    if reference.whole:
        return reference
    raise refuse(
        Conflict,
        because(
            "unusable_checkpoint",
            name=name_of(reference),
            damaged=reference.damaged,
            level=reference.level,
            **instead(view, reference, now),
        ),
        session=view.id,
        checkpoint=reference.id,
    )


def instead(view: SessionView, reference: CheckpointRef, now: float) -> dict[str, Any]:
    """Return what to take in place of one that cannot be used, as arguments of a reason."""
    choice = instead_of(view, reference)
    return {
        "other": name_of(choice) if choice else None,
        "age_s": age_s_of(choice, now) if choice else 0.0,
    }


def instead_of(view: SessionView, reference: CheckpointRef) -> CheckpointRef | None:
    """Return what to take in place of one that cannot be used: the next older one, else the newest;
    None: there is no other one."""
    others = [c for c in view.checkpoints if c.whole and c.id != reference.id]
    older = [c for c in others if c.at <= reference.at]
    return older[-1] if older else others[-1] if others else None


# -- what is kept ---------------------------------------------------------------------------


def add(draft: Draft, view: SessionView, reference: CheckpointRef) -> SessionView:
    """`view` with a new checkpoint; what retention lets go is marked. Not in the draft yet."""
    view = put(draft, view, reference)
    if view.final:
        return ended(draft, view, view.process_state is ProcessState.COMPLETED)
    return trim(draft, view) if view.part is None else view  # a part's: by sets (`gang_sets`)


def put(draft: Draft, view: SessionView, reference: CheckpointRef) -> SessionView:
    """`view` with this checkpoint, in the place of what was known of it. Not in the draft yet."""
    known = [c for c in view.checkpoints if c.id != reference.id]
    draft.store(view.id, reference)
    return replace(view, checkpoints=tuple(sorted([*known, reference], key=lambda c: c.at)))


def trim(draft: Draft, view: SessionView) -> SessionView:
    """`view` without the checkpoints that are beyond what is kept."""
    keep = draft.state.retention
    unnamed = [c for c in visible(view) if not c.name]
    beyond = unnamed[: max(0, len(unnamed) - max(1, keep.newest))]
    too_old = [c for c in visible(view) if keep.days and draft.now - c.at > keep.days * 86400]
    gone = {c.id for c in (*beyond, *too_old)}
    return drop(draft, view, gone - in_use(draft, view)) if gone else view


def in_use(draft: Draft, view: SessionView, over: bool = False) -> set[str]:
    """Ids that must stay: what it would come back from, unless it is `over`, and what others are
    just coming from."""
    used = set() if over else {view.restore_from}
    if not over and not view.final and (newest := view.newest_whole):
        used.add(newest.id)
    forks = [draft.get(sid) for sid in draft.state.forks.get(view.id, ())]
    forks += [v for v in draft.changed.values() if v.source == view.id]
    return used | {v.restore_from for v in forks if v is not None and not v.final} - {""}


def drop(draft: Draft, view: SessionView, ids: Iterable[str]) -> SessionView:
    """`view` with these marked as to be deleted; not in the draft yet."""
    wanted = set(ids)
    changed = {c.id: replace(c, dropped=True) for c in view.checkpoints if c.id in wanted}
    for reference in changed.values():
        draft.store(view.id, reference)
    return replace(view, checkpoints=tuple(changed.get(c.id, c) for c in view.checkpoints))


def ended(draft: Draft, view: SessionView, completed: bool) -> SessionView:
    """`view` with what stays of a session that ends: those with a name, for forks, and the newest
    one for `Retention.undo_end_s`, so that the end can be taken back. Nothing stays of a part of a
    gang, which can be neither. Not in the draft yet; `completed`: it came to its own end."""
    newest = undo_of(view, completed) if draft.state.retention.undo_end_s else None
    if newest is not None:
        until = draft.now + draft.state.retention.undo_end_s
        view = put(draft, view, replace(newest, undo_until=until))
    unnamed = {c.id for c in visible(view) if not c.name or view.part is not None}
    used = in_use(draft, view, True) | ({newest.id} if newest is not None else set())
    return drop(draft, view, unnamed - used) if unnamed else view


def undo_of(view: SessionView, completed: bool) -> CheckpointRef | None:
    """What the end of a session could be taken back with, the newest one that is whole, else the
    newest; None: there is none, or it is a run that came to its own end."""
    if view.part is not None or (completed and view.kind is Kind.BATCH):
        return None
    return view.newest_whole or view.last_checkpoint


def undo_reason(draft: Draft, view: SessionView, after: Reason, completed: bool) -> Reason:
    """Return the end of `view` for the reason `after` with what there is to take it back, where
    somebody would expect that. `completed`: it came to its own end."""
    if view.part is not None:
        gone = view.checkpoints and not completed
        return run_reasons.ended_part(after) if gone else after
    newest = view.newest_whole
    if newest is not None and newest.undo_until:
        return run_reasons.ended_kept(after, newest, draft.now)
    if view.kind is not Kind.INTERACTIVE:
        return after
    return run_reasons.ended_not_kept(after, view.last_checkpoint)


def mark_damaged(draft: Draft, session: str, checkpoint: str, sentence: str) -> None:
    """Remember that a checkpoint is not what was stored."""
    view = draft.get(session)
    if view is None:
        return
    for reference in view.checkpoints:
        if reference.id == checkpoint and not reference.damaged:
            damaged = replace(reference, damaged=sentence)
            draft.store(session, damaged)
            changed = (damaged if c.id == checkpoint else c for c in view.checkpoints)
            draft.put(replace(view, checkpoints=tuple(changed)))


def unproved(view: SessionView, before: float) -> list[CheckpointRef]:
    """Those made before that time of which nobody has tried yet whether they come back, oldest
    first. Each of a set is tried alone: what is proved never runs, so it meets no other part."""
    known = [c for c in view.checkpoints if c.at < before and not c.proof_at]
    return [c for c in known if c.whole]


def stands_still(view: SessionView) -> bool:
    """Whether the session is not being moved, nor about to be, so that nothing waits for a proof of
    what it has stored."""
    if view.process_state is ProcessState.SUSPENDED:
        return not view.called
    live = view.process_state is ProcessState.LIVE
    return live and view.leaving is None and view.device_state not in CHANGING


# -- events (see `policy`) ------------------------------------------------------------------


def asked(draft: Draft, view: SessionView, event: ev.CheckpointAsked) -> None:
    """Command a checkpoint of a session that goes on meanwhile."""
    if view.process_state is ProcessState.SUSPENDED:
        last = view.newest_whole
        raise refuse(
            Conflict,
            because("stored_already", who=view.label, name=name_of(last) if last else None),
            session=view.id,
            state=view.word,
        )
    if view.in_flight:
        raise refuse(
            Conflict,
            because("on_its_way", who=view.label),
            session=view.id,
            state=view.word,
        )
    if view.device_state in CHANGING:
        raise refuse(
            Conflict,
            because("changing_devices", who=view.label),
            session=view.id,
            state=view.word,
        )
    trouble = draft.node(view.node).abilities.trouble
    if event.level == "process" and trouble:
        raise_unsupported(view, trouble)
    if not view.saved and (trouble or event.level == "device"):
        raise refuse(
            Conflict,
            because("nothing_to_store", who=view.label),
            session=view.id,
            state=view.word,
        )
    view = draft.put(replace(view, seq=view.seq + 1))
    reason, rule = why_taken(event)
    draft.actions.append(
        ev.TakeCheckpoint(
            view.id,
            view.node,
            reason,
            rule,
            view.epoch,
            view.seq,
            name=event.name,
            level=event.level,
            cause=cause_of(event),
        )
    )


def why_taken(event: ev.CheckpointAsked) -> tuple[Reason, str]:
    """The reason of a checkpoint, and the rule."""
    if event.due is not None:
        return event.due, "checkpoint.periodic"
    return move_reasons.checkpoint_asked(event.by), "user.checkpoint"


def cause_of(event: ev.CheckpointAsked) -> str:
    """What such a checkpoint is made for, one of `stored.CAUSES`."""
    return "" if event.due is None else "periodic"


def raise_unsupported(view: SessionView, trouble: str) -> NoReturn:
    """`Unsupported` (501): the node cannot put processes into the store."""
    raise refuse(
        Unsupported,
        because("cannot_store_images", who=view.label, node=view.node, trouble=trouble),
        session=view.id,
        node=view.node,
    )


def taken(draft: Draft, event: ev.CheckpointTaken) -> None:
    if view := draft.get(event.session):
        draft.put(add(draft, view, event.checkpoint))


def found(draft: Draft, event: ev.CheckpointsFound) -> None:
    view = draft.get(event.session)
    known = {c.id for c in view.checkpoints} if view else set()
    for reference in sorted(event.checkpoints, key=lambda c: c.at):
        if view is not None and reference.id not in known:
            view = draft.put(add(draft, view, reference))


def drop_one(draft: Draft, view: SessionView, reference: CheckpointRef) -> None:
    """Mark a checkpoint that somebody deletes; refuse one that the session would come back from."""
    if not view.here and not view.final and reference.id in in_use(draft, view):
        raise refuse(
            Conflict,
            because("checkpoint_needed", name=name_of(reference), who=view.label),
            session=view.id,
            checkpoint=reference.id,
        )
    draft.put(drop(draft, view, {reference.id}))


def proved(draft: Draft, event: ev.CheckpointProved) -> None:
    view = draft.get(event.session)
    known = next((c for c in view.checkpoints if c.id == event.checkpoint), None) if view else None
    if view is not None and known is not None:
        tried = replace(known, proof_at=draft.now, proof_fault=event.fault)
        draft.put(put(draft, view, tried))


def gone(draft: Draft, event: ev.CheckpointGone) -> None:
    draft.gone.append((event.session, event.checkpoint))
    if view := draft.get(event.session):
        left = tuple(c for c in view.checkpoints if c.id != event.checkpoint)
        draft.put(replace(view, checkpoints=left))


def due(
    view: SessionView,
    now: float,
    every_s: float,
    every_steps: int,
    steps: int,
) -> Reason | None:
    """Why a checkpoint of a live session is to be made by itself now; None: it is not.

    `every_s` and `every_steps`: what counts for sessions that have no wish of their own, 0: never;
    `steps`: optimizer steps (or barriers) since its last checkpoint.
    """
    every_s = every_s if view.every_s is None else view.every_s
    every_steps = every_steps if view.every_steps is None else view.every_steps
    if view.process_state is not ProcessState.LIVE or view.leaving is not None:
        return None
    if view.device_state in CHANGING:
        return None
    last = view.last_checkpoint
    since = last.at if last else view.created_at
    if view.idle and view.idle_since is not None and last and view.idle_since <= last.at:
        return None  # nothing happened since
    if every_steps and steps >= every_steps:
        return move_reasons.checkpoint_due(steps, now - since)
    if every_s and now - since >= every_s:
        return move_reasons.checkpoint_due(None, now - since)
    return None
