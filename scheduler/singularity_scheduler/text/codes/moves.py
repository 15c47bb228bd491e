"""Reasons about whole sessions: into the store and back, from node to node, to older states. One
function for each code; its arguments are those of the code."""

from __future__ import annotations

from singularity_scheduler.client.words import duration, size
from singularity_scheduler.text.phrases import attempt, count, duty, needed, stored
from singularity_scheduler.text.phrases import part as part_of
from singularity_scheduler.text.said import Clauses, Said

from .devices import JUST_WAITS, NOTHING_LOST

# -- into the store -------------------------------------------------------------------------


def suspending(by: str, why: str) -> Clauses:
    who = f"{by}: {why}" if why else by
    return (
        f"suspended by {who}: everything of it goes to the store and its node becomes free",
        NOTHING_LOST,
    )


def stays_suspended(by: str, why: str) -> Clauses:
    who = f"{by}: {why}" if why else by
    return (f"stays suspended, as {who} asked", "everything of it is in the store")


def suspended(name: str, stored_bytes: int, ms: float, held_by: str | None) -> Clauses:
    took = f" in {ms / 1e3:.1f} s" if ms else ""
    back = "resume or the next request from its notebook brings it back"
    if held_by is not None:
        back = f"only resume brings it back, as {held_by} preempted it"
    return (f"everything of it is in {stored(name)} ({size(stored_bytes)}{took})", back)


def hibernating(sentence: Said | str) -> Clauses:
    return (f"{sentence}: it is suspended until its next server or request", NOTHING_LOST)


def suspend_failed(sentence: str) -> str:
    return f"could not be suspended, so it goes on as it was ({sentence})"


def processes_ended() -> str:
    return "its processes were ended to go back to a checkpoint"


def server_is_gone() -> str:
    return "its Jupyter server is gone"


# -- out of the store -----------------------------------------------------------------------


def called(by: str, name: str | None) -> str:
    where = f" from {stored(name)}" if name is not None else ""
    return f"called back by {by}{where}"


def called_leaving(by: str) -> str:
    return f"called back by {by} while it was being suspended: nothing is lost"


def requested() -> str:
    return "a request reached it while it was suspended"


def waits_for_room(after: Said, why: Said) -> Clauses:
    return (*after.clauses, why.text, "it comes back by itself as soon as there is room")


def coming_back(after: Said, node: str) -> Clauses:
    return (after.head, f"it comes back on node {node}")


def came_back(
    node: str,
    name: str,
    hashes: int,
    number: int,
    attempts: int,
    lost: tuple[str, ...],
    rolled_back: bool,
) -> Clauses:
    checked = ", contents checked" if hashes else ""
    start = f"came back on node {node} from {stored(name)}{checked}{attempt(number, attempts)}"
    gone = (f"not brought back: {', '.join(lost)}",) if lost else ()
    if rolled_back:
        return (start, "what it did after that checkpoint is undone", *gone)
    return (start, *(gone or (NOTHING_LOST,)))


def not_forked(sentence: str) -> str:
    return f"could not be forked: {sentence}"


def resume_failed(sentence: str) -> str:
    return f"could not come back, so it stays suspended and nothing more is lost ({sentence})"


def resume_failed_damaged(sentence: str, name: str | None, age_s: float) -> Clauses:
    """`name` and `age_s`: of the checkpoint to take in its place; None: there is none."""
    other = "there is no other one that it could come back from"
    if name is not None:
        other = f"the next one that can be used is '{name}' ({duration(age_s)} old)"
    return (resume_failed(sentence), other)


def unwinds_move(node: str, sentence: str) -> str:
    return f"it could not go on at node {node} ({sentence}), so it comes back as it was"


def unwinds_restore(sentence: str) -> str:
    return f"it could not go back to that checkpoint ({sentence}), so it comes back as it was"


# -- to another place -----------------------------------------------------------------------


def moving_node(by: str, node: str) -> Clauses:
    return (f"moving to node {node} for {by}: {NOTHING_LOST}", JUST_WAITS)


def moving_with_part(by: str, part: int, node: str) -> Clauses:
    return (f"{part_of(part)} is moving to node {node} for {by}: {NOTHING_LOST}", JUST_WAITS)


def moving_cluster(by: str, cluster: str) -> Clauses:
    return (f"moving to cluster {cluster} for {by}: {NOTHING_LOST}", JUST_WAITS)


def goes_elsewhere(node: str, here: str, needs: int) -> Clauses:
    room = f"which has {count(needs)} free, because all of node {here} are in use"
    return (f"moves to node {node}, {room}", NOTHING_LOST, JUST_WAITS)


def makes_room(waiter: str, here: str, least: int, most: int) -> Clauses:
    why = f"because {waiter} needs {needed(least, most)} of node {here} at once"
    return (f"moves to another node, {why}", NOTHING_LOST, JUST_WAITS)


# -- to an older state ----------------------------------------------------------------------


def putting_back(by: str, name: str, discard: bool) -> Clauses:
    rest = "is given up" if discard else "is stored first, so this can be undone"
    return (
        f"the device state of {stored(name)} is put back for {by}",
        f"the present one {rest}",
    )


def put_back(name: str, back: tuple[str, ...], lost: tuple[str, ...]) -> Clauses:
    return (
        f"the device state of {stored(name)} is back: {', '.join(back)}",
        f"not brought back: {', '.join(lost)}",
    )


