"""Makes the reasons of whole sessions that go into the store and back, to other nodes and states.

Each function returns a code with its arguments; `text.reasons` makes English of it.
"""

from __future__ import annotations

from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.values.administration import NodeMark
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part

from .of_devices import age_s_of, name_of
from .of_runs import attempt_of
from .reason import Reason, Words, because

# -- into the store and back --------------------------------------------------------------


def suspending(by: str, why: str = "") -> Reason:
    return because("suspending", by=by, why=why)


def stays_suspended(by: str, why: str) -> Reason:
    return because("stays_suspended", by=by, why=why)


def suspended(view: SessionView, reference: CheckpointRef, ms: float) -> Reason:
    return because(
        "suspended",
        name=name_of(reference),
        stored_bytes=reference.bytes,
        ms=ms,
        held_by=view.held_by,
    )


def hibernating(sentence: Words) -> Reason:
    return because("hibernating", sentence=sentence)


def suspend_failed(sentence: str) -> Reason:
    return because("suspend_failed", sentence=sentence)


def processes_ended() -> Reason:
    return because("processes_ended")


def called(by: str, older: CheckpointRef | None) -> Reason:
    return because("called", by=by, name=name_of(older) if older else None)


def called_leaving(by: str) -> Reason:
    return because("called_leaving", by=by)


def requested() -> Reason:
    return because("requested")


def waits_for_room(view: SessionView, why: Reason) -> Reason:
    return because("waits_for_room", after=view.why, why=why)


def coming_back(view: SessionView, node: str) -> Reason:
    """What is done now, after why (the first of what was said so far)."""
    return because("coming_back", after=view.why.root, node=node)


def came_back(view: SessionView, loss: LossReport) -> Reason:
    return because(
        "came_back",
        node=view.node,
        name=_name_in(view, loss),
        hashes=loss.hashes_checked,
        **attempt_of(view),
        lost=tuple(loss.lost),
        rolled_back=loss.rolled_back,
    )


def _name_in(view: SessionView, loss: LossReport) -> str:
    """The name of the checkpoint that a session came back from."""
    found = (name_of(c) for c in view.checkpoints if c.id == loss.checkpoint)
    return next(found, loss.checkpoint)


def not_forked(sentence: str) -> Reason:
    return because("not_forked", sentence=sentence)


def resume_failed(sentence: str) -> Reason:
    return because("resume_failed", sentence=sentence)


def resume_failed_damaged(sentence: str, other: CheckpointRef | None, now: float) -> Reason:
    """`other`: the checkpoint to take in place of the damaged one."""
    return because(
        "resume_failed_damaged",
        sentence=sentence,
        name=name_of(other) if other else None,
        age_s=age_s_of(other, now) if other else 0.0,
    )


def unwinds_move(view: SessionView, sentence: str) -> Reason:
    return because("unwinds_move", node=view.node, sentence=sentence)


def unwinds_restore(sentence: str) -> Reason:
    return because("unwinds_restore", sentence=sentence)


# -- to another node, to an older state ---------------------------------------------------


def moving_node(by: str, node: str) -> Reason:
    return because("moving_node", by=by, node=node)


def moving_with_part(by: str, part: Part, node: str) -> Reason:
    return because("moving_with_part", by=by, part=part.number, node=node)


def moving_cluster(by: str, cluster: str) -> Reason:
    return because("moving_cluster", by=by, cluster=cluster)


def putting_back(by: str, reference: CheckpointRef, discard: bool) -> Reason:
    return because("putting_back", by=by, name=name_of(reference), discard=discard)


def put_back(view: SessionView, loss: LossReport) -> Reason:
    back, lost = tuple(loss.back), tuple(loss.lost)
    return because("put_back", name=_name_in(view, loss), back=back, lost=lost)


def not_put_back(sentence: str) -> Reason:
    return because("not_put_back", sentence=sentence)


def going_back(by: str, reference: CheckpointRef, discard: bool) -> Reason:
    return because("going_back", by=by, name=name_of(reference), discard=discard)


def forked(by: str, source: SessionView, reference: CheckpointRef) -> Reason:
    name = name_of(reference)
    return because("forked", by=by, name=name, source=source.label, source_id=source.id)


def reopened(by: str, reference: CheckpointRef, now: float, runs: bool) -> Reason:
    age_s = age_s_of(reference, now)
    return because("reopened", by=by, name=name_of(reference), age_s=age_s, runs=runs)


def checkpoint_asked(by: str) -> Reason:
    return because("checkpoint_asked", by=by)


def checkpoint_due(steps: int | None, seconds: float) -> Reason:
    """`steps`: since the last one; None: the time since then is over."""
    return because("checkpoint_due", steps=steps, seconds=seconds)


# -- nodes that leave or are gone ---------------------------------------------------------


def _mark(mark: NodeMark) -> dict[str, Words | None]:
    """What a node is used for, who said so and why."""
    return {"state": mark.duty.value, "by": mark.by or None, "why": mark.reason}


def drained(mark: NodeMark, moves: bool, called: bool) -> Reason:
    if moves and called:
        return because("drained_moves", node=mark.node, **_mark(mark))
    return because("drained_stores", node=mark.node, called=called, **_mark(mark))


def leaves_in_time(after: Reason, view: SessionView, mark: NodeMark, now: float) -> Reason:
    """What is left of a session when its machine goes away before everything is in the store."""
    reference = view.newest_whole
    return because(
        "leaves_in_time",
        after=after,
        in_s=None if mark.deadline is None else max(0.0, mark.deadline - now),
        name=name_of(reference) if reference else None,
        age_s=age_s_of(reference, now) if reference else 0.0,
    )


def stays(mark: NodeMark, trouble: Words) -> Reason:
    return because("stays", node=mark.node, trouble=trouble, **_mark(mark))


def requeued(node: str, mark: NodeMark) -> Reason:
    return because("requeued", node=node, here=mark.node, **_mark(mark))


def requeued_lost(node: str, here: str) -> Reason:
    return because("requeued_lost", node=node, here=here)


def waits_for_node(view: SessionView) -> Reason:
    return because("waits_for_node", node=view.node)


def node_back(view: SessionView) -> Reason:
    return because("node_back", node=view.node)


def lost_node(
    view: SessionView, silent_s: float, reference: CheckpointRef | None, now: float
) -> Reason:
    if reference is None:
        return because("lost_node_forked", node=view.node, silent_s=silent_s)
    return because(
        "lost_node",
        node=view.node,
        silent_s=silent_s,
        name=name_of(reference),
        age_s=age_s_of(reference, now),
    )


def lost_for_good(view: SessionView, silent_s: float) -> Reason:
    return because("lost_for_good", node=view.node, silent_s=silent_s)


def agent_restarted(view: SessionView, now: float) -> Reason:
    reference = view.newest_whole
    return because(
        "agent_restarted",
        node=view.node,
        name=name_of(reference) if reference else None,
        age_s=age_s_of(reference, now) if reference else 0.0,
    )


def fenced(node: str | None) -> Reason:
    """`node`: where the session is now; None: in the store."""
    return because("fenced", node=node)
