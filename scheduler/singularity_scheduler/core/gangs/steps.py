"""The parts of a gang lose their devices, want them, begin again and end together. Pure.

Part of `decide` (see `policy`): whatever became of one part, the others follow in the same
decision. Each rule looks at how the parts are, and not at how they came to be so; what could not be
done now is done later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import endings, retries
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.core.values.states import DeviceState, ProcessEvent, ProcessState

from . import members as gangs

_OFF = (DeviceState.NONE, DeviceState.PARKED)


def settle(draft: Draft, nodes: Collection[str] = ()) -> None:
    """Put the gangs right of which this decision changes a part, and those with one on `nodes`."""
    known = [draft.state.nodes[node] for node in nodes if node in draft.state.nodes]
    ids = [*draft.changed, *(sid for node in known for sid in sorted(node.parts))]
    views = (draft.get(sid) for sid in ids)
    gangs_ = {view.part.gang: view.part for view in views if view is not None and view.part}
    for part in gangs_.values():
        _end(draft, part)
        _begin_again(draft, part)
        _line_up(draft, part)
        _park(draft, part)


def _end(draft: Draft, part: Part) -> None:
    """A part that failed, or was cancelled, ends the others in the same way."""
    for session in part.sessions:
        view, old = draft.changed.get(session), draft.state.sessions.get(session)
        if view is None or not view.final or (old is not None and old.final):
            continue
        if view.process_state is ProcessState.COMPLETED:
            continue
        failed = view.process_state is ProcessState.FAILED
        step = ProcessEvent.FAIL if failed else ProcessEvent.CANCEL
        for other in gangs.parts(draft, part):
            ending = replace(other, grace_s=view.grace_s)
            endings.finish(draft, ending, step, run_reasons.part_ended(view), "gang.end")


def _begin_again(draft: Draft, part: Part) -> None:
    """When one of them makes another attempt, all do."""
    views = gangs.parts(draft, part)
    first = max(views, key=lambda view: view.attempt, default=None)
    if first is None or first.part is None:
        return
    how = run_reasons.part_begins_again(first.part)
    for view in views:
        if view.attempt < first.attempt:
            retries.along(draft, view, first.attempt, how)


def _line_up(draft: Draft, part: Part) -> None:
    """They have one place in the queue, and when one wants devices, all do."""
    views = gangs.parts(draft, part)
    for state in (_is_pending, _is_waiting):
        there = [view for view in views if state(view)]
        order = min((view.queue_order for view in there), default=0)
        for view in there:
            if view.queue_order != order:
                draft.put(replace(view, queue_order=order))
    waiting = [view for view in views if _is_waiting(view)]
    if not waiting:
        return
    order = min(view.queue_order for view in waiting)
    for view in views:
        live = view.process_state is ProcessState.LIVE and view.leaving is None
        if live and view.device_state in _OFF and not view.held_back:
            # Its own code may not have called a device yet: that it does not, withdraws nothing.
            wants = replace(view, asked=True)
            queue.enqueue(draft, wants, reasons.waits(view), "gang.together", order)


def _is_pending(view: SessionView) -> bool:
    return view.pending


def _is_waiting(view: SessionView) -> bool:
    return view.device_state is DeviceState.WAITING


def _park(draft: Draft, part: Part) -> None:
    """None keeps its devices while another has none."""
    views = gangs.parts(draft, part)
    lost = next((view for view in views if view.device_state not in gangs.HAS), None)
    if lost is None:
        return
    for view in views:
        here = view.process_state is ProcessState.LIVE and view.leaving is None
        if here and view.device_state is DeviceState.HELD and draft.now >= view.rests_until:
            queue.park(draft, view, run_reasons.part_paused(lost), "gang.together")
