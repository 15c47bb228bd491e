"""Why something that a person asked of a session cannot be done. One function for each code; its
arguments are those of the code, of which `who` is the label of the session."""

from __future__ import annotations

from singularity_scheduler.client.words import duration
from singularity_scheduler.text.phrases import clipped, count, listed, whole
from singularity_scheduler.text.said import Said

MOMENT = "try again in a moment"

# -- which session, and in which state ------------------------------------------------------


def no_such_session(session: str | int) -> str:
    return f"there is no session {session}"


def session_exists(session: str | int) -> str:
    return f"session {session} exists already"


def has_ended(who: str, state: str) -> str:
    return f"session {who} has ended ({state}): start it again"


def not_started_yet(who: str) -> str:
    return f"{who} is queued and has not been started: cancel it, or wait until it runs"


def just_starting(who: str) -> str:
    return f"{who} is just being started: {MOMENT}"


def suspended_already(who: str) -> str:
    return f"{who} is suspended already: resume brings it back"


def suspending_already(who: str) -> str:
    return f"{who} is being suspended already"


def coming_back_already(who: str) -> str:
    return f"{who} is just coming back from the store: {MOMENT}"


def not_running(who: str) -> str:
    return f"{who} is not running"


def uses_no_node(who: str) -> str:
    return f"{who} is suspended and uses no node: resume brings it back"


def not_suspended(who: str, node: str) -> str:
    return f"{who} is on node {node} and is not suspended: migrate moves it"


def on_its_way(who: str) -> str:
    return f"{who} is on its way into or out of the store right now: {MOMENT}"


def no_answer_now(node: str, who: str) -> str:
    return f"node {node} of {who} does not answer at the moment; nothing was changed: {MOMENT}"


def no_such_step(session: str | int, start: str, event: str, story: tuple[str, ...]) -> str:
    """`story`: its last steps."""
    steps = "; ".join(story) or "none"
    return f"session {session} cannot '{event}' while it is '{start}' (its last steps: {steps})"


# -- its devices ----------------------------------------------------------------------------


def changing_devices(who: str) -> str:
    return f"{who} is changing devices right now: {MOMENT}"


def nothing_to_park(who: str) -> str:
    return f"{who} holds no device, so there is nothing to park"


def waits_and_holds_none(who: str) -> str:
    return f"{who} is waiting for devices and holds none, so there is nothing to park"


def parked_already(who: str) -> str:
    return f"{who} is parked already"


def preempted_already(who: str) -> str:
    return f"{who} is preempted already: resume brings it back"


def holds_already(who: str, devices: tuple[str, ...]) -> str:
    return f"{who} already holds {listed(devices)}"


def is_being_resized(who: str) -> str:
    return f"{who} is being resized right now: {MOMENT}"


def more_than_virtual(who: str, virtual: int, number: int) -> str:
    has = _virtual(virtual)
    return f"{who} has {has}, so it runs on 1 to {virtual} physical ones, not on {number}"


def _virtual(number: int) -> str:
    return count(number, "virtual device")


def not_in_scale_policy(who: str, number: int, counts: tuple[int, ...]) -> str:
    choice = ", ".join(map(str, counts))
    return f"the scale policy of {who} does not allow {count(number)}: pick from {choice}"


def node_is_too_small(node: str, who: str, has: int, number: int) -> str:
    return (
        f"node {node} of {who} has {count(has)}, so it cannot run on {number}: migrate it to "
        "another node first"
    )


def device_is_drained(device: str, why: Said | str) -> str:
    return f"{device} is drained ({why}): pick another device"


def node_has_no_device(node: str, devices: tuple[str, ...], there: tuple[str, ...]) -> str:
    choice = ", ".join(there) or "none"
    return f"node {node} has no device {listed(devices)}: pick from {choice}"


def other_number_of_devices(who: str, virtual: int, least: int, most: int) -> str:
    what = "device" if most == 1 else "devices"
    different = (
        f"{most} different {what}" if least == most else f"{least} to {most} different {what}"
    )
    return f"{who} has {_virtual(virtual)}, so name {different} to move to"


def on_devices_already(who: str, devices: tuple[str, ...]) -> str:
    return f"{who} is on {listed(devices)} already"


def too_few_can_be_freed(who: str, number: int) -> str:
    other = count(number, "other device")
    return f"{who} cannot be moved: fewer than {other} can be freed for it now"


