"""Makes the reasons of how sessions begin and end, of attempts of runs, and of parts of gangs.

Each function returns a code with its arguments; `text.reasons` makes English of it.
"""

from __future__ import annotations

from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind, Member, Part
from singularity_scheduler.core.values.states import ProcessEvent, ProcessState

from .of_devices import age_s_of, name_of
from .reason import Reason, Words, because

# -- queued and starting ------------------------------------------------------------------


def said(text: str) -> Reason:
    """What a node agent said of what it did by itself."""
    return because("said", text=text)


def can_start_at(node: str, cluster: str | None = None) -> Reason:
    """`cluster`: of that node, where it is another one."""
    return because("can_start_at", node=node, cluster=cluster)


def queued(member: Member | None = None) -> Reason:
    if member is None:
        return because("queued")
    most = member.max_parallel
    at_once = most if most is not None and most < member.members else None
    return because("queued_member", number=member.number, members=member.members, at_once=at_once)


def queued_part(part: Part) -> Reason:
    return because("queued_part", part=part.number, parts=part.parts)


def resumed_unstarted(by: str) -> Reason:
    return because("resumed_unstarted", by=by)


def resumed_part(by: str) -> Reason:
    return because("resumed_part", by=by)


def starting() -> Reason:
    return because("starting")


def runs(view: SessionView) -> Reason:
    return because("runs", **attempt_of(view))


def taken_over() -> Reason:
    return because("taken_over")


def attempt_of(view: SessionView) -> dict[str, int]:
    """Which attempt of its run this is, and of how many."""
    return {
        "number": view.attempt if view.run else 1,
        "attempts": view.run.attempts if view.run else 1,
    }


# -- how processes end --------------------------------------------------------------------


def exited(exit_code: int | None, sentence: str) -> Reason:
    """How a process ended; `sentence` (the agent's) says what the code cannot say."""
    return because("exited", exit_code=exit_code, sentence=sentence)


def closed(view: SessionView, by: str | None, why: Reason | str) -> tuple[ProcessEvent, Reason]:
    """Return the step and the reason of a session that somebody (`by`; None: the scheduler) wanted
    to end. Being closed is the normal end of a notebook; it has no other."""
    interactive = view.kind is Kind.INTERACTIVE
    step = ProcessEvent.CANCEL
    if interactive and view.process_state in (ProcessState.STARTING, ProcessState.LIVE):
        step = ProcessEvent.COMPLETE
    return step, because("closed" if interactive else "cancelled", by=by, why=why)


def cancelled_with_group(why: Reason) -> Reason:
    return because("cancelled_with_group", why=why)


def group_late(limit_s: float) -> Reason:
    return because("group_late", limit_s=limit_s)


def member_failed(view: SessionView, member: Member) -> Reason:
    return because("member_failed", number=member.number, members=member.members, member=view.label)


def figure_in(name: str, value: int | float, member: Member) -> Reason:
    """`value`: what the member recorded as `name`."""
    number, members = member.number, member.members
    return because("figure_in", name=name, value=value, number=number, members=members)


def condition_met(why: Reason, condition: str) -> Reason:
    return because("condition_met", why=why, condition=condition)


def drained_by_force(node: str, trouble: Words) -> Reason:
    return because("drained_by_force", node=node, trouble=trouble)


def start_failed(sentence: str) -> Reason:
    return because("start_failed", sentence=sentence)


def not_started() -> Reason:
    return because("not_started")


def unknown(view: SessionView) -> Reason:
    return because("unknown", node=view.node)


def gone(view: SessionView) -> Reason:
    """Its agent no longer knows it, and nothing of it is left."""
    if view.run and view.run.command:
        return because("gone_command", node=view.node)
    if view.run:
        return because("gone_run", node=view.node, output=view.run.output)
    return because("gone_notebook", node=view.node)


def not_removed(sentence: str) -> Reason:
    return because("not_removed", sentence=sentence)


def not_known() -> Reason:
    return because("not_known")


def ended_while_away() -> Reason:
    return because("ended_while_away")


# -- the attempts of runs -----------------------------------------------------------------


def attempt_from(view: SessionView, reference: CheckpointRef, how: Reason, now: float) -> Reason:
    name, age_s = name_of(reference), age_s_of(reference, now)
    return because("attempt_from", **attempt_of(view), name=name, age_s=age_s, how=how)


def attempt_anew(view: SessionView, how: Reason) -> Reason:
    alone = view.part is None
    return because("attempt_anew" if alone else "attempt_of_part", **attempt_of(view), how=how)


def not_tried_again(after: Reason) -> Reason:
    return because("not_tried_again", after=after)


def last_attempt(attempts: int, how: Reason) -> Reason:
    return because("last_attempt", attempts=attempts, how=how)


def no_return(sentence: str) -> Reason:
    return because("no_return", sentence=sentence)


def node_gone(node: str, silent_s: float) -> Reason:
    return because("node_gone", node=node, silent_s=silent_s)


# -- parts of gangs -----------------------------------------------------------------------


def node_silent(node: str, silent_s: float) -> Reason:
    return because("node_silent", node=node, silent_s=silent_s)


def agent_forgot(node: str) -> Reason:
    return because("agent_forgot", node=node)


def lost_self(why: Reason, reference: CheckpointRef, now: float) -> Reason:
    """Of a part of which nothing is left but what is in the store: it goes back to `reference`."""
    name, age_s = name_of(reference), age_s_of(reference, now)
    return because("lost_self", why=why, name=name, age_s=age_s)


def lost_part(part: Part, why: Reason, reference: CheckpointRef, now: float) -> Reason:
    """Of a part that goes back to `reference` because `part`, another one, was lost."""
    name, age_s = name_of(reference), age_s_of(reference, now)
    return because("lost_part", part=part.number, why=why, name=name, age_s=age_s)


def part_paused(view: SessionView) -> Reason:
    """Of a part that is parked because `view`, another one, has lost its devices."""
    return because("part_paused", part=_number(view), of=view.why)


def part_ended(view: SessionView) -> Reason:
    """Of a part that is ended because `view`, another one, has."""
    number, code = _number(view), view.exit_code
    if view.process_state is ProcessState.FAILED and code is not None and code > 0:
        return because("part_exited", part=number, exit_code=code)
    of = view.why.find("after") if view.why.code == "ended_part" else view.why
    cancelled = view.why.root.code in ("cancelled", "cancelled_with_group")
    return because("part_cancelled" if cancelled else "part_ended", part=number, of=of)


def part_goes_back(part: Part) -> Reason:
    return because("part_goes_back", part=part.number)


def part_begins_again(part: Part) -> Reason:
    return because("part_begins_again", part=part.number)


def with_part(view: SessionView) -> Reason:
    """Of a stored part that comes back because `view`, another one, goes on."""
    return because("with_part", part=_number(view), of=view.why)


def _number(view: SessionView) -> int:
    assert view.part is not None
    return view.part.number


# -- whether an end can be taken back -----------------------------------------------------------


def ended_kept(after: Reason, reference: CheckpointRef, now: float) -> Reason:
    """`reference`: the checkpoint that is kept."""
    return because(
        "ended_kept",
        after=after,
        name=reference.name,
        age_s=age_s_of(reference, now),
        for_s=reference.undo_until - now,
    )


def ended_not_kept(after: Reason, last: CheckpointRef | None) -> Reason:
    """`last`: the newest checkpoint, which has not its process in it."""
    level, name = (last.level, name_of(last)) if last else (None, "")
    return because("ended_not_kept", after=after, level=level, name=name)


def ended_part(after: Reason) -> Reason:
    return because("ended_part", after=after)
