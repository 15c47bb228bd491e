"""Sets: what all parts of a gang stored at one place while the gang goes on. Pure.

The checkpoint of a part is of use only together with those that the other parts stored at the same
place: they are a *set*. One of which a part is missing, or damaged, is none. The newest set is what
all parts go back to when one of them is lost (`retries`), so sets are kept and let go as a
whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from singularity_proxy.errors import Conflict, Unsupported

from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.reasons.of_devices import name_of
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.stored import CheckpointRef, CheckpointSet
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from . import members as gangs


def whole(draft: Draft, part: Part) -> list[CheckpointSet]:
    """The sets of a gang that are whole, oldest first; none when one of its parts has ended."""
    views = gangs.parts(draft, part)
    if len(views) < part.parts:
        return []
    stored = {v.id: {c.set_id: c for c in v.checkpoints if c.set_id and c.whole} for v in views}
    ids = set.intersection(*map(set, stored.values()))
    sets = [CheckpointSet(id_, {sid: refs[id_] for sid, refs in stored.items()}) for id_ in ids]
    return sorted(sets, key=lambda one: (one.at, one.id))


def set_id(first: SessionView) -> str:
    """The id of what is stored by the command that part 0 was, or is, given with these numbers."""
    assert first.part is not None
    return f"{first.part.gang}-{first.epoch}-{first.seq}"


# -- stored while the gang goes on ----------------------------------------------------------


def asked(draft: Draft, view: SessionView, event: ev.CheckpointAsked) -> None:
    """All parts are stored at one place, whichever was named."""
    if event.level == "device":
        raise refuse(
            Unsupported,
            because("parts_have_no_level", who=view.label),
            session=view.id,
        )
    moves.refuse_in_flight(view)
    views = gangs.together(draft, view)
    gangs.require_standing(draft, view, views, "stored")
    for one in views:
        moves.require_images(draft, one)
    cut = tuple(one.id for one in views)
    views = [draft.put(replace(one, seq=one.seq + 1)) for one in views]
    reason, rule = checkpoints.why_taken(event)
    for one in views:
        draft.actions.append(
            ev.TakeCheckpoint(
                one.id,
                one.node,
                reason,
                rule,
                one.epoch,
                one.seq,
                name=event.name,
                level="process",
                cut=cut,
                set_id=set_id(views[0]),
                cause=checkpoints.cause_of(event),
            )
        )


def is_due_with(state: ClusterState, view: SessionView) -> bool:
    """Whether checkpoints that are made by themselves are asked of this session: of a gang there is
    one that stands for all, while all have their devices."""
    if view.part is None:
        return True
    views = [state.sessions.get(session) for session in view.part.sessions]
    return view.part.number == 0 and all(one is not None and _holds(one) for one in views)


def _holds(view: SessionView) -> bool:
    live = view.process_state is ProcessState.LIVE and view.leaving is None
    return live and view.device_state is DeviceState.HELD


def stored(draft: Draft, event: ev.SetStored) -> None:
    """A set became whole, or did not: then what there is of it is deleted."""
    views = [(draft.get(session), reference) for session, reference in event.checkpoints]
    counts = event.whole and all(view is not None and _goes_on(view) for view, _ in views)
    for view, reference in views:
        if view is not None:
            has = checkpoints.add(draft, view, replace(reference, set_id=event.set_id))
            draft.put(has if counts else checkpoints.drop(draft, has, {reference.id}))
    for part in {view.part for view, _ in views if counts and view is not None and view.part}:
        trim(draft, part)


def _goes_on(view: SessionView) -> bool:
    """Whether it is still what was stored: not about to go back, or to begin again."""
    stays = (ProcessState.LIVE, ProcessState.SUSPENDING)
    return view.process_state in stays and not (view.rollback or view.retrying)


# -- stored by a suspend --------------------------------------------------------------------


def suspended(draft: Draft, part: Part) -> None:
    """All parts have been suspended at one place: that is a set, and the only one from now on."""
    views = gangs.parts(draft, part)
    images = {v.id: next((c for c in v.checkpoints if c.id == v.restore_from), None) for v in views}
    if len(views) < part.parts or any(c is None or c.set_id for c in images.values()):
        return
    id_ = set_id(views[0])
    for view in views:
        image = images[view.id]
        assert image is not None
        older = {c.id for c in checkpoints.visible(view)} - {image.id}
        alone = checkpoints.drop(draft, view, older)
        draft.put(checkpoints.put(draft, alone, replace(image, set_id=id_)))


# -- what is kept ---------------------------------------------------------------------------


def trim(draft: Draft, part: Part) -> None:
    """Let go, of all parts alike, of the sets beyond what is kept; and of what is in no set and was
    not stored to be brought back from there. The newest set stays, and one that is in use."""
    views = gangs.parts(draft, part)
    sets = whole(draft, part)
    if len(views) < part.parts:
        return
    keep = draft.state.retention
    unnamed = [one for one in sets if not one.name]
    gone = unnamed[: max(0, len(unnamed) - max(1, keep.newest))]
    gone += [one for one in sets if keep.days and draft.now - one.at > keep.days * 86400]
    kept = {one.id for one in sets} - {one.id for one in gone}
    kept |= {one.id for one in sets[-1:]} | _in_use(views)
    for view in views:
        if view.process_state not in (ProcessState.LIVE, ProcessState.STARTING):
            continue  # it may be about to come back from one
        unused = {c.id for c in checkpoints.visible(view) if c.set_id not in kept}
        if unused:
            draft.put(checkpoints.drop(draft, view, unused))


def _in_use(views: Iterable[SessionView]) -> set[str]:
    """The sets that parts are coming back from, or are to."""
    refs = (c for view in views for c in view.checkpoints if c.id == view.restore_from)
    return {reference.set_id for reference in refs} - {""}


def drop_set(draft: Draft, view: SessionView, reference: CheckpointRef) -> None:
    """Somebody deletes the checkpoint of a part: its whole set goes."""
    assert view.part is not None
    views = gangs.together(draft, view)
    used = _in_use(views) | {c.id for v in views for c in v.checkpoints if c.id == v.restore_from}
    if not used.isdisjoint((reference.set_id, reference.id)):
        raise refuse(
            Conflict,
            because("set_needed", name=name_of(reference), who=view.label),
            session=view.id,
            checkpoint=reference.id,
        )
    for one in views or [view]:
        ids = {c.id for c in one.checkpoints if reference.set_id and c.set_id == reference.set_id}
        ids |= {reference.id} if one.id == view.id else set()
        draft.put(checkpoints.drop(draft, one, ids))
