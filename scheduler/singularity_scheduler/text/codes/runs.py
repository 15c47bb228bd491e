"""Reasons about how sessions begin and end, and about the attempts of runs. One function for each
code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration
from singularity_scheduler.text.phrases import attempt, figure, stored
from singularity_scheduler.text.phrases import part as part_of
from singularity_scheduler.text.said import Clauses, Said

# -- from elsewhere -------------------------------------------------------------------------


def none() -> str:
    return ""


def said(text: str) -> Clauses:
    """`text`: what a node agent said, or a ledger from before there were codes."""
    return tuple(text.split("; "))


# -- queued and starting --------------------------------------------------------------------


def queued() -> str:
    return "accepted: it starts when the runs before it leave it room"


def queued_member(number: int, members: int, at_once: int | None) -> str:
    """`at_once`: how many of its group may run at the same time; None: all."""
    place = f"member {number} of {members}"
    if at_once is not None:
        return f"{place}: at most {at_once} run at once"
    return f"{place}: it starts when the runs before it leave it room"


def queued_part(part: int, parts: int) -> str:
    return (
        f"part {part} of a gang on {parts} nodes: it starts together with the others, when the "
        "runs before them leave all of them room"
    )


def can_start_at(node: str, cluster: str | None) -> str:
    """`cluster`: of that node, where it is another one."""
    where = f" in cluster {cluster}" if cluster is not None else ""
    return f"waits on node {node}{where} now, which has room for it"


def resumed_unstarted(by: str) -> str:
    return f"resumed by {by}: it starts when the runs before it leave it room"


def resumed_part(by: str) -> str:
    return f"resumed by {by}, with the other parts of its gang"


def starting() -> str:
    return "its process is being started"


def runs(number: int, attempts: int) -> str:
    return f"its process runs{attempt(number, attempts)}"


def taken_over() -> str:
    return "taken over from its node agent: the scheduler had no record of it"


# -- ended ----------------------------------------------------------------------------------


def exited(exit_code: int | None, sentence: str) -> str:
    """`sentence` (the agent's) says what the code cannot say."""
    if exit_code == 0:
        return "ended normally"
    if exit_code is None:
        return f"its process is gone: {sentence}" if sentence else "its process is gone"
    if exit_code < 0:
        return f"its process was ended by signal {-exit_code}"
    return sentence or f"its process ended with exit code {exit_code}"


def closed(by: str | None, why: Said | str) -> Clauses:
    return _ended_by("closed", by or "the scheduler", why)


def cancelled(by: str | None, why: Said | str) -> Clauses:
    return _ended_by("cancelled", by or "the scheduler", why)


def cancelled_with_group(why: Said) -> Clauses:
    return _ended_by("cancelled", "its group", why)


def _ended_by(verb: str, who: str, why: Said | str) -> Clauses:
    if isinstance(why, Said):
        return (f"{verb} by {who}: {why.head}", *why.clauses[1:])
    return f"{verb} by {who}: {why}" if why else f"{verb} by {who}"


def group_late(limit_s: float) -> str:
    return f"the time limit of the group, {duration(limit_s)}, is over"


def member_failed(number: int, members: int, member: str) -> str:
    return f"member {number} of {members} failed ({member})"


def figure_in(name: str, value: int | float, number: int, members: int) -> str:
    """`value`: what member `number` recorded as `name`."""
    return f"{name} is {figure(value)} in member {number} of {members}"


def condition_met(why: Said | str, condition: str) -> str:
    return f"{why} ({condition})"


def drained_by_force(node: str, trouble: Said | str) -> str:
    return f"node {node} is drained by force, and it could not be stored ({trouble})"


def start_failed(sentence: str) -> str:
    return f"could not be started: {sentence}"


def not_started() -> str:
    return "it was not started before the scheduler or its node went away: start it again"


def unknown(node: str) -> str:
    return (
        f"the agent of node {node} was started anew and no longer knows this session: its "
        "process is gone"
    )


def gone_notebook(node: str) -> Clauses:
    return (f"{unknown(node)} and its variables are lost", "start it again")


def gone_command(node: str) -> Clauses:
    return (unknown(node), "submit it again")


def gone_run(node: str, output: str) -> Clauses:
    return (unknown(node), f"the outputs up to then are in {output}: submit it again")


def not_removed(sentence: str) -> str:
    return f"what was left of it could not be removed ({sentence})"


def not_known() -> str:
    return "the scheduler does not know this session"


def ended_while_away() -> str:
    return "it ended while its node was away"


# -- whether its end can be taken back ------------------------------------------------------


def ended_kept(after: Said, name: str, age_s: float, for_s: float) -> Clauses:
    """`name`: of the checkpoint that is kept; "": it has none of its own."""
    what = stored(name) if name else "its newest checkpoint"
    kept = f"is kept for {duration(for_s)}: reopen brings it back from there"
    return (*after.clauses, f"{what}, {duration(age_s)} old, {kept}")


def ended_not_kept(after: Said, level: str | None, name: str) -> Clauses:
    """`level` and `name`: of the newest checkpoint without its process; None: there is none."""
    kept = (f"its {level} state of {stored(name)} is kept",) if level is not None else ()
    none = "there is no checkpoint of its process, so this cannot be taken back"
    return (*after.clauses, none, *kept)


def ended_part(after: Said) -> Clauses:
    return (
        *after.clauses,
        "its checkpoints go with it: the end of a run on several nodes is for good",
    )


# -- the next attempt -----------------------------------------------------------------------


def _which(number: int, attempts: int) -> str:
    return f"attempt {number} of {attempts}"


def attempt_from(number: int, attempts: int, name: str, age_s: float, how: Said) -> Clauses:
    start = f"goes on from {stored(name)}, {duration(age_s)} old, because {how.head}"
    return (f"{_which(number, attempts)} {start}", *how.clauses[1:])


def attempt_anew(number: int, attempts: int, how: Said) -> Clauses:
    having = "having no checkpoint to go on from"
    start = f"starts from its beginning, {having}, because {how.head}"
    return (f"{_which(number, attempts)} {start}", *how.clauses[1:])


def attempt_of_part(number: int, attempts: int, how: Said) -> Clauses:
    start = f"starts from its beginning, because {how.head}"
    return (f"{_which(number, attempts)} {start}", *how.clauses[1:])


def not_tried_again(after: Said) -> Clauses:
    return (*after.clauses, "it is not tried again, because another part of its gang has ended")


def last_attempt(attempts: int, how: Said) -> Clauses:
    first = f"the last of its {attempts} attempts was ended as well: {how.head}"
    return (first, *how.clauses[1:])


def no_return(sentence: str) -> str:
    return f"it could not come back from its checkpoint ({sentence})"


def node_gone(node: str, silent_s: float) -> str:
    return f"node {node} has been gone for {duration(silent_s)} with its process"


def part_goes_back(part: int) -> str:
    return f"{part_of(part)} goes back there too"


def part_begins_again(part: int) -> str:
    return f"{part_of(part)} begins again"


# -- with the other parts of a gang ---------------------------------------------------------


def part_exited(part: int, exit_code: int) -> str:
    return f"{part_of(part)} ended with exit code {exit_code}"


def part_cancelled(part: int, of: Said) -> Clauses:
    return (f"{part_of(part)} was {of.head}", *of.clauses[1:])


def part_ended(part: int, of: Said) -> Clauses:
    return (f"{part_of(part)} ended: {of.head}", *of.clauses[1:])
