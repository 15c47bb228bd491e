"""The sentences people read: what happened, what was kept, what comes next. Pure text."""

from __future__ import annotations

import re

from singularity_scheduler.client.words import duration, size

from .administration import NodeMark
from .model import SessionView
from .requested import Member
from .states import DeviceState
from .stored import CheckpointRef, LossReport


def count(number: int, noun: str = "device") -> str:
    """ "1 device", "2 devices"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(devices: tuple[str, ...]) -> str:
    """ "cpu:0 and cpu:1"."""
    if len(devices) < 2:
        return "".join(devices)
    return f"{', '.join(devices[:-1])} and {devices[-1]}"


def needed(view: SessionView) -> str:
    """How many it can run on: "2 devices", "1 to 4 devices"."""
    least, most = view.needs, view.most
    return count(most) if least == most else f"{least} to {count(most)}"


def different(view: SessionView) -> str:
    """What can be named for it: "2 different devices"."""
    least, most = view.needs, view.most
    what = "device" if most == 1 else "devices"
    return f"{most} different {what}" if least == most else f"{least} to {most} different {what}"


def behind(view: SessionView, devices: tuple[str, ...]) -> str:
    """The physical devices, and how many virtual ones they serve where those are more."""
    each = tuple(dict.fromkeys(devices))
    where = listed(each)
    if len(each) == view.virtual_devices:
        return where
    return f"{where}, with {view.virtual_devices} virtual devices on {len(each)} physical"


def paused_idle(waiter: SessionView) -> str:
    return (
        f"paused for {waiter.label}: {waiter.tier.value} needs {needed(waiter)} "
        "and this notebook was idle; nothing is lost; it comes back with the next device call"
    )


def parked_idle(quiet_s: float, limit_s: float) -> str:
    return (
        f"parked by itself: no call reached its devices for {duration(quiet_s)} (idle_soft_s is "
        f"{limit_s:g}); nothing is lost; it comes back with the next device call"
    )


def _paused(waiter: SessionView, why: str) -> str:
    """Of one that worked; `by_whom` reads these sentences."""
    return (
        f"paused for {waiter.label}{why}; nothing is lost; it comes back with the next device call "
        "and running code just waits"
    )


def paused_lower(victim: SessionView, waiter: SessionView) -> str:
    tiers = f"{waiter.tier.value} goes before {victim.tier.value}"
    return _paused(waiter, f": {tiers} and needs {needed(waiter)}")


def paused_borrower(victim: SessionView, waiter: SessionView) -> str:
    own = f"virtual cluster '{waiter.virtual_cluster}' needs {needed(waiter)}"
    return _paused(waiter, f": {own} of its own and '{victim.virtual_cluster}' had borrowed some")


def paused_for_slice(victim: SessionView, waiter: SessionView) -> str:
    return _paused(waiter, ": it is that one's turn on the device that both share")


def paused_for_turn(victim: SessionView, waiter: SessionView) -> str:
    both = f"({victim.tier.value} both)"
    return _paused(waiter, f": it is that one's turn, which has been served less {both}")


def paused_for_long_wait(victim: SessionView, waiter: SessionView) -> str:
    both = f"({victim.tier.value} both)"
    return _paused(waiter, f", which has waited for longer than anybody should {both}")


def paused_for_guarantee(victim: SessionView, waiter: SessionView) -> str:
    promised = f"what {waiter.tier.value} promises in this window"
    return _paused(waiter, f", which would not get {promised}")


def goes_elsewhere(view: SessionView, node_id: str) -> str:
    return (
        f"moves to node {node_id}, which has {count(view.needs)} free, because all of "
        f"node {view.node} are in use; nothing is lost; running code just waits"
    )


def makes_room(view: SessionView, waiter: SessionView) -> str:
    return (
        f"moves to another node, because {waiter.label} needs {needed(waiter)} of "
        f"node {view.node} at once; nothing is lost; running code just waits"
    )


def kept(by: str, for_s: float) -> str:
    return (
        f"kept alive by {by} for {duration(for_s)}: it is not parked for being idle; a higher tier "
        "still goes first"
    )


def changed(by: str, what: list[str]) -> str:
    return f"{by} changed its {' and its '.join(what)}: nothing else of it changed"


def not_kept(why: str) -> str:
    return f"no longer kept alive, because {why}: its devices count as idle when nothing uses them"


def parked_by(by: str) -> str:
    return f"parked by {by}: nothing is lost; it comes back with the next device call"


_BY = tuple(
    re.compile(pattern)
    for pattern in (
        r"paused for (.+?): (?:premium|standard|basic|virtual cluster|it is that one's turn)",
        r"paused for (.+?), which (?:would not get what|has waited for longer) ",
        r"(?:parked|preempted|suspended) by (?!itself)([^:]+)",
        r"leaves node [^ ]+, which is (?:being )?drained by ([^(:]+?)(?: \(|:|$)",
        r"leaves [^ ]+, which was drained by ([^(:]+?) \(",
    )
)


def by_whom(reason: str) -> str | None:
    """Who took devices or a node from a session, by the sentence that said so: another session's
    label, or a person; None: the scheduler by itself."""
    found = (pattern.match(reason) for pattern in _BY)
    return next((match[1].strip() for match in found if match), None)


_TIER = re.compile(r"paused for .+?: (premium|standard|basic) (?:goes before|needs) ")


def tier_of_whom(reason: str) -> str | None:
    """The tier for which devices were taken, by the sentence that said so; None: it was no matter
    of tiers."""
    found = _TIER.match(reason)
    return found and found[1]


def held_back(view: SessionView) -> str:
    """What a session waits for that somebody (`held_by`) has preempted."""
    if view.pending:
        return f"held back by {view.held_by}: it starts after it is resumed"
    return (
        f"preempted by {view.held_by}: nothing is lost; running code just waits until the session "
        "is resumed"
    )


def can_start_at(node: str, where: str) -> str:
    return f"waits on node {node}{where} now, which has room for it"


def queued(member: Member | None = None) -> str:
    if member is None:
        return "accepted: it starts when the runs before it leave it room"
    most = member.max_parallel
    if most is not None and most < member.members:
        return f"{member.place}: at most {most} run at once"
    return f"{member.place}: it starts when the runs before it leave it room"


def resumed_unstarted(by: str) -> str:
    return f"resumed by {by}: it starts when the runs before it leave it room"


def resumed_part(by: str) -> str:
    return f"resumed by {by}, with the other parts of its gang"


def moving(by: str, devices: tuple[str, ...]) -> str:
    return f"moving to {listed(devices)} for {by}: nothing is lost; running code just waits"


def waits(view: SessionView, by: str | None = None) -> str:
    if view.held_back:
        return held_back(view)
    who = f"{by} asked for its devices" if by else "its code called a device"
    return f"{who}: it waits for {needed(view)}"


def granted(view: SessionView, devices: tuple[str, ...]) -> str:
    verb = "comes back on" if view.saved else "gets"
    return f"{verb} {behind(view, devices)}"


def held(view: SessionView, saved: bool) -> str:
    where = behind(view, view.devices)
    return f"came back on {where}: everything as before" if saved else f"holds {where}"


def _goes_on(view: SessionView, count_: int) -> str:
    return f"runs its {view.virtual_devices} virtual devices on {count_} physical"


def shrunk(view: SessionView, count_: int, waiter: SessionView) -> str:
    return (
        f"{_goes_on(view, count_)}: {waiter.label} ({waiter.tier.value}) needs "
        f"{needed(waiter)}; nothing is lost; it grows back when devices are free"
    )


def grown(view: SessionView, count_: int) -> str:
    return f"{_goes_on(view, count_)}: devices are free; nothing is lost; running code just waits"


def resizing(view: SessionView, by: str, count_: int) -> str:
    return f"{_goes_on(view, count_)} for {by}: nothing is lost; running code just waits"


def resized(view: SessionView, why: str) -> str:
    """`why`: what is said of it for as long as it has fewer devices than it had."""
    return why or f"goes on with {behind(view, view.resizing)}: everything as before"


def resize_failed(view: SessionView, sentence: str) -> str:
    return f"goes on with {behind(view, view.devices)}, which could not be changed ({sentence})"


def wished(view: SessionView, by: str, count_: int) -> str:
    if view.device_state is DeviceState.HELD:
        return (
            f"{by} asked for {count(count_)}: it has {len(view.physical)} and gets the others when "
            "they are free"
        )
    return f"{by} asked for {count(count_)}: it gets at most so many with its next devices"


def has_already(view: SessionView, by: str) -> str:
    return f"{by} asked for {count(len(view.physical))}, which it has: it gets no others"


def withdrawn(saved: bool) -> str:
    rest = "its state is kept" if saved else "it holds no device state"
    return f"no longer needs a device, so it left the queue; {rest}"


def exited(exit_code: int | None, sentence: str) -> str:
    """How a process ended; `sentence` (the agent's) says what the code cannot say."""
    if exit_code == 0:
        return "ended normally"
    if exit_code is None:
        return f"its process is gone: {sentence}" if sentence else "its process is gone"
    if exit_code < 0:
        return f"its process was ended by signal {-exit_code}"
    return sentence or f"its process ended with exit code {exit_code}"


def gone(view: SessionView) -> str:
    what = unknown(view)
    if view.run and view.run.command:
        return f"{what}; submit it again"
    if view.run:
        return f"{what}; the outputs up to then are in {view.run.output}: submit it again"
    return f"{what} and its variables are lost; start it again"


def unknown(view: SessionView) -> str:
    return (
        f"the agent of node {view.node} was started anew and no longer knows this session: its "
        "process is gone"
    )


def not_started() -> str:
    return "it was not started before the scheduler or its node went away: start it again"


def attach_failed(sentence: str, saved: bool) -> str:
    rest = "its saved state is kept and" if saved else "nothing was lost and"
    return f"no device could be attached ({sentence}); {rest} the next device call tries again"


def park_failed(sentence: str) -> str:
    return f"could not be parked, so it keeps its devices ({sentence})"


def moved_off(device: str, reason: str, by: str) -> str:
    who = f" by {by}" if by else ""
    return (
        f"leaves {device}, which was drained{who} ({reason}); nothing is lost, it comes back on "
        "another device"
    )


def recovered(records: int, ms: float, why: str) -> str:
    cause = f"because it {why}" if why else "after a crash"
    return (
        f"its device proxy was replaced {cause}: nothing is lost "
        f"({count(records, 'record')} done again in {ms:.0f} ms)"
    )


def gave_up(operation: str, deaths: int) -> str:
    return (
        f"{operation} ended its device proxy {deaths} times, so that call failed with an error; "
        "everything else was kept: avoid that operation"
    )


def silent(limit_s: float) -> str:
    then = f"it is replaced when that lasts for {limit_s:g} s" if limit_s else "the session waits"
    return f"its device proxy does not answer: {then}; nothing is lost"


def working(operation: str, seconds: float) -> str:
    return (
        f"its device has worked on one operation ({operation}) for {duration(seconds)}; interrupt "
        "the kernel to stop waiting for it"
    )


def squashing_off(why: str) -> str:
    return f"its ranks share nothing on a device any more: {why}"


def lapsed() -> str:
    return (
        "parked because its lease was not renewed in time; nothing is lost; it comes back with the "
        "next device call"
    )


def set_down(why: str) -> str:
    return (
        f"parked because its device proxy ended and no other one got ready ({why}); its device "
        "state is on file, nothing is lost; another one is tried with the next device call"
    )


def shown(reference: CheckpointRef) -> str:
    """A checkpoint in quotes, by its name if it has one."""
    return f"'{reference.name or reference.id}'"


def suspending(by: str) -> str:
    return (
        f"suspended by {by}: everything of it goes to the store and its node becomes free; "
        "nothing is lost"
    )


def suspended(view: SessionView, reference: CheckpointRef, ms: float) -> str:
    what = f"{shown(reference)} ({size(reference.bytes)}{f' in {ms / 1e3:.1f} s' if ms else ''})"
    back = "resume or the next request from its notebook brings it back"
    if view.held_back:
        back = f"only resume brings it back, as {view.held_by} preempted it"
    return f"everything of it is in checkpoint {what}; {back}"


def called(by: str, older: CheckpointRef | None) -> str:
    return f"called back by {by}{f' from checkpoint {shown(older)}' if older else ''}"


def called_leaving(by: str) -> str:
    return f"called back by {by} while it was being suspended: nothing is lost"


def coming_back(view: SessionView, node: str) -> str:
    """What is done now, after why (the reason so far)."""
    why = view.reason.partition("; ")[0]
    return f"{why}; it comes back on node {node}"


def attempt(view: SessionView) -> str:
    """Which attempt of its run this is, in brackets; "" of the first."""
    if view.run is None or view.attempt == 1:
        return ""
    return f" (attempt {view.attempt} of {view.run.attempts})"


def came_back(view: SessionView, loss: LossReport) -> str:
    name = next((shown(c) for c in view.checkpoints if c.id == loss.checkpoint), "")
    hashes = "1 hash" if loss.hashes_checked == 1 else f"{loss.hashes_checked} hashes"
    checked = f", {hashes} checked"
    start = (
        f"came back on node {view.node} from checkpoint {name or repr(loss.checkpoint)}{checked}"
        f"{attempt(view)}"
    )
    lost = f"; not brought back: {', '.join(loss.lost)}" if loss.lost else ""
    if loss.rolled_back:
        return f"{start}; what it did after that checkpoint is undone{lost}"
    return f"{start}{lost or '; nothing is lost'}"


def putting_back(by: str, reference: CheckpointRef, discard: bool) -> str:
    rest = "is given up" if discard else "is stored first, so this can be undone"
    return (
        f"the device state of checkpoint {shown(reference)} is put back for {by}; the present one "
        f"{rest}"
    )


def put_back(view: SessionView, loss: LossReport) -> str:
    name = next((shown(c) for c in view.checkpoints if c.id == loss.checkpoint), "")
    return (
        f"the device state of checkpoint {name or repr(loss.checkpoint)} is back: "
        f"{', '.join(loss.back)}; not brought back: {', '.join(loss.lost)}"
    )


def moving_node(by: str, node: str) -> str:
    return f"moving to node {node} for {by}: nothing is lost; running code just waits"


def moving_cluster(by: str, cluster: str) -> str:
    return f"moving to cluster {cluster} for {by}: nothing is lost; running code just waits"


def going_back(by: str, reference: CheckpointRef, discard: bool) -> str:
    rest = (
        "its present state is given up"
        if discard
        else "its present state is put into the store first, so this can be undone"
    )
    return f"going back to checkpoint {shown(reference)} for {by}: {rest}"


def forked(by: str, source: SessionView, reference: CheckpointRef) -> str:
    return f"forked by {by} from checkpoint {shown(reference)} of {source.label} ({source.id})"


def waits_for_node(view: SessionView) -> str:
    return (
        f"node {view.node} does not answer, and its process and variables are nowhere else: it "
        "goes on as it was when the node is back; if the node will not come back, end it"
    )


def node_back(view: SessionView) -> str:
    return f"node {view.node} is back and had it all along: nothing is lost"


def reopened(by: str, reference: CheckpointRef, now: float, runs: bool) -> str:
    age = duration(max(0.0, now - reference.at))
    then = "it goes on by itself" if runs else "resume, or opening its notebook, brings it back"
    return (
        f"{by} took its end back: it is as of checkpoint {shown(reference)}, {age} old, and what "
        f"it did since is lost; {then}"
    )


def lost_node(
    view: SessionView, silent_s: float, reference: CheckpointRef | None, now: float
) -> str:
    gone = f"node {view.node} has been gone for {duration(silent_s)}"
    if reference is None:
        return f"{gone}: it begins again from the checkpoint that it was forked from"
    age = duration(max(0.0, now - reference.at))
    return (
        f"{gone}: it goes on from checkpoint {shown(reference)}, {age} old, and what it did since "
        "is lost"
    )


def drained(mark: NodeMark, moves: bool, called: bool) -> str:
    start = f"leaves node {mark.node}, which {mark.why}"
    if moves and called:
        return f"{start}: it moves to another node; nothing is lost; running code just waits"
    then = "as soon as a node has room for it" if called else "with its next request"
    return f"{start}: everything of it goes to the store; nothing is lost; it comes back {then}"


def too_late(view: SessionView, mark: NodeMark, now: float) -> str:
    """What is left of a session when its machine goes away before everything is in the store."""
    when = f" in {duration(max(0.0, mark.deadline - now))}" if mark.deadline is not None else ""
    gone = f"should the machine go away{when} before everything is there"
    reference = view.newest_whole
    if reference is None:
        return f"{gone}, its variables are lost, because it has no checkpoint to go on from"
    age = duration(max(0.0, now - reference.at))
    return f"{gone}, it goes on from checkpoint {shown(reference)}, {age} old"


def stays(mark: NodeMark, why: str) -> str:
    return (
        f"stays on node {mark.node}, which {mark.why}, because it cannot be stored ({why}); its "
        "devices are freed, nothing is lost: end it, or open the node again"
    )


def restarted(view: SessionView, now: float) -> str:
    reference = view.newest_whole
    name = f" {shown(reference)}, {duration(max(0.0, now - reference.at))} old" if reference else ""
    return (
        f"the agent of node {view.node} no longer knows this session: it goes on from checkpoint"
        f"{name}, and what it did since is lost"
    )


def hibernating(sentence: str) -> str:
    return f"{sentence}: it is suspended until its next server or request; nothing is lost"