def device_in_use(device: str, holder: str, holder_tier: str, tier: str) -> str:
    return (
        f"{device} is used by {holder} ({holder_tier}), which may not be paused for {tier}: pick "
        "another device or try later"
    )


# -- kept alive, tiers ----------------------------------------------------------------------


def nobody_may_keep(who: str) -> str:
    return (
        f"{who} was not kept alive, because nobody may do that here: an administrator can allow it "
        "(keep_max_s)"
    )


def kept_for_too_long(who: str, for_s: float, limit_s: float) -> str:
    most = duration(limit_s)
    return f"{who} was not kept alive for {duration(for_s)}: ask for at most {most} (keep_max_s)"


def kept_for_long_already(
    who: str, for_s: float, since_s: float, left_s: float, limit_s: float
) -> str:
    """`since_s`: for how long it has been kept; `left_s`: for how long it may be from now on."""
    rest = f"{duration(left_s)} are left: ask for no more, or use them first"
    if left_s < 1:
        rest = "that was as long as it may be: use them first"
    return (
        f"{who} was not kept alive for {duration(for_s)}: its devices have not been used since it "
        f"was kept {duration(since_s)} ago, and {rest} (keep_max_s is {duration(limit_s)})"
    )


def tier_is_closed(tier: str, user: str, open: tuple[str, ...]) -> str:
    return (
        f"the tier {tier} is not open to {user}, so nothing was changed: pick {listed(open)}, or "
        "ask an administrator"
    )


def no_tier_is_left(user: str) -> str:
    return f"at least one tier must be open to {user}: name one"


# -- into the store and back ----------------------------------------------------------------


def cannot_store_images(who: str, node: str, trouble: str) -> str:
    return (
        f"{who} stays as it is: node {node} cannot store the image of a process ({trouble}); park "
        "or preempt frees its devices"
    )


def store_not_usable(who: str, node: str, trouble: str) -> str:
    return (
        f"{who} stays as it is: the store of node {node} cannot be used now ({trouble}); park or "
        "preempt frees its devices"
    )


def no_node_brings_back(who: str) -> str:
    return f"{who} stays suspended: no node of this cluster can bring processes back"


def no_node_takes_fork(who: str) -> str:
    return f"{who} was not forked: no node of this cluster can bring processes back"


def run_is_not_forked(who: str, output: str) -> str:
    """`output`: the notebook that the run writes; "": it is a command."""
    what = f"output {output}" if output else "files"
    return (
        f"{who} is a batch run, and two runs would write the same {what}: submit it again instead"
    )


# -- to another place -----------------------------------------------------------------------


def two_targets() -> str:
    return "name either the devices, the node or the cluster to move to, not two of them"


def cannot_go_to_node(who: str, node: str, why: Said) -> str:
    return f"{who} cannot go to node {node}, and nothing was changed: {why}"


def cannot_go_to_cluster(who: str, cluster: str, region: str | None, why: Said) -> str:
    """`region`: of the cluster, where it has another name."""
    where = f"cluster {cluster}{f' of region {region}' if region is not None else ''}"
    return f"{who} cannot go to {where}, and nothing was changed: {why}"


def on_node_already(who: str, node: str) -> str:
    return f"{who} is on node {node} already"


def in_cluster_already(who: str, cluster: str) -> str:
    return f"{who} is in cluster {cluster} already"


def not_moved(who: str, why: Said) -> str:
    return f"{who} was not moved and goes on where it is: {why}"


# -- parts of gangs -------------------------------------------------------------------------


def part_stays(who: str, why: Said) -> str:
    return f"{who} stays as it is: {why}: suspend it, park it, or let it end"


def part_not_moved(who: str, why: Said) -> str:
    return f"{who} was not moved, and nothing was changed: {why}"


def gang_not_standing(who: str, what: str, why: Said) -> str:
    """`what`: was to be done with it: "suspended", "moved" or "stored"."""
    return (
        f"{who} was not {what}, and nothing was changed: its gang is stored only while all of its "
        f"parts have their devices, and {why}"
    )


def parts_have_no_level(who: str) -> str:
    return (
        f"{who} was not stored, and nothing was changed: the parts of a gang are stored with their "
        "processes: leave the level out"
    )


def comes_back_as_stored(who: str, part: int, parts: int) -> str:
    return (
        f"{who} stays as it is: it is {whole(part, parts)}, which comes back as it was stored last "
        "and where all parts have room: resume it without a checkpoint, node or cluster"
    )