def not_put_back(sentence: str) -> str:
    return f"the device state was not put back, so it goes on as it was ({sentence})"


def going_back(by: str, name: str, discard: bool) -> str:
    rest = "is given up" if discard else "is put into the store first, so this can be undone"
    return f"going back to {stored(name)} for {by}: its present state {rest}"


def forked(by: str, name: str, source: str, source_id: str) -> str:
    return f"forked by {by} from {stored(name)} of {source} ({source_id})"


def reopened(by: str, name: str, age_s: float, runs: bool) -> Clauses:
    then = "it goes on by itself" if runs else "resume, or opening its notebook, brings it back"
    return (
        f"{by} took its end back: it is as of {stored(name)}, {duration(age_s)} old, and what "
        "it did since is lost",
        then,
    )


# -- checkpoints that are made while it goes on ----------------------------------------------


def checkpoint_asked(by: str) -> str:
    return f"checkpoint asked by {by}"


def checkpoint_due(steps: int | None, seconds: float) -> str:
    """`steps`: since the last one; None: the time since then is over."""
    since = count(steps, "step") if steps is not None else duration(seconds)
    return f"checkpoint by itself: {since} since the last one"


# -- its node leaves ------------------------------------------------------------------------


def drained_moves(node: str, state: str, by: str | None, why: Said | str) -> Clauses:
    start = f"leaves node {node}, which {duty(state, by, why)}"
    return (f"{start}: it moves to another node", NOTHING_LOST, JUST_WAITS)


def drained_stores(node: str, state: str, by: str | None, why: Said | str, called: bool) -> Clauses:
    then = "as soon as a node has room for it" if called else "with its next request"
    start = f"leaves node {node}, which {duty(state, by, why)}"
    return (
        f"{start}: everything of it goes to the store",
        NOTHING_LOST,
        f"it comes back {then}",
    )


def leaves_in_time(after: Said, in_s: float | None, name: str | None, age_s: float) -> Clauses:
    """`in_s`: when its machine goes away, None: nobody said; `name`: of the checkpoint that it goes
    on from if that is too early, None: there is none."""
    when = f" in {duration(in_s)}" if in_s is not None else ""
    gone = f"should the machine go away{when} before everything is there"
    if name is None:
        rest = "its variables are lost, because it has no checkpoint to go on from"
    else:
        rest = f"it goes on from {stored(name)}, {duration(age_s)} old"
    return (*after.clauses, f"{gone}, {rest}")


def stays(node: str, state: str, by: str | None, why: Said | str, trouble: Said | str) -> Clauses:
    which = duty(state, by, why)
    return (
        f"stays on node {node}, which {which}, because it cannot be stored ({trouble})",
        f"its devices are freed, {NOTHING_LOST}: end it, or open the node again",
    )


def requeued(node: str, here: str, state: str, by: str | None, why: Said | str) -> str:
    return f"waits on node {node}, because node {here} {duty(state, by, why)}"


# -- its node is gone -----------------------------------------------------------------------


def waits_for_node(node: str) -> Clauses:
    return (
        f"node {node} does not answer, and its process and variables are nowhere else: it goes on "
        "as it was when the node is back",
        "if the node will not come back, end it",
    )


def node_back(node: str) -> str:
    return f"node {node} is back and had it all along: nothing is lost"


def requeued_lost(node: str, here: str) -> str:
    return f"waits on node {node}, because node {here} is gone"


def _from(name: str, age_s: float) -> str:
    what = f"{stored(name)}, {duration(age_s)} old"
    return f"it goes on from {what}, and what it did since is lost"


def lost_node(node: str, silent_s: float, name: str, age_s: float) -> str:
    return f"{node_silent(node, silent_s)}: {_from(name, age_s)}"


def lost_self(why: Said, name: str, age_s: float) -> str:
    return f"{why.text}: {_from(name, age_s)}"


def lost_part(part: int, why: Said, name: str, age_s: float) -> str:
    return f"{part_of(part)} was lost ({why.text}): {_from(name, age_s)}"


def node_silent(node: str, silent_s: float) -> str:
    return f"node {node} has been gone for {duration(silent_s)}"


def agent_forgot(node: str) -> str:
    return f"the agent of node {node} no longer knows this session"


def lost_node_forked(node: str, silent_s: float) -> str:
    gone = node_silent(node, silent_s)
    return f"{gone}: it begins again from the checkpoint that it was forked from"


def lost_for_good(node: str, silent_s: float) -> str:
    gone = node_silent(node, silent_s)
    return f"{gone} with its process and variables: start it again"


def agent_restarted(node: str, name: str | None, age_s: float) -> str:
    which = f" '{name}', {duration(age_s)} old" if name is not None else ""
    return f"{agent_forgot(node)}: it goes on from checkpoint{which}, and what it did since is lost"


def fenced(node: str | None) -> str:
    """`node`: where it is now; None: in the store."""
    where = f"on node {node}" if node is not None else "in the store"
    return f"this session has moved on and is {where} now"


# -- with the other parts of a gang ---------------------------------------------------------


def with_part(part: int, of: Said) -> Clauses:
    first, *rest = of.clauses
    return (f"comes back, because {part_of(part)} {first}", *rest)