def no_fitting_checkpoint(who: str) -> str:
    return (
        f"{who} has no checkpoint with its process in it that fits those of the other parts of its "
        "gang, so it cannot come back: end it and start it again"
    )


# -- its end is taken back ------------------------------------------------------------------


def not_ended(who: str) -> str:
    return f"{who} has not ended, so there is no end to take back"


def just_ending(who: str) -> str:
    return f"{who} is just ending on its node: {MOMENT}"


def part_is_not_reopened(who: str, part: int) -> str:
    return (
        f"{who} was part {part} of a run on several nodes, of which nothing is kept when it ends, "
        "so its end cannot be taken back: submit it again"
    )


def member_is_not_reopened(who: str) -> str:
    return f"{who} was part of a group, which cannot be taken back: submit it again"


def all_is_done(who: str) -> str:
    return f"{who} has done all of its work, so there is nothing to take back"


def nothing_to_reopen(who: str) -> str:
    return (
        f"{who} has ended, and there is no checkpoint of its process (any more) that it could come "
        "back from: start it again"
    )


def virtual_cluster_is_gone(who: str, cluster: str) -> str:
    return f"{who} belongs to the virtual cluster {cluster}, which is gone: fork it"


# -- checkpoints ----------------------------------------------------------------------------


def ambiguous_checkpoint(word: str, who: str, number: int, first: tuple[str, ...]) -> str:
    """`first`: some of the `number` ids that begin so."""
    return (
        f"'{clipped(word)}' may be {number} checkpoints of {who}: {', '.join(first)}; nothing was "
        "done: give more of the id"
    )


def no_such_checkpoint(word: str, who: str, near: str | None, newest: str | None) -> str:
    """`newest`: the name of its newest checkpoint; None: it has none."""
    if near is not None:
        hint = f"did you mean '{near}'?"
    elif newest is not None:
        hint = f"its newest is '{newest}'"
    else:
        hint = "it has none yet"
    return f"there is no checkpoint '{clipped(word)}' of {who}: {hint}"


def no_whole_checkpoint(who: str, level: str | None, name: str) -> str:
    """`level` and `name`: of the checkpoint that there is; None: there is none."""
    kept = f"its {level} state of checkpoint '{name}' is kept"
    if level is None:
        kept = "nothing of it was stored"
    return (
        f"{who} has no checkpoint with its process in it, so it cannot come back from one; {kept}"
    )


def _other(other: str | None, age_s: float) -> str:
    if other is None:
        return "there is no other one that it could come back from"
    return f"the next one that can be used is '{other}' ({duration(age_s)} old)"


def unusable_checkpoint(
    name: str, damaged: str, level: str, other: str | None, age_s: float
) -> str:
    """`damaged`: what is wrong with it, "": it holds a part of the session alone; `other` and
    `age_s`: of the checkpoint to take in its place, None: there is none."""
    what = f"is damaged ({damaged})" if damaged else f"holds {level} state alone, not the process"
    return f"checkpoint '{name}' {what}, so nothing was changed: {_other(other, age_s)}"


def other_tensors(name: str, who: str, other: str | None, age_s: float) -> str:
    """`other` and `age_s`: as of `unusable_checkpoint`."""
    return (
        f"checkpoint '{name}' holds device state alone, and {who} has gone back to an older state "
        "since it was made, so its tensors may be others now; nothing was changed: "
        f"{_other(other, age_s)}"
    )


def stored_already(who: str, name: str | None) -> str:
    which = f" as checkpoint {name!r}" if name is not None else ""
    return f"{who} is suspended, so all of it is in the store already{which}"


def nothing_to_store(who: str) -> str:
    return f"{who} has no device state yet, so there is nothing to store: call a device first"


def nothing_to_replace(who: str) -> str:
    return (
        f"{who} has no device state yet, so there is nowhere to put that of a checkpoint: call a "
        "device first"
    )


def checkpoint_needed(name: str, who: str) -> str:
    return (
        f"checkpoint '{name}' is what {who} would come back from, so it was kept: resume the "
        "session first, or end it"
    )


def set_needed(name: str, who: str) -> str:
    return (
        f"checkpoint '{name}' is what {who} and the other parts of its gang would come back from, "
        "so it was kept: resume them first, or end them"
    )
